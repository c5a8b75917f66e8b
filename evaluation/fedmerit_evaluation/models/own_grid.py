"""Scores with the raw images at hand: on the hospitals' own grids, and of masks that another program made."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedmerit.errors import BadInput
from fedmerit.files import read_json
from fedmerit.plugins import get_part
from fedmerit.schema.configuration.data import Preprocessing
from fedmerit.schema.results import COLUMNS, Row
from fedmerit.schema.scores import Overlap
from fedmerit.schema.site_folder import Case, SiteFolder, open_sites
from fedmerit.trainers.monai.surfaces import measure_surfaces
from fedmerit.trainers.saved_networks import read_description
from fedmerit_data.preparation import recorded_allowance, recorded_kind, recorded_labels
from fedmerit_data.preparing.sources import read_sources
from fedmerit_data.raw_cases import Decoded, RawCase, list_visible
from fedmerit_data.readers.image_files import is_readable, name_and_suffix
from fedmerit_data.readers.label_map import ANY, LabelMap
from fedmerit_data.readers.labelled_images import decode
from fedmerit_data.spatial.preprocessing import Box, resize_label
from fedmerit_evaluation.models.predictor import Predictor
from fedmerit_evaluation.results.evaluation import METRICS, Metric, final_models, model_folder, unseen_cases
from fedmerit_evaluation.results.runs import open_run

STORED, OWN = "stored", "own"  # grids: that of the site folders, and that of each raw image
Masks = NDArray[np.bool_]  # (slices, labels, height, width) on the grid of a raw image, its slices as `prepare` orders
Predict = Callable[[SiteFolder, Case, RawCase, Decoded, Box], Masks]


@dataclass(frozen=True)
class Scored:
    """The source of the masks that are scored: the first columns of their rows."""

    run: str
    method: str
    seed: int = 0
    round: int = 0
    fold: int | None = None


def evaluate_run(
    run: Path,
    sites: Path,
    source: Path,
    split: str,
    grid: str,
    metrics: Sequence[str] = (),
    note: Callable[[str], object] = lambda text: None,
) -> pd.DataFrame:
    """Evaluate a run's final models by the masks that they make of raw images, in the schema of results.csv.

    Args:
        source: The raw data that these were prepared from.
        grid: `STORED` or `OWN`.
        note: As of `fedmerit_evaluation.results.evaluation.evaluate`.

    Raises:
        BadInput: no model fits, or a case of the sites is not in the source.
    """
    opened, model_of = open_run(run), final_models(run)
    description, _ = read_description(model_folder(run))

    def predicted(site: SiteFolder, case: Case, raw: RawCase, image: Decoded, box: Box) -> Masks:
        fed = Preprocessing.from_dict(site.info)
        return Predictor(run, model_of(site), description, fed).masks(image, box)

    scored = Scored(opened.info["run"], opened.info["method"], opened.seed, max(opened.rounds_done, 1) - 1, opened.fold)
    return _score(scored, sites, source, split, grid, metrics, predicted, run, note)


def evaluate_masks(
    masks: Path, sites: Path, source: Path, split: str, grid: str, metrics: Sequence[str] = ()
) -> pd.DataFrame:
    """Evaluate masks that another program predicted from the raw images.

    Args:
        masks: A folder, perhaps with one for each site, of files ``CASE_LABEL`` as `fedmerit predict` writes them, or
            ``CASE`` with the values of the label map; of any format that is read, on the grid of its image.
        sites: As of `evaluate_run`, like the others.

    Raises:
        BadInput: a case has no mask, or one on another grid; or a case of the sites is not in the source.
    """

    def read(site: SiteFolder, case: Case, raw: RawCase, image: Decoded, box: Box) -> Masks:
        found, labels = _find_mask(masks, site, raw)
        return decode(found, labels, site.channels, recorded_allowance(site)).label > 0

    return _score(Scored(masks.resolve().name, "masks"), sites, source, split, grid, metrics, read)


def _score(
    scored: Scored,
    sites: Path,
    source: Path,
    split: str,
    grid: str,
    metrics: Sequence[str],
    predict: Predict,
    run: Path | None = None,
    note: Callable[[str], object] = lambda text: None,
) -> pd.DataFrame:
    extra = {name: get_part(METRICS, name, "metric") for name in metrics}
    rows: list[Row] = []
    for site in (one.in_fold(scored.fold, missing_ok=True) for one in open_sites(sites)):
        kind, sources, boxes = recorded_kind(site), read_sources(site), _boxes(site)
        scored_cases = site.cases(split) if run is None else unseen_cases(run, site, split, note)
        for place, case in enumerate(site.cases(split)):
            if case not in scored_cases:
                continue
            if case.name not in sources:
                raise BadInput(f"{site.path}: does not state the raw files of case {case.name}; prepare the site again")
            raw = sources[case.name].open(source)
            image, box = kind.decode(raw), boxes[case.name]
            found, reference, spacing = predict(site, case, raw, image, box), image.label > 0, _steps(image)
            if grid == STORED:
                found = resize_label(found.astype(np.uint8), site.image_size[0], box, len(case.label)) > 0
                reference, spacing = np.asarray(case.label) > 0, case.spacing
            if found.shape != reference.shape:
                raise BadInput(
                    f"case {case.name} of site {site.name}: masks of shape {found.shape}, the reference has "
                    f"{reference.shape}; they have to be of one image"
                )
            for name, label, value in _quantities(found, reference, spacing, site.labels, extra):
                rows.append(Row(**asdict(scored), site=site.name, quantity=name, value=value, split=split,
                                patient=case.number, case=f"{place:03d}", label=label))  # fmt: skip
    if not rows:
        raise BadInput(f"{sites}: no site has a {split} case; choose another --split or prepare the sites again")
    return pd.DataFrame([asdict(row) for row in rows], columns=COLUMNS).astype({"value": float})


def _quantities(
    found: Masks,
    reference: Masks,
    spacing: tuple[float, float, float] | None,
    labels: Sequence[str],
    metrics: Mapping[str, Metric],
) -> Iterator[tuple[str, str, float | None]]:
    """Yield (quantity, label, value) of one case."""
    for place, (label, surface) in enumerate(zip(labels, measure_surfaces(found, reference, spacing), strict=True)):
        ours, theirs = found[:, place], reference[:, place]
        both = int((ours & theirs).sum())
        overlap = Overlap("", label, both, int(ours.sum()) - both, int(theirs.sum()) - both, surface)
        for name, value in overlap.quantities.items():
            yield name, label, value
        for name, metric in metrics.items():
            yield name, label, metric(ours, theirs, spacing)


def _boxes(site: SiteFolder) -> dict[str, Box]:
    """Return the window of each case, by name, that `fedmerit prepare` cropped to."""
    lists = read_json(site.path / "datalist.json")
    try:
        return {entry["case"]: Box(**entry["crop"]) for split in site.splits for entry in lists.get(split, [])}
    except (KeyError, TypeError) as error:
        raise BadInput(
            f"{site.path / 'datalist.json'}: lacks the window of a case ({error}); prepare it again"
        ) from None


def _steps(image: Decoded) -> tuple[float, float, float] | None:
    if image.spacing is None or image.slice_distance is None:
        return None
    return image.slice_distance, *image.spacing


def _find_mask(folder: Path, site: SiteFolder, raw: RawCase) -> tuple[RawCase, LabelMap]:
    """Return the case with the files of its mask in place of its own, and what their values mean."""
    inner = folder / site.name if (folder / site.name).is_dir() else folder
    files = {name_and_suffix(path)[0]: path for path in list_visible(inner) if path.is_file() and is_readable(path)}
    of_labels = [files.get(f"{raw.name}_{label}") for label in site.labels]
    parts = [path for path in of_labels if path is not None]
    if len(parts) == len(site.labels):
        labels: LabelMap = {label: (label,) for label in site.labels}
        return replace(raw, label=parts[0], more=tuple(parts[1:]), organs=site.labels), labels
    if f"{raw.name}.seg" in files:  # as `fedmerit predict` writes them of DICOM images
        return replace(raw, label=files[f"{raw.name}.seg"], more=(), organs=()), {one: (one,) for one in site.labels}
    if raw.name in files and (labels := recorded_labels(site) or (ANY if len(site.labels) == 1 else {})):
        return replace(raw, label=files[raw.name], more=(), organs=()), labels
    expected = ", ".join(f"{raw.name}_{label}" for label in site.labels)
    raise BadInput(
        f"{inner}: no mask of case {raw.name} of site {site.name}; expected the file(s) {expected}, or {raw.name}"
    )
