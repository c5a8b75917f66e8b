"""Reader of REFUGE: Training400, Validation400 and Test400, masks below ``Disc_Cup_Masks``; one site."""

from functools import partial
from pathlib import Path

from fedmerit_data.raw_cases import find_one_site
from fedmerit_data.readers.kind import fundus_kind
from fedmerit_data.spatial.photographs import decode_rings

EXPECTED = (
    "Training400/{Glaucoma,Non-Glaucoma}/*.jpg, REFUGE-Validation400/*.jpg or Test400/*.jpg, and their masks in "
    "{Annotation-Training400,REFUGE-Validation400-GT,REFUGE-Test-GT}/Disc_Cup_Masks"
)


def _role(path: Path) -> tuple[str, str]:
    suffix = path.suffix.lower()
    if "Disc_Cup_Masks" in path.parts:
        return ("mask", path.stem) if suffix in (".bmp", ".png") else ("", "not a .bmp or .png mask")
    return ("image", path.stem) if suffix == ".jpg" else ("", "neither a .jpg image nor below Disc_Cup_Masks")


KIND = fundus_kind(
    description="REFUGE: Training400, Validation400 and Test400 + Disc_Cup_Masks, as one site",
    find_sites=partial(find_one_site, name="REFUGE", expected=EXPECTED, role=_role),
    decode=decode_rings,
    licence="research use",
    citation="Orlando et al., REFUGE challenge: a unified framework for evaluating automated methods for glaucoma "
    "assessment from fundus photographs, Medical Image Analysis 2020",
)
