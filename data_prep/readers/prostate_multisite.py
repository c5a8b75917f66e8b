"""Reader of the multi-site prostate MRI release: ``<site>/CaseNN.nii.gz`` + ``CaseNN_segmentation.nii.gz``."""

import re
import zlib
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from monai.data import MetaTensor
from monai.transforms import Orientation
from nibabel.filebasedimages import ImageFileError
from nibabel.spatialimages import HeaderDataError
from numpy.typing import NDArray

from data_prep.raw import Decoded, RawCase, RawSite, files_in, pair, remember, require_same_shape, site_folders
from fedmerit.errors import BadInput

ALIASES = {"ISBI": "RUNMC", "ISBI_1.5": "BMC", "HCRUDB": "I2CVB"}
FILE = re.compile(r"(?P<case>case\d+)(?P<mask>_segmentation)?\.nii(\.gz)?", re.IGNORECASE)
SAME_PLACE = 0.1  # mm that corners of image and mask may lie apart


def find_sites(source: Path) -> list[RawSite]:
    """Every site below ``source``, its images and masks paired, sorted by name.

    Raises:
        BadInput: no site, a site without cases, an image or mask alone, or two folders that are one site.
    """
    folders = site_folders(source, "one folder per site with CaseNN.nii.gz and CaseNN_segmentation.nii.gz")
    sites: dict[str, tuple[Path, RawSite]] = {}
    for folder in folders:
        site = _read_site(folder)
        if site.name in sites:
            raise BadInput(f"{folder}: {sites[site.name][0]} is site {site.name} under another name; keep one of them")
        sites[site.name] = (folder, site)
    return [sites[name][1] for name in sorted(sites)]


def _read_site(folder: Path) -> RawSite:
    name = ALIASES.get(folder.name, folder.name)
    images: dict[str, Path] = {}
    masks: dict[str, Path] = {}
    left_out = []
    for path in files_in(folder):
        match = FILE.fullmatch(path.name)
        if match:
            remember(masks if match["mask"] else images, match["case"].capitalize(), path)
        else:
            left_out.append((path.name, "not named CaseNN.nii.gz or CaseNN_segmentation.nii.gz"))
    # Case numbers start anew at some sites, so that a patient is a site and a number.
    cases = (RawCase(case, f"{name}-{case}", image, mask) for case, image, mask in pair(images, masks, folder))
    return RawSite(name, tuple(cases), tuple(left_out))


def decode(case: RawCase) -> Decoded:
    """Axial slices from foot to head, rows from anterior to posterior, columns from the patient's right to left.

    Raises:
        BadInput: a file is unreadable, image and mask differ in shape or geometry, or a label is no label.
    """
    image, affine, located = _load(case.image)
    label, label_affine, _ = _load(case.label)
    require_same_shape(case, image, label)
    _require_same_place(case, affine, label_affine, image.shape)
    if not np.isfinite(image).all():
        raise BadInput(f"{case.image}: holds values that are not finite; export the image again")
    whole = np.rint(label)
    if not np.abs(label - whole).max() < 1e-3 or whole.min() < 0:
        raise BadInput(f"{case.label}: holds labels other than 0, 1, 2, ...; expected a mask, 0 where no prostate is")
    remarks = []
    if whole.max() > 1:
        remarks.append(f"labels up to {int(whole.max())} clipped to 1")

    stack = MetaTensor(np.stack([image, np.minimum(whole, 1)]), affine=affine)
    if located and nib.aff2axcodes(affine)[2] in "SI":
        stack = Orientation(axcodes="LPS", labels=(("L", "R"), ("P", "A"), ("I", "S")))(stack)
    else:
        remarks.append("header does not place the third axis along the body: axes kept as stored")
    spacing = np.linalg.norm(np.asarray(stack.affine)[:3, :3], axis=0)
    image, label = stack.numpy().transpose(0, 3, 2, 1)  # each (slices, height, width)
    return Decoded(
        image[:, None].astype(np.float32),
        label[:, None].astype(np.uint8),
        (float(spacing[1]), float(spacing[0])),
        tuple(remarks),
    )


def _load(path: Path) -> tuple[NDArray[np.float32], NDArray[np.float64], bool]:
    """Voxels, affine, and whether the header states where the voxels lie."""
    try:
        file: Any = nib.load(path)
        voxels = np.asarray(file.dataobj, dtype=np.float32)
    except (ImageFileError, HeaderDataError, OSError, EOFError, ValueError, zlib.error) as error:
        raise BadInput(f"{path}: not a readable NIfTI volume ({error}); fetch the file again") from error
    if voxels.ndim == 4 and voxels.shape[3] == 1:
        voxels = voxels[..., 0]
    if voxels.ndim != 3 or 0 in voxels.shape:
        raise BadInput(f"{path}: shape {voxels.shape}; expected one volume of three axes")
    if not np.isfinite(file.affine).all() or np.linalg.det(file.affine) == 0:
        raise BadInput(f"{path}: its header places no voxel (affine {file.affine.tolist()}); export the file again")
    located = bool(file.header["sform_code"] > 0 or file.header["qform_code"] > 0)
    return voxels, np.asarray(file.affine, dtype=np.float64), located


def _require_same_place(
    case: RawCase, affine: NDArray[np.float64], label_affine: NDArray[np.float64], shape: tuple[int, ...]
) -> None:
    corners = np.array([[x, y, z, 1] for x in (0, shape[0]) for y in (0, shape[1]) for z in (0, shape[2])])
    apart = np.abs(corners @ (affine - label_affine).T).max()
    if apart > SAME_PLACE:
        raise BadInput(
            f"{case.label}: lies up to {apart:.1f} mm from its image {case.image.name} (the affines differ); "
            "they have to have one geometry"
        )
