"""Tiny sources in every layout, and everything that can be wrong with one of their files or folders."""

import csv
import gzip
import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import layouts_fundus as fundus
import layouts_prostate as prostate
import nibabel as nib
import numpy as np
import pydicom
import SimpleITK
from layouts import box, fundus_site, prostate_site, save_nifti, volume
from PIL import Image

NOISE = np.random.default_rng(0).bytes(4096)
PAGE = b"<!DOCTYPE html><html><body>403 Forbidden</body></html>\n" * 20


@dataclass(frozen=True)
class Layout:
    """A source, of one kind, and where one of its cases lies: the file of its image, of its mask, or a slice."""

    kind: str
    write: Callable[[Path], None]
    case: str
    image: str
    mask: str
    other: tuple[str, str]  # image and mask of another case
    listing: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # of `prepare`

    @property
    def site(self) -> str:
        """A folder above the case."""
        return self.image.split("/")[0]


@dataclass(frozen=True)
class Mutation:
    """``apply`` spoils ``target`` of a source; ``changes``: its case may be used, if a remark says what is odd."""

    name: str
    target: str
    apply: Callable[[Path], object]
    changes: bool = False


# Sources. Each has four patients or more at the site of the case, so that three are left without it.


def _multisite(folder: Path) -> None:
    prostate_site(folder / "UCL", cases=4)
    prostate_site(folder / "HK", cases=3, seed=1)


def _nci_isbi(folder: Path) -> None:
    for number in range(1, 5):
        patient = f"Prostate3T-01-000{number}"
        study = folder / "manifest-1" / "Prostate-3T" / patient / "study"
        prostate.save_series(study / "5-T2 AX", volume(number), uid=f"1.2.{number}")
        prostate.save_itk(folder / "Training" / f"{patient}.nrrd", np.minimum(prostate.zones(), 2))


def _i2cvb(folder: Path) -> None:
    for number in range(1, 5):
        patient = folder / "GE" / f"Patient_{number}"
        prostate.save_series(patient / "T2W", volume(number), suffix="", uid=f"1.2.{number}")
        prostate.save_series(patient / "GT" / "prostate", box() * np.uint16(255), suffix="", uid=f"1.3.{number}")


def _msd(folder: Path) -> None:
    prostate.msd_prostate(folder)
    root = folder / "Task05_Prostate"
    for part in ("imagesTr", "labelsTr"):
        shutil.copy(root / part / "prostate_00.nii.gz", root / part / "prostate_05.nii.gz")


def _prostate158(folder: Path) -> None:
    prostate.prostate158(folder)
    shutil.copytree(folder / "train" / "024", folder / "train" / "021")


def _prostatex(folder: Path) -> None:
    for number in range(1, 5):
        patient = f"ProstateX-010{number}"
        slices = prostate.save_series(folder / "Image" / patient / "t2_tse_tra", volume(number), uid=f"1.2.{number}")
        if number % 2:
            prostate.save_itk(folder / "Mask" / f"{patient}.nrrd", prostate.zones())
        else:
            prostate.save_segmentation(folder / "Mask" / f"{patient}.dcm", slices, prostate.zones())


def _riga(part: str, folder: Path) -> None:
    for number in (1, 2, 3, 4):
        suffix = ".jpg" if part == "BinRushed" else ".tif"
        inner = {"BinRushed": "BinRushed2", "Magrabia": "MagrabiFemale", "MESSIDOR": ""}[part]
        fundus.riga(folder / part / inner, number, suffix=suffix, experts=(1, 2))


def zones(shift: int = 0) -> np.ndarray:
    """1 in the rim, 2 in the cup."""
    disc, cup = fundus.disc_and_cup(shift)
    return disc.astype(np.uint8) + cup


def _photographs(folder: Path) -> None:
    for shift, case in enumerate("abcd"):
        fundus.save(folder / "east" / "images" / f"{case}.png", fundus.photo(shift))
        fundus.save(folder / "east" / "masks" / f"{case}_mask.tif", zones(shift))


def _volumes(suffix: str, folder: Path) -> None:
    write = save_nifti if suffix.startswith(".nii") else prostate.save_itk
    for number in range(1, 5):
        write(folder / "east" / "images" / f"p{number}{suffix}", volume(number))
        write(folder / "east" / "masks" / f"p{number}_seg{suffix}", box())


def decathlon(folder: Path, name: object = "PROSTATE", numbers: tuple[int, ...] = (1, 2, 3, 4), **more: object) -> None:
    """The list of a Decathlon data set."""
    training = [{"image": f"./imagesTr/p_{n}.nii.gz", "label": f"./labelsTr/p_{n}.nii.gz"} for n in numbers]
    (folder / "dataset.json").write_text(json.dumps({"name": name, "training": training, **more}))


def _decathlon(folder: Path) -> None:
    for number in range(1, 5):
        save_nifti(folder / "imagesTr" / f"p_{number}.nii.gz", volume(number))
        save_nifti(folder / "labelsTr" / f"p_{number}.nii.gz", box())
    decathlon(folder)


ROWS = [["east", f"p{case}", f"files/{case}.png", f"files/{case}_mask.png"] for case in "abcd"]


def pairs(
    folder: Path, rows: list[list[str]], columns: tuple[str, ...] = ("site", "patient", "image", "label")
) -> None:
    """The table of the generic layout."""
    with (folder / "pairs.csv").open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])


def _pairs(folder: Path) -> None:
    for shift, case in enumerate("abcd"):
        fundus.save(folder / "files" / f"{case}.png", fundus.photo(shift))
        fundus.save(folder / "files" / f"{case}_mask.png", zones(shift))
    pairs(folder, ROWS)


def _layout(kind: str, write: Callable[[Path], None], case: str, image: str, mask: str, other: str, **more) -> Layout:
    """``{}`` in the paths stands for the case."""
    return Layout(
        kind, write, case, image.format(case), mask.format(case), (image.format(other), mask.format(other)), **more
    )


VOLUMES = {"labels": {"gland": (1,)}, "channels": 1}
LAYOUTS: dict[str, Layout] = {
    "prostate-multisite": _layout(
        "prostate-multisite", _multisite, "Case01", "UCL/{}.nii.gz", "UCL/{}_segmentation.nii.gz", "Case02"
    ),
    "promise12": _layout(
        "promise12", partial(prostate.promise12, numbers=range(13, 17)), "Case14",
        "{}.mhd", "{}_segmentation.mhd", "Case15",
    ),
    "nci-isbi-2013": _layout(
        "nci-isbi-2013", _nci_isbi, "Prostate3T-01-0002",
        "manifest-1/Prostate-3T/{}/study/5-T2 AX/1-02.dcm", "Training/{}.nrrd", "Prostate3T-01-0003",
    ),
    "i2cvb": _layout("i2cvb", _i2cvb, "Patient_2", "GE/{}/T2W/1-02", "GE/{}/GT/prostate/1-02", "Patient_3"),
    "msd-prostate": _layout(
        "msd-prostate", _msd, "prostate_01",
        "Task05_Prostate/imagesTr/{}.nii.gz", "Task05_Prostate/labelsTr/{}.nii.gz", "prostate_10",
    ),
    "prostatex": _layout(
        "prostatex", _prostatex, "ProstateX-0101", "Image/{}/t2_tse_tra/1-02.dcm", "Mask/{}.nrrd", "ProstateX-0103"
    ),
    "prostatex-seg": _layout(
        "prostatex", _prostatex, "ProstateX-0102", "Image/{}/t2_tse_tra/1-02.dcm", "Mask/{}.dcm", "ProstateX-0104"
    ),
    "prostate158": _layout(
        "prostate158", _prostate158, "024", "train/{}/t2.nii.gz", "train/{}/t2_anatomy_reader1.nii.gz", "021"
    ),
    "nvflare-prostate": _layout(
        "nvflare-prostate",
        partial(fundus.nvflare, cases=("prostate_00", "prostate_01", "prostate_02", "prostate_03")),
        "prostate_01", "dataset_2D/MSD/Image/{}/9.png", "dataset_2D/MSD/Mask/{}/9.png", "prostate_02",
        listing="datalist_2D/client_MSD.json",
    ),
    **{
        kind: _layout(
            kind, lambda folder: fundus_site(folder / "D1") and fundus_site(folder / "D2", seed=1), "b-L",
            "D1/train/ROIs/image/{}.png", "D1/train/ROIs/mask/{}.png", "a-R",
        )
        for kind in ("fundus-rois", "fundus-rois-disc")
    },
    **{
        kind: _layout(
            kind, partial(fundus.drishti, training=(2, 4, 5)), "drishtiGS_004",
            "Training/Images/{}.png", "Training/GT/{0}/SoftMap/{0}_ODsegSoftmap.png", "drishtiGS_005",
        )
        for kind in ("drishti-gs1", "drishti-gs1-disc")
    },
    "drishti-gs1-cup": _layout(
        "drishti-gs1", partial(fundus.drishti, training=(2, 4, 5)), "drishtiGS_004",
        "Training/Images/{}.png", "Training/GT/{0}/SoftMap/{0}_cupsegSoftmap.png", "drishtiGS_005",
    ),
    **{
        kind: Layout(
            kind, fundus.refuge, "g0001", "Training400/Glaucoma/g0001.jpg",
            "Annotation-Training400/Disc_Cup_Masks/Glaucoma/g0001.bmp",
            ("Training400/Non-Glaucoma/n0001.jpg", "Annotation-Training400/Disc_Cup_Masks/Non-Glaucoma/n0001.bmp"),
        )
        for kind in ("refuge", "refuge-disc")
    },
    **{
        kind: Layout(
            kind, partial(_riga, part), f"{place}image2",
            f"{part}/{folder}image2prime{suffix}", f"{part}/{folder}image2-1{suffix}",
            (f"{part}/{folder}image3prime{suffix}", f"{part}/{folder}image3-1{suffix}"),
        )
        for kind, part, place, folder, suffix in (
            ("riga-binrushed", "BinRushed", "BinRushed2-", "BinRushed2/", ".jpg"),
            ("riga-magrabia", "Magrabia", "MagrabiFemale-", "MagrabiFemale/", ".tif"),
            ("riga-messidor", "MESSIDOR", "", "", ".tif"),
        )
    },
    "rim-one-r3": _layout(
        "rim-one-r3", fundus.rim_one, "N-2-L",
        "Healthy/Stereo Images/{}.jpg", "Healthy/Average_masks/{}-Disc-Avg.png", "N-1-R",
    ),
    "drions-db": _layout(
        "drions-db", partial(fundus.drions, train=(1, 2, 3)), "image_002",
        "train/image/{}.jpg", "train/groundtruth/{}.jpg", "image_003",
    ),
    "ichallenge": _layout(
        "ichallenge", partial(fundus.ichallenge, cases=("H0002", "P0195", "P0196", "P0197")), "P0195",
        "JPEGImages/{}.jpg", "Annotations/{}.png", "P0196",
    ),
    "generic-photographs": _layout(
        "generic", _photographs, "b", "east/images/{}.png", "east/masks/{}_mask.tif", "c"
    ),
    **{
        f"generic{suffix}": _layout(
            "generic", partial(_volumes, suffix), "p2",
            f"east/images/{{}}{suffix}", f"east/masks/{{}}_seg{suffix}", "p3", options=VOLUMES,
        )
        for suffix in (".nii", ".mhd", ".nrrd")
    },
    "generic-decathlon": _layout(
        "generic", _decathlon, "p_2", "imagesTr/{}.nii.gz", "labelsTr/{}.nii.gz", "p_3",
        listing="dataset.json", options=VOLUMES,
    ),
    "generic-pairs": _layout("generic", _pairs, "b", "files/{}.png", "files/{}_mask.png", "c", listing="pairs.csv"),
}  # fmt: skip


# What befalls any file.


def _halved(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def _clipped(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _headless(path: Path) -> None:
    path.write_bytes(path.read_bytes()[64:])


def _replaced(content: bytes, path: Path) -> None:
    path.write_bytes(content)


def _zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _noisy_middle(path: Path) -> None:
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 16] = NOISE[:16]
    path.write_bytes(content)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _link(to: str, path: Path) -> None:
    path.unlink()
    path.symlink_to(to)


def _self_link(path: Path) -> None:
    _link(path.name, path)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _renamed(name: Callable[[str], str], path: Path) -> None:
    path.rename(path.with_name(name(path.name)))


ANY_FILE: dict[str, Callable[[Path], None]] = {
    "empty": partial(_replaced, b""),
    "one byte": partial(_replaced, b"\0"),
    "halved": _halved,
    "clipped": _clipped,
    "headless": _headless,
    "zeroed": _zeroed,
    "noise": partial(_replaced, NOISE),
    "an error page": partial(_replaced, PAGE),
    "folder": _folder,
    "missing": Path.unlink,
    "dangling link": partial(_link, "nowhere"),
    "link to itself": _self_link,
    "link to its folder": partial(_link, "."),
    "endless": partial(_link, "/dev/zero"),
    "pipe": _pipe,
    "backup": partial(_renamed, lambda name: f"{name}.bak"),
    "copy (1)": partial(_renamed, lambda name: f"Copy of {name}"),
    "hidden": partial(_renamed, lambda name: f".{name}"),
}


def any_file(layout: Layout) -> Iterator[Mutation]:
    """Each of the above, of the image and of the mask."""
    for part, target in (("image", layout.image), ("mask", layout.mask)):
        for name, spoil in ANY_FILE.items():
            apply = partial(_spoilt, target=target, spoil=spoil)
            yield Mutation(f"{part} {name}", target, apply, part == "mask" and one_of_several(layout))


def one_of_several(layout: Layout) -> bool:
    """Whether the mask is the vote of several experts, who can do without one."""
    return layout.kind.startswith("riga")


def _spoilt(root: Path, target: str, spoil: Callable[[Path], None]) -> None:
    spoil(root / target)


def swaps(layout: Layout) -> Iterator[Mutation]:
    """Files in each other's place."""
    image, mask = layout.image, layout.mask

    def exchange(root: Path, one: str, other: str) -> None:
        (root / one).rename(root / "kept")
        (root / other).rename(root / one)
        (root / "kept").rename(root / other)

    def copy(root: Path, source: str, to: str) -> None:
        shutil.copyfile(root / source, root / to)

    if not one_of_several(layout):  # where only a drawing tells a copy from its image, and either differs by it
        yield Mutation("image and mask swapped", mask, partial(exchange, one=image, other=mask))
    yield Mutation("image as mask", mask, partial(copy, source=image, to=mask), one_of_several(layout))
    if one_of_several(layout) or mask.endswith(".dcm"):  # elsewhere nothing in a file tells but its geometry
        yield Mutation("mask of another case", mask, partial(copy, source=layout.other[1], to=mask))


# Tables and lists.


def _write(name: str, content: str | bytes, root: Path) -> None:
    (root / name).write_bytes(content if isinstance(content, bytes) else content.encode())


LISTS: dict[str, bytes] = {
    "not JSON": b"{",
    "a list": b"[]",
    "a number": b"7",
    "null": b"null",
    "a text": b'"training"',
    "no keys": b"{}",
    "deep": b"[" * 100_000,
    "long number": b'{"name": ' + b"9" * 10_000 + b"}",
    "NaN": b"NaN",
    "Latin-1": b'{"name": "\xe9"}',
    "UTF-16": '{"name": "a"}'.encode("utf-16"),
}


def lists(layout: Layout) -> Iterator[Mutation]:
    """What can be wrong with a list of cases."""
    listing = layout.listing
    if listing is None:
        return
    for name, spoil in ANY_FILE.items():
        yield Mutation(f"list {name}", listing, lambda root, spoil=spoil: spoil(root / listing))
    if listing.endswith(".json"):
        for name, content in LISTS.items():
            yield Mutation(f"list {name}", listing, partial(_write, listing, content))
    if listing == "dataset.json":
        pair = {"image": "imagesTr/p_1.nii.gz", "label": "labelsTr/p_1.nii.gz"}
        for name, more in {
            "name missing": {"name": None},
            "name of a folder": {"name": "../PROSTATE"},
            "name a number": {"name": 7},
            "name empty": {"name": ""},
            "name long": {"name": "a" * 300},
            "training text": {"training": "imagesTr"},
            "training texts": {"training": ["imagesTr/p_1.nii.gz"]},
            "training null": {"training": None},
            "training empty": {"training": []},
            "training a dict": {"training": pair},
            "entry null": {"training": [None]},
            "entry numbers": {"training": [{"image": 1, "label": 2}]},
            "label missing": {"training": [{"image": pair["image"]}]},
            "label null": {"training": [{**pair, "label": None}]},
            "label a list": {"training": [{**pair, "label": [pair["label"]]}]},
            "NUL in a name": {"training": [{**pair, "image": "a\0b.nii.gz"}]},
            "long name": {"training": [{**pair, "image": "a" * 5000 + ".nii.gz"}]},
            "long path": {"training": [{**pair, "image": "a/" * 5000 + ".nii.gz"}]},
            "lone surrogate": {"training": [{**pair, "image": "\ud800.nii.gz"}]},
            "a folder": {"training": [{**pair, "image": "imagesTr"}]},
            "image as label": {"training": [{**pair, "label": pair["image"]}]},
            "twice": {"training": [pair, pair]},
            "password file": {"training": [{**pair, "image": "/etc/passwd"}]},
            "tests a number": {"test": 7},
            "tests numbers": {"test": [7]},
            "tests null": {"test": None},
        }.items():
            yield Mutation(f"list {name}", listing, lambda root, more=more: decathlon(root, **more))
        yield Mutation("list short", "labelsTr/p_4.nii.gz", partial(decathlon, numbers=(1, 2, 3)))
    elif listing == "pairs.csv":
        for name, rows in {
            "cell empty": [*ROWS[:3], ["east", "", "files/d.png", "files/d_mask.png"]],
            "cell missing": [*ROWS[:3], ROWS[3][:3]],
            "file missing": [*ROWS[:3], ["east", "pd", "files/e.png", "files/d_mask.png"]],
            "file a folder": [*ROWS[:3], ["east", "pd", "files", "files/d_mask.png"]],
            "site a path": [*ROWS[:3], ["../east", *ROWS[3][1:]]],
            "site long": [["e" * 300, *row[1:]] for row in ROWS],
            "twice": [*ROWS, ROWS[0]],
            "long cell": [*ROWS[:3], ["east", "pd", "f" * 200_000, "files/d_mask.png"]],
            "long name": [*ROWS[:3], ["east", "pd", "f" * 5000 + ".png", "files/d_mask.png"]],
            "image as label": [*ROWS[:3], ["east", "pd", "files/d.png", "files/d.png"]],
            "swapped": [*ROWS[:3], ["east", "pd", "files/d_mask.png", "files/d.png"]],
            "no rows": [],
        }.items():
            yield Mutation(f"table {name}", listing, lambda root, rows=rows: pairs(root, rows))
        yield Mutation("table short", "files/d.png", lambda root: pairs(root, ROWS[:3]))
        yield Mutation("table header", listing, lambda root: pairs(root, ROWS, ("site", "patient", "image", "mask")))
        yield Mutation("table headless", listing, lambda root: pairs(root, ROWS[1:], tuple(ROWS[0])))
        for name, content in {
            "semicolons": "site;patient;image;label\n" + "\n".join(map(";".join, ROWS)),
            "NUL": "site,patient,image,label\neast,a,fi\0les/a.png,files/a_mask.png\n",
            "quote open": 'site,patient,image,label\neast,a,"files/a.png,files/a_mask.png\n',
            "Latin-1": b"site,patient,image,label\neast,\xe9,files/a.png,files/a_mask.png\n",
            "UTF-16": "site,patient,image,label\n".encode("utf-16"),
        }.items():
            yield Mutation(f"table {name}", listing, partial(_write, listing, content))
    else:  # NVFlare's
        entry = {"image": "MSD/Image/prostate_00/8.png", "label": "MSD/Mask/prostate_00/8.png"}
        for name, value in {
            "training text": {"training": "MSD"},
            "training null": {"training": None},
            "training numbers": {"training": [7]},
            "label missing": {"training": [{"image": entry["image"]}]},
            "label null": {"training": [{**entry, "label": None}]},
            "label elsewhere": {"training": [{**entry, "label": "../datalist_2D/client_MSD.json"}]},
            "a folder": {"training": [{**entry, "image": "MSD/Image/prostate_00"}]},
            "NUL in a name": {"training": [{**entry, "image": "a\0b"}]},
            "long name": {"training": [{**entry, "image": "a" * 5000}]},
            "one case": {"training": [entry]},
        }.items():
            yield Mutation(f"list {name}", listing, partial(_write, listing, json.dumps(value)))


# Folders.


def _emptied(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()


def _as_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_bytes(b"")


def _as_link(to: str, path: Path) -> None:
    shutil.rmtree(path)
    path.symlink_to(to)


def _moved_and_linked(path: Path) -> None:
    """The folder is elsewhere, hidden, and a link in its place."""
    path.rename(path.with_name(f".{path.name}"))
    path.symlink_to(f".{path.name}")


ANY_FOLDER: dict[str, Callable[[Path], None]] = {
    "emptied": _emptied,
    "a file": _as_file,
    "missing": shutil.rmtree,
    "linked to itself": lambda path: _as_link(path.name, path),
    "linked to what holds it": partial(_as_link, ".."),
    "dangling link": partial(_as_link, "nowhere"),
    "linked": _moved_and_linked,
    "renamed": partial(_renamed, lambda name: f"{name} (1)"),
    "underscored": partial(_renamed, lambda name: f"_{name}"),
    "with itself within": lambda path: (path / "again").symlink_to(".."),
    "with another within": lambda path: (path / "more").mkdir(),
    "with a stray file": lambda path: (path / "notes.txt").write_bytes(b"x"),
    "with a pipe": lambda path: os.mkfifo(path / "pipe"),
}


def folders(layout: Layout) -> Iterator[Mutation]:
    """Each of the above, of every folder above the image."""
    for above in Path(layout.image).parents:
        if above.name:
            for name, spoil in ANY_FOLDER.items():
                target = above.as_posix()
                yield Mutation(f"{above.name}/ {name}", target, lambda root, t=target, spoil=spoil: spoil(root / t))


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
    "one voxel": lambda v, a: (v[:1, :1, :1], a),
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
    "all NaN": lambda v, a: (np.full(v.shape, np.nan, np.float32), a),
    "huge": lambda v, a: (_with(v, 1e300, np.float64), a),
    "float64": lambda v, a: (v.astype(np.float64), a),
    "float32": lambda v, a: (v.astype(np.float32), a),
    "uint16": lambda v, a: (v.astype(np.uint16), a),
}
LABELS = {  # of masks
    "NaN": lambda v, a: (_with(v, np.nan, np.float32), a),
    "infinite": lambda v, a: (_with(v, np.inf, np.float32), a),
    "negative": lambda v, a: (_with(v, -1, np.int16), a),
    "halves": lambda v, a: (v.astype(np.float32) / 2, a),
    "probabilities": lambda v, a: (np.random.default_rng(0).random(v.shape).astype(np.float32), a),
    "high": lambda v, a: (_with(v, 30_000, np.int16), a),
    "float64": lambda v, a: (v.astype(np.float64), a),
    "uint16": lambda v, a: (v.astype(np.uint16), a),
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
        ("axes negative", 40, "<i2", [3, -24, 20, 4]),
        ("axes none", 40, "<i2", [0]),
        ("axes nine", 40, "<i2", [9]),
        ("shape longer", 40, "<i2", [3, 24, 20, 5]),
        ("type unknown", 70, "<i2", [77]),
        ("type float64", 70, "<i2", [64, 64]),
        ("offset beyond", 108, "<f4", [1e9]),
        ("offset NaN", 108, "<f4", [np.nan]),
        ("offset negative", 108, "<f4", [-352]),
        ("slope NaN", 112, "<f4", [np.nan, np.nan]),
        ("slope infinite", 112, "<f4", [np.inf, 0]),
        ("slope half", 112, "<f4", [0.5, 0.25]),
        ("magic gone", 344, "<u4", [0]),
        ("byte order", 0, ">i4", [348]),
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
            ("shape shorter", "DimSize", "24 20 3"),
            ("shape negative", "DimSize", "-24 20 4"),
            ("shape text", "DimSize", "a b c"),
            ("axes two", "NDims", "2"),
            ("axes seven", "NDims", "7"),
            ("promises 2**45", "DimSize", "32767 32767 32767"),
            ("promises 2**27", "DimSize", "512 512 512"),
            ("type unknown", "ElementType", "MET_NONSENSE"),
            ("type double", "ElementType", "MET_DOUBLE"),
            ("spacing zero", "ElementSpacing", "0 0 0"),
            ("spacing NaN", "ElementSpacing", "nan nan nan"),
            ("spacing negative", "ElementSpacing", "-1 1 1"),
            ("turned by zeros", "TransformMatrix", "0 0 0 0 0 0 0 0 0"),
            ("voxels of another", "ElementDataFile", other),
            ("voxels anywhere", "ElementDataFile", "/etc/passwd"),
            ("voxels endless", "ElementDataFile", "/dev/zero"),
            ("voxels its own header", "ElementDataFile", "LOCAL"),
            ("voxels a list", "ElementDataFile", "LIST"),
            ("voxels unnamed", "ElementDataFile", None),
        ]
    else:
        edits = [
            ("shape longer", "sizes", "24 20 5"),
            ("shape shorter", "sizes", "24 20 3"),
            ("shape negative", "sizes", "-24 20 4"),
            ("axes two", "dimension", "2"),
            ("promises 2**45", "sizes", "32767 32767 32767"),
            ("promises 2**27", "sizes", "512 512 512"),
            ("type unknown", "type", "nonsense"),
            ("type double", "type", "double"),
            ("encoding unknown", "encoding", "zip"),
            ("encoding plain", "encoding", "raw"),
            ("space gone", "space", "nowhere"),
            ("turned by zeros", "space directions", "(0,0,0) (0,0,0) (0,0,0)"),
            ("origin NaN", "space origin", "(nan,nan,nan)"),
        ]
    for name, key, value in edits:
        yield Mutation(f"{part} {name}", target, partial(rewrite, key=key, value=value))


# DICOM series.


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
            "series unnamed": {"SeriesInstanceUID": None},
            "rows fewer": {"Rows": 10},
            "rows none": {"Rows": 0},
            "rows unknown": {"Rows": None},
            "no pixels": {"PixelData": None},
            "few pixels": {"PixelData": b"\0\0"},
            "position unknown": {"ImagePositionPatient": None},
            "position of two": {"ImagePositionPatient": [1, 2]},
            "orientation unknown": {"ImageOrientationPatient": None},
            "orientation null": {"ImageOrientationPatient": [0, 0, 0, 0, 0, 0]},
            "spacing unknown": {"PixelSpacing": None},
            "spacing zero": {"PixelSpacing": [0, 0]},
            "spacing negative": {"PixelSpacing": [-1, 1]},
            "bits unknown": {"BitsAllocated": None},
            "bits eight": {"BitsAllocated": 8, "BitsStored": 8, "HighBit": 7},
            "bits one": {"BitsAllocated": 1},
            "colours": {"SamplesPerPixel": 3},
            "frames": {"NumberOfFrames": 10},
            "frames text": {"NumberOfFrames": "7"},
            "inverted": {"PhotometricInterpretation": "MONOCHROME1"},
            "slope zero": {"RescaleSlope": 0, "RescaleIntercept": 0},
        }.items():
            yield Mutation(
                f"{part} slice {name}", target, partial(_slice, target=target, **changes), name == "slope zero"
            )
        last = target.replace("1-02", "1-03")  # by where it lies
        if not layout.mask.endswith(".dcm"):  # DICOM-SEG holds marked slices alone: none of them is missed
            yield Mutation(f"{part} last slice missing", last, lambda root, last=last: (root / last).unlink(), True)
        yield Mutation(f"{part} slice packed otherwise", target, partial(_syntax, target=target))
        for name, changes in {
            "huge": {"Rows": 65535, "Columns": 65535},
            "large": {"Rows": 4096, "Columns": 4096},
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


# Photographs.


def _resaved(root: Path, target: str, edit: Callable[[Image.Image], Image.Image], **options: object) -> None:
    path = root / target
    with Image.open(path) as file:
        file.load()
        edited, form = edit(file), file.format
    edited.save(path, format=form, **options)


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
    "one row": lambda image: image.crop((0, 0, image.width, 1)),
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
            if part == "image" and name in ("grey", "colours"):  # another photograph, if no damaged one
                continue
            yield Mutation(f"{part} {name}", target, partial(_resaved, target=target, edit=edit))
        if target.endswith((".png", ".tif")):
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
        if exact:
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
