"""Tiny raw sites in the public layouts."""

from pathlib import Path

import nibabel as nib
import numpy as np
from PIL import Image

from fedmerit_data import prepare as preparing
from fedmerit_data.preparation import Preparation


def prepare(kind, out, *, jobs=1, progress=None, **description):
    return preparing.prepare(Preparation(kind, **description), out, jobs=jobs, progress=progress)


def snapshot(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


AXIAL = np.diag([-1.0, -1.0, 3.0, 1.0])  # axes towards left, back, head, as the public release stores them
SHAPE = (24, 20, 4)


def box(shape=SHAPE):
    """A mask that no flip or transposition maps onto itself."""
    mask = np.zeros(shape, np.uint8)
    mask[8:13, 9:17, 1:3] = 1
    mask[8, 9, 2] = 0
    return mask


def volume(seed, shape=SHAPE):
    return np.random.default_rng(seed).integers(1, 900, shape).astype(np.int16)


def save_nifti(path, voxels, affine=AXIAL):
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(voxels, affine), path)


def prostate_site(folder: Path, cases=4, seed=0, mask="_segmentation"):
    for case in range(cases):
        save_nifti(folder / f"Case{case:02d}.nii.gz", volume([seed, case]))
        save_nifti(folder / f"Case{case:02d}{mask}.nii.gz", box())
    return folder


def rings(size=32):
    """A fundus mask: cup 0 within rim 128 within background 255, off centre."""
    mask = np.full((size, size), 255, np.uint8)
    mask[6:22, 8:26] = 128
    mask[10:17, 12:22] = 0
    return mask


def save_png(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def fundus_site(folder: Path, train=("a-L", "a-R", "b-L"), test=("c-L", "d-R"), seed=0):
    rng = np.random.default_rng(seed)
    for part, names in (("train", train), ("test", test)):
        for name in names:
            rois = folder / part / "ROIs"
            save_png(rois / "image" / f"{name}.png", rng.integers(0, 256, (32, 32, 3), dtype=np.uint8))
            save_png(rois / "mask" / f"{name}.png", rings())
    return folder
