"""Hostile files of tensors, arrays, images and certificates: broken, lying about sizes, or with code in them."""

import base64
import gzip
import io
import pickle
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

import numpy as np
import torch
from PIL import Image
from structures import EXECUTE, Drawing


class Evil:
    """What a pickle has executed when it is loaded."""

    def __init__(self, command: str):
        self.command = command

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        import os

        return os.system, (self.command,)


def tensors(draw: Drawing, content: bytes) -> bytes:
    """What `torch.save` wrote: its archive, its pickle, or what was saved, changed."""
    random = draw.random
    kind = random.random()
    if kind < 0.25:
        return draw.bytes(content)
    if kind < 0.55:
        return _saved(draw, content)
    if kind < 0.8:
        return _archive(draw, content, _pickle(draw, _entries(content)))
    command = draw.text() if random.random() < 0.2 else EXECUTE.format(**draw._named)
    evil = pickle.dumps({"a": Evil(command)}, protocol=random.choice((0, 1, 2, 3, 4)))
    if kind < 0.85:
        return evil
    if kind < 0.9:
        file = io.BytesIO()
        torch.save({"a": torch.zeros(2)}, file, _use_new_zipfile_serialization=False)
        return draw.bytes(file.getvalue()) if random.random() < 0.5 else file.getvalue()
    return _archive(draw, content, evil)


def _entries(content: bytes) -> dict[str, bytes]:
    with ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _saved(draw: Drawing, content: bytes) -> bytes:
    whole = torch.load(io.BytesIO(content), weights_only=True)
    if isinstance(whole, dict):
        whole = dict(whole)
    changed = draw.changed(whole, lambda: _tensor(draw) if draw.random.random() < 0.6 else draw.value())
    file = io.BytesIO()
    torch.save(changed, file)
    return file.getvalue()


def _tensor(draw: Drawing) -> Any:
    whole = torch.arange(6.0).reshape(2, 3)
    return draw.random.choice(
        [
            lambda: torch.zeros(1).expand(1 << 34), lambda: whole.to_sparse(), lambda: whole.to(torch.complex64),
            lambda: whole.requires_grad_(), lambda: whole.T, lambda: torch.zeros(0), lambda: torch.zeros(()),
            lambda: torch.full((2, 3), float("nan")), lambda: torch.full((2, 3), float("inf")),
            lambda: whole.bfloat16(), lambda: whole.long(), lambda: whole.bool(), lambda: whole.half(),
            lambda: torch.zeros(3, 0, 1 << 40), lambda: torch.nn.Parameter(whole),
            lambda: torch.zeros(1, device="meta").expand(1 << 40), lambda: whole[:, 1:],
            lambda: torch.quantize_per_tensor(whole, 0.1, 0, torch.qint8), lambda: torch._neg_view(whole),
            lambda: (1, 2), lambda: {1, 2}, lambda: b"bytes", lambda: torch.Size([3]), lambda: torch.float32,
            lambda: torch.device("cpu"), lambda: {1: {2: whole}}, lambda: [[whole] * 9], lambda: 1j
        ]
    )()  # fmt: skip


def _pickle(draw: Drawing, entries: Mapping[str, bytes]) -> bytes:
    whole = next((one for name, one in entries.items() if name.endswith("/data.pkl")), b"")
    random, text = draw.random, EXECUTE.format(**draw._named).encode()
    size = struct.pack("<I", len(text))
    pieces = (
        b"cos\nsystem\nX" + size + text + b"\x85R", b"cposix\nsystem\nX" + size + text + b"\x85R",
        b"cbuiltins\nexec\nX\x01\x00\x00\x001\x85R", b"\x8c\x02os\x8c\x06system\x93X" + size + text + b"\x85R",
        b"(X" + size + text + b"ios\nsystem\n", b"cbuiltins\nbytearray\nJ\x00\x00\x00\x7f\x85R",
        b"ctorch\n_utils._rebuild_tensor_v2\n", b"ctorch.hub\nload\n", b"cbuiltins\ngetattr\n", b"\x82\x01",
        b"}" * 100_000, b"]" * 100_000, b"(" * 50_000, b"\x8a\x7f" + b"\xff" * 127, b"I" + b"9" * 4000 + b"\n",
        b"h\xff", b"P1\n", b"Q", b"\x95" + b"\xff" * 8, b"X\xff\xff\xff\x7f", b"B\xff\xff\xff\x7f",
        b"ccollections\nOrderedDict\n)R" * 3000, b"q\xff", b"r\xff\xff\xff\x7f", b"j\xff\xff\xff\x7f",
        b"ctorch\nFloatStorage\nN\x86R", b"0", b"b", b"u", b"s", b"a"
    )  # fmt: skip
    kind = random.random()
    if kind < 0.3:
        return draw.bytes(whole)
    if kind < 0.5:  # shapes, strides, offsets and keys of the right form
        at = [found.start() for found in re.finditer(rb"[KMJ]", whole)]
        place = random.choice(at or [0])
        width = {b"K": 1, b"M": 2}.get(whole[place : place + 1], 4)
        return (
            whole[: place + 1]
            + random.choice((random.randbytes(width), b"\xff" * width, b"\x7f" * width, b"\0" * width))
            + whole[place + 1 + width :]
        )
    piece = random.choice(pieces)
    if kind < 0.7:
        return b"\x80\x02" + piece + b"."
    at = random.randrange(2, len(whole)) if random.random() < 0.5 else len(whole) - 1
    return whole[:at] + piece + whole[at:]


def _archive(draw: Drawing, content: bytes, pickled: bytes) -> bytes:
    """The entries in an archive of their own, most of the time as torch writes it."""
    random, file = draw.random, io.BytesIO()
    packed = ZIP_DEFLATED if random.random() < 0.1 else ZIP_STORED
    with ZipFile(file, "w", packed) as archive:
        for name, one in _entries(content).items():
            archive.writestr(ZipInfo(name), pickled if name.endswith("/data.pkl") else one, packed)
        if random.random() < 0.1:
            extra = random.choice(("archive/data.pkl", "../../x", "archive/code/a.py", "archive/data/0", "x/data.pkl"))
            archive.writestr(ZipInfo(extra), pickled, packed)
    whole = bytearray(file.getvalue())
    if random.random() < 0.15:  # sizes and places in the directory at the end
        at = whole.rfind(b"PK\1\2")
        place = at + random.choice((8, 10, 16, 20, 24, 28, 30, 32, 42))
        whole[place : place + 4] = random.choice(
            (b"\xff\xff\xff\xff", b"\0\0\0\0", b"\xff\xff\xff\x7f", random.randbytes(4))
        )
    return bytes(whole)


def array(draw: Drawing, content: bytes) -> bytes:
    """A .npy file: its header says something else, or it has objects in it."""
    random, kind = draw.random, draw.random.random()
    if kind < 0.3:
        return draw.bytes(content)
    if kind < 0.4:
        file = io.BytesIO()
        np.save(file, np.array([Evil(EXECUTE.format(**draw._named))], dtype=object), allow_pickle=True)
        return file.getvalue()
    kinds = (
        "'|O'", "'<f4'", "'|V8'", "'<f8'", "'|u1'", "'<U100000'", "'|S0'", "'<M8[s]'", "[('a', '<f4')]", "'<c16'",
        "'x'", "1", "'<f4' * 9999", "__import__('os')", "'|V0'", "'<V2147483647'", "None", "[('a', '|O')]"
    )  # fmt: skip
    shapes = (
        "(1, 2)", "(2**40,)", "(1099511627776,)", "(-1,)", "(0,)", "()", "(1, 0, 4294967296)", "(3.0,)", "'ab'",
        "(4294967296, 4294967296)", "None", "[1]", "(1,)" * 3, "(True,)",
        "(9223372036854775807, 9223372036854775807)"
    )  # fmt: skip
    order = random.choice(("False", "True", "1", "None", "'no'"))
    said = f"{{'descr': {random.choice(kinds)}, 'fortran_order': {order}, 'shape': {random.choice(shapes)}, }}"
    said = random.choice(
        (said, said, said, said[:-1], "(" * 500 + ")" * 500, "[" * 90 + said, said * 2, said + " " * 70_000)
    )
    version = random.choice((1, 1, 1, 2, 3, 9))
    head = said.encode() + b"\n"
    size = random.choice((len(head), len(head), len(head), 0, 65535, 2**31))
    packed = struct.pack("<H", size & 0xFFFF) if version == 1 else struct.pack("<I", size)
    return b"\x93NUMPY" + bytes((version, 0)) + packed + head + content[128:]


NIFTI = {
    40: "8h", 56: "3f", 68: "h", 70: "h", 72: "h", 76: "8f", 108: "f", 112: "2f", 252: "2h", 256: "6f", 280: "12f",
    344: "4s", 0: "i"
}  # fmt: skip


def nifti(draw: Drawing, content: bytes) -> bytes:
    """A packed NIfTI file: fields of its header, its packing, or its length, changed."""
    random, whole = draw.random, bytearray(gzip.decompress(content))
    if random.random() < 0.25:
        return draw.bytes(content)
    for _ in range(random.choice((1, 1, 2, 3))):
        at, form = random.choice(list(NIFTI.items()))
        count, letter = (int(form[:-1] or 1), form[-1])
        if letter == "s":
            whole[at : at + 4] = random.choice((b"ni1\0", b"n+2\0", b"\0\0\0\0", b"n+1\0"))
            continue
        place = at + random.randrange(count) * struct.calcsize(letter)
        numbers = (
            (0, 1, -1, 2, 4, 8, 16, 64, 128, 512, 1024, 1792, 32767, -32768)
            if letter == "h"
            else (
                (0, 348, 540, -1, 2**31 - 1)
                if letter == "i"
                else (0.0, -1.0, 1e30, float("nan"), float("inf"), 1e-30, 352.5, -1e9)
            )
        )
        struct.pack_into(f"<{letter}", whole, place, random.choice(numbers))
    if random.random() < 0.3:
        whole = whole[: random.randrange(len(whole))]
    if random.random() < 0.01:
        whole += bytes(1 << 24)  # packs to a thousandth
    made = gzip.compress(bytes(whole), 1)
    return (
        made
        if random.random() < 0.8
        else random.choice((bytes(whole), made[:-9], made + made, zlib.compress(bytes(whole))))
    )


def meta_image(draw: Drawing, content: bytes) -> bytes:
    """A MetaImage file: lines of its header changed."""
    random = draw.random
    if random.random() < 0.25:
        return draw.bytes(content)
    head, mark, rest = content.partition(b"ElementDataFile = LOCAL\n")
    lines = [*head.splitlines(keepends=True), mark]
    values = (
        *(
            "0", "-1", "3", "1 1", "99999 99999 99999", "2147483648", "nan", "inf inf inf", "True", "False", "LOCAL",
            "LIST"
        ),
        *(
            "{outside}/secret.raw",
            "../outside/secret.raw",
            "file.mha",
            "slice%03d.raw 1 9 1",
            "MET_DOUBLE",
            "MET_UCHAR",
        ),
        *("MET_OTHER", "x" * 9000, "-2147483648 1 1", "RAI", "1 0 0 0 1 0 0 0 0", "nan 0 0 0 1 0 0 0 1", "7 3 5"),
    )  # fmt: skip
    for _ in range(random.choice((1, 1, 2, 3))):
        at = random.randrange(len(lines))
        own = lines[at].partition(b" =")[0]
        name = random.choice((own, b"CompressedDataSize", b"CompressedData", b"HeaderSize", b"ElementNumberOfChannels"))
        line = name + b" = " + random.choice(values).format(**draw._named).encode() + b"\n"
        lines[at : at + random.randrange(2)] = [line]
    return b"".join(lines) + rest[: random.choice((len(rest), len(rest), random.randrange(len(rest))))]


def nrrd(draw: Drawing, content: bytes) -> bytes:
    """A NRRD file: lines of its header changed; or a MetaImage header in its place."""
    random = draw.random
    if random.random() < 0.25:
        return draw.bytes(content)
    head, _, rest = content.partition(b"\n\n")
    lines = head.split(b"\n")
    values = (
        "0", "-1", "1 1", "99999 99999 99999", "2147483648", "nan", "inf", "4", "3", "1", "gzip", "raw", "ascii",
        "bzip2", "hex", "zrl", "double", "block", "LIST", "LIST 2", "x%d.raw 1 9 1", "{outside}/secret.raw",
        "../outside/secret.raw", "file.raw", "SKIPLIST", "(nan,0,0) (0,1,0) (0,0,1)", "(0,0,0) (0,0,0) (0,0,0)",
        "(1,0) (0,1)", "none", "left-posterior-superior", "x" * 9000, "unsigned char", "-2147483648", "7 3 5"
    )  # fmt: skip
    for _ in range(random.choice((1, 1, 2, 3))):
        at = random.randrange(len(lines))
        name = random.choice(
            (
                lines[at].partition(b":")[0], b"data file", b"datafile", b"line skip", b"byte skip", b"block size",
                b"sizes", b"encoding"
            )
        )  # fmt: skip
        value = random.choice(values).format(**draw._named).encode()
        line = name + random.choice((b": ", b":=", b":")) + value
        lines[at : at + random.randrange(2)] = [line]
    return (
        b"\n".join(lines)
        + random.choice((b"\n\n", b"\n\n", b"\n\n", b"\n", b"\r\n\r\n"))
        + (rest if random.random() < 0.8 else rest[:7])
    )


def photograph(draw: Drawing, content: bytes) -> bytes:
    """A PNG file: chunks changed, their checksums made right; or an image of another format."""
    random, kind = draw.random, draw.random.random()
    if kind < 0.2:
        return draw.bytes(content)
    if kind < 0.4:
        file, mode = io.BytesIO(), random.choice(("L", "RGB", "1", "P", "CMYK", "I;16", "F", "RGBA", "LA"))
        form = random.choice(
            ("PNG", "JPEG", "BMP", "TIFF", "GIF", "WEBP", "PPM", "ICO", "JPEG2000", "TGA", "PCX", "EPS", "PDF")
        )
        try:
            Image.new(mode, (40, 30)).save(file, form)
        except (OSError, ValueError, KeyError):
            return (
                b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(%pipe%"
                + EXECUTE.format(**draw._named).encode()
                + b") (r) file\n"
            )
        return draw.bytes(file.getvalue()) if random.random() < 0.7 else file.getvalue()
    chunks, at = [], 8
    while at < len(content):
        size = int.from_bytes(content[at : at + 4], "big")
        chunks.append([content[at + 4 : at + 8], content[at + 8 : at + 8 + size]])
        at += 12 + size
    one = random.choice(chunks)
    change = random.randrange(6)
    if change == 0:
        chunks[0][1] = (
            struct.pack(">II", *(random.choice((0, 1, 32, 8191, 65535, 2**31 - 1, 2**32 - 1)) for _ in "wh"))
            + chunks[0][1][8:]
        )
    elif change == 1:
        chunks[0][1] = chunks[0][1][:8] + random.randbytes(5)
    elif change == 2:
        one[1] = draw.bytes(one[1])
    elif change == 3:
        packed = zlib.compress(bytes(random.choice((1 << 10, 1 << 16, 1 << 25))), 1)
        chunks.insert(
            1,
            [
                random.choice((b"zTXt", b"iTXt", b"iCCP", b"eXIf", b"tEXt")),
                b"key\0\0" + random.choice((packed, b"\0\0\0" + packed)),
            ],
        )
    elif change == 4:
        chunks.insert(
            random.randrange(len(chunks)),
            [
                random.choice((b"acTL", b"fcTL", b"PLTE", b"IDAT", b"IEND", b"IHDR", b"tRNS", b"gAMA")),
                random.randbytes(random.choice((0, 4, 8, 26, 768))),
            ],
        )
    else:
        chunks.remove(one)
    return content[:8] + b"".join(
        len(data).to_bytes(4, "big") + name + data + zlib.crc32(name + data).to_bytes(4, "big") for name, data in chunks
    )


def certificate(draw: Drawing, content: bytes) -> bytes:
    """Certificates in PEM form, what is in them changed; or something else in PEM form."""
    random = draw.random
    if random.random() < 0.2:
        return draw.bytes(content)
    der = base64.b64decode(b"".join(content.split(b"-----")[2].split()))
    changed = der if random.random() < 0.1 else draw.bytes(der)
    what = random.choice(("CERTIFICATE",) * 6 + ("PRIVATE KEY", "X509 CRL", "TRUSTED CERTIFICATE", "\x1b[2J"))
    lines = base64.encodebytes(changed).decode()
    made = f"-----BEGIN {what}-----\n{lines}-----END {what}-----\n".encode()
    return random.choice((made, made, made, content + made, made * 30, made[:-9]))


def _items(header: Any) -> Iterator[Any]:
    """The data sets in the sequences of a data set, at any depth."""
    for element in header:
        for item in element.value if element.VR == "SQ" else ():
            yield item
            yield from _items(item)


def dicom(draw: Drawing, content: bytes) -> bytes:
    """A DICOM file: elements changed, or bytes."""
    import pydicom

    random = draw.random
    if random.random() < 0.3:
        return draw.bytes(content)
    header = pydicom.dcmread(io.BytesIO(content), force=True)
    names = (
        "Rows", "Columns", "NumberOfFrames", "SamplesPerPixel", "BitsAllocated", "BitsStored", "PixelRepresentation",
        "PixelSpacing", "ImagePositionPatient", "ImageOrientationPatient", "PhotometricInterpretation", "Modality",
        "SeriesInstanceUID", "RescaleSlope", "RescaleIntercept", "SpacingBetweenSlices", "SOPClassUID", "PixelData",
        "InstanceNumber", "PlanarConfiguration", "SegmentationType", "SegmentSequence", "SegmentNumber",
        "SegmentLabel", "ReferencedSegmentNumber", "PerFrameFunctionalGroupsSequence",
        "SharedFunctionalGroupsSequence", "FrameOfReferenceUID", "SliceThickness", "ROINumber", "ROIName",
        "ReferencedROINumber", "ROIContourSequence", "ContourSequence", "ContourData", "ContourGeometricType"
    )  # fmt: skip
    values = (
        0, 1, 3, 65535, 8, 32, "", "nan", "1e999", "\\".join("000"), "nan\\nan\\nan", [0.0] * 6,
        [1.0, 0, 0, 1, 0, 0], b"", b"\0" * 9, "RGB", "SEG", "a\nb", "\x1b[2J", "1.2.3", -1, "99999999"
    )  # fmt: skip
    places = [header, *_items(header)]
    for _ in range(random.choice((1, 1, 2))):
        name = random.choice(names)
        where = random.choice([place for place in places if name in place] or places)
        try:
            if random.random() < 0.2:
                delattr(where, name)
            else:
                setattr(where, name, random.choice(values))
        except Exception:  # pydicom refuses the value, with whatever error
            return draw.bytes(content)
    if random.random() < 0.2:
        header.file_meta.TransferSyntaxUID = random.choice(
            ("1.2.840.10008.1.2.1.99", "1.2.840.10008.1.2.2", "1.2.840.10008.1.2.4.50", "1.2.840.10008.1.2.5", "1.2.3")
        )
    file = io.BytesIO()
    try:
        header.save_as(file, enforce_file_format=False)
    except Exception:  # pydicom refuses to write it, with whatever error
        return draw.bytes(content)
    return file.getvalue()


BY_SUFFIX: Mapping[str, Callable[[Drawing, bytes], bytes]] = {
    ".json": Drawing.json, ".jsonl": Drawing.chain, ".csv": Drawing.table, ".toml": Drawing.toml, ".pt": tensors,
    ".npy": array, ".gz": nifti, ".nrrd": nrrd, ".mha": meta_image, ".png": photograph, ".pem": certificate,
    ".dcm": dicom
}  # fmt: skip
