"""Tiny sources in every layout, each with a case to spoil."""

import csv
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import layouts_fundus as fundus
import layouts_prostate as prostate
import numpy as np
from layouts import box, fundus_site, prostate_site, save_nifti, volume


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


def _riga(folder: Path) -> None:
    for number in (1, 2, 3, 4):
        fundus.riga(folder / "BinRushed" / "BinRushed2", number, suffix=".jpg", experts=(1, 2))


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
    "fundus-rois": _layout(
        "fundus-rois", lambda folder: fundus_site(folder / "D1") and fundus_site(folder / "D2", seed=1), "b-L",
        "D1/train/ROIs/image/{}.png", "D1/train/ROIs/mask/{}.png", "a-R",
    ),
    "drishti-gs1": _layout(
        "drishti-gs1", partial(fundus.drishti, training=(2, 4, 5)), "drishtiGS_004",
        "Training/Images/{}.png", "Training/GT/{0}/SoftMap/{0}_cupsegSoftmap.png", "drishtiGS_005",
    ),
    "refuge": Layout(
        "refuge", fundus.refuge, "g0001", "Training400/Glaucoma/g0001.jpg",
        "Annotation-Training400/Disc_Cup_Masks/Glaucoma/g0001.bmp",
        ("Training400/Non-Glaucoma/n0001.jpg", "Annotation-Training400/Disc_Cup_Masks/Non-Glaucoma/n0001.bmp"),
    ),
    "riga-binrushed": Layout(
        "riga-binrushed", _riga, "BinRushed2-image2",
        "BinRushed/BinRushed2/image2prime.jpg", "BinRushed/BinRushed2/image2-1.jpg",
        ("BinRushed/BinRushed2/image3prime.jpg", "BinRushed/BinRushed2/image3-1.jpg"),
    ),
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
