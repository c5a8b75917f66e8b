"""What the readers of volumes share: one type for every file format, one geometry check, one orientation.

A volume's affine takes voxel indices to millimetres towards the patient's right, front and head, as nibabel has
it, whatever the convention of the file.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import highdicom
import nibabel as nib
import numpy as np
import pydicom
import SimpleITK
from monai.data import MetaTensor
from monai.transforms import Orientation
from nibabel import orientations
from numpy.typing import NDArray
from pydicom.pixels.utils import get_expected_length
from scipy import ndimage

from data_prep.raw import Decoded, RawCase, RawSite, require_few_labels, require_file, require_same_shape, visible
from fedmerit.errors import BadInput

ITK_VOXELS = re.compile(rb"^(?:ElementDataFile\s*=|data ?file:)\s*(.*?)\s*$", re.IGNORECASE | re.MULTILINE)
PACKED = 1032  # voxels that one stored byte can stand for: the most that deflate packs
# What a slice has to say, and its whole series in the same words.
OF_ALL_SLICES = (
    "SeriesInstanceUID",
    "Rows",
    "Columns",
    "SamplesPerPixel",
    "PhotometricInterpretation",
    "BitsAllocated",
    "PixelRepresentation",
)
SAME_PLACE = 0.1  # mm that corners of image and mask may lie apart
EVEN = 0.05  # share of the median step by which the steps between the slices of a series may stray
MOST_VOXELS = 2**27  # many times any scan: what promises more is a damaged header
FROM_LPS = np.diag([-1.0, -1.0, 1.0, 1.0])  # DICOM and ITK count towards left and back
ITK: Any = SimpleITK  # which carries no types


@dataclass(frozen=True)
class Volume:
    """Voxels (x, y, z) float32, their affine (4, 4), and whether the file states where they lie."""

    path: Path
    voxels: NDArray[np.float32]
    affine: NDArray[np.float64]
    located: bool = True


@contextmanager
def _reading(path: Path, what: str) -> Iterator[None]:
    """Whatever a library raises over a damaged file, running out of memory included, as `BadInput`."""
    if not path.is_dir():
        require_file(path, what)
    try:
        yield
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(f"{path}: not a readable {what} ({error}); fetch the file again") from error


def _require_sane(path: Path, shape: Collection[int], stored: int | None = None) -> None:
    """`BadInput` unless ``shape`` is that of one volume that memory can hold; asked before anything is read.

    ``stored`` is the number of bytes that hold it, packed or not.
    """
    voxels = np.prod([float(side) for side in shape])
    if len(shape) != 3 or min(shape) < 1:
        raise BadInput(f"{path}: shape {tuple(shape)}; expected one volume of three axes")
    if voxels > MOST_VOXELS:
        raise BadInput(f"{path}: its header promises {tuple(shape)} voxels, more than any scan; fetch the file again")
    if stored is not None and voxels > stored * PACKED:
        raise BadInput(f"{path}: its header promises {tuple(shape)} voxels, but few bytes follow; fetch the file again")


def _volume(path: Path, voxels: NDArray[Any], affine: NDArray[Any], located: bool = True) -> Volume:
    if not np.isfinite(affine).all() or np.linalg.det(affine) == 0:
        raise BadInput(f"{path}: its header places no voxel (affine {affine.tolist()}); export the file again")
    return Volume(path, voxels.astype(np.float32, copy=False), np.asarray(affine, dtype=np.float64), located)


def read_nifti(path: Path, channel: int | None = None) -> Volume:
    """One NIfTI file; of a file of four axes the given ``channel``, or the only one.

    Raises:
        BadInput: the file is unreadable, not one volume, or placed nowhere.
    """
    with _reading(path, "NIfTI volume"):
        file: Any = nib.load(path)
        shape, proxy, stored = file.shape, file.dataobj, path.stat().st_size
        if proxy.dtype.kind not in "buif":
            raise BadInput(f"{path}: holds voxels of type {proxy.dtype}; expected one real number per voxel")
        if len(shape) == 4 and (shape[3] == 1 or channel is not None):
            _require_sane(path, shape[:3], stored)
            voxels = np.asarray(proxy[..., channel or 0], dtype=np.float32)
        else:
            _require_sane(path, shape, stored)
            voxels = np.asarray(proxy, dtype=np.float32)
        located = bool(file.header["sform_code"] > 0 or file.header["qform_code"] > 0)
        return _volume(path, voxels, file.affine, located)


def read_itk(path: Path) -> Volume:
    """One MetaImage (.mhd + .raw) or NRRD file.

    Raises:
        BadInput: the file is unreadable, not one volume of single numbers, or placed nowhere.
    """
    with _reading(path, "volume"):
        stored = _stored_in(path).stat().st_size
        reader = ITK.ImageFileReader()
        reader.SetFileName(str(path))
        reader.ReadImageInformation()
        _require_sane(path, reader.GetSize(), stored)
        if reader.GetNumberOfComponents() != 1:
            raise BadInput(f"{path}: holds {reader.GetNumberOfComponents()} numbers per voxel; expected one")
        image = reader.Execute()
        affine = np.eye(4)
        affine[:3, :3] = np.reshape(image.GetDirection(), (3, 3)) * image.GetSpacing()
        affine[:3, 3] = image.GetOrigin()
        # NRRD may leave the patient out; MetaImage never does.
        located = path.suffix.lower() != ".nrrd" or reader.HasMetaDataKey("NRRD_space")
        return _volume(path, ITK.GetArrayFromImage(image).T, FROM_LPS @ affine, located)


def _stored_in(path: Path) -> Path:
    """The file that holds the voxels of a MetaImage or NRRD header: itself, or the one of its name beside it."""
    with path.open("rb") as file:
        named = ITK_VOXELS.search(file.read(2**16))
    voxels = named[1].decode() if named else "LOCAL"
    if voxels.upper() == "LOCAL":
        return path
    if Path(voxels).name != voxels or Path(voxels).stem != path.stem:
        raise BadInput(f"{path}: takes its voxels from {voxels}; expected {path.stem}.raw beside it, or its own")
    if not path.with_name(voxels).is_file():
        raise ValueError(f"{voxels}, its voxels, is no file")
    return path.with_name(voxels)


def is_slice(path: Path) -> bool:
    """Whether a file of a DICOM folder is named as a slice is; many sets name slices without a suffix."""
    plain = path.suffix == "" and path.name.upper() not in ("LICENSE", "DICOMDIR", "README")
    return plain or path.suffix.lower() in (".dcm", ".ima")


def read_series(folder: Path) -> Volume:
    """The one DICOM series that a folder holds, its slices sorted by where they lie.

    Raises:
        BadInput: a slice is unreadable, belongs to another series, is there twice, or is missing in between.
    """
    paths = [path for path in visible(folder) if is_slice(path)]
    if len(paths) < 2:
        raise BadInput(f"{folder}: {len(paths)} DICOM slice(s); expected the folder of a whole series")
    slices = [(path, _header(path)) for path in paths]
    first = slices[0][1]
    for path, header in slices:
        for key in (*OF_ALL_SLICES, "PixelSpacing"):
            if header[key].value != first[key].value:
                raise BadInput(f"{path}: its {key} is not that of {paths[0].name}; keep one series per folder")
        apart = np.subtract(header.ImageOrientationPatient, first.ImageOrientationPatient)
        if not np.abs(apart).max() < 1e-3:
            raise BadInput(f"{path}: its ImageOrientationPatient is not that of {paths[0].name}; keep one series")
    with _reading(folder, "DICOM series"):
        _require_sane(folder, (first.Columns, first.Rows, len(slices)))
        along, down = np.reshape(np.asarray(first.ImageOrientationPatient, float), (2, 3))
        normal = np.cross(along, down)
        slices.sort(key=lambda slice_: float(np.dot(normal, slice_[1].ImagePositionPatient)))
        places = np.array([header.ImagePositionPatient for _, header in slices], float)
        _require_even(folder, [path.name for path, _ in slices], places @ normal)
        reader = ITK.ImageSeriesReader()
        reader.SetFileNames([str(path) for path, _ in slices])
        voxels = ITK.GetArrayFromImage(reader.Execute()).T
        affine = np.eye(4)
        rows_apart, columns_apart = (float(value) for value in first.PixelSpacing)
        affine[:3, 0], affine[:3, 1] = along * columns_apart, down * rows_apart
        affine[:3, 2] = (places[-1] - places[0]) / (len(places) - 1)
        affine[:3, 3] = places[0]
        _require_sane(folder, voxels.shape)
        return _volume(folder, voxels, FROM_LPS @ affine)


def _header(path: Path) -> pydicom.Dataset:
    with _reading(path, "DICOM slice"):
        header = pydicom.dcmread(path)
        _require_sane(path, (header.Columns, header.Rows, 1))
        _require_pixels(header)
        for key, count in (("ImageOrientationPatient", 6), ("ImagePositionPatient", 3), ("PixelSpacing", 2)):
            if len(header[key].value) != count or not np.isfinite([float(value) for value in header[key].value]).all():
                raise BadInput(f"{path}: {key} {header[key].value}; expected {count} numbers")
        if int(header.get("NumberOfFrames") or 1) != 1:
            raise BadInput(f"{path}: holds several frames; expected one slice per file")
        for key in OF_ALL_SLICES:
            header[key]  # raises the name of what is missing
        return header


def _require_pixels(header: pydicom.Dataset) -> None:
    """`ValueError` unless a slice holds all its pixels, for ITK makes up what is missing; takes them out of memory."""
    pixels = header.pop("PixelData", None)
    there = len(pixels.value or b"") if pixels else 0
    promised = 1 if header.file_meta.TransferSyntaxUID.is_compressed else get_expected_length(header)
    if there < promised:
        raise ValueError(f"promises {promised} bytes of pixels, but holds {there}")


def _require_even(folder: Path, names: list[str], places: NDArray[np.float64]) -> None:
    """`BadInput` unless neighbours along the normal lie equally far apart."""
    steps = np.diff(places)
    at = int(np.argmin(steps))
    if steps[at] < SAME_PLACE:
        raise BadInput(f"{folder}: {names[at]} and {names[at + 1]} lie in one place; keep one of the two")
    usual = float(np.median(steps))
    at = int(np.argmax(np.abs(steps - usual)))
    if not abs(steps[at] - usual) <= EVEN * usual:
        raise BadInput(
            f"{folder}: {names[at]} and {names[at + 1]} lie {steps[at]:.2f} mm apart, others {usual:.2f} mm; "
            "fetch the missing slice, or remove what is no part of the series"
        )


def read_segmentation(path: Path, segments: Collection[int]) -> Volume:
    """The union of the given segments of a DICOM-SEG object, 1 within and 0 without.

    Raises:
        BadInput: the file is unreadable or holds none of the segments.
    """
    with _reading(path, "DICOM segmentation"):
        header = pydicom.dcmread(path, stop_before_pixels=True)
        _require_sane(path, (header.Columns, header.Rows, int(header.NumberOfFrames)))
        file = highdicom.seg.segread(path)
        present = sorted(set(segments) & set(file.segment_numbers))
        if not present:
            raise BadInput(f"{path}: segments {list(file.segment_numbers)}; expected some of {sorted(segments)}")
        geometry = file.get_volume_geometry()
        if geometry is None:
            raise BadInput(f"{path}: its frames make up no volume; export the segmentation again")
        _require_sane(path, geometry.spatial_shape)
        volume = file.get_volume(segment_numbers=present)
        # Its axes are slice, row, column.
        return _volume(path, volume.array.max(axis=-1).T, FROM_LPS @ volume.affine[:, [2, 1, 0, 3]])


def onto(image: Volume, label: Volume) -> tuple[Volume, tuple[str, ...]]:
    """``label`` on the grid of ``image`` by nearest neighbour, and the remark where that moved voxels.

    A mask that only lacks slices, or is stored in another order, loses nothing and gets no remark.

    Raises:
        BadInput: marked voxels lie outside the image, or a header does not say where its voxels lie.
    """
    for volume in (image, label):
        if not volume.located:
            raise BadInput(f"{volume.path}: its header does not say where its voxels lie; export the file again")
    to_label = np.linalg.inv(label.affine) @ image.affine
    marked = np.argwhere(label.voxels > 0)
    back = np.linalg.inv(to_label)
    at = marked @ back[:3, :3].T + back[:3, 3]
    if marked.size and ((at < -1).any() or (at > image.voxels.shape).any()):
        raise BadInput(f"{label.path}: marks voxels outside of its image {image.path.name}; they have to be one scan's")
    voxels = ndimage.affine_transform(
        label.voxels, to_label[:3, :3], to_label[:3, 3], image.voxels.shape, order=0, mode="grid-constant"
    )
    corners = _corners(image.voxels.shape) @ to_label.T
    exact = np.abs(corners - np.rint(corners)).max() < 0.01
    remarks: tuple[str, ...] = () if exact else ("mask resampled (nearest) to the grid of its image",)
    beyond = _corners(label.voxels.shape) @ back.T
    if (beyond[:, :3] < -1).any() or (beyond[:, :3] > np.add(image.voxels.shape, 1)).any():
        remarks += ("the grid of the mask reaches beyond its image: is a slice missing?",)
    return Volume(label.path, voxels, image.affine, image.located), remarks


def same_grid(case: RawCase, image: Volume, label: Volume) -> Volume:
    """``label`` with its axes in the order and direction of ``image``'s, nothing resampled.

    Raises:
        BadInput: their shapes differ, or their corners lie apart.
    """
    if image.located and label.located:
        turn = orientations.ornt_transform(
            orientations.io_orientation(label.affine), orientations.io_orientation(image.affine)
        )
        affine = label.affine @ orientations.inv_ornt_aff(turn, label.voxels.shape)
        label = replace(label, voxels=orientations.apply_orientation(label.voxels, turn), affine=affine)
    require_same_shape(case, image.voxels, label.voxels)
    apart = np.abs(_corners(image.voxels.shape) @ (image.affine - label.affine).T).max()
    if not apart <= SAME_PLACE:
        raise BadInput(
            f"{label.path}: lies up to {apart:.1f} mm from its image {image.path.name} (the affines differ); "
            "they have to have one geometry"
        )
    return label


def _corners(shape: tuple[int, ...]) -> NDArray[np.float64]:
    return np.array([(*corner, 1) for corner in product(*((0, side) for side in shape))], dtype=np.float64)


def axial(
    case: RawCase, image: Volume, label: Volume, *, zones: int | None = None, remarks: tuple[str, ...] = ()
) -> Decoded:
    """Axial slices from foot to head, rows from anterior to posterior, columns from the patient's right to left.

    Args:
        case: What messages name.
        image: The scan.
        label: Its mask on the same grid, its axes in any order: 0 where no organ is.
        zones: The highest label where the layout numbers zones, which are merged; where it does not, labels
            above 1 count as 1 and a remark says so.
        remarks: What was put right before.

    Raises:
        BadInput: image and mask differ in shape or geometry, hold values that are not finite, or a label is
            none of the layout's.
    """
    label = same_grid(case, image, label)
    if not np.isfinite(image.voxels).all():
        raise BadInput(f"{image.path}: holds values that are not finite; export the image again")
    require_few_labels(label.path, label.voxels)
    whole = np.rint(label.voxels)
    if not np.abs(label.voxels - whole).max() < 1e-3 or whole.min() < 0:
        raise BadInput(f"{label.path}: holds labels other than 0, 1, 2, ...; expected a mask, 0 where no prostate is")
    highest = int(whole.max())
    if zones is not None and highest > zones:
        raise BadInput(f"{label.path}: holds label {highest}; expected 0 to {zones}")
    if zones is None and highest > 1:
        remarks += (f"labels up to {highest} clipped to 1",)
    stack = MetaTensor(np.stack([image.voxels, np.minimum(whole, 1)]), affine=image.affine)
    if image.located and nib.aff2axcodes(image.affine)[2] in "SI":
        stack = Orientation(axcodes="LPS", labels=(("L", "R"), ("P", "A"), ("I", "S")))(stack)
    else:
        remarks += ("header does not place the third axis along the body: axes kept as stored",)
    spacing = np.linalg.norm(np.asarray(stack.affine)[:3, :3], axis=0)
    nominal = not image.located or np.allclose(spacing, 1)  # 1 mm along all axes is what writers put who know none
    pixels, mask = stack.numpy().transpose(0, 3, 2, 1)  # each (slices, height, width)
    return Decoded(
        pixels[:, None].astype(np.float32),
        mask[:, None].astype(np.uint8),
        (float(spacing[1]), float(spacing[0])),
        remarks,
        None if nominal else float(spacing[2]),
    )


def one_series(folders: Collection[Path], name: re.Pattern[str], uid: str | None = None) -> Path:
    """Of a patient's series folders that of the series ``uid``; where none is asked for the only one, or named so.

    Raises:
        BadInput: several could be meant, or none.
    """
    several = sorted(folders)
    if uid is not None:
        several = [folder for folder in several if _series_uid(folder) == uid]
    elif len(several) > 1:
        several = [folder for folder in several if name.search(folder.name)] or several
    if len(several) != 1:
        raise BadInput(
            f"{min(folders).parent}: {len(several)} of its {len(folders)} series could be the T2 series of its mask; "
            "keep that alone"
        )
    return several[0]


def outside(series: Iterable[Path], left_out: Iterable[tuple[Path, str]], source: Path) -> list[tuple[str, str]]:
    """What is left out, by its path in ``source``, but for what lies within a series: that belongs to its case."""
    folders = set(series)
    told = []
    for path, reason in left_out:
        if any(folder != path and folder.is_relative_to(path) for folder in folders):  # its own files alone
            told += [(entry, reason) for entry in visible(path) if entry.is_symlink() or not entry.is_dir()]
        elif folders.isdisjoint((path, *path.parents)):
            told.append((path, reason))
    return [(path.relative_to(source).as_posix(), reason) for path, reason in told]


def _series_uid(folder: Path) -> str:
    return str(_header(next(path for path in visible(folder) if is_slice(path))).SeriesInstanceUID)


def referenced_series(path: Path) -> str | None:
    """The series that a DICOM-SEG object was drawn on, where it names one.

    Raises:
        BadInput: the file is unreadable.
    """
    with _reading(path, "DICOM segmentation"):
        named = pydicom.dcmread(path, stop_before_pixels=True).get("ReferencedSeriesSequence")
        return str(named[0].SeriesInstanceUID) if named else None


def by_site(cases: Iterable[tuple[str, RawCase]], left_out: Iterable[tuple[str, str]]) -> list[RawSite]:
    """(site, case) pairs as sites sorted by name; what is left out of the whole source is told with the first."""
    sites: dict[str, list[RawCase]] = defaultdict(list)
    for name, case in cases:
        sites[name].append(case)
    names = sorted(sites)
    return [RawSite(name, tuple(sites[name]), tuple(sorted(left_out)) if name == names[0] else ()) for name in names]
