"""Image files of anyone's own data: file endings, photographs and volumes by number of channels."""

import re
from pathlib import Path

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

from fedmerit.errors import BadInput
from fedmerit_data.spatial.photographs import UPRIGHT, load, stated_orientation
from fedmerit_data.spatial.volumes import Volume, read_itk, read_nifti

NIFTI, ITK = (".nii", ".nii.gz"), (".mhd", ".nrrd")
JPEG = (".jpg", ".jpeg")
PHOTOGRAPHS = (*JPEG, ".png", ".tif", ".tiff", ".bmp")
READABLE = (*NIFTI, *ITK, *PHOTOGRAPHS)
FILE = re.compile(r"(?P<stem>.+?)(?P<suffix>\.nii\.gz|\.[^.]+)", re.IGNORECASE)


def name_and_suffix(path: Path) -> tuple[str, str]:
    """Name and suffix of a file, such as ``("scan", ".nii.gz")``; an empty suffix if the name has none."""
    match = FILE.fullmatch(path.name)
    return (match["stem"], match["suffix"].lower()) if match else (path.name, "")


def read_photograph(path: Path, channels: int) -> NDArray[np.float32]:
    """(1, channels, height, width), grey or in colours; `BadInput` if unreadable, or without these channels."""
    if channels not in (1, 3):
        raise BadInput(
            f"{path}: a photograph has 1 or 3 channels, not {channels}; pass --channels 1 (grey) or 3 (colours)"
        )
    pixels = np.atleast_3d(load(path, "L" if channels == 1 else "RGB"))
    if (orientation := stated_orientation(path)) != UPRIGHT:
        raise BadInput(
            f"{path}: is stored rotated (EXIF orientation {orientation}), and a mask may fit either view; save it "
            "upright"
        )
    return pixels.transpose(2, 0, 1)[None].astype(np.float32)


def read_volume(path: Path) -> Volume:
    """One NIfTI, MetaImage or NRRD file."""
    return read_nifti(path) if name_and_suffix(path)[1] in NIFTI else read_itk(path)


def read_channels(path: Path, channels: int) -> list[Volume]:
    """A volume for each of the numbers of a voxel; `BadInput` if the file has another number of channels."""
    if channels == 1:
        there = read_shape(path)
        if len(there) == 4 and there[3] > 1:
            raise BadInput(f"{path}: of shape {there}; pass --channels {there[3]} to read them all")
        return [read_volume(path)]
    if name_and_suffix(path)[1] not in NIFTI:
        raise BadInput(
            f"{path}: only NIfTI files can have {channels} channels; pass --channels 1, or export the image as NIfTI"
        )
    first, shape = read_nifti(path, 0), read_shape(path)
    if shape[3:] != (channels,):
        number = shape[3] if len(shape) == 4 else 1
        raise BadInput(
            f"{path}: of shape {shape}; expected {channels} channels as its fourth axis; pass --channels {number}"
        )
    return [first, *(read_nifti(path, channel) for channel in range(1, channels))]


def read_shape(path: Path) -> tuple[int, ...]:
    """The shape of a NIfTI file; empty if the file has another format or cannot be read."""
    if name_and_suffix(path)[1] not in NIFTI or not path.is_file():
        return ()
    try:
        return tuple(nib.load(path).shape)
    except Exception:  # any error over a damaged file; the reader reports it
        return ()
