"""Photographs of a bright disc with a cup, and their masks, in the layout of kind generic."""

from pathlib import Path

import numpy as np
from PIL import Image


def write_photographs(root: Path, sites: tuple[str, ...] = ("A", "B"), count: int = 4, side: int = 48) -> Path:
    """``root``/SITE/{images,masks}/N.png; masks of 1 (disc) and 2 (cup)."""
    random = np.random.default_rng(0)
    rows, columns = np.mgrid[:side, : side + 8]
    for site in sites:
        for part in ("images", "masks"):
            (root / site / part).mkdir(parents=True)
        for number in range(count):
            row, column, radius = random.integers((16, 16, 6), (side - 16, side - 8, 10))
            apart = np.hypot(rows - row, columns - column)
            mask = (apart < radius).astype(np.uint8) + (apart < radius / 2)
            pixels = 80 + 60 * mask[..., None] + random.normal(0, 8, (*mask.shape, 3))
            Image.fromarray(mask).save(root / site / "masks" / f"{number}.png")
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / site / "images" / f"{number}.png")
    return root
