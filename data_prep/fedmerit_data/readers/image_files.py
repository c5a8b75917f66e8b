"""Image files of anyone's own data: photographs and volumes by number of channels, single images for prediction."""

import gzip
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nibabel as nib
import numpy as np
from nibabel.affines import voxel_sizes
from numpy.typing import NDArray
from PIL import Image

from fedmerit.errors import BadInput
from fedmerit.files import write_atomically
from fedmerit_data.raw_cases import Decoded, RawCase, list_visible
from fedmerit_data.spatial.dicom import is_slice, read_dicom
from fedmerit_data.spatial.geometry import restore_axes, slice_volume
from fedmerit_data.spatial.photographs import load_photograph
from fedmerit_data.spatial.segmentations import missing_reference, pack_segmentation
from fedmerit_data.spatial.stacks import TIFF, is_stack, pack_stack, read_stack
from fedmerit_data.spatial.volumes import (
    ITK,
    ITK_SUFFIXES,
    NIFTI,
    Volume,
    drop_axes_of_one,
    open_itk,
    read_volume,
    with_place_of,
)


def mask_suffix(image: Volume) -> str:
    """Return the ending of the file of a mask of ``image``: that of its own format, in one file; NIfTI for DICOM."""
    own = image.path.suffix.lower()
    joined = {".mhd": ".mha", ".nhdr": ".nrrd", ".mgh": ".mgz", ".tiff": ".tif"}
    joined |= {suffix: suffix for suffix in (".mha", ".nrrd", ".mgz", ".tif")}
    return ".nii.gz" if image.header is None else joined.get(own, ".nii.gz")


def pack_mask(image: Volume, mask: NDArray[np.uint8]) -> bytes:
    """Return a file with ``mask`` (x, y, z) in the format of `mask_suffix`, at the place where the header of ``image``
    is.

    A NIfTI header is taken over with both forms, their codes and the unit; extensions may name a patient and are not.
    """
    header = None if isinstance(image.header, tuple) else image.header  # NIfTI cannot take over that of DICOM
    if isinstance(header, ITK.Image):
        stored = ITK.GetImageFromArray(np.ascontiguousarray(mask.T))
        stored = with_place_of(header, stored[:, :, 0] if header.GetDimension() == 2 else stored)
        with TemporaryDirectory() as folder:
            file = Path(folder) / f"mask{mask_suffix(image)}"
            ITK.WriteImage(stored, str(file), useCompression=True)
            return file.read_bytes()
    if isinstance(header, nib.freesurfer.mghformat.MGHHeader):
        kept = nib.MGHImage(mask, None, header.copy())
        kept.set_data_dtype(np.uint8)
    elif header is not None and "sform_code" in header:
        two = isinstance(header, nib.Nifti2Header)
        single = (nib.Nifti2Header if two else nib.Nifti1Header)(header.binaryblock, header.endianness, check=False)
        single["cal_min"] = single["cal_max"] = 0
        single.set_data_dtype(np.uint8)
        mask = mask[..., 0] if len(header.get_data_shape()) == 2 else mask
        kept = (nib.Nifti2Image if two else nib.Nifti1Image)(mask, None, single)
    elif header is not None or not image.is_located:  # Analyze, and an X-ray, state sizes, and no place
        kept = nib.Nifti1Image(mask, None)
        kept.header.set_zooms(voxel_sizes(image.affine))
    else:
        kept = nib.Nifti1Image(mask, image.affine)
        kept.set_sform(image.affine, 1)
        kept.set_qform(image.affine, 1)
        kept.header.set_xyzt_units("mm")
    return gzip.compress(kept.to_bytes(), compresslevel=1, mtime=0)  # mtime as nibabel: equal bytes


PHOTOGRAPHS = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp", ".gif", ".webp")
DICOM, SEGMENTATION = ".dcm", ".seg.dcm"
READABLE = (*NIFTI, *ITK_SUFFIXES, DICOM, *PHOTOGRAPHS)
DETACHED = (".raw", ".zraw", ".img", ".gz")  # voxels of a header of the same name
HEADERS = (".mhd", ".nhdr", ".hdr")
FILE = re.compile(r"(?P<stem>.+?)(?P<suffix>\.nii\.gz|\.[^.]+)", re.IGNORECASE)


def name_and_suffix(path: Path) -> tuple[str, str]:
    """Name and suffix of a file, such as ``("scan", ".nii.gz")``; an empty suffix if the name has none."""
    match = FILE.fullmatch(path.name)
    return (match["stem"], match["suffix"].lower()) if match else (path.name, "")


def read_photograph(path: Path, channels: int) -> NDArray[np.float32]:
    """Return (1, channels, height, width), grey or in colours; `BadInput` if unreadable, or without these channels."""
    if channels not in (1, 3):
        raise BadInput(
            f"{path}: a photograph has 1 or 3 channels, not {channels}; pass --channels 1 (grey) or 3 (colours)"
        )
    pixels = np.atleast_3d(load_photograph(path, "L" if channels == 1 else "RGB"))
    return pixels.transpose(2, 0, 1)[None]


def is_readable(path: Path) -> bool:
    """Return whether a path has the name of an image of a format that is read, or is a folder of DICOM slices."""
    if path.is_dir():
        return any(is_slice(entry) and entry.is_file() for entry in list_visible(path))
    return name_and_suffix(path)[1] in READABLE


def is_detached(path: Path) -> bool:
    """Return whether a file has the voxels of a header beside it."""
    if path.suffix.lower() not in DETACHED:
        return False
    stem = path.name[: -len(path.suffix)].removesuffix(".raw")
    return any(path.with_name(stem + header).exists() for header in HEADERS)


def is_dicom(path: Path) -> bool:
    """Return whether a path is read as DICOM."""
    return path.is_dir() or path.suffix.lower() == DICOM


def read_scan(path: Path, channel: int | None = None) -> Volume:
    """Return a volume in one file, a stack of pictures, or the folder of one DICOM series."""
    if is_dicom(path):
        return read_dicom(path)
    return read_stack(path) if path.suffix.lower() in TIFF else read_volume(path, channel)


def is_photograph(path: Path) -> bool:
    """Return whether a file is a picture, by its name, and no stack of them."""
    return name_and_suffix(path)[1] in PHOTOGRAPHS and not is_stack(path)


def read_channels(path: Path, channels: int) -> list[Volume]:
    """Return a volume for each of the numbers of a voxel; `BadInput` if the file has another number of channels."""
    if channels == 1:
        there = read_shape(path)
        if len(there) == 4 and there[0] > 1:
            raise BadInput(f"{path}: of shape {there}; pass --channels {there[3]} to read them all")
        return [read_scan(path)]
    if name_and_suffix(path)[1] not in (*NIFTI, *ITK_SUFFIXES):
        raise BadInput(
            f"{path}: a file of this format has one channel, not {channels}; pass --channels 1, or export it as NIfTI"
        )
    first, shape = read_volume(path, 0, colours=True), read_shape(path)
    if shape[3:] != (channels,):
        number = shape[3] if len(shape) == 4 else 1
        raise BadInput(
            f"{path}: of shape {shape}; expected {channels} channels as its fourth axis; pass --channels {number}"
        )
    return [first, *(read_volume(path, channel, colours=True) for channel in range(1, channels))]


def read_shape(path: Path) -> tuple[int, ...]:
    """Return the shape of a volume, of three axes or, with several numbers per voxel, four.

    Empty if the file has another format or cannot be read: the reader says why.
    """
    suffix = name_and_suffix(path)[1]
    try:
        if suffix in ITK_SUFFIXES:
            reader, _, _ = open_itk(path)
            flat = [1] * (reader.GetDimension() == 2)
            return drop_axes_of_one((*reader.GetSize(), *flat, reader.GetNumberOfComponents()))
        if suffix not in NIFTI or not path.is_file():
            return ()
        file: Any = nib.load(path)
        colours = file.dataobj.dtype.names or ()
        return drop_axes_of_one((*file.shape, *[1] * (3 - len(file.shape)), max(len(colours), 1)))
    except Exception:  # any error over a damaged file
        return ()


KNOWN = f"{', '.join(READABLE)}, or the folder of one DICOM series"


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

    @property
    def is_segmented(self) -> bool:
        """Whether its masks are a DICOM segmentation."""
        volume = self.volume
        return volume is not None and isinstance(volume.header, tuple) and missing_reference(volume) is None

    def mask_files(self, folder: Path, labels: Sequence[str]) -> list[Path]:
        """Return the files that `write_masks` writes."""
        if self.is_segmented:
            return [folder / f"{self.name}{SEGMENTATION}"]
        suffix = ".png" if self.volume is None else mask_suffix(self.volume)
        return [folder / f"{self.name}_{label}{suffix}" for label in labels]

    def write_masks(
        self, folder: Path, labels: Sequence[str], masks: NDArray[np.bool_], model: str = "unknown"
    ) -> list[Path]:
        """Write masks (slices, labels, height, width), each to a file ``NAME_LABEL`` with the header of the image.

        0 and 1 in the format of a volume; PNG with 0 and 255 for a photograph; for DICOM one segmentation of all labels
        that names the digest of the ``model``, or NIfTI if the image lacks what a segmentation refers to.
        """
        files = self.mask_files(folder, labels)
        for path, content in zip(files, self._pack(labels, masks.astype(np.uint8), model), strict=True):
            write_atomically(path, lambda file, content=content: file.write(content))  # type: ignore[misc]
        return files

    def _pack(self, labels: Sequence[str], masks: NDArray[np.uint8], model: str) -> Iterator[bytes]:
        volume, each = self.volume, [masks[:, place] for place in range(len(labels))]
        if volume is None:
            for mask in each:
                packed = BytesIO()
                Image.fromarray(255 * mask[0]).save(packed, "PNG")
                yield packed.getvalue()
        elif self.is_segmented:
            yield pack_segmentation(volume, labels, np.stack([restore_axes(volume, mask) for mask in each]), model)
        else:
            pack = pack_stack if mask_suffix(volume) in TIFF else pack_mask
            yield from (pack(volume, restore_axes(volume, mask)) for mask in each)


def image_name(path: Path) -> str:
    """Return the name of a file without its ending, or of a folder, also if the path is ``.``."""
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
    if channel is not None and (is_dicom(path) or suffix in PHOTOGRAPHS):
        raise BadInput(f"{path}: --channel {channel}: belongs to volumes of several channels; leave it out")
    if is_photograph(path):
        pixels = read_photograph(path, channels)
        return OneImage(path, Decoded(pixels, np.zeros((1, 1, *pixels.shape[2:]), np.uint8)), None)
    if not path.is_dir() and suffix not in READABLE:
        raise BadInput(f"{path}: unknown image format; expected {KNOWN}")
    volumes = _volumes(path, channels, channel)
    blank = replace(volumes[0], voxels=np.zeros_like(volumes[0].voxels))
    case = RawCase(image_name(path), image_name(path), path, path)
    sliced = [slice_volume(case, volume, blank) for volume in volumes]
    image = np.concatenate([part.image for part in sliced], axis=1)
    remarks = sliced[0].remarks
    if isinstance(volumes[0].header, tuple) and (missing := missing_reference(volumes[0])):
        remarks += (f"has no one {missing}, which a DICOM segmentation refers to: masks are NIfTI",)
    return OneImage(path, replace(sliced[0], image=image, remarks=remarks), volumes[0])


def _volumes(path: Path, channels: int, channel: int | None) -> list[Volume]:
    if is_dicom(path):
        if channels != 1:
            raise BadInput(f"{path}: a DICOM series has one channel, the model takes {channels}; give NIfTI files")
        return [read_dicom(path)]
    shape = read_shape(path)
    count = shape[3:]
    if channel is None:
        if shape and channels != (count[0] if count else 1) and not (channels == 1 == shape[0]):
            choose = "; name one by --channel, counted from 0" if channels == 1 else ""
            raise BadInput(f"{path}: of shape {shape}; the model takes {channels} channel(s){choose}")
        return read_channels(path, channels)
    unread = not shape  # the reader says why
    if not unread and (channels != 1 or not count or not 0 <= channel < count[0]):
        raise BadInput(f"{path}: --channel {channel}: no such channel for a model of {channels}; leave it out")
    return [read_volume(path, channel)]
