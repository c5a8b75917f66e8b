"""Volumes of every file format as one type: NIfTI, MetaImage and NRRD here, DICOM in `dicom`.

A volume's affine maps voxel indices to millimetres towards the patient's right, front and head, as in nibabel, for
every file format.
"""

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import SimpleITK
from numpy.typing import NDArray

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import require_file

ITK_VOXELS = re.compile(rb"^(?:ElementDataFile\s*=|data ?file:)\s*(.*?)\s*$", re.IGNORECASE | re.MULTILINE)
MAX_PACKING = 1032  # voxels per stored byte: the highest compression of deflate
MAX_VOXELS = 2**27  # many times any scan: a header that promises more is damaged
FROM_LPS = np.diag([-1.0, -1.0, 1.0, 1.0])  # DICOM and ITK count towards left and back
ITK: Any = SimpleITK  # a library without type annotations


@dataclass(frozen=True)
class Volume:
    """Voxels (x, y, z) float32, their affine (4, 4), and whether the file states their position."""

    path: Path
    voxels: NDArray[np.float32]
    affine: NDArray[np.float64]
    is_located: bool = True


@contextmanager
def report_damage(path: Path, what: str) -> Iterator[None]:
    """Turn any error of a library over a damaged file, also a lack of memory, into `BadInput`."""
    if not path.is_dir():
        require_file(path, what)
    try:
        yield
    except BadInput:
        raise
    except Exception as error:
        said = " ".join(str(error).split())  # of several lines
        raise BadInput(f"{path}: not a readable {what} ({said}); the file may be damaged: fetch it again") from error


def require_sane(path: Path, shape: Collection[int], stored: int | None = None) -> None:
    """`BadInput` unless ``shape`` is that of one volume that fits in memory; called before voxels are read.

    ``stored`` is the size of its file in bytes, compressed or not.
    """
    voxels = np.prod([float(side) for side in shape])
    if len(shape) != 3 or min(shape) < 1:
        raise BadInput(f"{path}: shape {tuple(shape)}; expected one volume of three axes")
    if voxels > MAX_VOXELS:
        raise BadInput(f"{path}: its header promises {tuple(shape)} voxels, more than any scan; fetch the file again")
    if stored is not None and voxels > stored * MAX_PACKING:
        raise BadInput(f"{path}: its header promises {tuple(shape)} voxels, but is cut off; fetch the file again")


def place_volume(path: Path, voxels: NDArray[Any], affine: NDArray[Any], is_located: bool = True) -> Volume:
    """The volume of these voxels; `BadInput` unless its affine gives each a different position."""
    if not np.isfinite(affine).all() or np.linalg.det(affine) == 0:
        raise BadInput(f"{path}: its header has an invalid affine {affine.tolist()}; export the file again")
    return Volume(path, voxels.astype(np.float32, copy=False), np.asarray(affine, dtype=np.float64), is_located)


def read_nifti(path: Path, channel: int | None = None) -> Volume:
    """One NIfTI file; if it has four axes the given ``channel``, or the only one.

    Raises:
        BadInput: the file is unreadable, not one volume, or has an invalid affine.
    """
    with report_damage(path, "NIfTI volume"):
        file: Any = nib.load(path)
        shape, proxy, stored = file.shape, file.dataobj, path.stat().st_size
        if proxy.dtype.kind not in "buif":
            raise BadInput(f"{path}: has voxels of type {proxy.dtype}; expected one real number per voxel")
        if len(shape) == 4 and (shape[3] == 1 or channel is not None):
            require_sane(path, shape[:3], stored)
            voxels = np.asarray(proxy[..., channel or 0], dtype=np.float32)
        else:
            require_sane(path, shape, stored)
            voxels = np.asarray(proxy, dtype=np.float32)
        is_located = bool(file.header["sform_code"] > 0 or file.header["qform_code"] > 0)
        return place_volume(path, voxels, file.affine, is_located)


def read_itk(path: Path) -> Volume:
    """One MetaImage (.mhd + .raw) or NRRD file.

    Raises:
        BadInput: the file is unreadable, not one volume of single numbers, or has an invalid affine.
    """
    with report_damage(path, "volume"):
        stored = _voxel_file(path).stat().st_size
        reader = ITK.ImageFileReader()
        reader.SetFileName(str(path))
        reader.ReadImageInformation()
        require_sane(path, reader.GetSize(), stored)
        if reader.GetNumberOfComponents() != 1:
            raise BadInput(f"{path}: has {reader.GetNumberOfComponents()} numbers per voxel; expected one")
        image = reader.Execute()
        affine = np.eye(4)
        affine[:3, :3] = np.reshape(image.GetDirection(), (3, 3)) * image.GetSpacing()
        affine[:3, 3] = image.GetOrigin()
        # NRRD may omit the orientation of the patient; MetaImage never does.
        is_located = path.suffix.lower() != ".nrrd" or reader.HasMetaDataKey("NRRD_space")
        return place_volume(path, ITK.GetArrayFromImage(image).T, FROM_LPS @ affine, is_located)


def _voxel_file(path: Path) -> Path:
    """The file with the voxels of a MetaImage or NRRD header: itself, or the one of its name beside it."""
    with path.open("rb") as file:
        named = ITK_VOXELS.search(file.read(2**16))
    voxels = named[1].decode() if named else "LOCAL"
    if voxels.upper() == "LOCAL":
        return path
    if Path(voxels).name != voxels or Path(voxels).stem != path.stem:
        raise BadInput(f"{path}: takes its voxels from {voxels}; expected {path.stem}.raw beside it, or its own")
    if not path.with_name(voxels).is_file():
        raise ValueError(f"its voxel file {voxels} not found")
    return path.with_name(voxels)
