"""The final models of a run, and their evaluation on site folders, also on sites that took no part.

A run has one global model, or one per site; sites that received none have their own. Further metrics come as plugins,
by the entry points ``fedmerit.metrics``; `fedmerit evaluate` computes them where the images are.
"""

import copy
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import nn

from fedmerit.errors import BadInput
from fedmerit.evidence.ledger import texts_digest
from fedmerit.files import require_inside, write_text
from fedmerit.plugins import Catalogue, get_part
from fedmerit.schema.configuration.data import Preprocessing
from fedmerit.schema.configuration.specs import HE
from fedmerit.schema.results import COLUMNS, Row
from fedmerit.schema.run_info import read_run
from fedmerit.schema.site_folder import Case, SiteFolder, open_sites
from fedmerit.trainers.factory import load_network
from fedmerit.trainers.monai.evaluation import estimate_statistics, has_statistics
from fedmerit.trainers.monai.network_checks import check_image_size
from fedmerit.trainers.monai.networks import patch_size
from fedmerit.trainers.monai.prediction import evaluate as read_overlaps
from fedmerit.trainers.monai.prediction import predict
from fedmerit.trainers.monai.samples import build_samples
from fedmerit.trainers.monai.surfaces import surface_dice_by_area
from fedmerit.trainers.saved_networks import read_description
from fedmerit.trainers.seen_patients import drop_seen
from fedmerit_evaluation.results.runs import open_run


def model_folder(run: Path) -> Path:
    """Return the folder of a run's final models; `BadInput` if there is none."""
    folder = Path(run) / "models"
    require_inside(Path(run))
    names = sorted(path.stem for path in folder.glob("*.pt"))
    if not names and HE in read_run(run).get("privacy", []):
        raise BadInput(
            f"{run}: the run was encrypted, so only the sites have its model; take models/ from a site's run folder"
        )
    if not names:
        raise BadInput(
            f"{folder}: no model in it; let the run finish, or resume it with `fedmerit run --resume --out {run}`"
        )
    return folder


def final_model(run: Path, site: str | None = None) -> Path:
    """Return the file of a final model: the global or only one, else that of ``site``, or the one selected for it.

    Raises:
        BadInput: there is none, or one for each site and ``site`` is none of these.
    """
    selected = Path(run) / "models" / "selected" / f"{site}.pt"  # by final_model=selected
    if site is not None and selected.is_file():
        return selected
    files = {path.stem: path for path in sorted(model_folder(run).glob("*.pt"))}
    shared = "global" if "global" in files else next(iter(files))
    if site is None and ("global" in files or len(files) == 1):
        return files[shared]
    if site in files:
        return files[site]
    given = "has one model per site" if site is None else f"has no model of {site!r}"
    raise BadInput(f"{run}: {given}; choose with --site one of {', '.join(files)}")


def final_models(run: Path) -> Callable[[SiteFolder], nn.Module]:
    """Return a function from a site folder to its final model: the global one, the only one, or the site's own.

    Raises:
        BadInput: the run has no models; or, from the returned function, none fits the site.
    """
    folder = model_folder(run)
    names = sorted(path.stem for path in folder.glob("*.pt"))
    trained, recorded = read_description(folder)
    loaded: dict[str, nn.Module] = {}

    def model_of(site: SiteFolder) -> nn.Module:
        shared = site.name not in names and ("global" in names or len(names) == 1)
        name = ("global" if "global" in names else names[0]) if shared else site.name
        if name not in names:
            raise BadInput(
                f"site {site.name}: {run} has one model per site, and none for it (there are {', '.join(names)}); "
                "evaluate on these sites, or a run that has a global model"
            )
        for what, ours, theirs in (
            ("channels", trained.in_channels, site.channels),
            ("labels", trained.labels, site.labels),
        ):
            if ours != theirs:
                raise BadInput(
                    f"site {site.name}: its {what} are {theirs}, but {run} was trained for {ours}; "
                    "prepare the site as the run's sites were"
                )
        channels = recorded.channel_names if recorded else ()
        if channels and site.channel_names and channels != site.channel_names:
            raise BadInput(
                f"site {site.name}: its channels are {', '.join(site.channel_names)}, but {run} was trained on "
                f"{', '.join(channels)}; prepare the site with --channels {','.join(channels)}"
            )
        check_image_size(trained, site.image_size)
        if name not in loaded:
            loaded[name] = load_network(folder, name)
        return loaded[name]

    return model_of


def list_preparation_differences(run: Path, sites: Path) -> list[str]:
    """Return a text for each difference in preparation between site folders and the images of a run."""
    _, preprocessing = read_description(model_folder(run))
    trained = preprocessing.to_dict() if preprocessing else {}
    differing: dict[tuple[str, str], list[str]] = defaultdict(list)
    for site in open_sites(sites):
        own = {**site.info, "size": list(site.image_size)}
        for name in (field.name for field in fields(Preprocessing)):
            if name in own and name in trained and own[name] != trained[name]:
                differing[name, json.dumps(own[name])].append(site.name)
    return [
        f"site {', '.join(names)}: prepared with {field} {own}, but {run} was trained with {json.dumps(trained[field])}"
        for (field, own), names in differing.items()
    ]


Mask = NDArray[np.bool_]  # (slices, height, width)
# of prediction, reference, and spacing of slices, rows and columns in mm (None: not known); None: undefined
Metric = Callable[[Mask, Mask, tuple[float, float, float] | None], float | None]

METRICS: Catalogue[Metric] = Catalogue(
    "metrics", {"nsd_area": surface_dice_by_area}, callable, "a function of prediction, reference and spacing"
)


def compute_metrics(
    network: nn.Module, case: Case, labels: Sequence[str], metrics: Mapping[str, Metric]
) -> Iterator[tuple[str, str, float | None]]:
    """Yield (metric, label, value) of one case."""
    masks, reference = predict(network, np.array(case.image)), np.array(case.label, dtype=np.bool_)
    for place, label in enumerate(labels):
        for name, metric in metrics.items():
            value = metric(masks[:, place], reference[:, place], case.spacing)
            yield name, label, None if value is None else float(value)


DIGITS = 8  # of the digest of sites
ESTIMATED = "-estimated"  # suffix of tables with BatchNorm statistics that each site estimated


def evaluate(
    run: Path,
    sites: Path,
    split: str = "testing",
    out: Path | None = None,
    estimated: bool = False,
    metrics: Sequence[str] = (),
    note: Callable[[str], object] = lambda text: None,
) -> pd.DataFrame:
    """Evaluate the global model on every site, or each site's own model on its site; and write the table.

    Args:
        run: a finished run folder.
        sites: the folder of site folders.
        split: ``training``, ``validation``, ``testing`` or ``server_validation``.
        out: CSV file to write; ``RUN/evaluation/<split>-<name of the sites folder>-<digest of the sites>.csv`` by
            default, and ``...-estimated.csv`` with estimated statistics.
        estimated: use BatchNorm statistics of each site's own training images (no label is read) instead of those
            of the run, as a hospital that took no part can.
        metrics: names of plugins, of `fedmerit_evaluation.results.evaluation.METRICS`, to add.
        note: called with a sentence on test cases of a site that are not scored, since the run was trained on, or its
            model chosen by, images of their patients.

    Returns:
        Rows in the schema of results.csv, of the last round: Dice, HD95, NSD and voxel counts per case and label.

    Raises:
        BadInput: no model, no case, or a site that no model fits (channels, labels, image size); or statistics
            are to be estimated of a network that has none, or on a site without training images.
    """
    opened = open_run(run)
    folders = opened.in_its_fold(open_sites(sites))
    model_of = final_models(run)
    rows: list[Row] = []
    amp = opened.info["training"].get("amp", False)
    extra = {name: get_part(METRICS, name, "metric") for name in metrics}
    for site in folders:
        network = with_batch_statistics(site, model_of(site)) if estimated else model_of(site)
        head = (opened.info["run"], opened.info["method"], opened.seed, max(opened.rounds_done, 1) - 1, site.name)
        cases = unseen_cases(run, site, split, note)
        places = [f"{position:03d}" for position, case in enumerate(site.cases(split)) if case in cases]
        for overlap in read_overlaps(network, cases, site.labels, amp, final=True):
            at = {**overlap.place, "case": places[int(overlap.case)]}
            rows += (
                Row(*head, name, value, split, fold=opened.fold, **at) for name, value in overlap.quantities.items()
            )
        for position, case in zip(places, cases if extra else (), strict=False):
            for name, label, value in compute_metrics(network, case, site.labels, extra):
                rows.append(Row(*head, name, value, split, position, label, patient=case.number, fold=opened.fold))
    if not rows:
        raise BadInput(f"{sites}: no site has a {split} case; choose another --split or prepare the sites again")
    table = pd.DataFrame([asdict(row) for row in rows], columns=COLUMNS).astype({"value": float})
    table["fold"] = "" if opened.fold is None else str(opened.fold)  # as read back
    whose = texts_digest(site.digest for site in folders)[:DIGITS]  # folders with one name may hold other sites
    file = f"{split}-{Path(sites).resolve().name}-{whose}{ESTIMATED * estimated}.csv"
    out = out or Path(run) / "evaluation" / file
    write_text(out, table.to_csv(index=False, lineterminator="\n"))
    return table


def unseen_cases(run: Path, site: SiteFolder, split: str, note: Callable[[str], object]) -> Sequence[Case]:
    """Return the cases of a split; to test on, without those of patients that the run has seen, which are noted.

    Raises:
        BadInput: the run has seen the patients of all test cases.
    """
    if split != "testing":
        return site.cases(split)
    cases, seen = drop_seen(Path(run), site, site.cases(split))
    if seen:
        note(seen)
    return cases


def with_batch_statistics(site: SiteFolder, network: nn.Module) -> nn.Module:
    """Return a copy with BatchNorm statistics of the site's training images; `BadInput` if there are none."""
    if not has_statistics(network):
        raise BadInput("the run's network keeps no BatchNorm statistics; leave the option out")
    if not site.cases("training"):
        raise BadInput(f"site {site.name}: has no training images to estimate statistics on; prepare it with some")
    own = copy.deepcopy(network)
    estimate_statistics(own, build_samples(site.cases("training"), patch_size(own)))
    return own
