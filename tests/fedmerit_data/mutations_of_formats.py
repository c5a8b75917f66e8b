"""Everything that can be wrong within a file of each format: volumes, DICOM series, photographs; and bombs."""

import gzip
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import layouts_prostate as prostate
import nibabel as nib
import numpy as np
import pydicom
import SimpleITK
from mutations import NOISE, Mutation, any_file, folders, lists, swaps
from PIL import Image
from sources import Layout

# Volumes.


def _nifti(edit: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]], path: Path) -> None:
    file = nib.load(path)
    voxels, affine = edit(np.asarray(file.dataobj), file.affine.copy())
    path.unlink()
    nib.save(nib.Nifti1Image(voxels, affine), path)


def _itk(edit: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]], path: Path) -> None:
    image = SimpleITK.ReadImage(str(path))
    affine = np.eye(4)
    affine[:3, :3] = np.reshape(image.GetDirection(), (3, 3)) * image.GetSpacing()
    affine[:3, 3] = image.GetOrigin()
    prostate.save_itk(path, *edit(SimpleITK.GetArrayFromImage(image).T, prostate.LPS @ affine))


def _shifted(affine: np.ndarray, millimetres: float) -> np.ndarray:
    moved = affine.copy()
    moved[1, 3] += millimetres
    return moved


def _with(voxels: np.ndarray, value: float, dtype: type) -> np.ndarray:
    changed = voxels.astype(dtype)
    changed[3, 4, 1] = value
    return changed


SHAPES = {
    "one slice less": lambda v, a: (v[:, :, :-1], a),
    "one row less": lambda v, a: (v[:, :-1], a),
    "transposed": lambda v, a: (v.swapaxes(0, 1), a),
    "one slice": lambda v, a: (v[:, :, :1], a),
}
GEOMETRY = {
    "shifted 50 mm": lambda v, a: (v, _shifted(a, 50)),
    "shifted 1 mm": lambda v, a: (v, _shifted(a, 1)),
    "voxels twice as large": lambda v, a: (v, a @ np.diag([2.0, 2, 2, 1])),
}
VALUES = {  # of images
    "NaN": lambda v, a: (_with(v, np.nan, np.float32), a),
    "infinite": lambda v, a: (_with(v, np.inf, np.float32), a),
    "huge": lambda v, a: (_with(v, 1e300, np.float64), a),
    "float64": lambda v, a: (v.astype(np.float64), a),
}
LABELS = {  # of masks
    "NaN": lambda v, a: (_with(v, np.nan, np.float32), a),
    "infinite": lambda v, a: (_with(v, np.inf, np.float32), a),
    "negative": lambda v, a: (_with(v, -1, np.int16), a),
    "halves": lambda v, a: (v.astype(np.float32) / 2, a),
    "probabilities": lambda v, a: (np.random.default_rng(0).random(v.shape).astype(np.float32), a),
    "high": lambda v, a: (_with(v, 30_000, np.int16), a),
    "float64": lambda v, a: (v.astype(np.float64), a),
}
NIFTI_ONLY = {
    "four axes": lambda v, a: (np.stack([v] * 3, -1), a),
    "two axes": lambda v, a: (v[:, :, 0], a),
    "complex": lambda v, a: (v.astype(np.complex64), a),
    "colours": lambda v, a: (np.zeros(v.shape, [("R", "u1"), ("G", "u1"), ("B", "u1")]), a),
    "no slices": lambda v, a: (v[:, :, :0], a),
}


def _constant(value: float, voxels: np.ndarray, affine: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.full_like(voxels, value), affine


def volumes(layout: Layout) -> Iterator[Mutation]:
    """Wrong voxels and headers, of images and masks that are one file."""
    for part, target, values in (("image", layout.image, VALUES), ("mask", layout.mask, LABELS)):
        nifti = target.endswith((".nii", ".nii.gz"))
        if not nifti and not target.endswith((".mhd", ".nrrd")):
            continue
        edits = {**SHAPES, **GEOMETRY, **values, **(NIFTI_ONLY if nifti else {})}
        for name, edit in edits.items():
            save = partial(_nifti if nifti else _itk, edit)
            yield Mutation(f"{part} {name}", target, lambda root, t=target, save=save: save(root / t), part == "mask")
        blank = partial(_nifti if nifti else _itk, partial(_constant, 0))
        yield Mutation(f"{part} blank", target, lambda root, t=target, save=blank: save(root / t), True)
        if nifti:
            yield from _nifti_headers(part, target)
        else:
            yield from _itk_headers(part, target)


def _nifti_headers(part: str, target: str) -> Iterator[Mutation]:
    """Bytes of the header overwritten: (offset, type, values)."""

    def patch(root: Path, offset: int, dtype: str, values: list[float]) -> None:
        path = root / target
        packed = path.suffix == ".gz"
        content = bytearray(gzip.decompress(path.read_bytes()) if packed else path.read_bytes())
        patched = np.array(values, dtype).tobytes()
        content[offset : offset + len(patched)] = patched
        path.write_bytes(gzip.compress(content) if packed else content)

    for name, offset, dtype, values in (
        ("header size wrong", 0, "<i4", [7]),
        ("shape longer", 40, "<i2", [3, 24, 20, 5]),
        ("type unknown", 70, "<i2", [77]),
        ("offset beyond", 108, "<f4", [1e9]),
        ("slope NaN", 112, "<f4", [np.nan, np.nan]),
        ("slope half", 112, "<f4", [0.5, 0.25]),
        ("magic gone", 344, "<u4", [0]),
        ("promises 2**45", 40, "<i2", [3, 32767, 32767, 32767]),
        ("promises 2**27", 40, "<i2", [3, 512, 512, 512]),
        ("not placed", 252, "<i2", [0, 0]),
        ("placed at NaN", 280, "<f4", [np.nan] * 12),
        ("placed at one point", 280, "<f4", [0] * 12),
    ):
        apply = partial(patch, offset=offset, dtype=dtype, values=values)
        yield Mutation(f"{part} {name}", target, apply, name in ("slope half", "slope NaN", "not placed"))


def _itk_headers(part: str, target: str) -> Iterator[Mutation]:
    """Lines of a text header rewritten."""

    def rewrite(root: Path, key: str, value: str | None) -> None:
        path = root / target
        head, *rest = path.read_bytes().split(b"\n\n", 1)
        lines = head.decode("latin-1").split("\n")
        assert any(line.lower().startswith(key.lower()) for line in lines), lines
        separator = ":" if target.endswith(".nrrd") else " ="
        new = [
            (f"{key}{separator} {value}" if line.lower().startswith(key.lower()) else line)
            for line in lines
            if value is not None or not line.lower().startswith(key.lower())
        ]
        path.write_bytes(b"\n\n".join(["\n".join(new).encode(), *rest]))

    if target.endswith(".mhd"):
        other = Path(target).name.replace("2", "3").replace("14", "15").replace(".mhd", ".raw")
        edits = [
            ("shape longer", "DimSize", "24 20 5"),
            ("shape negative", "DimSize", "-24 20 4"),
            ("axes two", "NDims", "2"),
            ("promises 2**45", "DimSize", "32767 32767 32767"),
            ("promises 2**27", "DimSize", "512 512 512"),
            ("type unknown", "ElementType", "MET_NONSENSE"),
            ("spacing zero", "ElementSpacing", "0 0 0"),
            ("spacing negative", "ElementSpacing", "-1 1 1"),
            ("turned by zeros", "TransformMatrix", "0 0 0 0 0 0 0 0 0"),
            ("voxels of another", "ElementDataFile", other),
            ("voxels anywhere", "ElementDataFile", "/etc/passwd"),
            ("voxels endless", "ElementDataFile", "/dev/zero"),
            ("voxels unnamed", "ElementDataFile", None),
        ]
    else:
        edits = [
            ("shape longer", "sizes", "24 20 5"),
            ("shape negative", "sizes", "-24 20 4"),
            ("axes two", "dimension", "2"),
            ("promises 2**45", "sizes", "32767 32767 32767"),
            ("promises 2**27", "sizes", "512 512 512"),
            ("type unknown", "type", "nonsense"),
            ("encoding unknown", "encoding", "zip"),
            ("space gone", "space", "nowhere"),
            ("turned by zeros", "space directions", "(0,0,0) (0,0,0) (0,0,0)"),
            ("origin NaN", "space origin", "(nan,nan,nan)"),
        ]
    for name, key, value in edits:
        yield Mutation(f"{part} {name}", target, partial(rewrite, key=key, value=value))


def _slice(root: Path, target: str, **changes: object) -> None:
    file = pydicom.dcmread(root / target)
    for key, value in changes.items():
        if value is None:
            delattr(file, key)
        else:
            setattr(file, key, value)
    file.save_as(root / target)


def _syntax(root: Path, target: str) -> None:
    """Says that its pixels are packed, which they are not."""
    plain, packed = b"1.2.840.10008.1.2.1\0", b"1.2.840.10008.1.2.5\0"
    content = (root / target).read_bytes()
    assert plain in content
    (root / target).write_bytes(content.replace(plain, packed))


def _all_slices(root: Path, target: str, change: Callable[[Path, str], None]) -> None:
    for path in sorted((root / target).parent.iterdir()):
        change(root, path.relative_to(root).as_posix())


def dicom(layout: Layout) -> Iterator[Mutation]:
    """Wrong slices of a series."""
    series = [layout.image, *([layout.mask] if layout.kind == "i2cvb" else [])]
    if not layout.kind.startswith(("nci", "i2cvb", "prostatex")):
        return
    for target in series:
        part = "mask" if "GT" in target else "image"
        for name, changes in {
            "of another series": {"SeriesInstanceUID": "9.9.9"},
            "rows fewer": {"Rows": 10},
            "rows unknown": {"Rows": None},
            "no pixels": {"PixelData": None},
            "few pixels": {"PixelData": b"\0\0"},
            "position unknown": {"ImagePositionPatient": None},
            "orientation unknown": {"ImageOrientationPatient": None},
            "orientation null": {"ImageOrientationPatient": [0, 0, 0, 0, 0, 0]},
            "spacing unknown": {"PixelSpacing": None},
            "spacing zero": {"PixelSpacing": [0, 0]},
            "bits eight": {"BitsAllocated": 8, "BitsStored": 8, "HighBit": 7},
            "colours": {"SamplesPerPixel": 3},
            "frames": {"NumberOfFrames": 10},
            "inverted": {"PhotometricInterpretation": "MONOCHROME1"},
            "slope zero": {"RescaleSlope": 0, "RescaleIntercept": 0},
        }.items():
            yield Mutation(
                f"{part} slice {name}", target, partial(_slice, target=target, **changes), name == "slope zero"
            )
        last = target.replace("1-02", "1-03")  # by where it lies
        if not layout.mask.endswith(".dcm"):  # DICOM-SEG holds marked slices only: none of them is missed
            yield Mutation(f"{part} last slice missing", last, lambda root, last=last: (root / last).unlink(), True)
        yield Mutation(f"{part} slice packed otherwise", target, partial(_syntax, target=target))
        for name, changes in {
            "huge": {"Rows": 65535, "Columns": 65535},
            "orientation null": {"ImageOrientationPatient": [0, 0, 0, 0, 0, 0]},
            "spacing zero": {"PixelSpacing": [0, 0]},
            "no pixels": {"PixelData": None},
            "few pixels": {"PixelData": b"\0\0"},
            "colours": {"SamplesPerPixel": 3},
            "in one place": {"ImagePositionPatient": [0, 0, 0]},
            "rows fewer": {"Rows": 10},
        }.items():
            change = lambda root, target, changes=changes: _slice(root, target, **changes)  # noqa: E731
            yield Mutation(f"{part} series {name}", target, partial(_all_slices, target=target, change=change))


def _resaved(root: Path, target: str, edit: Callable[[Image.Image], Image.Image], **options: object) -> None:
    path = root / target
    with Image.open(path) as file:
        file.load()
        edited, form = edit(file), file.format
    edited.save(path, format=form, **options)


def _noisy_middle(path: Path) -> None:
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 16] = NOISE[:16]
    path.write_bytes(content)


def _sixteen(image: Image.Image) -> Image.Image:
    return Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)


def _floats(image: Image.Image) -> Image.Image:
    return Image.fromarray(np.asarray(image.convert("L")).astype(np.float32))


def _reduced(image: Image.Image) -> Image.Image:
    return image.resize((image.width // 2, image.height // 2), Image.Resampling.NEAREST)


def _blank(level: int, image: Image.Image) -> Image.Image:
    return Image.new("L", image.size, level).convert(image.mode)


def _promised(root: Path, target: str, width: int, height: int) -> None:
    """The size in the header of an image overwritten."""
    path = root / target
    content = bytearray(path.read_bytes())
    if target.endswith(".png"):
        content[16:24] = width.to_bytes(4) + height.to_bytes(4)
    elif target.endswith(".bmp"):
        content[18:26] = width.to_bytes(4, "little") + height.to_bytes(4, "little")
    elif target.endswith(".jpg"):
        at = next(at for at in range(len(content)) if content[at] == 0xFF and content[at + 1] in (0xC0, 0xC2))
        content[at + 5 : at + 9] = height.to_bytes(2) + width.to_bytes(2)
    else:  # little-endian TIFF, one entry of twelve bytes per tag
        at = int.from_bytes(content[4:8], "little") + 2
        while int.from_bytes(content[at : at + 2], "little") != 256:
            at += 12
        content[at + 2 : at + 12] = (4).to_bytes(2, "little") + (1).to_bytes(4, "little") + width.to_bytes(4, "little")
        content[at + 14 : at + 24] = (
            (4).to_bytes(2, "little") + (1).to_bytes(4, "little") + height.to_bytes(4, "little")
        )
    path.write_bytes(content)


PIXELS = {
    "half as large": _reduced,
    "one column less": lambda image: image.crop((0, 0, image.width - 1, image.height)),
    "one pixel": lambda image: image.crop((0, 0, 1, 1)),
    "grey": lambda image: image.convert("L"),
    "colours": lambda image: image.convert("RGB"),
}


def photographs(layout: Layout) -> Iterator[Mutation]:
    """Wrong pixels and headers."""
    for part, target in (("image", layout.image), ("mask", layout.mask)):
        if not target.endswith((".png", ".jpg", ".bmp", ".tif")):
            continue
        exact = not target.endswith(".jpg")
        for name, edit in PIXELS.items():
            if name in ("grey", "colours") and (part == "image" or (name == "colours" and not exact)):
                continue  # another photograph, or another compression of the same, if no damaged one
            yield Mutation(f"{part} {name}", target, partial(_resaved, target=target, edit=edit))
        if target.endswith((".png", ".tif")):
            if part == "mask" or layout.kind != "generic":  # which reads them
                yield Mutation(f"{part} of 16 bits", target, partial(_resaved, target=target, edit=_sixteen))
            more = {"save_all": True, "append_images": [Image.new("L", (8, 8))]}
            same = lambda image: image.copy()  # noqa: E731
            yield Mutation(f"{part} of two pictures", target, partial(_resaved, target=target, edit=same, **more))
        if target.endswith(".tif"):
            yield Mutation(f"{part} of floats", target, partial(_resaved, target=target, edit=_floats))
        if part == "mask" and exact:
            for level in (0, 60, 255):
                edit = partial(_blank, level)
                yield Mutation(f"mask all {level}", target, partial(_resaved, target=target, edit=edit), True)
        if exact and (part == "mask" or not target.endswith(".tif")):  # uncompressed, it is another photograph
            yield Mutation(f"{part} flipped bits", target, lambda root, t=target: _noisy_middle(root / t))
        for width, height in ((65535, 65535), (20_000, 20_000), (4000, 4000), (0, 0), (1, 1)):
            apply = partial(_promised, target=target, width=width, height=height)
            yield Mutation(f"{part} promises {width} x {height}", target, apply)


# Bombs: small files that unfold to what memory should not hold.


def _zeros(count: int, dtype: type) -> bytes:
    """``count`` zeros packed by gzip, as one member per 2**24 bytes."""
    size, member = count * np.dtype(dtype).itemsize, gzip.compress(bytes(2**24))
    return member * (size // 2**24) + gzip.compress(bytes(size % 2**24))


def _nifti_bomb(shape: tuple[int, ...], trailing: int, path: Path) -> None:
    header = nib.Nifti1Header()
    header.set_data_dtype(np.float64)
    header.set_data_shape(shape)
    header.set_sform(np.eye(4), 1)
    header["vox_offset"], header["magic"] = 352, b"n+1"
    voxels = _zeros(int(np.prod(shape)) + trailing, np.float64)
    path.write_bytes(gzip.compress(header.binaryblock + bytes(4)) + voxels)


def _nrrd_bomb(path: Path) -> None:
    lines = ["NRRD0004", "type: double", "dimension: 3", "sizes: 512 512 512", "encoding: gzip", "endian: little"]
    path.write_bytes("\n".join([*lines, "", ""]).encode() + _zeros(2**27, np.float64))


def _png_bomb(side: int, path: Path) -> None:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return len(content).to_bytes(4) + kind + content + zlib.crc32(kind + content).to_bytes(4)

    header = side.to_bytes(4) * 2 + bytes([1, 0, 0, 0, 0])  # of one bit per pixel
    rows = zlib.compress(bytes((1 + (side + 7) // 8) * side), 1)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b""))


def bombs(layout: Layout) -> Iterator[Mutation]:
    """What is small on disk and huge in memory, and what has no end."""
    for mutation in mutations(layout):
        endless = ("promises", " huge", " large", " endless", "k pipe", "e pipe", "t pipe", " deep")
        if any(word in mutation.name for word in endless):
            yield mutation
    explode: dict[str, Callable[[Path], None]] = {}
    if layout.image.endswith(".nii.gz"):
        explode = {
            "of 2**27 zeros": partial(_nifti_bomb, (512, 512, 512), 0),
            "of 2**30 zeros": partial(_nifti_bomb, (1024, 1024, 1024), 0),
            "with 2**30 zeros to follow": partial(_nifti_bomb, (24, 20, 4), 2**30),
        }
    elif layout.image.endswith(".nrrd"):
        explode = {"of 2**27 zeros": _nrrd_bomb}
    elif layout.image.endswith(".png"):
        explode = {
            "of 8000 x 8000 zeros": partial(_png_bomb, 8000),
            "of 30000 x 30000 zeros": partial(_png_bomb, 30_000),
        }
    for name, spoil in explode.items():
        for part, target in (("image", layout.image), ("mask", layout.mask)):
            yield Mutation(f"{part} {name}", target, lambda root, t=target, spoil=spoil: spoil(root / t))


GROUPS = (any_file, swaps, lists, folders, volumes, dicom, photographs)


def mutations(layout: Layout) -> list[Mutation]:
    """All mutations of a layout, each by a name of its own."""
    found = {mutation.name: mutation for group in GROUPS for mutation in group(layout)}
    return list(found.values())
