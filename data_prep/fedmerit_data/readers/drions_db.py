"""Reader of DRIONS-DB: ``{train,test}/{image,groundtruth}/image_NNN.jpg``, only the disc; one site."""

from functools import partial
from pathlib import Path

from fedmerit_data.raw_cases import Decoded, RawCase, find_one_site
from fedmerit_data.readers.kind import disc_kind
from fedmerit_data.spatial.photographs import binarise_mask, load, load_mask, make_case

EXPECTED = "{train,test}/{image,groundtruth}/image_NNN.jpg"
ROLES = {"image": "image", "groundtruth": "mask"}


def _role(path: Path) -> tuple[str, str]:
    if path.suffix.lower() != ".jpg" or path.parent.name not in ROLES:
        return "", "not a .jpg in a folder image or groundtruth"
    return ROLES[path.parent.name], path.stem


def decode(case: RawCase) -> Decoded:
    """One photograph as a case of one slice, label disc: the mask's grey levels above 127, since JPEG blurs them."""
    image = load(case.image, "RGB")
    return make_case(image, binarise_mask(case.label, load_mask(case, case.label, image)))


KIND = disc_kind(
    description="DRIONS-DB, only the disc: {train,test}/{image,groundtruth}/image_NNN.jpg",
    find_sites=partial(find_one_site, name="DRIONS-DB", expected=EXPECTED, role=_role),
    decode=decode,
    licence="research use",
    citation="Carmona et al., Identification of the optic nerve head with genetic algorithms, Artificial Intelligence "
    "in Medicine 2008",
)
