"""One raw image without a mask, as prediction reads it: what `generic` reads, or the folder of a DICOM series."""

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
from fedmerit_data.readers.generic import (
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
    volume: Volume | None  # as it is stored; None: a photograph

    @property
    def name(self) -> str:
        """As `image_name` has it."""
        return image_name(self.path)

    @property
    def digest(self) -> str:
        """The SHA-256 of its pixels or voxels as they are read: of one image the same, wherever it lies."""
        return hashlib.sha256(self.decoded.image.tobytes()).hexdigest()

    def mask_file(self, folder: Path, label: str) -> Path:
        """Where `write_mask` writes."""
        return folder / f"{self.name}_{label}{'.png' if self.volume is None else '.nii.gz'}"

    def write_mask(self, folder: Path, label: str, mask: NDArray[np.bool_]) -> Path:
        """A mask (slices, height, width) as a file ``NAME_LABEL`` in the geometry of the image.

        Of a volume a NIfTI file of 0 and 1, of a photograph a PNG file of 0 and 255.
        """
        path = self.mask_file(folder, label)
        if self.volume is None:
            write_atomically(path, lambda file: Image.fromarray(np.uint8(255) * mask[0]).save(file, "PNG"))
            return path
        stored = nib.Nifti1Image(restore_axes(self.volume, mask.astype(np.uint8)), self.volume.affine)
        packed = gzip.compress(stored.to_bytes(), compresslevel=1, mtime=0)  # as nibabel: the same bytes at any time
        write_atomically(path, lambda file: file.write(packed))
        return path


def image_name(path: Path) -> str:
    """That of a file without its ending, or of a folder, also where the path says it as ``.``."""
    return Path(os.path.abspath(path)).name if path.is_dir() else name_and_suffix(path)[0]


def read_image(path: Path, channels: int, channel: int | None = None) -> OneImage:
    """One image of so many channels.

    Args:
        path: a NIfTI, MetaImage or NRRD file, a photograph, or the folder of one DICOM series.
        channels: that the network takes.
        channel: of a NIfTI file of four axes the one to take, where the network takes one.

    Raises:
        BadInput: it is unreadable, has not these channels, or is no NIfTI file and a ``channel`` is named.
    """
    suffix = "" if path.is_dir() else name_and_suffix(path)[1]
    if channel is not None and (path.is_dir() or suffix in PHOTOGRAPHS):
        raise BadInput(f"{path}: --channel {channel}: belongs to NIfTI files of four axes; leave it out")
    if suffix in PHOTOGRAPHS:
        pixels = read_photograph(path, channels)
        return OneImage(path, Decoded(pixels, np.zeros((1, 1, *pixels.shape[2:]), np.uint8)), None)
    if not path.is_dir() and suffix not in (*NIFTI, *ITK):
        raise BadInput(f"{path}: no image that is read; expected {KNOWN}")
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
        raise BadInput(
            f"{path}: --channel {channel}: has no such channel to give to a model of {channels}; leave it out"
        )
    return [read_nifti(path, channel)]
