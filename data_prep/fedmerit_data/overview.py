"""Pictures of prepared sites: a montage of a few cases per site, and the intensities of every site."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from fedmerit.files import write_atomically
from fedmerit.schema.site_folder import Case, SiteFolder, open_sites
from fedmerit_data.figure_style import STYLE, disable_mathtext

CASES = 4  # of each site in the montage
OUTLINES = ("#F0E442", "#56B4E9", "#FF4FA3")  # colours of the labels in turn
SAMPLE = 50_000  # pixels of a case in its site's histogram
BINS = 120


def draw(sites: Path, out: Path) -> None:
    """Write montage.png and intensities.png into ``out``; the same bytes for the same site folders.

    Both show patients' images or values computed from them: they are as private as the images.
    """
    opened = open_sites(sites)
    for name, figure in (("montage", montage(opened)), ("intensities", intensities(opened))):
        disable_mathtext(figure)
        write_atomically(out / f"{name}.png", partial(figure.savefig, format="png", metadata={"Software": None}))


def montage(sites: Sequence[SiteFolder]) -> Figure:
    """Return one row per site: cases at even steps in sorted order, the slice with the largest organ, labels
    outlined.
    """
    with style.context(STYLE):
        figure = Figure(figsize=(2.1 * CASES + 0.4, 2.3 * len(sites) + 0.5), dpi=110, layout="constrained")
        rows = figure.subplots(len(sites), CASES, squeeze=False)
        for site, row in zip(sites, rows, strict=True):
            for panel in row:
                panel.set(xticks=[], yticks=[])
                panel.grid(False)
                for side in panel.spines.values():
                    side.set_visible(False)
            row[0].set_ylabel(site.name, fontweight="bold")
            for panel, case in zip(row, spread(_cases(site)), strict=False):
                image, masks = largest(case)
                panel.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="bilinear")
                for mask, colour in zip(masks, OUTLINES * len(masks), strict=False):
                    if mask.any():
                        panel.contour(mask, levels=[0.5], colors=[colour], linewidths=1.1)
                panel.set_title(case.name, fontsize=7.5, fontweight="normal", loc="center")
        labels = sites[0].labels
        lines = zip(labels, OUTLINES * len(labels), strict=False)
        handles = [Line2D([], [], color=colour, linewidth=2, label=label) for label, colour in lines]
        figure.legend(handles=handles, loc="outside lower left", ncols=len(handles))
    return figure


def intensities(sites: Sequence[SiteFolder]) -> Figure:
    """Return one curve per site: the density of normalised intensities, each case with equal weight."""
    samples = {site.name: [sample(case) for case in _cases(site)] for site in sites}
    pooled = np.concatenate([part for parts in samples.values() for part in parts])
    low, high = np.percentile(pooled, (0.1, 99.9)) if pooled.size else (0.0, 0.0)
    edges = np.linspace(low, max(high, low + 1e-3), BINS + 1)
    middles = (edges[1:] + edges[:-1]) / 2
    with style.context(STYLE):
        figure = Figure(figsize=(7.2, 4.0), layout="constrained")
        panel = figure.subplots()
        for site, parts in samples.items():
            curve = np.mean([density(part, edges) for part in parts], axis=0)
            panel.plot(middles, curve, label=site, linewidth=1.6)
        panel.set(xlabel="normalised intensity", ylabel="share of pixels per unit", ylim=(0, None))
        panel.set_title("Intensities of each site, without padding and the darkest value")
        panel.legend(title="site", loc="upper right")
    return figure


def spread(cases: Sequence[Case]) -> list[Case]:
    """Return up to `CASES` cases at even steps, including the first and the last."""
    chosen = np.linspace(0, len(cases) - 1, min(CASES, len(cases))).round().astype(int)
    return [cases[position] for position in chosen]


def largest(case: Case) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Return the slice with most labelled pixels (the middle one if there are none), as picture and (labels, h, w)
    masks.

    The picture is (h, w), or (h, w, 3) with three channels; its 1st to 99th percentile is scaled to 0 to 1.
    """
    areas = case.label.any(axis=1).sum(axis=(1, 2))
    position = int(areas.argmax()) if areas.any() else len(areas) // 2
    image = np.asarray(case.image[position])
    low, high = np.percentile(image, (1, 99))
    scaled = np.clip((image - low) / max(high - low, 1e-6), 0, 1).astype(np.float32)
    picture = np.moveaxis(scaled, 0, -1) if len(image) == 3 else scaled[0]
    return picture, np.asarray(case.label[position])


def sample(case: Case) -> NDArray[np.float32]:
    """Return intensities at even steps, without the darkest value of each channel, which padding and clipping have."""
    channels = [case.image[:, position].reshape(-1) for position in range(case.image.shape[1])]
    step = max(1, sum(channel.size for channel in channels) // SAMPLE)
    return np.concatenate([channel[::step][channel[::step] > channel.min()] for channel in channels])


def density(pixels: NDArray[np.float32], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the share of ``pixels`` in each bin per unit of intensity; those beyond the outer edges count in none."""
    counts, _ = np.histogram(pixels, edges)
    return counts / max(pixels.size, 1) / np.diff(edges)


def _cases(site: SiteFolder) -> list[Case]:
    return sorted((case for cases in site.splits.values() for case in cases), key=lambda case: case.name)
