"""Images of each site's best, median and worst test case with the outlines of reference and prediction."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from fedmerit.errors import BadInput, Untrusted
from fedmerit.schema.site_folder import Case, SiteFolder, open_sites
from fedmerit.trust import allowed_place
from fedmerit_data.figure_style import STYLE
from fedmerit_evaluation.figures.drawing import NARROW, png, webp
from fedmerit_evaluation.figures.pages import SavedFigure, address_of, save_png
from fedmerit_evaluation.report.words import join_words, say
from fedmerit_evaluation.results.runs import Run
from fedmerit_evaluation.results.views import STANDALONE

REFERENCE = "#F0E442"
PREDICTION = "#FF4FA3"
LOCAL = "local"  # the name of local training
KEPT = {1: {"worst"}, 2: {"best", "worst"}, 3: {"best", "median", "worst"}}  # by how many cases every site has
WHICH = {"only": "only case", "best": "best case", "median": "median case", "worst": "worst case"}


@dataclass(frozen=True)
class Overlay:
    """A slice of a case of a site, where the organ is largest, as one run's final model segments it.

    Of a network of volumes three planes (`three_planes`).
    """

    site: str
    which: str  # best, median, worst; "only" where the site has one test case
    method: str
    dice: float  # of the whole case, mean over labels
    image: NDArray[np.float32]  # (h, w) or (h, w, 3), 0 to 1
    reference: NDArray[np.bool_]  # (labels, h, w)
    prediction: NDArray[np.bool_]  # (labels, h, w)


def overlay_pictures(
    runs: Sequence[Run], sites: Path | None, file: Path, *, images: bool, only: str | None = None
) -> tuple[dict[str, SavedFigure], str]:
    """Return the worst case of each site, by its name, or why there is none; all overlays are written to a PNG.

    Args:
        runs: with models; the first chooses the cases.
        sites: the prepared site folders; None: those of the first run, if they are on this machine.
        file: the PNG. An older one is removed if there are no overlays.
        images: whether images may be shown at all.
        only: the site to show; None: all.

    Raises:
        BadInput: ``sites`` is given and cannot be shown; or a run's model is of code that nobody trusts.
    """
    file.unlink(missing_ok=True)
    if not images:
        return {}, "Images were left out of this report on request. It holds no image, file name or patient."
    place = sites or allowed_place(runs[0].info.get("sites_folder"))
    if place is None or (sites is None and not place.is_dir()):
        return {}, "The images are not on this machine. A hospital sees its own in a report made there."
    tested = [run for run in runs if run.tested]
    if not tested:
        return {}, "No segmentation is shown: the run has no test Dice yet."
    try:
        shown = without_blanks(make_overlays(tested, place, only))
        save_png(file, png(draw_overlays(shown)))
    except BadInput as error:
        if sites is not None or isinstance(error, Untrusted):
            raise
        return {}, f"No segmentation is shown: {error if only is None else 'its images are not on this machine'}."
    in_volumes = any(run.info.get("plan", {}).get("network", {}).get("patch") for run in tested)
    planes = ", and the sagittal and coronal plane through its middle" if in_volumes else ""
    caption = (
        f"The {{}} by the Dice of {tested[0].label}, seed {tested[0].seed}, in the slice where the organ is "
        f"largest{planes}. Reference yellow, prediction pink and dashed."
    )
    return {site: _worst_case(shown, site, caption) for site in dict.fromkeys(one.site for one in shown)}, ""


def _worst_case(shown: Sequence[Overlay], site: str, caption: str) -> SavedFigure:
    worst = [one for one in shown if one.site == site and one.which in ("worst", "only")]
    address = address_of(webp(draw_worst(worst)), "webp")
    return SavedFigure(site, caption.format(WHICH[worst[0].which]), address, say("seen_overlays", worst))


def chosen_cases(dice: pd.Series) -> dict[str, str]:
    """Return the best, median and worst case by ``dice`` (cases, NaN left out), each once: of two there is no median.

    The median case is the one nearest the median; of equals the first in name order.

    Raises:
        BadInput: no case has a Dice.
    """
    known = dice.dropna().sort_index()
    if known.empty:
        raise BadInput("no test case of the site has a Dice")
    if len(known) == 1:
        return {"only": str(known.index[0])}
    ends = {"best": str(known.idxmax()), "worst": str(known[::-1].idxmin())}
    between = known.drop(list(ends.values()))
    middle = {"median": str((between - known.median()).abs().idxmin())} if len(between) else {}
    return {"best": ends["best"], **middle, "worst": ends["worst"]}


def largest_slice(reference: NDArray[Any], prediction: NDArray[Any]) -> int:
    """Return the slice with the largest reference, or the largest prediction if the reference is empty.

    Args:
        reference: (slices, labels, h, w), and ``prediction`` alike.
    """
    shown = reference if reference.any() else prediction
    return int(np.asarray(shown, dtype=bool).any(axis=1).sum(axis=(1, 2)).argmax())


def three_planes(volume: NDArray[Any], place: tuple[int, int, int], stretch: float) -> NDArray[Any]:
    """Return the axial slice, beside it the sagittal, below it the coronal (head up): as (..., h + d, w + d).

    Args:
        volume: (slices, ..., h, w).
        place: slice, row and column that the planes have in common.
        stretch: distance of slices, in rows; d is so many slices.
    """
    depth, row, column = place
    upright = volume[np.repeat(np.arange(len(volume))[::-1], max(1, round(stretch)))]
    beside = np.moveaxis(upright[..., column], 0, -1)[..., ::-1]
    below = np.moveaxis(upright[..., row, :], 0, -2)
    corner = np.full((*beside.shape[:-2], below.shape[-2], beside.shape[-1]), volume.min(), volume.dtype)
    return np.block([[volume[depth], beside], [below, corner]])


def make_overlays(runs: Sequence[Run], sites: Path, only: str | None = None) -> list[Overlay]:
    """Return overlays of each method's first seed, on the same cases: those chosen by the first run's Dice.

    Args:
        runs: tested, with models.
        sites: folder of site folders; the run's sites that are in it and were tested are shown.
        only: one site to show; None: all.

    Raises:
        BadInput: none of the sites is here, one was prepared differently, or the models are missing.
    """
    from fedmerit_evaluation.results.evaluation import final_models  # it takes seconds to import MONAI

    folders = {site.name: site for site in runs[0].in_its_fold(open_sites(sites))}
    wanted = [only] if only is not None else runs[0].sites
    here = [name for name in wanted if name in folders]
    if not here:
        raise BadInput(f"{sites}: holds {', '.join(folders)}, none of the run's sites {', '.join(wanted)}")
    first: dict[str, Run] = {}
    for run in runs:
        if run.fold == runs[0].fold:
            first.setdefault(run.label, run)
    tested = runs[0].results.dice.cases.dropna().index.get_level_values("site")
    here = [name for name in here if name in tested]
    if not here:
        raise BadInput(f"{runs[0].path}: holds no test Dice of the sites in {sites}")
    for run in first.values():
        known = {name: folders[name].digest for name in here}
        if other := [name for name in here if run.site_digests.get(name, known[name]) != known[name]]:
            raise BadInput(f"{sites}: {join_words(other)} prepared differently than for {run.path}; name its own sites")
    chosen = {name: _chosen(runs[0], folders[name]) for name in here}
    return [
        overlay
        for run in first.values()
        for model_of in [final_models(run.path)]
        for name, cases in chosen.items()
        for which, case in cases.items()
        for overlay in [_overlay(run, folders[name], which, case, model_of(folders[name]))]
    ]


def without_blanks(shown: Sequence[Overlay]) -> list[Overlay]:
    """Return as many cases of every site as the site with the fewest has; with several methods at most two.

    One is the worst, two are the best and the worst.
    """
    sites = {overlay.site: {one.which for one in shown if one.site == overlay.site} for overlay in shown}
    several = len({one.method for one in shown}) > 1
    kept = KEPT[min(2 if several else 3, *map(len, sites.values()))]
    return [one for one in shown if one.which in kept or one.which == "only"]


def draw_worst(shown: Sequence[Overlay]) -> Figure:
    """Draw the worst case of one site, the methods side by side, to be shown small."""
    with style.context(STYLE):
        figure = Figure(figsize=(1.3 * len(shown), 1.6), dpi=150, layout="constrained")
        panels = figure.subplots(1, len(shown), squeeze=False)[0]
        for panel, overlay in zip(panels, shown, strict=True):
            _outline(panel, overlay)
            name = LOCAL if overlay.method == STANDALONE else overlay.method
            panel.set_title(f"{name}\n{100 * overlay.dice:.1f} %", fontsize=8, fontweight="normal")
    return figure


def _outline(panel: Axes, overlay: Overlay) -> None:
    """Draw an image with the outlines of reference and prediction."""
    panel.set_axis_off()
    panel.imshow(overlay.image, cmap="gray", vmin=0, vmax=1, interpolation="bilinear")
    for masks, colour, line in ((overlay.reference, REFERENCE, "solid"), (overlay.prediction, PREDICTION, "dashed")):
        for mask in masks:
            if mask.any():
                panel.contour(mask, levels=[0.5], colors=[colour], linewidths=1.4, linestyles=line)


def draw_overlays(shown: Sequence[Overlay]) -> Figure:
    """Draw a row per site: its best, median and worst case, of each the methods side by side; no cell is blank."""
    shown = without_blanks(shown)
    sites, methods = (
        list(dict.fromkeys(names)) for names in ([one.site for one in shown], [one.method for one in shown])
    )
    columns = len(shown) // len(sites)
    with style.context(STYLE):
        side = max(1.25, NARROW / columns)
        size = (columns * side, (side + 0.42) * len(sites) + 0.4)
        figure = Figure(figsize=size, dpi=130, layout="constrained")
        panels = figure.subplots(len(sites), columns, squeeze=False)
        for row, site in enumerate(sites):
            own = [one for one in shown if one.site == site]
            own.sort(key=lambda one: (list(WHICH).index(one.which), methods.index(one.method)))
            for panel, overlay in zip(panels[row], own, strict=True):
                _outline(panel, overlay)
                title = overlay.site if len(methods) == 1 else f"{overlay.site}, {overlay.method}"
                text = f"{title}\n{WHICH[overlay.which]}: {100 * overlay.dice:.1f} %"
                panel.set_title(text, fontsize=8, fontweight="normal")
        handles = [
            Line2D([], [], color="#b8ad00", linewidth=2, label="reference"),
            Line2D([], [], color=PREDICTION, linewidth=1.5, linestyle="dashed", label="prediction"),
        ]
        figure.legend(handles=handles, loc="outside lower left", ncols=2)
    return figure


def _chosen(run: Run, site: SiteFolder) -> dict[str, Case]:
    dice = run.results.dice.cases
    here = dice[dice.index.get_level_values("site") == site.name].droplevel(["method", "seed", "site"])
    cases = site.cases("testing")
    if len(here) != len(cases):
        raise BadInput(f"{site.path}: {len(cases)} test cases, but {len(here)} in the run; it was prepared again since")
    places = {f"{place:03d}": case for place, case in enumerate(cases)}  # that is how results name them
    chosen = chosen_cases(here)
    if unknown := sorted({*chosen.values()} - {*places}):
        raise BadInput(f"{run.path / 'results.csv'}: {site.name} has no test case {unknown[0]!r:.40}; run it again")
    return {which: places[name] for which, name in chosen.items()}


def _overlay(run: Run, site: SiteFolder, which: str, case: Case, network: Any) -> Overlay:
    from fedmerit.trainers.monai.networks import patch_size
    from fedmerit.trainers.monai.prediction import predict

    prediction, image = predict(network, case.image), np.asarray(case.image)
    reference = np.asarray(case.label, dtype=bool)
    position = largest_slice(reference, prediction)

    def shown(volume: NDArray[Any]) -> NDArray[Any]:
        if not patch_size(network):
            return np.asarray(volume[position])
        rows, columns = np.nonzero((reference if reference.any() else prediction)[position].any(axis=0))
        middle = (int(np.median(rows)), int(np.median(columns))) if len(rows) else (0, 0)
        return three_planes(volume, (position, *middle), case.spacing[0] / case.spacing[1] if case.spacing else 1)

    return Overlay(
        site=site.name,
        which=which,
        method=run.label,
        dice=_dice(reference, prediction),
        image=_shown(shown(image)),
        reference=shown(reference),
        prediction=shown(prediction),
    )


def _dice(reference: NDArray[np.bool_], prediction: NDArray[np.bool_]) -> float:
    size = reference.sum(axis=(0, 2, 3)) + prediction.sum(axis=(0, 2, 3))
    both = 2 * (reference & prediction).sum(axis=(0, 2, 3))
    return float(np.mean(both[size > 0] / size[size > 0])) if size.any() else float("nan")


def _shown(image: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return (channels, h, w) as (h, w) or, of three channels, (h, w, 3), from its 1st to 99th percentile to 0 to 1."""
    low, high = np.percentile(image, (1, 99))
    scaled = np.clip((image - low) / max(high - low, 1e-6), 0, 1).astype(np.float32)
    return np.moveaxis(scaled, 0, -1) if len(image) == 3 else scaled[0]
