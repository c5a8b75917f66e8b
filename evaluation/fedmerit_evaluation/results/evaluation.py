"""Metrics that others bring, by the entry points ``fedmerit.metrics``: of masks, where the images are.

They are computed by `fedmerit evaluate`; no site sends them in a run.

Dice, HD95 and NSD of a finished run's final models on site folders, also on sites that took no part.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import nn

from fedmerit.errors import BadInput
from fedmerit.files import write_text
from fedmerit.plugins import Catalogue, get_part
from fedmerit.records.ledger import texts_digest
from fedmerit.records.results import COLUMNS, Row
from fedmerit.trainers.monai_trainer.batch_norm import estimate_statistics, has_statistics
from fedmerit.trainers.monai_trainer.data import Case, SiteFolder, open_sites
from fedmerit.trainers.monai_trainer.networks import patch_size
from fedmerit.trainers.monai_trainer.patches import build_samples
from fedmerit.trainers.monai_trainer.prediction import evaluate as read_overlaps
from fedmerit.trainers.monai_trainer.prediction import predict
from fedmerit_evaluation.results.final_models import final_models
from fedmerit_evaluation.results.run_folders import open_run

Mask = NDArray[np.bool_]  # (slices, height, width)
# of prediction, reference, and the mm between slices, rows and columns (None: not known); None: not defined
Metric = Callable[[Mask, Mask, tuple[float, float, float] | None], float | None]

METRICS: Catalogue[Metric] = Catalogue("metrics", {}, callable, "a function of prediction, reference and spacing")


def compute_metrics(
    network: nn.Module, case: Case, labels: Sequence[str], metrics: Mapping[str, Metric]
) -> Iterator[tuple[str, str, float | None]]:
    """(metric, label, value) of one case."""
    masks, reference = predict(network, np.array(case.image)), np.array(case.label, dtype=np.bool_)
    for place, label in enumerate(labels):
        for name, metric in metrics.items():
            value = metric(masks[:, place], reference[:, place], case.spacing)
            yield name, label, None if value is None else float(value)


DIGITS = 8  # of the digest of sites
ESTIMATED = "-estimated"  # ends the names of tables of statistics that each site estimated


def evaluate(
    run: Path,
    sites: Path,
    split: str = "testing",
    out: Path | None = None,
    estimated: bool = False,
    metrics: Sequence[str] = (),
) -> pd.DataFrame:
    """Evaluate the global model on every site, or each site's own model on its site; and write the table.

    Args:
        run: a finished run folder.
        sites: a folder of site folders.
        split: ``training``, ``validation``, ``testing`` or ``server_validation``.
        out: CSV file to write; ``RUN/evaluation/<split>-<name of the sites folder>-<digest of the sites>.csv`` where
            not given, and ``...-estimated.csv`` of estimated statistics.
        estimated: take not the BatchNorm statistics that the run shared but those of each site's own training images,
            of which no label is read: what a hospital that took no part can do.
        metrics: names of others', of `fedmerit_evaluation.results.evaluation.METRICS`, to add.

    Returns:
        Rows in the schema of results.csv, of the last round: Dice, HD95, NSD and voxel counts per case and label.

    Raises:
        BadInput: no model, no case, or a site that no model fits (channels, labels, image size); or statistics
            are to be estimated of a network that has none, or on a site without training images.
    """
    opened = open_run(run)
    folders = open_sites(sites)
    model_of = final_models(run)
    rows: list[Row] = []
    amp = opened.info["training"].get("amp", False)
    extra = {name: get_part(METRICS, name, "metric") for name in metrics}
    for site in folders:
        network = with_batch_statistics(site, model_of(site)) if estimated else model_of(site)
        head = (opened.info["run"], opened.info["method"], opened.seed, max(opened.rounds_done, 1) - 1, site.name)
        for overlap in read_overlaps(network, site.cases(split), site.labels, amp, final=True):
            columns = (split, overlap.case, overlap.label)
            rows += (Row(*head, name, value, *columns) for name, value in overlap.quantities.items())
        for position, case in enumerate(site.cases(split) if extra else ()):
            for name, label, value in compute_metrics(network, case, site.labels, extra):
                rows.append(Row(*head, name, value, split, f"{position:03d}", label))
    if not rows:
        raise BadInput(f"{sites}: no site has a {split} case; choose another --split or prepare the sites again")
    table = pd.DataFrame([asdict(row) for row in rows], columns=COLUMNS).astype({"value": float})
    whose = texts_digest(site.digest for site in folders)[:DIGITS]  # folders of one name may hold other sites
    file = f"{split}-{Path(sites).resolve().name}-{whose}{ESTIMATED * estimated}.csv"
    out = out or Path(run) / "evaluation" / file
    write_text(out, table.to_csv(index=False, lineterminator="\n"))
    return table


def with_batch_statistics(site: SiteFolder, network: nn.Module) -> nn.Module:
    """A copy with BatchNorm statistics of the site's training images; `BadInput` where there are none of either."""
    if not has_statistics(network):
        raise BadInput(
            "the run's network keeps no BatchNorm statistics, so that there are none to estimate; leave the option out"
        )
    if not site.cases("training"):
        raise BadInput(f"site {site.name}: has no training images to estimate statistics on; prepare it with some")
    own = copy.deepcopy(network)
    estimate_statistics(own, build_samples(site.cases("training"), patch_size(own)))
    return own
