"""Volumes of every file format as one type: NIfTI, MetaImage and NRRD here, DICOM in `fedmerit_data.spatial.dicom`.

A volume's affine maps voxel indices to millimetres towards the patient's right, front and head, as in nibabel, for
every file format.
"""

import re
import struct
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import psutil
import SimpleITK
from nibabel.affines import voxel_sizes
from nibabel.openers import Opener
from numpy.typing import NDArray

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import list_visible, require_file
from fedmerit_data.spatial.unread_forms import describe_unread

NIFTI, ITK_SUFFIXES = (".nii", ".nii.gz", ".hdr", ".mgz", ".mgh"), (".mha", ".mhd", ".nrrd", ".nhdr")
LONGEST_FIELD = 400  # bytes of a line of a header: ITK writes beyond its own memory over one of 1,000
META_FIELD = re.compile(rb"\w+\s*=.*")  # MetaImage; ITK takes other separators, too, which then hide a field
META_AXES = re.compile(rb"^NDims\s*=(.*)$", re.MULTILINE)  # ITK ends the process over many, or fewer than none
ITK_VOXELS = re.compile(rb"^(?:ElementDataFile\s*=|data ?file:)\s*(.*?)\s*$", re.IGNORECASE | re.MULTILINE)
META_PACKED = re.compile(rb"^CompressedData\s*=\s*True", re.MULTILINE | re.IGNORECASE)
META_SIZE = re.compile(rb"^CompressedDataSize\s*=\s*(\d{1,15})\b", re.MULTILINE)
PART = 2**16  # bytes inflated at once
META_PLACE = re.compile(
    rb"^(ElementSpacing|Offset|Origin|Position|TransformMatrix|Rotation|Orientation)\s*=", re.MULTILINE
)
MAX_PACKING = 1032  # voxels per stored byte: the highest compression of deflate
MAX_VOXELS = 2**31  # many times any scan: a header that promises more is damaged
LFS_POINTER, MARK = b"version https://git-lfs", 64  # first bytes of a file that is not fetched; bytes looked at
EXACT, MOST_EXACT = 2**24, 2**53  # up to which float32 and float64 have every whole number
COPIES = 4  # float32 arrays of all voxels that reading and slicing hold at once
GZIP = b"\x1f\x8b"  # the first bytes of a compressed file
BEGINS = {  # by the first bytes of NIfTI, which is not: kind and place of the number that says where voxels begin
    b"\x5c\x01\0\0": ("<f", 108),
    b"\0\0\x01\x5c": (">f", 108),
    b"\x1c\x02\0\0": ("<q", 168),
    b"\0\0\x02\x1c": (">q", 168),
}
HEADER, MOST_HEADER = 540, 2**24  # bytes of the longest header, and with extensions
COLOURS = ("R", "G", "B")  # of a NIfTI file in colours
MILLIMETRES = {"meter": 1000.0, "micron": 0.001}  # of NIfTI's other units of length
USUAL_SIZES = 0.005, 50.0  # mm of a voxel in medical images
CORNER_TOLERANCE = 0.1  # mm between two statements of one place
FROM_LPS = np.diag([-1.0, -1.0, 1.0, 1.0])  # DICOM and ITK count towards left and back
ITK: Any = SimpleITK  # a library without type annotations


@dataclass(frozen=True)
class Volume:
    """A volume: voxels (x, y, z) float32 and what the file says of their place.

    ``affine`` (4, 4) is the first place that the file states, ``places`` are all of them: a NIfTI file may state two.
    ``is_located`` and ``is_measured`` say whether the file states the position of its voxels, and their size.
    ``header`` is what a mask of the volume takes over: that of nibabel, an ITK image without voxels, or a tuple of the
    data sets of DICOM slices from first to last, without pixels.
    """

    path: Path
    voxels: NDArray[np.float32]
    affine: NDArray[np.float64]
    is_located: bool = True
    is_measured: bool = True
    places: tuple[NDArray[np.float64], ...] = ()
    header: Any = None
    remarks: tuple[str, ...] = ()


@contextmanager
def report_damage(path: Path, what: str) -> Iterator[None]:
    """Turn any error of a library over a damaged file, also a lack of memory, into `BadInput`."""
    if not path.is_dir():
        require_file(path, what)
    try:
        yield
    except BadInput:
        raise
    except MemoryError as error:
        raise BadInput(f"{path}: does not fit in the memory of this machine; use one with more") from error
    except Exception as error:
        if form := describe_unread(path):
            raise BadInput(f"{path}: is {form}") from error
        said = " ".join(str(error).split())  # of several lines
        raise BadInput(f"{path}: not a readable {what} ({said}); {_advise_on(path)}") from error


def _advise_on(path: Path) -> str:
    """Return what to do about a file that cannot be read, by its first bytes."""
    first = b""
    with suppress(OSError), path.open("rb") as file:
        if not (first := file.read(MARK)):
            return "it is empty: fetch it again"
    if first.startswith(LFS_POINTER):
        return "it is a pointer of Git LFS: fetch the file by git lfs pull"
    if first.lstrip().lower().startswith((b"<!doctype", b"<html")):
        return "it is a web page, such as that of a failed download: fetch it again"
    return "the file may be damaged: fetch it again"


def require_sane(path: Path, shape: Collection[int], stored: int | None = None) -> None:
    """Raise `BadInput` unless ``shape`` is that of one volume that fits in memory; called before voxels are read.

    ``stored`` is the size of its file in bytes, compressed or not.
    """
    voxels = np.prod([float(side) for side in shape])
    if len(shape) > 3 and next(iter(shape)) == 1:
        raise BadInput(
            f"{path}: shape {tuple(shape)}, whose first axis has length 1, as arrays of PyTorch have; expected "
            "x, y, z: remove the first axis"
        )
    if len(shape) != 3 or min(shape) < 1:
        raise BadInput(f"{path}: shape {tuple(shape)}; expected one volume of three axes")
    if voxels > MAX_VOXELS:
        raise BadInput(f"{path}: its header promises {tuple(shape)} voxels, more than any scan; fetch the file again")
    if stored is not None and voxels > stored * MAX_PACKING:
        raise BadInput(f"{path}: its header promises {tuple(shape)} voxels, but is cut off; fetch the file again")
    needed, free = COPIES * 4 * voxels / 2**30, psutil.virtual_memory().available / 2**30
    if needed > free:
        raise BadInput(
            f"{path}: {tuple(shape)} voxels need about {needed:.1f} GiB of memory, and {free:.1f} GiB are free; use a "
            "machine with more, or --jobs 1"
        )


def as_real(voxels: NDArray[Any]) -> NDArray[Any]:
    """Return voxels as float32, or as float64 if they are whole numbers that only these tell apart, as of an atlas."""
    is_wide = voxels.dtype.kind in "iuf" and voxels.dtype.itemsize > 2 and voxels.dtype != np.float32
    exceeds = is_wide and voxels.size and EXACT < max(-float(voxels.min()), float(voxels.max())) < MOST_EXACT
    return voxels.astype(np.float64 if exceeds else np.float32, copy=False)


def place_volume(
    path: Path, voxels: NDArray[Any], affine: NDArray[Any], is_located: bool = True, **more: Any
) -> Volume:
    """Return the volume of these voxels; `BadInput` unless its affine gives each a different position.

    ``more`` are further fields of `Volume`. Without a stated position the size of voxels is known if it is not 1
    along all axes, which writers put that know none.
    """
    if not np.isfinite(affine).all() or np.linalg.det(affine) == 0:
        raise BadInput(f"{path}: its header has an invalid affine {affine.tolist()}; export the file again")
    affine = np.asarray(affine, dtype=np.float64)
    sizes = voxel_sizes(affine)
    is_measured = is_located or not np.allclose(sizes, 1)
    remarks = [*more.pop("remarks", ())]
    if not (USUAL_SIZES[0] <= sizes.min() and sizes.max() <= USUAL_SIZES[1]):
        stated = " x ".join(f"{size:.3g}" for size in sizes)
        remarks.append(f"its header states voxels of {stated} mm: is the unit of length right?")
    places = more.pop("places", ()) or (affine,)
    return Volume(path, as_real(voxels), affine, is_located, is_measured, places, remarks=tuple(remarks), **more)


def read_volume(path: Path, channel: int | None = None, colours: bool = False) -> Volume:
    """Return one file by `read_nifti` or `read_itk`, by its name."""
    if path.name.lower().endswith(NIFTI):
        return read_nifti(path, channel, colours)
    if not path.name.lower().endswith(ITK_SUFFIXES):
        raise BadInput(f"{path}: is {describe_unread(path) or 'of no format that is read; convert it to NIfTI'}")
    return read_itk(path, channel)


def _require_short_header(path: Path) -> None:
    """Raise `BadInput` if voxels begin beyond `MOST_HEADER`: what lies before them nibabel reads as it opens the
    file.
    """
    with Opener(path) as file:
        head = file.read(HEADER)
    if (begins := BEGINS.get(head[:4])) and not struct.unpack_from(begins[0], head, begins[1])[0] <= MOST_HEADER:
        raise BadInput(f"{path}: its voxels begin beyond {MOST_HEADER} bytes; fetch the file again")


def read_nifti(path: Path, channel: int | None = None, colours: bool = False) -> Volume:
    """Return one NIfTI file or another format of nibabel.

    Of several numbers per voxel the given ``channel``, or the only one.

    The sform is its place if it states one, as in nibabel, else the qform. ``colours``: whether red, green and blue
    are channels, too; they are no measured intensities.

    Raises:
        BadInput: the file is unreadable, not one volume, or has an invalid affine.
    """
    with report_damage(path, "NIfTI volume"):
        _require_honest_name(path)
        voxels_in = voxel_file(path)
        require_file(voxels_in, "file of voxels")
        _require_short_header(path)
        file = open_nifti(path)
        shape, header = drop_axes_of_one(file.shape), file.header
        proxy = file.dataobj.reshape(shape)
        stored = voxels_in.stat().st_size
        of_colour = colours and channel is not None and is_coloured(proxy.dtype)
        if proxy.dtype.kind not in "buif" and not of_colour:
            what = "colours" if proxy.dtype.names else str(proxy.dtype)
            raise BadInput(
                f"{path}: has voxels of type {what}; expected one real number per voxel: export grey levels, or a mask "
                "of numbers"
            )
        chosen = len(shape) == 4 and channel is not None
        require_sane(path, shape[:3] if chosen else shape, stored)
        stack = np.asarray(proxy[..., channel] if chosen else proxy)
        voxels = stack[COLOURS[channel or 0]] if of_colour else stack
        if "sform_code" not in header:  # FreeSurfer's, or Analyze, which states no place
            is_located = "goodRASFlag" in header and header["goodRASFlag"] > 0
            return place_volume(path, voxels, _flat(file.affine, file.shape), bool(is_located), header=header)
        forms = _read_forms(header)
        with Opener(path) as stream:
            stored_sides = type(header).from_fileobj(stream, check=False)["pixdim"][1:4]  # nibabel makes 1 of 0
        if header["qform_code"] > 0 >= header["sform_code"] and not stored_sides[: len(file.shape)].all():
            raise BadInput(f"{path}: its header states voxels of {stored_sides.tolist()} mm; export the file again")
        unit = np.diag([*[unit_of(header)] * 3, 1])
        places = tuple(unit @ _flat(form, file.shape) for form in forms)
        affine = places[0] if places else unit @ _flat(file.affine, file.shape)
        remarks = []
        if len(places) == 2 and (apart := distance(places[0], places[1], shape[:3])) > CORNER_TOLERANCE:
            remarks.append(f"its sform and qform are up to {apart:.1f} mm apart: the sform is taken")
        sizes, stated = voxel_sizes(affine), np.diag(unit)[:3] * [*header.get_zooms()[:3], *[1] * (3 - len(file.shape))]
        if places and not np.allclose(sizes, stated, rtol=0.01):
            one, other = (" x ".join(f"{size:.3g}" for size in each) for each in (stated, sizes))
            remarks.append(f"its pixdim states voxels of {one} mm, its form {other} mm: those of the form are taken")
        return place_volume(path, voxels, affine, bool(places), places=places, header=header, remarks=remarks)


def is_coloured(kind: np.dtype[Any]) -> bool:
    """Return whether voxels of a type are colours; an opacity beside them is no colour."""
    return (kind.names or ())[: len(COLOURS)] == COLOURS


def drop_axes_of_one(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape as three axes or, if there are several numbers per voxel, four; also of a file of two axes."""
    sides = [*shape, *[1] * (3 - len(shape))]
    while len(sides) > 3 and sides[-1] == 1:
        sides.pop()
    if len(sides) == 5 and sides[3] == 1:  # NIfTI's vectors have time as their fourth axis
        del sides[3]
    return tuple(sides)


def distance(first: NDArray[np.float64], second: NDArray[np.float64], shape: Collection[int]) -> float:
    """Return the largest distance in mm of the corners of a volume at two places."""
    return float(np.linalg.norm((corners(shape) @ (first - second).T)[:, :3], axis=1).max())


def corners(shape: Collection[int]) -> NDArray[np.float64]:
    """Return the eight corners of a grid in voxels, (8, 4) with a last column of 1."""
    return np.array([(*corner, 1) for corner in product(*((0, side) for side in shape))], dtype=np.float64)


def _require_honest_name(path: Path) -> None:
    if path.suffix.lower() not in (".gz", ".nii"):
        return
    with path.open("rb") as file:
        first = file.read(4)
    is_packed = first[:2] == GZIP
    if is_packed != (path.suffix.lower() == ".gz") and (is_packed or first in BEGINS):
        true = path.name + ".gz" if is_packed else path.name.removesuffix(path.suffix)
        raise BadInput(
            f"{path}: is {'' if is_packed else 'not '}compressed by gzip, unlike its name says; call it {true}"
        )


def _read_forms(header: Any) -> list[NDArray[np.float64]]:
    """Return the sform and the qform, those that a NIfTI header states.

    An invalid qform does not matter beside an sform.
    """
    forms = [form for form, code in [header.get_sform(coded=True)] if code > 0]
    try:
        forms += [form for form, code in [header.get_qform(coded=True)] if code > 0]
    except ValueError:
        if not forms:
            raise
    return forms


def unit_of(header: Any) -> float:
    """Return the millimetres of the unit of length that a header of nibabel states, 1 if it states none."""
    try:
        return MILLIMETRES.get(str(header.get_xyzt_units()[0]), 1.0)
    except (AttributeError, KeyError):  # of another format, or a code that NIfTI does not have
        return 1.0


def _flat(affine: NDArray[Any], shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return an affine of a file of two axes, which may state no distance of slices, with 1 mm."""
    affine = np.array(affine, np.float64)
    if len(shape) == 2 and not affine[:3, 2].any():
        affine[2, 2] = 1
    return affine


def read_itk(path: Path, channel: int | None = None) -> Volume:
    """Return one MetaImage (.mha, .mhd + .raw) or NRRD file (.nrrd, .nhdr + voxels); a ``channel`` as of `read_volume`.

    Raises:
        BadInput: the file is unreadable, not one volume of single numbers, or has an invalid affine.
    """
    with report_damage(path, "volume"):
        reader, head, voxels_in = open_itk(path)
        size, axes, numbers = reader.GetSize(), reader.GetDimension(), reader.GetNumberOfComponents()
        unpacked = _require_unpacked(path, head, voxels_in)
        several = axes == 4 and (size[3] == 1 or channel is not None)
        shape = (*size, 1) if axes == 2 else size[:3] if several else size
        require_sane(path, shape, voxels_in.stat().st_size)
        if numbers != 1 and channel is None:
            raise BadInput(f"{path}: has {numbers} numbers per voxel; expected one")
        if several:
            reader.SetExtractIndex([0, 0, 0, (channel or 0) if numbers == 1 else 0])
            reader.SetExtractSize([*size[:3], 0])
        image = reader.Execute()
        promised = int(np.prod(size)) * numbers * image.GetSizeOfPixelComponent()
        if unpacked not in (None, promised):
            raise ValueError(f"promises {promised} bytes of voxels, but has {unpacked}")
        image = ITK.VectorIndexSelectionCast(image, channel) if numbers != 1 else image
        header = with_place_of(image, ITK.Image([1] * image.GetDimension(), ITK.sitkUInt8))
        image = ITK.JoinSeries(image) if axes == 2 else image
        affine = np.eye(4)
        affine[:3, :3] = np.reshape(image.GetDirection(), (3, 3)) * image.GetSpacing()
        affine[:3, 3] = image.GetOrigin()
        if path.suffix.lower() in (".nrrd", ".nhdr"):  # which may omit the orientation of the patient
            space = reader.GetMetaData("NRRD_space") if reader.HasMetaDataKey("NRRD_space") else ""
            is_located = space.startswith(("left", "right"))
        else:
            is_located = META_PLACE.search(head) is not None
        return place_volume(path, ITK.GetArrayFromImage(image).T, FROM_LPS @ affine, is_located, header=header)


def _require_unpacked(path: Path, head: bytes, voxels_in: Path) -> int | None:
    """Return the bytes of voxels that a compressed MetaImage holds, `None` of another file.

    ITK returns whatever its memory holds if it cannot unpack them.
    """
    if head.startswith(b"NRRD") or not META_PACKED.search(head):
        return None
    stated = META_SIZE.search(head)
    if voxels_in == path and stated is None:
        raise BadInput(f"{path}: its header states no CompressedDataSize; write the file again, such as by SimpleITK")
    left = int(stated[1]) if stated else voxels_in.stat().st_size
    inflating, count = zlib.decompressobj(zlib.MAX_WBITS | 32), 0
    with voxels_in.open("rb") as file:
        named = ITK_VOXELS.search(head)
        file.seek(head.index(b"\n", named.end()) + 1 if named and voxels_in == path else 0)
        while not inflating.eof and (part := file.read(min(PART, left))):
            left -= len(part)
            count += len(inflating.decompress(part))
    if not inflating.eof:
        raise ValueError("its compressed voxels end too early")
    return count


def open_itk(path: Path) -> tuple[Any, bytes, Path]:
    """Return the reader of a MetaImage or NRRD file that has read its header, and what `_head` gives.

    Or any error of ITK.
    """
    head, voxels_in = _head(path)
    reader = ITK.ImageFileReader()
    reader.SetImageIO("NrrdImageIO" if head.startswith(b"NRRD") else "MetaImageIO")  # endings in capitals, too
    reader.SetFileName(str(path))
    reader.ReadImageInformation()
    return reader, head, voxels_in


def _head(path: Path) -> tuple[bytes, Path]:
    """Return the first bytes of a MetaImage or NRRD file, and the file with its voxels: itself, or one of its name."""
    if not path.is_file():  # a pipe might never end
        raise ValueError("not a regular file")
    with path.open("rb") as file:
        head = file.read(2**16)
    named = ITK_VOXELS.search(head)
    if head.startswith(b"NRRD"):
        lines = re.split(rb"\r?\n\r?\n", head, maxsplit=1)[0].split(b"\n")
    else:
        lines = head[: named.start() if named else None].splitlines()
        axes = META_AXES.findall(b"\n".join(lines))
        if not all(META_FIELD.fullmatch(line) for line in lines) or {one.strip() for one in axes} - {b"2", b"3", b"4"}:
            raise ValueError("its header is not lines of NAME = VALUE, with NDims of 2 or 3")
    if any(len(line) > LONGEST_FIELD and b":=" not in line for line in lines):
        raise ValueError(f"a line of its header has more than {LONGEST_FIELD} characters")
    voxels = named[1].decode() if named else "LOCAL"
    if voxels.upper() == "LOCAL":
        return head, path
    if Path(voxels).name != voxels or voxels == "LIST" or "%" in voxels:
        raise BadInput(f"{path}: takes its voxels from {voxels}; expected one file beside it, or its own voxels")
    if not path.with_name(voxels).is_file():
        raise ValueError(f"its voxel file {voxels} not found")
    return head, path.with_name(voxels)


def voxel_file(path: Path) -> Path:
    """Return the file that has the voxels of a volume: itself, or one beside it; itself if its header is damaged."""
    suffix = path.suffix.lower()
    if suffix == ".hdr":
        return next(
            (one for one in list_visible(path.parent) if one.name.lower() == f"{path.stem}.img".lower()),
            path.with_suffix(".img"),
        )
    try:
        return _head(path)[1] if suffix in (".mhd", ".nhdr") else path
    except (BadInput, OSError, ValueError):
        return path


def open_nifti(path: Path) -> Any:
    """Return a file of a format of nibabel, of whatever capitals its ending is, its voxels not read yet.

    Raises:
        ValueError: it is of no such format.
    """
    first_bytes = None
    for kind in nib.imageclasses.all_image_classes:
        is_of_kind, first_bytes = kind.path_maybe_image(path, first_bytes)
        if is_of_kind:
            files = {"header": path, "image": voxel_file(path), "mat": path.with_suffix(".mat")}
            return kind.from_file_map({part: nib.FileHolder(file) for part, file in files.items()})
    raise ValueError("of another format than its name says")


def with_place_of(source: Any, image: Any) -> Any:
    """Return an ITK image with spacing, origin and direction of ``source``, an image or reader."""
    image.SetSpacing(source.GetSpacing())
    image.SetOrigin(source.GetOrigin())
    image.SetDirection(source.GetDirection())
    return image
