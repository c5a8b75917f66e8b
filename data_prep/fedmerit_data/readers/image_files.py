"""Image files of anyone's own data: photographs and volumes by number of channels, single images for prediction."""

import gzip
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from io import BytesIO
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory

import nibabel as nib
import numpy as np
from nibabel.affines import voxel_sizes
from numpy.typing import NDArray
from PIL import Image

from fedmerit.errors import BadInput
from fedmerit.files import write_atomically
from fedmerit_data.raw_cases import Channel, Decoded, RawCase, list_visible
from fedmerit_data.spatial.dicom import read_colours, read_dicom
from fedmerit_data.spatial.geometry import align_axes, resample_channel, restore_axes, slice_channels
from fedmerit_data.spatial.heads import is_dicom_file, read_head
from fedmerit_data.spatial.photographs import load_photograph, to_grey
from fedmerit_data.spatial.segmentations import missing_reference, pack_segmentation
from fedmerit_data.spatial.stacks import TIFF, is_stack, pack_stack, read_stack, stack_shape
from fedmerit_data.spatial.unread_forms import describe_unread
from fedmerit_data.spatial.volumes import (
    COLOURS,
    ITK,
    ITK_SUFFIXES,
    NIFTI,
    Volume,
    drop_axes_of_one,
    is_coloured,
    open_itk,
    open_nifti,
    read_volume,
    unit_of,
    voxel_file,
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


PHOTOGRAPHS = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp", ".gif", ".webp", ".jfif")
DICOM, SEGMENTATION = ".dcm", ".seg.dcm"
READABLE = (*NIFTI, *ITK_SUFFIXES, DICOM, *PHOTOGRAPHS)
KNOWN = f"{', '.join(READABLE)}, or the folder of one DICOM series"
HEADERS = (".mhd", ".nhdr", ".hdr")  # whose voxels are in another file
FILE = re.compile(r"(?P<stem>.+?)(?:\.ome(?=\.tiff?$))?(?P<suffix>\.nii\.gz|\.[^.]+)", re.IGNORECASE)


def name_and_suffix(path: PurePath) -> tuple[str, str]:
    """Return name and suffix of a file, such as ``("scan", ".nii.gz")``; an empty suffix if the name has none.

    That of ``scan.ome.tif`` is ``.tif``.
    """
    match = FILE.fullmatch(path.name)
    return (match["stem"], match["suffix"].lower()) if match else (path.name, "")


def is_readable(path: Path) -> bool:
    """Return whether a path has the name of an image of a format that is read, or is DICOM, or a folder of it."""
    if path.is_dir():
        return any(entry.is_file() and is_dicom_file(entry) for entry in list_visible(path))
    return name_and_suffix(path)[1] in READABLE or is_dicom_file(path)


def require_readable(path: Path, listing: str = "") -> None:
    """Raise `BadInput` if a path is of no format that is read; it names the ``listing`` of the path, if any."""
    if not is_readable(path):
        form = None if path.is_dir() else describe_unread(path)
        raise BadInput(f"{listing}{path}: is {form or f'of no format that is read; expected one of {KNOWN}'}")


def is_detached(path: Path) -> bool:
    """Return whether a file has the voxels of a header beside it."""
    return name_and_suffix(path)[1] not in READABLE and path in _voxel_files(
        path.parent, path.parent.stat().st_mtime_ns
    )


@lru_cache(maxsize=64)
def _voxel_files(folder: Path, changed: int) -> frozenset[Path]:
    """Return the files in a folder that have the voxels of headers beside them, of a folder ``changed`` at a time."""
    headers = [path for path in list_visible(folder) if path.suffix.lower() in HEADERS]
    return frozenset(voxel_file(path) for path in headers) - frozenset(headers)


def is_dicom(path: Path) -> bool:
    """Return whether a path is read as DICOM."""
    return (
        path.is_dir()
        or path.suffix.lower() == DICOM
        or (name_and_suffix(path)[1] not in READABLE and is_dicom_file(path))
    )


def read_scan(path: Path, channel: int | None = None, slices: Sequence[Path] = (), colours: bool = False) -> Volume:
    """Return a volume in one file, a stack of pictures, or one DICOM series: ``slices``, or all of a folder.

    Args:
        path: The file or folder.
        channel: The channel to read of several, from 0.
        slices: The slices of the series, if the folder holds others.
        colours: Whether those of NIfTI are channels, too.
    """
    if is_dicom(path):
        (volume,) = read_dicom(path, slices)
        return volume
    return read_stack(path, channel) if path.suffix.lower() in TIFF else read_volume(path, channel, colours)


def is_photograph(path: Path) -> bool:
    """Return whether a file is a picture, by its name, and no stack of them."""
    return name_and_suffix(path)[1] in PHOTOGRAPHS and not is_stack(path)


def picture_files(folder: Path) -> list[Path]:
    """Return the pictures in a folder, those of the slices of a mask; [] of a file."""
    return [entry for entry in list_visible(folder) if is_photograph(entry)] if folder.is_dir() else []


@dataclass(frozen=True)
class Channels:
    """An image in memory: its channels in order, all on the grid of ``grid``, which is the finest of them."""

    volumes: tuple[Volume, ...]
    grid: Volume
    is_photograph: bool = False
    remarks: tuple[str, ...] = ()

    def slices(self, masks: Sequence[Volume]) -> Decoded:
        """Return the slices of the image with those of its masks, each of 0 and 1 on its grid.

        Raises:
            BadInput: a value is not finite.
        """
        if self.is_photograph:
            pixels = np.stack([volume.voxels[..., 0].T for volume in self.volumes])
            marked = np.stack([mask.voxels[..., 0].T for mask in masks]).astype(np.uint8)
            return Decoded(np.ascontiguousarray(pixels)[None], marked[None], remarks=self.remarks)
        decoded = slice_channels(self.volumes, [mask.voxels > 0 for mask in masks])
        return replace(decoded, remarks=(*decoded.remarks, *self.remarks))


def read_channels(parts: Sequence[Channel], count: int, resample: bool = False, fill: float | None = None) -> Channels:
    """Return the image that ``parts`` are the channels of, or the one file or series that has all of them.

    Args:
        parts: One part with all channels, or one for each.
        count: Expected number of channels; a photograph has 1 (grey) or 3 (colours).
        resample: Bring channels on other grids of the same scan to the finest of them (linear).
        fill: The value for voxels that have none; `None`: such an image is refused.

    Raises:
        BadInput: a file is unreadable, has other channels, is on another grid, or has voxels without a value.
    """
    names = ", ".join(part.name or part.path.name for part in parts)
    if len(parts) not in (1, count):
        example = f" or by name, such as --channels {','.join(part.name or part.path.name for part in parts[:count])}"
        advice = f"pass --channels {len(parts)}, or list those to use in pairs.csv{example * (len(parts) > count)}"
        if len({head and head.series for part in parts for head in [read_head(part.path)]} - {None}) == 1:
            advice = "if they are slices of one volume, export them with their places (ImagePositionPatient)"
        raise BadInput(f"{parts[0].path}: has {len(parts)} channels ({names}), not {count}; {advice}")
    pictures = [is_photograph(part.path) for part in parts]
    if any(pictures) and not all(pictures):
        raise BadInput(f"{parts[0].path}: its channels ({names}) are pictures and volumes; give all in one form")
    if len(parts) == 1:
        volumes = _read_part(parts[0], count)
    else:
        volumes = [volume for part in parts for volume in _read_part(part, 1)]
    filled, remarks = _fill(volumes, fill)
    # The first of the finest: masks are drawn on it, and predicted on it.
    grid = max(filled, key=lambda volume: volume.voxels.size) if resample else filled[0]
    placed = list[Volume]()
    for part, volume in zip(parts if len(parts) > 1 else [*parts] * count, filled, strict=True):
        on_grid, said = (volume, ()) if volume is grid else _on_grid(part, volume, grid, resample)
        placed.append(on_grid)
        remarks += said
    without_header = all(volume.header is None for volume in filled)  # pictures, of DICOM too
    return Channels(tuple(placed), grid, without_header, tuple(dict.fromkeys(remarks)))


def _on_grid(part: Channel, volume: Volume, grid: Volume, resample: bool) -> tuple[Volume, tuple[str, ...]]:
    try:
        return align_axes(RawCase("", "", grid.path, volume.path), grid, volume), ()
    except BadInput as error:
        shapes = f"{volume.voxels.shape} on its grid, {grid.path.name} {grid.voxels.shape}"
        if not (volume.is_located and grid.is_located):
            raise BadInput(
                f"{volume.path}: channel of another grid than {grid.path.name} ({shapes}), and a header does not state "
                "where its voxels are; export both again"
            ) from error
        if not resample:
            raise BadInput(
                f"{volume.path}: channel on another grid than {grid.path.name} (voxels {shapes}); give --resample to "
                "bring it to that of the finest channel (linear)"
            ) from error
    return resample_channel(grid, volume, part.name or part.path.name)


def _fill(volumes: Sequence[Volume], value: float | None) -> tuple[list[Volume], list[str]]:
    """Return the volumes with ``value`` where they have none, and a remark on how many voxels that were."""
    gaps = [~np.isfinite(volume.voxels) for volume in volumes]
    if not (missing := sum(int(gap.sum()) for gap in gaps)):
        return [*volumes], []
    if value is None:
        raise BadInput(
            f"{volumes[0].path}: has values that are not finite, {missing} in all; export the image again, or give "
            "--fill VALUE"
        )
    share = missing / sum(gap.size for gap in gaps)
    filled = [
        replace(volume, voxels=np.where(gap, np.float32(value), volume.voxels))
        for volume, gap in zip(volumes, gaps, strict=True)
    ]
    return filled, [f"{missing} voxels ({share:.2%}) without a value set to {value:g}, as --fill asks"]


def _read_part(part: Channel, count: int) -> list[Volume]:
    """Return the channels of one file or series."""
    path, index = part.path, part.index
    if index is not None and is_photograph(path):
        raise BadInput(f"{path}: --channel {index}: belongs to volumes of several channels; leave it out")
    if is_photograph(path):
        return _pictures(path, load_photograph(path, "L" if _is_grey(path, count) else "RGB"))
    if is_dicom(path):
        if (colours := read_colours(path, part.files)) is not None:
            return _pictures(path, to_grey(colours) if _is_grey(path, count) else colours)
        return read_dicom(path, part.files, count, index)
    shape = read_shape(path)
    number = shape[3] if len(shape) == 4 else 1
    if index is not None:
        if shape and not (count == 1 and len(shape) == 4 and 0 <= index < number):
            there = f"it has {number}, counted from 0" if count == 1 else f"all {count} are read; leave it out"
            raise BadInput(f"{path}: --channel {index}: no such channel; {there}")
        return [read_scan(path, index, colours=True)]
    leads_with_one = len(shape) == 4 and shape[0] == 1 == count  # its reader says so
    if shape and number != count and not leads_with_one:
        choose = "; name one by --channel, counted from 0" if count == 1 else ""
        raise BadInput(
            f"{path}: of shape {shape}; expected {count} channel(s) as its fourth axis; prepare --channels "
            f"{number} reads them all{choose}"
        )
    if count == 1:
        return [read_scan(path)]
    return [read_scan(path, channel, colours=True) for channel in range(count)]


def _is_grey(path: Path, count: int) -> bool:
    if count not in (1, 3):
        raise BadInput(
            f"{path}: a photograph has 1 or 3 channels, not {count}; pass --channels 1 (grey) or 3 (colours)"
        )
    return count == 1


def _pictures(path: Path, pixels: NDArray[np.float32]) -> list[Volume]:
    """Return the colours of a picture (height, width) or (height, width, colours) as volumes of one slice."""
    layers = np.atleast_3d(pixels)
    return [
        Volume(path, layers[..., colour].T[..., None], np.eye(4), is_located=False, is_measured=False)
        for colour in range(layers.shape[-1])
    ]


def read_shape(path: Path) -> tuple[int, ...]:
    """Return the shape of a volume, of three axes or, with several numbers per voxel, four.

    Empty if the file has another format or cannot be read: the reader says why.
    """
    return read_size(path)[0]


def read_size(path: Path) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return the shape of a volume as `read_shape` does, and the sides of its voxels [mm], from its head."""
    suffix = name_and_suffix(path)[1]
    try:
        if suffix in ITK_SUFFIXES:
            reader, _, _ = open_itk(path)
            flat = [1] * (reader.GetDimension() == 2)
            shape = (*reader.GetSize(), *flat, reader.GetNumberOfComponents())
            return drop_axes_of_one(shape), (*reader.GetSpacing()[:3], *map(float, flat))
        if shape := stack_shape(path):
            return shape, ()
        if suffix not in NIFTI or not path.is_file():
            return (), ()
        file = open_nifti(path)
        colours = len(COLOURS) if is_coloured(file.dataobj.dtype) else 1
        shape = (*file.shape, *[1] * (3 - len(file.shape)), colours)
        return drop_axes_of_one(shape), tuple(float(side) for side in voxel_sizes(file.affine) * unit_of(file.header))
    except Exception:  # any error over a damaged file
        return (), ()


@dataclass(frozen=True)
class OneImage:
    """A photograph, or a volume as its axial slices; its label is empty."""

    path: Path
    decoded: Decoded
    volume: Volume | None  # in stored order; None: a photograph
    name: str

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


def read_image(
    parts: Sequence[Channel] | Path,
    channels: int,
    channel: int | None = None,
    name: str = "",
    fill: float | None = None,
) -> OneImage:
    """Read one image, as `fedmerit_data.readers.labelled_images.decode` does with its mask.

    Args:
        parts: A file, the folder of a series, or the channels.
        channels: The number of channels that the network takes.
        channel: The channel to read from a file of four axes, from 0, if the network takes one.
        name: Name of the image; "": that of its first file.
        fill: The value for voxels that have none; `None`: such an image is refused.

    Raises:
        BadInput: it is unreadable, or lacks these channels.
    """
    parts = [Channel(parts)] if isinstance(parts, Path) else [*parts]
    path = parts[0].path
    if not path.exists():
        raise BadInput(f"{path}: not found; correct the path")
    if not path.is_dir():
        require_readable(path)
    image = read_channels(
        [replace(part, index=channel) for part in parts] if channel is not None else parts, channels, True, fill
    )
    decoded = image.slices([replace(image.grid, voxels=np.zeros_like(image.grid.voxels))])
    if isinstance(image.grid.header, tuple) and not image.is_photograph and (missing := missing_reference(image.grid)):
        lacking = f"has no one {missing}, which a DICOM segmentation refers to: masks are NIfTI"
        decoded = replace(decoded, remarks=(*decoded.remarks, lacking))
    return OneImage(path, decoded, None if image.is_photograph else image.grid, name or image_name(path))
