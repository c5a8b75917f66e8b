"""Files of predicted masks, in the format of their image and at its place."""

import gzip
from pathlib import Path
from tempfile import TemporaryDirectory

import nibabel as nib
import numpy as np
from nibabel.affines import voxel_sizes
from numpy.typing import NDArray

from fedmerit_data.spatial.volumes import ITK, Volume, with_place_of


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
