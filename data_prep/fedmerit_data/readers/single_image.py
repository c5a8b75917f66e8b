"""One raw image without a mask, for prediction: a format of the generic reader, or the folder of a DICOM series."""

import gzip
import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path

import nibabel as nib
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedmerit.errors import BadInput
from fedmerit.files import write_atomically
from fedmerit_data.raw_cases import Decoded, RawCase
from fedmerit_data.readers.image_files import (
    ITK,
    NIFTI,
    PHOTOGRAPHS,
    name_and_suffix,
    read_channels,
    read_photograph,
    read_shape,
)
from fedmerit_data.spatial.dicom import read_series
from fedmerit_data.spatial.geometry import restore_axes, slice_axially
from fedmerit_data.spatial.volumes import Volume, read_nifti

KNOWN = f"{', '.join((*NIFTI, *ITK, *PHOTOGRAPHS))}, or the folder of one DICOM series"


@dataclass(frozen=True)
class OneImage:
    """A photograph, or a volume as its axial slices; its label is empty."""

    path: Path
    decoded: Decoded
    volume: Volume | None  # in stored order; None: a photograph

    @property
    def name(self) -> str:
        """The `image_name`."""
        return image_name(self.path)

    @property
    def digest(self) -> str:
        """The SHA-256 of its pixels or voxels as read: the same for copies of an image."""
        return hashlib.sha256(self.decoded.image.tobytes()).hexdigest()

    def mask_file(self, folder: Path, label: str) -> Path:
        """The file that `write_mask` writes."""
        return folder / f"{self.name}_{label}{'.png' if self.volume is None else '.nii.gz'}"

    def write_mask(self, folder: Path, label: str, mask: NDArray[np.bool_]) -> Path:
        """Write a mask (slices, height, width) to a file ``NAME_LABEL`` in the geometry of the image.

        NIfTI with 0 and 1 for a volume, PNG with 0 and 255 for a photograph.
        """
        path = self.mask_file(folder, label)
        if self.volume is None:
            write_atomically(path, lambda file: Image.fromarray(np.uint8(255) * mask[0]).save(file, "PNG"))
            return path
        stored = nib.Nifti1Image(restore_axes(self.volume, mask.astype(np.uint8)), self.volume.affine)
        packed = gzip.compress(stored.to_bytes(), compresslevel=1, mtime=0)  # mtime as nibabel: equal bytes
        write_atomically(path, lambda file: file.write(packed))
        return path


def image_name(path: Path) -> str:
    """The name of a file without its ending, or of a folder, also if the path is ``.``."""
    return Path(os.path.abspath(path)).name if path.is_dir() else name_and_suffix(path)[0]


def read_image(path: Path, channels: int, channel: int | None = None) -> OneImage:
    """Read one image.

    Args:
        path: A NIfTI, MetaImage or NRRD file, a photograph, or the folder of one DICOM series.
        channels: The number of channels that the network takes.
        channel: The channel to read from a NIfTI file of four axes, from 0, if the network takes one.

    Raises:
        BadInput: it is unreadable, lacks these channels, or is not a NIfTI file and a ``channel`` is named.
    """
    suffix = "" if path.is_dir() else name_and_suffix(path)[1]
    if channel is not None and (path.is_dir() or suffix in PHOTOGRAPHS):
        raise BadInput(f"{path}: --channel {channel}: belongs to NIfTI files of four axes; leave it out")
    if suffix in PHOTOGRAPHS:
        pixels = read_photograph(path, channels)
        return OneImage(path, Decoded(pixels, np.zeros((1, 1, *pixels.shape[2:]), np.uint8)), None)
    if not path.is_dir() and suffix not in (*NIFTI, *ITK):
        raise BadInput(f"{path}: unknown image format; expected {KNOWN}")
    volumes = _volumes(path, channels, channel)
    blank = replace(volumes[0], voxels=np.zeros_like(volumes[0].voxels))
    case = RawCase(image_name(path), image_name(path), path, path)
    sliced = [slice_axially(case, volume, blank) for volume in volumes]
    image = np.concatenate([part.image for part in sliced], axis=1)
    return OneImage(path, replace(sliced[0], image=image), volumes[0])


def _volumes(path: Path, channels: int, channel: int | None) -> list[Volume]:
    if path.is_dir():
        if channels != 1:
            raise BadInput(f"{path}: a DICOM series has one channel, the model takes {channels}; give NIfTI files")
        return [read_series(path)]
    shape = read_shape(path)
    count = shape[3:]
    if channel is None:
        if shape and channels != (count[0] if count else 1):
            choose = "; name one by --channel, counted from 0" if channels == 1 else ""
            raise BadInput(f"{path}: of shape {shape}; the model takes {channels} channel(s){choose}")
        return read_channels(path, channels)
    unread = name_and_suffix(path)[1] in NIFTI and not shape  # `read_nifti` says why
    if not unread and (channels != 1 or not count or not 0 <= channel < count[0]):
        raise BadInput(f"{path}: --channel {channel}: no such channel for a model of {channels}; leave it out")
    return [read_nifti(path, channel)]
