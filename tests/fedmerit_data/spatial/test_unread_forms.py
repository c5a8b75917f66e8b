"""Files of forms that are not read: the refusal names the form; compressed voxels that are not whole are refused."""

import bz2
import gzip
import os
import zlib

import numpy as np
import pydicom
import pytest
import tifffile
from layouts import AXIAL, volume
from layouts_dicom import x_ray
from layouts_prostate import save_series
from pydicom.encaps import encapsulate
from pydicom.uid import JPEG2000MC, MPEG2MPML, UID, HTJ2KLossless

from fedmerit.errors import BadInput
from fedmerit_data.readers.generic import find_sites
from fedmerit_data.readers.image_files import read_image
from fedmerit_data.readers.inventory import take_inventory
from fedmerit_data.readers.unlabelled import find_images
from fedmerit_data.spatial.unread_forms import describe_unread
from fedmerit_data.spatial.volumes import read_volume, voxel_file

VOXELS = volume(1).astype("<i2")
STORED = VOXELS.tobytes("F")
SIZES = " ".join(map(str, VOXELS.shape))
CONTENTS = {  # by name of a file: first bytes, and what the refusal says
    "p.nii.zst": (b"\x28\xb5\x2f\xfd", "compressed by Zstandard; unpack it"),
    "p.nii.bz2": (b"BZh9", "compressed by bzip2; unpack it"),
    "p.nii.xz": (b"\xfd7zXZ\0", "compressed by xz; unpack it"),
    "p.img.gz": (b"\x1f\x8b\x08", "compressed by gzip; unpack it"),
    "p.mnc": (b"CDF\x01", "NetCDF, as MINC 1 files are; convert it to NIfTI"),
    "p.h5": (b"\x89HDF\r\n\x1a\n", "HDF5, .* as NIfTI"),
    "p.npy": (b"\x93NUMPY\x01\0", "an array of NumPy, .* as NIfTI"),
    "p.vtk": (b"# vtk DataFile Version 3.0\n", "a file of VTK; convert it"),
    "p.jxl": (b"\xff\x0a", "JPEG XL; convert it to PNG"),
    "p.jp2": (b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG 2000; convert it to PNG"),
    "p.heic": (b"\0\0\0\x18ftypheic", "HEIC; convert it to PNG"),
    "p.avif": (b"\0\0\0\x1cftypavif", "AVIF; convert it to PNG"),
    "p.pgm": (b"P5 2 2 255\n", "PBM, PGM or PPM; convert it to PNG"),
    "p.PAR": (b"# === DATA DESCRIPTION", "Philips PAR/REC; convert it to NIfTI"),
    "p.zip": (b"PK\3\4", "an archive; unpack it"),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_refusal_names_the_form_of_a_file_that_is_not_read(tmp_path, name):
    first, form = CONTENTS[name]
    file = tmp_path / "images" / name
    file.parent.mkdir()
    file.write_bytes(first + bytes(600))
    reported = rf"images/{name}: is {form}"
    for refuse in (lambda: read_image(file, 1), lambda: find_images([file], 1), lambda: find_sites(tmp_path)):
        with pytest.raises(BadInput, match=reported):
            refuse()
    assert [reason for _, reason in take_inventory(tmp_path).others] == [describe_unread(file)]


def test_refusal_names_a_compression_behind_an_ending_that_is_read(tmp_path):
    (tmp_path / "p.nii.gz").write_bytes(bz2.compress(bytes(400)))
    with pytest.raises(BadInput, match=r"p\.nii\.gz: is compressed by bzip2; unpack it"):
        read_volume(tmp_path / "p.nii.gz")
    (tmp_path / "p.nii.gz").write_bytes(gzip.compress(bytes(400))[:-20])
    with pytest.raises(BadInput, match=r"p\.nii\.gz: not a readable NIfTI volume .* may be damaged"):
        read_volume(tmp_path / "p.nii.gz")


def test_nrrd_of_an_encoding_that_is_not_read_is_named(tmp_path):
    head = (
        f"NRRD0004\ntype: short\ndimension: 3\nspace: left-posterior-superior\nsizes: {SIZES}\nendian: little\n"
        "space directions: (1,0,0) (0,1,0) (0,0,3)\nspace origin: (0,0,0)\nencoding: "
    )
    (tmp_path / "p.nrrd").write_bytes(f"{head}bzip2\n\n".encode() + bz2.compress(STORED))
    with pytest.raises(BadInput, match=r"p\.nrrd: is NRRD with encoding bzip2; write it again with encoding gzip"):
        read_volume(tmp_path / "p.nrrd")
    (tmp_path / "p.nrrd").write_bytes(f"{head}gzip\n\n".encode() + gzip.compress(STORED))
    np.testing.assert_array_equal(read_volume(tmp_path / "p.nrrd").voxels, VOXELS)


@pytest.mark.parametrize(
    ("size", "packed", "reported"),
    [
        (0, zlib.compress(STORED), None),
        (0, gzip.compress(STORED), None),
        (None, zlib.compress(STORED), "states no CompressedDataSize; write the file again"),
        (0, zlib.compress(STORED)[:-40], "compressed voxels end too early"),
        (-40, zlib.compress(STORED), "compressed voxels end too early"),
        (0, zlib.compress(STORED[:-40]), "promises .* bytes of voxels, but has"),
        (0, bz2.compress(STORED), "not a readable volume"),
    ],
)
def test_metaimage_whose_voxels_cannot_be_unpacked_is_refused(tmp_path, size, packed, reported):
    """ITK would return what its memory held before."""
    stated = "" if size is None else f"CompressedDataSize = {len(packed) + size}\n"
    head = (
        f"ObjectType = Image\nNDims = 3\nBinaryData = True\nCompressedData = True\n{stated}Offset = 0 0 0\n"
        f"ElementSpacing = 1 1 3\nDimSize = {SIZES}\nElementType = MET_SHORT\nElementDataFile = LOCAL\n"
    )
    (tmp_path / "p.mha").write_bytes(head.encode() + packed)
    if reported is None:
        np.testing.assert_array_equal(read_volume(tmp_path / "p.mha").voxels, VOXELS)
        return
    with pytest.raises(BadInput, match=reported):
        read_volume(tmp_path / "p.mha")


@pytest.mark.parametrize(("code", "form"), [(34887, "LERC"), (50002, "JPEGXL"), (34712, "JPEG2000"), (50001, "WEBP")])
def test_tiff_of_a_compression_that_is_not_read_is_named(tmp_path, code, form):
    for name, pixels in (("p", np.zeros((8, 9), "u2")), ("stack", np.zeros((4, 8, 9), "u2"))):
        file = tmp_path / f"{name}.tif"
        tifffile.imwrite(file, pixels, photometric="minisblack")
        with tifffile.TiffFile(file, mode="r+") as written:
            for page in written.pages:
                page.tags["Compression"].overwrite(code)
        with pytest.raises(BadInput, match=rf"{name}\.tif: is TIFF compressed by {form}; save it without compression"):
            read_image(file, 1)


@pytest.mark.parametrize(
    ("syntax", "form"),
    [
        (HTJ2KLossless, r"DICOM compressed as High-Throughput JPEG 2000 .* export it again as Explicit VR"),
        (JPEG2000MC, r"DICOM compressed as JPEG 2000 Part 2"),
        (UID("1.2.840.10008.1.2.4.51"), r"DICOM compressed as JPEG Extended \(Process 2 and 4\) of 16 bits"),
        (MPEG2MPML, r"DICOM video \(MPEG2 .* save the pictures to use as PNG"),
        (UID("1.2.840.113619.5.2"), r"DICOM of the private transfer syntax 1\.2\.840\.113619\.5\.2; export it again"),
    ],
)
def test_dicom_of_a_transfer_syntax_that_is_not_decoded_is_named(tmp_path, syntax, form):
    slices = save_series(tmp_path / "series", volume(1), AXIAL)
    x_ray(tmp_path / "x.dcm", slices[0])
    for file in [*(tmp_path / "series").iterdir(), tmp_path / "x.dcm"]:
        packed = pydicom.dcmread(file)
        packed.PixelData = encapsulate([bytes(64)])
        packed["PixelData"].is_undefined_length = True
        packed.file_meta.TransferSyntaxUID = syntax
        packed.save_as(file, enforce_file_format=True, implicit_vr=False, little_endian=True)
    for path in (tmp_path / "series", tmp_path / "x.dcm"):
        with pytest.raises(BadInput, match=rf"{path.name}\S*: is {form}"):
            read_image(path, 1)


@pytest.mark.parametrize("name", ["p.mhd", "p.nhdr", "p.dcm", "p", "p.tif", "p.nii.zst"])
def test_pipes_among_files_are_not_waited_for(tmp_path, name):
    (tmp_path / "images").mkdir()
    os.mkfifo(tmp_path / "images" / name)
    assert describe_unread(tmp_path / "images" / name) is None
    assert voxel_file(tmp_path / "images" / name) == tmp_path / "images" / name
    with pytest.raises(BadInput, match=r"not a readable|of no format that is read"):
        read_image(tmp_path / "images" / name, 1)
    with pytest.raises(BadInput):
        find_sites(tmp_path)
