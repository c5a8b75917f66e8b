"""Reader of the DoFE/FedDG fundus layout: ``<site>/{train,test}/ROIs/{image,mask}/*.png``."""

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from data_prep.raw import Decoded, RawCase, RawSite, files_in, pair, remember, require_same_shape, site_folders
from fedmerit.errors import BadInput

CUP, RIM, BACKGROUND = 0, 128, 255
TOLERANCE = 5  # grey levels that a mask may stray, as from another 8-bit encoder
EYE = re.compile(r"-[LR]$")


def find_sites(source: Path) -> list[RawSite]:
    """Every site below ``source`` sorted by name; the release's own train and test folders are pooled.

    Raises:
        BadInput: no site, a site without cases, an image or mask alone, or one case in train and test.
    """
    folders = site_folders(source, "one folder per site with {train,test}/ROIs/{image,mask}/*.png")
    return [_read_site(folder) for folder in folders]


def _read_site(folder: Path) -> RawSite:
    images: dict[str, Path] = {}
    masks: dict[str, Path] = {}
    left_out = []
    for part in ("train", "test"):
        for kind, found in (("image", images), ("mask", masks)):
            place = folder / part / "ROIs" / kind
            for path in files_in(place) if place.is_dir() else ():
                if path.suffix.lower() == ".png":
                    remember(found, path.stem, path)
                else:
                    left_out.append((path.relative_to(folder).as_posix(), "not a .png"))
    cases = (
        # Both eyes of a patient, NAME-L and NAME-R, are one patient.
        RawCase(case, f"{folder.name}-{EYE.sub('', case)}", image, mask)
        for case, image, mask in pair(images, masks, folder)
    )
    return RawSite(folder.name, tuple(cases), tuple(left_out))


def decode(case: RawCase) -> Decoded:
    """One photograph as a case of one slice; the disc includes the cup.

    Raises:
        BadInput: a file is unreadable, image and mask differ in shape, or the mask holds another value.
    """
    image = _load(case.image, "RGB")
    grey = _load(case.label, "L")
    require_same_shape(case, image[..., 0], grey)
    cup, rim, background = (np.abs(grey.astype(np.int16) - value) <= TOLERANCE for value in (CUP, RIM, BACKGROUND))
    stray = grey[~(cup | rim | background)]
    if stray.size:
        raise BadInput(f"{case.label}: holds the value {stray[0]}; expected 0 (cup), 128 (disc rim), 255 (background)")
    label = np.stack([~background, cup]).astype(np.uint8)
    return Decoded(image.transpose(2, 0, 1)[None].astype(np.float32), label[None])


def _load(path: Path, mode: str) -> NDArray[np.uint8]:
    try:
        with Image.open(path) as file:
            return np.asarray(file.convert(mode))
    except (OSError, SyntaxError, ValueError) as error:
        raise BadInput(f"{path}: not a readable image ({error}); fetch the file again") from error
