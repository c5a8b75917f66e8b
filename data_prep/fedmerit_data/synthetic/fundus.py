"""Six generated fundus sites, written as raw files in the DoFE/FedDG layout.

Every photograph is a disc-centred crop: background, vessels that leave the disc, a bright disc, a brighter cup,
all smooth-edged, then put through a site's colour, light, blur and noise.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import gaussian_filter, zoom

from fedmerit_data.readers.kind import GENERATED
from fedmerit_data.readers.releases import FUNDUS_ROIS
from fedmerit_data.spatial.photographs import BACKGROUND, CUP, RIM

Array = NDArray[np.float64]
Colour = tuple[float, float, float]


@dataclass(frozen=True)
class Camera:
    """A site's camera: its colours, its flaws and the discs it sees."""

    share: float  # patients, relative to the mean over sites
    background: Colour
    disc: Colour
    cup: Colour
    disc_radius: float  # share of the frame
    cup_ratio: float  # mean cup radius over disc radius
    blur: float
    noise: float
    shade: float  # how much the light falls off over the frame
    haze: float = 0.0


SITES = {
    "site1": Camera(1.4, (0.72, 0.33, 0.16), (0.90, 0.62, 0.36), (0.96, 0.84, 0.62), 0.24, 0.55, 1.0, 0.015, 0.25),
    "site2": Camera(1.2, (0.62, 0.38, 0.24), (0.86, 0.66, 0.44), (0.94, 0.86, 0.70), 0.20, 0.48, 1.5, 0.02, 0.35),
    "site3": Camera(1.0, (0.80, 0.46, 0.30), (0.95, 0.72, 0.52), (0.99, 0.90, 0.74), 0.27, 0.60, 0.7, 0.01, 0.15),
    "site4": Camera(1.0, (0.52, 0.25, 0.10), (0.82, 0.52, 0.22), (0.92, 0.76, 0.42), 0.22, 0.50, 1.2, 0.03, 0.40),
    # The outlier: dark, greenish, hazy, with small pale discs.
    "site5": Camera(0.6, (0.24, 0.22, 0.12), (0.34, 0.36, 0.22), (0.42, 0.46, 0.30), 0.17, 0.65, 2.5, 0.03, 0.55, 0.25),
    "site6": Camera(0.8, (0.68, 0.28, 0.20), (0.88, 0.56, 0.42), (0.95, 0.78, 0.64), 0.25, 0.42, 1.8, 0.02, 0.30),
}
PIXELS = 384


def generate(raw: Path, seed: int, patients: int | None) -> None:
    """Write images and masks of every site; ``patients`` is the mean (20), every fifth with both eyes."""
    for number, (name, camera) in enumerate(SITES.items()):
        count = round(camera.share * (patients or 20))
        for patient in range(count):
            part = raw / name / ("train" if patient < 0.7 * count else "test") / "ROIs"
            for eye in "LR" if patient % 5 == 0 else "L":
                image, mask = photograph(camera, np.random.default_rng([seed, number, patient, ord(eye)]))
                for kind, pixels in (("image", image), ("mask", mask)):
                    (part / kind).mkdir(parents=True, exist_ok=True)
                    Image.fromarray(pixels).save(part / kind / f"P{patient:03d}-{eye}.png", compress_level=1)


def photograph(camera: Camera, rng: np.random.Generator) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return one image (height, width, 3) and its mask (height, width) of 0 cup, 128 rim, 255 background."""
    line = np.linspace(-0.5, 0.5, PIXELS)
    y, x = np.meshgrid(line, line, indexing="ij")
    y, x = y + rng.normal(0, 0.02), x + rng.normal(0, 0.02)
    radius = camera.disc_radius * rng.normal(1, 0.10)
    ratio = float(np.clip(rng.normal(camera.cup_ratio, 0.12), 0.25, 0.85))
    disc = _ellipse(x, y, radius * rng.normal(0.93, 0.03), radius, rng) - 1
    nasal = (1 - ratio) * radius * rng.uniform(-0.3, 0.3)
    cup = _ellipse(x - nasal, y, ratio * radius, ratio * radius * rng.normal(1.05, 0.05), rng) - 1
    cup = np.maximum(cup, disc + 0.05)  # never outside the disc

    image = np.array(camera.background) * (1 + 0.10 * _smooth(rng, 10) + 0.05 * _smooth(rng, 48))[..., None]
    image = _blend(image, disc, camera.disc, 0.06)
    image = _blend(image, cup, camera.cup, 0.15)
    vessels = _vessels(radius, x, y, rng)
    image *= 1 - vessels[..., None] * np.array([0.35, 0.60, 0.55])
    across = np.cos(angle := rng.uniform(0, 2 * np.pi)) * x + np.sin(angle) * y
    image *= (1 - camera.shade * (x**2 + y**2 + 0.6 * across))[..., None]
    image = gaussian_filter(image, (camera.blur, camera.blur, 0)) * rng.normal(1, 0.08)
    image = image * (1 - camera.haze) + camera.haze * 0.45
    image += camera.noise * rng.standard_normal(image.shape, dtype=np.float32)
    mask = np.where(cup < 0, CUP, np.where(disc < 0, RIM, BACKGROUND))
    return (np.clip(image, 0, 1) * 255).astype(np.uint8), mask.astype(np.uint8)


def _ellipse(x: Array, y: Array, width: float, height: float, rng: np.random.Generator) -> Array:
    """Return below 1 inside an ellipse of these half axes with a slightly wavy outline."""
    around = (x + 1j * y) / (np.hypot(x, y) + 1e-9)
    waves, turned = np.zeros_like(x), around
    for _ in range(3):
        turned = turned * around  # twice, three and four times the angle
        waves += (turned * rng.normal(0, 0.02) * np.exp(2j * np.pi * rng.random())).real
    return np.hypot(x / width, y / height) * (1 + waves)


def _blend(image: Array, outline: Array, colour: Colour, softness: float) -> Array:
    """Lay ``colour`` over where ``outline`` is negative, with an edge as soft as ``softness`` radii."""
    part = 1 / (1 + np.exp(np.clip(outline / (softness / 3), -30, 30)))[..., None]
    blended: Array = image * (1 - part) + np.array(colour) * part
    return blended


def _vessels(radius: float, x: Array, y: Array, rng: np.random.Generator) -> Array:
    """Return depth of vessels, 0 to 1: wandering lines from the disc's centre up and down, some to the sides."""
    lines = {thickness: np.zeros_like(x) for thickness in (1.3, 2.0, 3.0)}
    for _ in range(rng.integers(7, 11)):
        heading = rng.choice([-1, 1]) * np.pi / 2 + rng.normal(0, 0.5)
        turns = np.cumsum(rng.normal(0, 0.05, 260)) + heading
        path = np.cumsum(np.stack([np.sin(turns), np.cos(turns)]), axis=1) * 0.003 + rng.normal(0, radius / 8, (2, 1))
        rows, columns = np.round((path - [[y[0, 0]], [x[0, 0]]]) * (PIXELS - 1)).astype(int)
        inside = (rows >= 0) & (rows < PIXELS) & (columns >= 0) & (columns < PIXELS)
        lines[rng.choice(list(lines))][rows[inside], columns[inside]] = 1
    drawn = np.zeros_like(x)
    for thickness, line in lines.items():
        drawn = np.maximum(drawn, np.minimum(1, gaussian_filter(line, thickness) * 2.5 * thickness))
    return drawn * 0.8


def _smooth(rng: np.random.Generator, cells: int) -> Array:
    """Return random field of deviation about 1 that varies over 1/``cells`` of the frame."""
    return np.asarray(zoom(rng.normal(size=(cells, cells)), PIXELS / cells, order=1, mode="nearest"))


KIND = replace(
    FUNDUS_ROIS,
    description="six generated fundus sites, site5 dark and hazy; no source needed",
    generate=generate,
    licence=GENERATED,
    citation=None,
)
