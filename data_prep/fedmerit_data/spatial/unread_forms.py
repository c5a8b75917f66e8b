"""Forms of files that are not read: which form a file has, and what to convert it with."""

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pydicom
import tifffile
from pydicom.filereader import read_file_meta_info
from pydicom.pixels.decoders.base import get_decoder
from pydicom.uid import UID, JPEGExtended12Bit

from fedmerit_data.raw_cases import list_visible
from fedmerit_data.spatial.heads import is_dicom_file

FIRST_BYTES = 512
ARCHIVE = "an archive; unpack it"
BY_CONTENT: Mapping[bytes, str] = {  # patterns of first bytes
    rb"\x28\xb5\x2f\xfd": "compressed by Zstandard; unpack it, such as by zstd -d",
    rb"BZh[1-9]": "compressed by bzip2; unpack it, such as by bunzip2",
    rb"\xfd7zXZ\0": "compressed by xz; unpack it, such as by unxz",
    rb"\x1f[\x9d\xa0]": "compressed by compress; unpack it, such as by uncompress",
    rb"7z\xbc\xaf|Rar!|.{257}ustar": ARCHIVE,
    rb"\x89HDF": "HDF5, as MINC 2 and MATLAB write it; save the image in it as NIfTI, such as by mnc2nii or nibabel",
    rb"CDF[\x01\x02]": "NetCDF, as MINC 1 files are; convert it to NIfTI, such as by mnc2nii",
    rb"MATLAB ": "a MATLAB file; save the image in it as NIfTI, such as by niftiwrite",
    rb"\x93NUMPY": "an array of NumPy, which states no size of voxels; save it as NIfTI, such as by nibabel",
    rb"# vtk|(?:<\?xml[^>]*>\s*)?<VTKFile": "a file of VTK; convert it to MetaImage or NIfTI, such as by SimpleITK",
    rb"\xff\x0a|\0{3}\x0cJXL ": "JPEG XL; convert it to PNG, such as by djxl",
    rb"\0{3}\x0cjP  |\xff\x4f\xff\x51": "JPEG 2000; convert it to PNG, such as by opj_decompress",
    rb".{4}ftyp(?:he|mif|msf)": "HEIC; convert it to PNG, such as by heif-convert",
    rb".{4}ftypavi": "AVIF; convert it to PNG, such as by avifdec",
    rb"P[1-7]\s": "PBM, PGM or PPM; convert it to PNG, such as by ImageMagick",
    rb"8BPS": "a file of Photoshop; save it as PNG",
    rb"v/1\x01": "OpenEXR; convert it to TIFF, such as by oiiotool",
    rb"ZISRAWFILE": "CZI; convert it to TIFF, such as by bfconvert",
}
BY_ENDING: Mapping[str, str] = {
    **dict.fromkeys((".par", ".rec"), "Philips PAR/REC; convert it to NIfTI, such as by parrec2nii"),
    **dict.fromkeys((".brik", ".head"), "AFNI; convert it to NIfTI, such as by 3dAFNItoNIFTI"),
    ".gipl": "GIPL; convert it to NIfTI, such as by SimpleITK",
    ".tga": "TGA; convert it to PNG, such as by ImageMagick",
    ".img": "a file of voxels; name the header beside it, .hdr",
    **dict.fromkeys((".zip", ".tar", ".tgz", ".7z", ".rar", ".gz", ".bz2", ".xz"), ARCHIVE),
}
GZIP, PACKED = b"\x1f\x8b", (".nii.gz", ".mgz", ".tgz", ".tar.gz")
TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
READ_TIFF = (1, 2, 3, 4, 5, 7, 8, 32773, 32946)  # compressions of any picture: Pillow knows more, of 8 bits or grey
GREY_TIFF = (34925, 50000)  # LZMA and Zstandard
ENCODING = re.compile(rb"^encoding:\s*(\S+)", re.MULTILINE)
READ_NRRD = ("raw", "gzip", "gz", "ascii", "text", "txt", "hex")


def describe_unread(path: Path) -> str | None:
    """Return the form of a file or DICOM series that is not read, and what to do; `None` of a form that is read."""
    if path.is_dir():
        path = next((entry for entry in list_visible(path) if is_dicom_file(entry)), path)
    first = b""
    if not path.is_file():  # a pipe might never end
        return None
    with suppress(OSError), path.open("rb") as file:
        first = file.read(FIRST_BYTES)
    name = path.name.lower()
    with suppress(Exception):  # any error over a damaged file, which is of no form
        if is_dicom_file(path):
            return _describe_dicom(path)
        if first.startswith(TIFF):
            return _describe_tiff(path)
        if first.startswith(b"NRRD"):
            return _describe_nrrd(first)
    if first.startswith(GZIP) and not name.endswith(PACKED):
        return "compressed by gzip; unpack it, such as by gunzip"
    for pattern, form in BY_CONTENT.items():
        if re.match(pattern, first, re.DOTALL):
            return form
    return None if name.endswith(PACKED[:2]) else BY_ENDING.get(path.suffix.lower())


def _describe_dicom(path: Path) -> str | None:
    syntax = UID(read_file_meta_info(path).get("TransferSyntaxUID", ""))
    if syntax.is_private:
        return f"DICOM of the private transfer syntax {syntax}; export it again, as Explicit VR Little Endian"
    if not syntax.is_transfer_syntax or not syntax.is_compressed or syntax.is_deflated:
        return None
    depth = ""
    if syntax == JPEGExtended12Bit:  # which a series may have
        header = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=["BitsStored"])
        depth = f" of {header.BitsStored} bits" if header.BitsStored > 8 else ""
    with suppress(NotImplementedError):
        if get_decoder(syntax).is_available and not depth:
            return None
    if any(word in syntax.name for word in ("MPEG", "HEVC", "Video")):
        return f"DICOM video ({syntax.name}); save the pictures to use as PNG, such as by ffmpeg"
    return (
        f"DICOM compressed as {syntax.name}{depth}; export it again as Explicit VR Little Endian, or decompress it, "
        "such as by dcmdjpeg, or by pydicom with pylibjpeg"
    )


def _describe_tiff(path: Path) -> str | None:
    with tifffile.TiffFile(path) as file:
        page = file.pages.first
        code, is_deep = page.compression, page.samplesperpixel > 1 and (page.bitspersample or 8) > 8
    if code in READ_TIFF or (code in GREY_TIFF and not is_deep):
        return None
    name = getattr(code, "name", f"method {int(code)}")
    return f"TIFF compressed by {name}; save it without compression, or by LZW, such as by tiffcp or gdal_translate"


def _describe_nrrd(first: bytes) -> str | None:
    encoding = match[1].decode().lower() if (match := ENCODING.search(first)) else "raw"
    if encoding in READ_NRRD:
        return None
    return f"NRRD with encoding {encoding}; write it again with encoding gzip or raw, such as by pynrrd or unu save"
