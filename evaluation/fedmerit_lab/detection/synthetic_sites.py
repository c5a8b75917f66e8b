"""Synthetic sites for the comparison of detectors: a federation of them takes a second or two on one core.

They are ordinary site folders, and the product's own server, sites and attacks run on them. Only the data and the
model are toys. Each site has a template of ``SIDE`` x ``SIDE`` pixels. It is the mask of every validation and test
image; in training masks each pixel is flipped with probability `FLIPPED`. The model has one logit per pixel and
ignores the image, so that local training is a logistic regression on the masks and d is 1024. Five templates agree on
most pixels; that of `OUTLIER`, an honest site, points away from theirs. A finding on these sites needs a check on
trained networks.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor, nn

from fedmerit.files import write_json

SIDE = 32  # pixels; d = SIDE²
SITES = tuple(f"site{number}" for number in range(1, 7))
OUTLIER = "site4"
FLIPPED: Mapping[str, float] = {"training": 0.35, "validation": 0.0, "testing": 0.0}  # probability, of a pixel
IMAGES: Mapping[str, int] = {"training": 40, "validation": 4, "testing": 4}  # of each site
PATIENT = 4  # images of a patient
SETTINGS: Mapping[str, str] = {  # of every run
    "architecture": f"{__name__}:LogitMap",
    "arguments": json.dumps({"side": SIDE}),
    "mirrored": "false",
    "augment": "false",
    "optimizer": "sgd",
    "schedule": "constant",
    "lr": "100",
    "steps": "1",
    "batch_size": "2",
}


class LogitMap(nn.Module):
    """One trainable logit per label and pixel: (batch, channels, side, side) to (batch, labels, side, side)."""

    def __init__(self, out_channels: int, side: int):
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(1, out_channels, side, side))

    def forward(self, images: Tensor) -> Tensor:
        """The same logits for every image."""
        return self.logits.expand(len(images), -1, -1, -1)


def generate_sites(out: Path, seed: int) -> Path:
    """Write the site folders of ``seed`` below ``out``, unless they are there, and return ``out``."""
    if (out / SITES[-1] / "site.json").exists():
        return out
    random = np.random.default_rng(seed)
    common, own = random.normal(size=(SIDE, SIDE)), random.normal(size=(len(SITES), SIDE, SIDE))
    for site, deviation in zip(SITES, own, strict=True):
        template = 1.3 * deviation - 0.25 * common if site == OUTLIER else common + 0.7 * deviation
        _write_site(out / site, template > 0, random)
    return out


def _write_site(folder: Path, template: NDArray[np.bool_], random: Generator) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lists: dict[str, list[dict[str, str]]] = {split: [] for split in IMAGES}
    for split, number in IMAGES.items():
        for place in range(number // PATIENT):
            name = f"{split}{place}"
            image = random.normal(size=(PATIENT, 1, SIDE, SIDE))  # which tells one patient's digest from another's
            mask = template ^ (random.random((PATIENT, 1, SIDE, SIDE)) < FLIPPED[split])
            np.save(folder / f"{name}_image.npy", image.astype(np.float32))
            np.save(folder / f"{name}_label.npy", mask.astype(np.uint8))
            files = {"image": f"{name}_image.npy", "label": f"{name}_label.npy"}
            lists[split].append({"case": name, "patient": name, **files})
    write_json(folder / "datalist.json", lists)
    about = {"name": folder.name, "task": "synthetic", "labels": ["template"], "channels": 1}
    write_json(folder / "site.json", {**about, "image_size": [SIDE, SIDE]})
