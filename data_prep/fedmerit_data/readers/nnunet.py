"""nnU-Net's folders: ``imagesTr/CASE_0000.SUFFIX``, a file for each channel, and ``labelsTr/CASE.SUFFIX``."""

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import RawCase, RawSite, list_visible, note_file, pair_files
from fedmerit_data.readers.image_files import PHOTOGRAPHS, READABLE, is_detached, name_and_suffix

NUMBERED = re.compile(r"(?P<case>.+)_(?P<number>\d{4})")  # names of image files, without suffix
COLOURS = 3  # channels that one photograph has in one file


def channel_names(file: Path, content: Mapping[str, Any]) -> dict[int, str]:
    """Return the names of the channels by number: ``channel_names`` of v2, ``modality`` of v1; empty if none is stated.

    Raises:
        BadInput: they have another form.
    """
    key = "channel_names" if "channel_names" in content else "modality"
    stated = content.get(key)
    if stated is None or (key == "modality" and not isinstance(stated, dict)):
        return {}
    try:
        return {int(number): str(name) for number, name in stated.items()}
    except (AttributeError, TypeError, ValueError):
        raise BadInput(
            f'{file}: {key} {stated}; expected the number of each channel and its name, such as {{"0": "T2"}}: is it '
            "the wrong way round?"
        ) from None


def numbered_files(image: Path) -> list[Path]:
    """Return the files of the channels of an image that a list of v1 names without the numbers."""
    stem, suffix = name_and_suffix(image)
    try:
        beside = sorted(image.parent.iterdir())
    except (OSError, ValueError):
        return []
    found = [(path, NUMBERED.fullmatch(name_and_suffix(path)[0])) for path in beside if path.name.endswith(suffix)]
    return [path for path, match in found if match and match["case"] == stem]


def read_nnunet(listing: Path, content: Mapping[str, Any], site: str) -> RawSite:
    """Return the cases of v2's folders beside a ``dataset.json``.

    One photograph in colours holds the three channels that the list names. ``file_ending`` says which files are meant;
    with which program nnU-Net reads them (``overwrite_image_reader_writer``) does not matter here.

    Raises:
        BadInput: a channel or a mask is missing, or there are not as many cases as ``numTraining`` says.
    """
    folder, numbers = listing.parent, sorted(channel_names(listing, content))
    ending = str(content.get("file_ending") or "").lower()
    images: dict[str, dict[str, Path]] = defaultdict(dict)
    masks: dict[str, Path] = {}
    left_out = []
    for path in list_visible(folder / "imagesTr"):
        stem, suffix = name_and_suffix(path)
        match = NUMBERED.fullmatch(stem)
        if match and suffix in READABLE and path.name.lower().endswith(ending):
            note_file(images[match["case"]], match["number"], path)
        elif not is_detached(path) and suffix != ".json":
            wanted = f"CASE_0000{ending}, with the number of its channel"
            left_out.append((f"imagesTr/{path.name}", f"not named {wanted}"))
    for path in list_visible(folder / "labelsTr"):
        stem, suffix = name_and_suffix(path)
        if suffix in READABLE and path.name.lower().endswith(ending):
            note_file(masks, stem, path)
    for case, files in images.items():
        single = list(files) == ["0000"] and len(numbers) == COLOURS
        if single and name_and_suffix(files["0000"])[1] in PHOTOGRAPHS:
            continue
        if missing := [f"{number:04d}" for number in numbers if f"{number:04d}" not in files]:
            raise BadInput(
                f"{folder / 'imagesTr' / case}_{missing[0]}: no such file; {listing.name} names this channel"
            )
    cases = []
    for case, first, mask in pair_files({case: files[min(files)] for case, files in images.items()}, masks, folder):
        others = tuple(images[case][number] for number in sorted(images[case])[1:])
        cases.append(RawCase(case, f"{site}-{case}", first, mask, channels=others))
    stated = content.get("numTraining")
    if isinstance(stated, int) and stated != len(cases):
        raise BadInput(
            f"{listing}: numTraining is {stated}, but imagesTr has {len(cases)} cases; add the missing ones, or "
            "correct the number"
        )
    return RawSite(site, tuple(cases), tuple(left_out))
