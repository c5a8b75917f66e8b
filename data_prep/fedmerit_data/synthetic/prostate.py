"""Six generated prostate MRI sites, written as raw files in the layout of the multi-site release.

Every patient is a pelvis of smooth solids in millimetres (body, bones, muscle, bladder, rectum, a gland of two
zones), of which all but rectum and gland are bent differently in each patient, painted in a site's contrast and put
through its scanner: sampling grid, bias field, coil, Rician noise.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import nibabel as nib
import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from fedmerit_data.readers.kind import GENERATED
from fedmerit_data.readers.releases import PROSTATE_MULTISITE

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Scanner:
    """A site's scanner: its grid, its contrast, its flaws and the glands it sees."""

    share: float  # patients, relative to the mean over sites
    pixels: int
    spacing: float  # mm in plane
    thickness: float  # mm between slices
    zones: tuple[float, float]  # brightness of the transition and the peripheral zone; muscle .25, fat .75
    texture: float
    gamma: float
    bias: float
    noise: float
    scale: float  # of the stored integers
    gland: float  # size, 1 as in the mean patient
    coil: bool = False


SITES = {
    "site1": Scanner(1.4, 144, 1.30, 4.2, (0.48, 0.72), 0.06, 1.0, 0.10, 0.015, 1600, 1.00),
    "site2": Scanner(1.2, 160, 1.00, 4.6, (0.44, 0.80), 0.07, 0.9, 0.15, 0.025, 2100, 1.10),
    "site3": Scanner(1.0, 128, 1.50, 3.9, (0.52, 0.70), 0.05, 1.2, 0.20, 0.030, 600, 0.92),
    "site4": Scanner(1.0, 136, 1.25, 4.4, (0.42, 0.66), 0.08, 1.1, 0.20, 0.035, 4000, 1.05),
    # The outlier: a small field around an endorectal coil, flooded near it, dark and noisy far from it.
    "site5": Scanner(0.6, 140, 1.00, 4.0, (0.36, 0.50), 0.09, 1.3, 0.25, 0.030, 12000, 0.95, coil=True),
    "site6": Scanner(0.8, 152, 1.10, 5.0, (0.50, 0.76), 0.06, 0.8, 0.12, 0.045, 900, 1.20),
}
SLICES = 10
# How far patients differ, so middle slices of two agree as little as those of two real patients do (0.78 at most).
BENT, BENDS = 4.0, 40.0  # mm: standard deviation of displacements in a slice, the distance over which they vary


def generate(raw: Path, seed: int, patients: int | None) -> None:
    """Write ``CaseNN.nii.gz`` and ``CaseNN_segmentation.nii.gz`` of every site; ``patients`` is the mean (10)."""
    for number, (name, scanner) in enumerate(SITES.items()):
        (raw / name).mkdir()
        for case in range(round(scanner.share * (patients or 10))):
            image, gland = acquire(scanner, np.random.default_rng([seed, number, case]))
            # As in the release: axis 0 towards the left, 1 towards the back, 2 towards the head.
            affine = np.diag([-scanner.spacing, -scanner.spacing, scanner.thickness, 1.0])
            stem = raw / name / f"Case{case:02d}"
            nib.save(nib.Nifti1Image(image, affine), f"{stem}.nii.gz")
            nib.save(nib.Nifti1Image(gland, affine), f"{stem}_segmentation.nii.gz")


def acquire(scanner: Scanner, rng: np.random.Generator) -> tuple[NDArray[np.int16], NDArray[np.uint8]]:
    """Return one patient's volume (x, y, z) and its mask: 1 in the gland, 0 elsewhere."""
    half = scanner.pixels * scanner.spacing / 2
    line = np.linspace(-half, half, scanner.pixels)
    x, y, z = np.meshgrid(line, line, (np.arange(SLICES) - (SLICES - 1) / 2) * scanner.thickness, indexing="ij")
    x, y = x + rng.normal(0, 4), y + rng.normal(0, 2)  # patients do not lie at the very centre
    signal, gland, coil = _pelvis(x, y, z, scanner, rng)

    signal = signal * (1 + scanner.texture * _smooth(rng, signal.shape, 1.8 / scanner.spacing))
    signal *= np.exp(scanner.bias * _smooth(rng, signal.shape, scanner.pixels / 5, 4))
    if scanner.coil:
        signal *= 0.35 + 2.2 * np.exp(-coil / 22)
    signal = gaussian_filter(np.clip(signal, 0, None) ** scanner.gamma, (0.6, 0.6, 0))
    noise = rng.normal(0, scanner.noise, (2, *signal.shape))
    signal = np.hypot(signal + noise[0], noise[1])
    return np.minimum(signal * scanner.scale, 32767).astype(np.int16), gland


def _pelvis(
    x: Array, y: Array, z: Array, scanner: Scanner, rng: np.random.Generator
) -> tuple[Array, NDArray[np.uint8], Array]:
    """Return brightness, gland and distance in mm from where a coil would lie; x to the left, y to the back."""
    gland = scanner.gland * np.clip(rng.normal(1, 0.10), 0.85, 1.15)
    width, depth, height = gland * np.array([26, 20, 14.5]) * np.clip(rng.normal(1, 0.06, 3), 0.9, 1.1)
    # The rectum behind the gland: collapsed around gas, or blown up by the coil's balloon that dents the gland.
    reach = rng.normal(20, 1) if scanner.coil else rng.uniform(7, 13)
    behind = depth + (0.62 if scanner.coil else 1.0) * reach + 2
    rectum = _solid(x - rng.normal(0, 3), y - behind - 0.1 * z, 0 * z, reach * rng.uniform(1.0, 1.3), reach, 1)

    signal = _surroundings(x, y, z, height, scanner, rng)

    # The gland: an ellipsoid, flatter behind, narrower at the apex, with a slowly wavy surface.
    taper = 1 + 0.12 * z / height
    outline = _solid(x / taper, np.where(y > 0, y * 1.1, y), z, width, depth, height)
    outline = outline * (1 + 0.03 * _smooth(rng, x.shape, 16 / scanner.spacing))
    inside = (outline < 1) & (rectum > 1.12) & (np.abs(z) < z.max())  # the scan reaches beyond the gland
    inner = _solid(x, y + 0.28 * depth, z - 2, 0.72 * width, 0.70 * depth, 0.85 * height) < 1
    transition, peripheral = scanner.zones
    nodules = 0.12 * _smooth(rng, x.shape, 2.6 / scanner.spacing)
    _paint(signal, 1.08 - outline, 0.16)  # capsule
    _paint(signal, np.where(inside, 1.0, -1.0), np.where(inner, transition + nodules, peripheral + nodules / 3))
    _paint(signal, 1.12 - rectum, 0.3)  # wall
    _paint(signal, 1 - rectum, 0.06 if scanner.coil else rng.choice([0.05, 0.4]))
    return signal, inside.astype(np.uint8), np.hypot(x, y - behind)


def _surroundings(x: Array, y: Array, z: Array, height: float, scanner: Scanner, rng: np.random.Generator) -> Array:
    """Return the brightness of body, bones, muscles, fat and bladder, bent; the gland reaches up to ``height``."""
    x, y = (axis + BENT * _smooth(rng, x.shape, BENDS / scanner.spacing)[..., :1] for axis in (x, y))
    side = np.abs(x)
    fine, patchy = (_smooth(rng, x.shape, millimetres / scanner.spacing) for millimetres in (2.4, 14))
    signal = 0.28 + 0.03 * fine + 0.02 * patchy  # muscle
    fat = 0.62 + 0.04 * fine + 0.07 * patchy
    # What lies around the gland changes from feet to head, so that slices have an order.
    _paint(signal, 1 - _solid(x, y - 4, 0 * z, 50 + 0.6 * z, 44 + 0.4 * z, 1), fat)  # fat between the organs
    _paint(signal, 1 - _solid(side - 30, y - 50, z + 22, 22, 24, 26), fat + 0.1)  # fat beside the anus
    _paint(signal, 1 - _solid(side - 54 + 0.2 * y, y + 4, 0 * z, 11, 34, 1), 0.2 + 0.03 * fine)  # obturator muscles
    _paint(signal, 1 - _solid(side - 30 - 0.6 * z + 0.25 * y, y - 6, 0 * z, 2.5, 30, 1), 0.16)  # levator: a funnel
    _paint(signal, 1 - _solid(side - 82, y + 2, z - 18, 24, 26, 28), 0.08)  # heads of the thigh bones: rim, marrow
    _paint(signal, 1 - _solid(side - 82, y + 2, z - 18, 22, 24, 26), 0.6 + 0.05 * fine)
    _paint(signal, 1 - _solid(side - 13, y + 56, z + 8, 10, 16, 20), 0.1)  # pubic bones
    _paint(signal, 1 - _solid(side - 13, y + 56, z + 8, 8.5, 14.5, 18.5), 0.5 + 0.05 * fine)
    _paint(signal, 1 - _solid(x, y - 78 + 0.5 * z, z - 24, 24, 9, 28), 0.35 + 0.05 * fine)  # coccyx and sacrum
    _paint(signal, 1 - _solid(x, y + 12, z - height - 12, 34, 24, 20), 0.12)  # bladder: wall and bright urine
    _paint(signal, 1 - _solid(x, y + 12, z - height - 12, 31, 21, 18), 0.98)
    body = _solid(x, y, 0 * z, rng.normal(175, 8), rng.normal(108, 5), 1)
    _paint(signal, body - 0.86, 0.8)  # fat under the skin, then air
    _paint(signal, body - 1, 0.0)
    return signal


def _solid(x: Array, y: Array, z: Array, width: float | Array, depth: float | Array, height: float) -> Array:
    """Return below 1 inside the ellipsoid of these half axes, 1 on its surface."""
    return np.sqrt((x / width) ** 2 + (y / depth) ** 2 + (z / height) ** 2)


def _paint(signal: Array, where: Array, brightness: Array | float) -> None:
    """Put ``brightness`` where ``where`` is positive."""
    signal[:] = np.where(where > 0, brightness, signal)


def _smooth(rng: np.random.Generator, shape: tuple[int, ...], pixels: float, slices: float = 1) -> Array:
    """Return a random field of mean 0 and deviation 1 that varies over ``pixels`` in a slice, and over ``slices``."""
    coarse = (*(max(4, min(n, round(n / pixels))) for n in shape[:2]), SLICES)
    field = rng.normal(size=coarse)
    rows, columns = (np.linspace(0, n - 1, m) for n, m in zip(coarse[:2], shape[:2], strict=True))
    for axis, at in ((0, rows), (1, columns)):  # linear interpolation along each axis, cheap at any smoothness
        below = np.minimum(at.astype(int), field.shape[axis] - 2)
        part = (at - below).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
        field = np.take(field, below, axis) * (1 - part) + np.take(field, below + 1, axis) * part
    field = gaussian_filter(field, (min(pixels / 3, 4), min(pixels / 3, 4), slices))
    return np.asarray((field - field.mean()) / field.std())


KIND = replace(
    PROSTATE_MULTISITE,
    description="six generated prostate MRI sites, site5 with an endorectal coil; no source needed",
    generate=generate,
    licence=GENERATED,
    citation=None,
)
