"""One image per site with the outlines of reference and prediction: a typical case, where the organ is largest."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from evaluation.figures import STYLE
from evaluation.models import final_models
from evaluation.runs import Run
from evaluation.tables import case_dice
from fedmerit.data import Case, SiteFolder, open_sites
from fedmerit.errors import BadInput
from fedmerit.training import predict

REFERENCE = "#F0E442"
PREDICTION = "#FF4FA3"


@dataclass(frozen=True)
class Overlay:
    """One site's slice, as one run's final model segments it."""

    site: str
    method: str
    dice: float  # of the whole case, mean over labels
    image: NDArray[np.float32]  # (h, w) or (h, w, 3), 0 to 1
    reference: NDArray[np.bool_]  # (labels, h, w)
    prediction: NDArray[np.bool_]  # (labels, h, w)


def typical_case(dice: pd.Series) -> str:
    """The case whose Dice is nearest the median of ``dice`` (cases, NaN left out); the first in name order of equals.

    Raises:
        BadInput: no case has a Dice.
    """
    known = dice.dropna().sort_index()
    if known.empty:
        raise BadInput("no test case of the site has a Dice")
    return str((known - known.median()).abs().idxmin())


def largest_slice(reference: NDArray[Any], prediction: NDArray[Any]) -> int:
    """The slice with the largest reference, or the largest prediction where the reference is empty.

    Args:
        reference: (slices, labels, h, w), and ``prediction`` alike.
    """
    shown = reference if reference.any() else prediction
    return int(np.asarray(shown, dtype=bool).any(axis=1).sum(axis=(1, 2)).argmax())


def overlays(runs: Sequence[Run], sites: Path) -> list[Overlay]:
    """Overlays of each method's first seed, all methods on the same case of a site: the first run's typical one.

    Of the sites whose folders are here: a hospital has its own.

    Raises:
        BadInput: none of the sites is here, it was prepared again since, or the models are missing.
    """
    folders = {site.name: site for site in open_sites(sites)}
    here = [name for name in runs[0].sites if name in folders]
    if not here:
        raise BadInput(f"{sites}: holds {', '.join(folders)}, none of the run's sites {', '.join(runs[0].sites)}")
    first: dict[str, Run] = {}
    for run in runs:
        first.setdefault(run.label, run)
    chosen = {name: _typical(runs[0], folders[name]) for name in here}
    return [
        overlay
        for run in first.values()
        for model_of in [final_models(run.path)]
        for name, case in chosen.items()
        for overlay in [_overlay(run, folders[name], case, model_of(folders[name]))]
    ]


def draw(shown: Sequence[Overlay]) -> Figure:
    """One row per method, one column per site (one method: up to four sites in a row)."""
    methods = list(dict.fromkeys(overlay.method for overlay in shown))
    columns = min(4, len(shown)) if len(methods) == 1 else len(shown) // len(methods)
    rows = -(-len(shown) // columns)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(2.35 * columns, 2.8 * rows + 0.55), dpi=160, layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False)
        for panel in panels.flat:
            panel.set_axis_off()
        for panel, overlay in zip(panels.flat, shown, strict=False):
            panel.imshow(overlay.image, cmap="gray", vmin=0, vmax=1, interpolation="bilinear")
            for masks, colour, width in ((overlay.reference, REFERENCE, 1.7), (overlay.prediction, PREDICTION, 1.0)):
                for mask in masks:
                    if mask.any():
                        panel.contour(mask, levels=[0.5], colors=[colour], linewidths=width)
            title = overlay.site if len(methods) == 1 else f"{overlay.site}, {overlay.method}"
            panel.set_title(f"{title}\nDice {100 * overlay.dice:.1f}%", fontsize=9, fontweight="normal")
        handles = [
            Line2D([], [], color="#b8ad00", linewidth=2, label="reference"),
            Line2D([], [], color=PREDICTION, linewidth=1.5, label="prediction"),
        ]
        figure.legend(handles=handles, loc="outside lower left", ncols=2)
    return figure


def _typical(run: Run, site: SiteFolder) -> Case:
    dice = case_dice(run.results).mean(axis=1)
    here = dice[dice.index.get_level_values("site") == site.name].droplevel(["method", "seed", "site"])
    cases = site.cases("testing")
    if len(here) != len(cases):
        raise BadInput(f"{site.path}: {len(cases)} test cases, but {len(here)} in the run; it was prepared again since")
    return cases[int(typical_case(here))]  # results name a case by its position


def _overlay(run: Run, site: SiteFolder, case: Case, network: Any) -> Overlay:
    prediction = predict(network, case.image)
    reference = np.asarray(case.label, dtype=bool)
    position = largest_slice(reference, prediction)
    return Overlay(
        site=site.name,
        method=run.label,
        dice=_dice(reference, prediction),
        image=_shown(np.asarray(case.image[position])),
        reference=reference[position],
        prediction=prediction[position],
    )


def _dice(reference: NDArray[np.bool_], prediction: NDArray[np.bool_]) -> float:
    size = reference.sum(axis=(0, 2, 3)) + prediction.sum(axis=(0, 2, 3))
    both = 2 * (reference & prediction).sum(axis=(0, 2, 3))
    return float(np.mean(both[size > 0] / size[size > 0])) if size.any() else float("nan")


def _shown(image: NDArray[np.float32]) -> NDArray[np.float32]:
    """(channels, h, w) as (h, w) or, of three channels, (h, w, 3), from its 1st to 99th percentile to 0 to 1."""
    low, high = np.percentile(image, (1, 99))
    scaled = np.clip((image - low) / max(high - low, 1e-6), 0, 1).astype(np.float32)
    return np.moveaxis(scaled, 0, -1) if len(image) == 3 else scaled[0]
