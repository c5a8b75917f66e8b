"""Near-duplicates: cases with nearly the same image, saved again, brightened, cropped, shifted, mirrored or rotated.

The middle slices are compared as thumbnails that keep details of a few pixels, normalised to equal strength, without
brightness, contrast and shading. Coarse thumbnails select the candidate pairs; fine ones are then cross-correlated
at several zooms.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import fft
from scipy.ndimage import gaussian_filter

from fedmerit_data.checking.findings import Finding, LocatedCase

Array = NDArray[np.float32]

COARSE, FINE = 16, 48  # pixels of a side
ZOOMS = (0.0, 0.03, 0.06)  # share cut off each side, of the one image or of the other
ORIENTATIONS = {"": (1, 1), "mirrored": (1, -1), "upside down": (-1, 1), "turned by half": (-1, -1)}
DETAIL = 0.7, 3.0  # standard deviations in pixels of the two Gaussians of the band-pass filter
FAINT = 0.2  # share of the mean strength of details below which they are not amplified to the others'
SHIFT = 4  # fine pixels, a twelfth of the frame
# Agreement is a correlation, -1 to 1. In real images (595 pairs of prostates, 28,920 pairs of fundus photographs, in
# all four orientations) that of two patients was at most 0.78; docs/data_quality.md has that of copies.
WORTH_A_LOOK, LIKELY, SAME = 0.7, 0.45, 0.86


@dataclass(frozen=True)
class Fingerprint:
    """A (COARSE, COARSE) thumbnail of a case and one of (FINE, FINE) for each of `ZOOMS`, of norm 1."""

    coarse: Array
    fine: Array


def make_fingerprint(plane: NDArray[Any]) -> Fingerprint | None:
    """Return the fingerprint of one slice (height, width).

    `None` if its pixels have one value, or it has fewer than `FINE` on a side: patients then look too much alike.
    """
    if min(plane.shape) < FINE:
        return None
    low, high = np.percentile(plane, (1, 99))
    if not high > low:
        return None
    grey = Image.fromarray(np.clip((plane - low) / (high - low), 0, 1).astype(np.float32))
    return Fingerprint(_thumbnail(grey, COARSE, 0), np.stack([_thumbnail(grey, FINE, zoom) for zoom in ZOOMS]))


def _thumbnail(grey: Image.Image, side: int, zoom: float) -> Array:
    cut = (zoom * grey.width, zoom * grey.height, (1 - zoom) * grey.width, (1 - zoom) * grey.height)
    small = np.asarray(grey.resize((side, side), Image.Resampling.BILINEAR, box=cut), dtype=np.float64)
    detail = gaussian_filter(small, DETAIL[0]) - gaussian_filter(small, DETAIL[1])
    detail /= np.sqrt(gaussian_filter(detail**2, DETAIL[1]) + (FAINT * detail.std()) ** 2 + np.finfo(float).tiny)
    towards_border = np.hanning(side + 2)[1:-1]
    window = np.outer(towards_border, towards_border)  # a crop cuts off the border
    detail = (detail - (detail * window).sum() / window.sum()) * window
    return np.asarray(detail / max(np.linalg.norm(detail), np.finfo(float).tiny), dtype=np.float32)


def find_duplicates(
    cases: Sequence[tuple[LocatedCase, Fingerprint]], checksums: Mapping[Path, str]
) -> Iterator[Finding]:
    """Yield pairs of cases that look the same without being the same bytes; across splits they are a leak."""
    if len(cases) < 2:
        return
    coarse = np.stack([seen.coarse for _, seen in cases])
    spectra = fft.rfft2(np.stack([seen.fine for _, seen in cases]))
    for later, (ours, seen) in enumerate(cases):
        for earlier, (agreement, how) in _like(seen, coarse[:later], spectra[:later]).items():
            theirs = cases[earlier][0]
            if checksums[ours.case.image_file] == checksums[theirs.case.image_file]:
                continue
            together = ours.site is theirs.site and ours.split == theirs.split
            measure = ", ".join(part for part in (how, f"agreement {agreement:.2f} of 1") if part)
            yield ours.finding(
                "near-duplicate" if together else "leak",
                f"looks the same as {theirs} ({measure}); "
                "keep one of them, or give both one patient (--patient-table of prepare)",
                detail=f"as {theirs.shareable}; {measure}",
            )


def _like(seen: Fingerprint, coarse: Array, spectra: NDArray[Any]) -> dict[int, tuple[float, str]]:
    """Return the cases, by position, that look the same, with the best agreement and its orientation."""
    best: dict[int, tuple[float, str]] = {}
    for how, (down, across) in ORIENTATIONS.items():
        near = np.flatnonzero(np.tensordot(coarse, seen.coarse[::down, ::across], 2) > WORTH_A_LOOK)
        agreements = _agreements(fft.rfft2(seen.fine[:, ::down, ::across]), spectra[near])
        for position, agreement in zip(near.tolist(), agreements.tolist(), strict=True):
            if agreement > max(SAME, best.get(position, (0.0, ""))[0]):
                best[position] = agreement, how
    return dict(sorted(best.items()))


def _agreements(one: NDArray[Any], others: NDArray[Any]) -> Array:
    """Return (cases,) best correlation of spectra ``one`` (zooms, ...) and ``others`` (cases, zooms, ...)."""
    best = _peaks(one[0], others[:, 0])
    likely = best > LIKELY
    for ours, theirs in ((one[0], others[likely, 1:]), (one[1:], others[likely, :1])):
        best[likely] = np.maximum(best[likely], _peaks(ours, theirs).max(axis=1, initial=-1))
    return best


def _peaks(ours: NDArray[Any], theirs: NDArray[Any]) -> Array:
    """Return cross-correlation of two spectra, the maximum over shifts up to `SHIFT`; leading axes broadcast."""
    shifts = np.arange(-SHIFT, SHIFT + 1)
    correlation = fft.irfft2(ours * theirs.conj(), s=(FINE, FINE))
    return np.asarray(correlation[..., shifts[:, None], shifts].max(axis=(-2, -1)))
