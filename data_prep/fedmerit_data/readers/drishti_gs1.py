"""Reader of Drishti-GS1: ``Drishti-GS1_files/{Training/{Images,GT},Test/{Images,Test_GT}}`` and its soft maps."""

import re
from functools import partial
from pathlib import Path

from fedmerit_data.raw_cases import Decoded, RawCase, find_one_site
from fedmerit_data.readers.kind import fundus_kind
from fedmerit_data.spatial.photographs import binarise_mask, load, load_mask, make_case

EXPECTED = (
    "{Training,Test}/Images/drishtiGS_NNN.png and "
    "{Training/GT,Test/Test_GT}/drishtiGS_NNN/SoftMap/drishtiGS_NNN_{ODsegSoftmap,cupsegSoftmap}.png"
)
FILE = re.compile(r"(?P<case>drishtiGS_\d+)(_(?P<map>OD|cup)segSoftmap)?\.png")
PARTS = {None: "image", "OD": "disc", "cup": "cup"}


def _role(path: Path) -> tuple[str, str]:
    match = FILE.fullmatch(path.name)
    return (PARTS[match["map"]], match["case"]) if match else ("", "neither an image nor a soft map")


def decode(case: RawCase) -> Decoded:
    """One photograph as a case of one slice, labels disc and cup: the pixels that at least half of the experts marked.

    The maps are 0, 64, 128, 191 and 255 for none to all of four experts.
    """
    image = load(case.image, "RGB")
    disc, cup = (binarise_mask(path, load_mask(case, path, image)) for path in (case.label, *case.more))
    return make_case(image, disc, cup)


KIND = fundus_kind(
    description="Drishti-GS1: {Training,Test}/Images/*.png + {GT,Test_GT}/*/SoftMap; at least half of the experts",
    find_sites=partial(find_one_site, name="Drishti-GS1", expected=EXPECTED, role=_role, masks=("disc", "cup")),
    decode=decode,
    licence="research use",
    citation="Sivaswamy et al., Drishti-GS: retinal image dataset for optic nerve head (ONH) segmentation, IEEE ISBI "
    "2014",
)
