"""What names state: a table of words by role, and the role, folders and words of an item by them.

A new word is one more in its row of `WORDS`; what is no word is a pattern of `PATTERNS`.
"""

import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

from fedmerit_data.readers.inventory import Item

Words = tuple[str, ...]
Role = Literal["image", "mask", "split", ""]

WORDS: Mapping[str, str] = {  # in lower case and singular; digits may follow
    # what a file or folder holds
    "image": "image img imaging scan volume vol input photo picture bild bilder imagen imagene",
    "mask": "mask msk maske masken masque mascara label seg dseg segm segmentation segmask annotation annot anno gt "
    "groundtruth ground truth manual roi contour delineation structure rtstruct rtss",
    # what somebody marked: a mask if the rest of the name is that of an image beside it
    "marked": "lesion tumour tumor gland organ nodule polyp gtv ctv ptv",
    # who drew a mask
    "reader": "reader rater expert annotator observer 1stho 2ndho",
    # what may follow a role in the name of a folder, and states nothing
    "further": "tr ts va train training test testing val valid validation png jpg jpeg nii nifti dicom class",
    # folders without masks, in a source that has others
    "unmasked": "prediction pred output result preview overview thumbnail overlay segmentationobject",
}
PATTERNS: Mapping[str, re.Pattern[str]] = {
    name: re.compile(pattern, re.IGNORECASE)
    for name, pattern in {
        # folders that tell training from test
        "split": r"(?:train(?:ing|val)?|test(?:ing)?|val(?:id)?(?:ation)?)[_ -]?(?:data)?(?:[_ -]?sets?)?[_ -]?[a-d]?"
        r"\d*",
        "unmasked": r"(?:images?|imgs?)[_ -]?ts|test.*|.*[_ -]test(?:ing)?|.*unlabell?ed.*",
        # folders of a patient or visit
        "patient": r"(?:p|pt|pat|patient|subj?|subject|case|id)[_ -]?\d+",
        "visit": r"ses-\w+|(?:visit|time ?point|time|tp|scan|exam|day|week|month|year|baseline|follow[_ -]?up|pre|post)"
        r"[_ -]?\w{0,4}|[vtmd]\d{1,3}|(?:19|20)\d\d[_.-]?\d\d[_.-]?\d\d",
        "numbered": r".*\d.*",
        # one of several masks that are joined
        "part": r"(?:(?:lesion|tumou?r|nodule|polyp)[_\-. ]?)?\d+",
        # BIDS: subjects, and what a mask states beside what its image is called
        "subject": r"sub-[A-Za-z0-9]+",
        "of mask": r"_(?:(?:label|desc|seg|res|den)-[A-Za-z0-9]+|space-(?:[A-Za-z0-9]*T[12][A-Za-z0-9]*|FLAIR|orig"
        r"|native)(?=_|$))",
    }.items()
}
DERIVATIVES, RAW = "derivatives", "rawdata"  # folders of BIDS; the one in derivatives names who made them
LABEL_ENTITY = re.compile(r"_label-([A-Za-z0-9]+)")
NO_CHANNEL = ("sub-", "ses-", "space-", "label-", "desc-", "seg-", "res-", "den-")  # entities
SEPARATOR = re.compile(r"[_\-. ]+")
CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})")  # SiteAMasks, JPEGImages
ORDINAL, CENTRE = re.compile(r"\d(?:st|nd|rd|th)", re.IGNORECASE), re.compile(r"[Cc]?\d+")  # 1st_manual, images_C1
NUMBER = re.compile(r"\d+")


def _any_of(role: str, after: str = r"\d*") -> re.Pattern[str]:
    return re.compile(rf"(?:{'|'.join(WORDS[role].split())})s?{after}", re.IGNORECASE)


FOLDER_WORD = {role: _any_of(role, r"(?:tr|ts|va|train|test|val)?\d*") for role in ("image", "mask")}
FURTHER, SET_WORD = _any_of("further"), re.compile(r"data|(?:data)?sets?", re.IGNORECASE)
FILE_WORD = {
    "image": _any_of("image", ""),
    "mask": re.compile(rf"{_any_of('mask', '').pattern}|manual\d*", re.IGNORECASE),
}
READER, MARKED, UNMASKED = _any_of("reader"), _any_of("marked", ""), _any_of("unmasked")
ENUMERATED = re.compile(r"(?:\d+|[A-Za-z])\. +")  # "1. Original Images"
ENDS = re.compile(  # 1seg, p1Mask
    rf"(?<=\d)(?=(?i:{_any_of('mask', '').pattern})$)|(?<=[a-z])(?=(?:Mask|Label|Seg|Segmentation|GT)$)"
)
GLUED = re.compile(
    rf"(?<![A-Za-z])(?!manual)({FILE_WORD['image'].pattern}|{_any_of('mask', '').pattern})(?=\d)", re.IGNORECASE
)


def is_a(kind: str, name: str) -> bool:
    """Return whether a name is of a kind of `PATTERNS`."""
    return bool(PATTERNS[kind].fullmatch(name))


def is_unmasked(folder: str) -> bool:
    """Return whether a folder is one without masks by its name."""
    return is_a("unmasked", folder) or bool(UNMASKED.fullmatch(folder))


def is_result(key: str) -> bool:
    """Return whether an item lies in a folder of what a program made, such as predictions or overlays."""
    return any(map(UNMASKED.fullmatch, key.split("/")[:-1]))


def is_reader(name: str) -> bool:
    """Return whether a name says who drew a mask."""
    return bool(READER.search(name))


def split_name(stem: str) -> list[str]:
    """Return the words of a name, those of a role without digits that follow."""
    return [word for word in SEPARATOR.split(ENDS.sub("_", GLUED.sub(r"\1_", stem))) if word]


def words_of(*texts: str) -> Words:
    """Return the words of names as they are compared: in lower case and one form of Unicode."""
    plain = (unicodedata.normalize("NFC", text).casefold() for text in texts)
    return tuple(word for text in plain for word in SEPARATOR.split(text) if word)


def without_zeros(words: Words) -> Words:
    """Return words with their numbers as such: p1 of p01."""
    return tuple(NUMBER.sub(lambda number: str(int(number[0])), word) for word in words)


@lru_cache(maxsize=1024)
def read_folder(name: str, by_last_word: bool = False) -> tuple[Role, str]:
    """Return the role that the name of a folder states, and what else it names, "" if nothing.

    Args:
        by_last_word: Whether other words may come before that of the role, or after one of masks or of several images:
            SiteA_masks are masks of SiteA, as are masks_SiteA.
    """
    name = ENUMERATED.sub("", name, count=1) or name
    if is_a("split", name):
        return "split", ""
    words = [word for part in SEPARATOR.split(name) for word in CAMEL.split(part) if word]
    roles: list[Role] = [
        next((role for role in ("mask", "image") if FOLDER_WORD[role].fullmatch(word)), "") for word in words
    ]
    at = max((place for place, role in enumerate(roles) if role), default=None)
    after = [word for word in words[(at or 0) + 1 :] if not (FURTHER.fullmatch(word) or CENTRE.fullmatch(word))]
    if at is None or after:
        is_first = at == 0 and by_last_word and (roles[0] == "mask" or words[0].casefold().endswith("s"))
        if not is_first or any(map(SET_WORD.fullmatch, after)):
            return "", name
        return roles[0], name[name.index(after[0], len(words[0])) :]
    first = roles.index(next(filter(None, roles)))
    rest = [word for word in words[:first] if not (FURTHER.fullmatch(word) or ORDINAL.fullmatch(word))]
    if not all(roles[first:at]) or (rest and not by_last_word):
        return "", name
    role: Role = "mask" if "mask" in roles else "image"
    return role, name[: name.index(words[first])].rstrip("_-. ") if rest else ""


@dataclass(frozen=True)
class Placed:
    """An item with its role; names are compared by their words in lower case.

    ``folders`` are those that it lies in without those that only name a role or a split, which are ``splits``;
    ``above`` are those before a folder that names a role, `None` if there is none. ``stem`` is its name, ``core`` the
    words of it that name no role.
    """

    item: Item
    is_mask: bool
    folders: Words
    above: Words | None
    stem: str
    core: Words
    splits: Words = ()
    is_derivative: bool = False

    @cached_property
    def exact(self) -> Words:
        """The words of folders and stem."""
        return words_of(*self.folders, *split_name(self.stem))

    @cached_property
    def path(self) -> Words:
        """The words of folders and core."""
        return words_of(*self.folders, *self.core)

    @cached_property
    def name(self) -> Words:
        """The words of the core."""
        return words_of(*self.core)

    @property
    def entities(self) -> str:
        """The suffix in BIDS, with the entities of an acquisition before it."""
        parts = self.stem.split("_") if PATTERNS["subject"].match(self.stem) else []
        return "_".join(part for part in parts if not part.startswith(NO_CHANNEL))

    def part(self, *names: str) -> str:
        """Return what the stem says beside the names of its case and patient, and the words of its role.

        Of BIDS that is what an image shows beside subject and session, and the label of a mask.
        """
        if PATTERNS["subject"].match(self.stem):
            return "_".join(LABEL_ENTITY.findall(self.stem)) if self.is_mask else self.stem.rpartition("_")[2]
        rest = self.stem
        for name in sorted(names, key=len, reverse=True):
            if name and rest != name and rest.startswith(name) and SEPARATOR.match(rest, len(name)):
                rest = rest[len(name) :].lstrip("_-. ")
                break
            if rest == name:
                return ""
        words = split_name(rest)
        kept = [word for word in words if not FILE_WORD["mask" if self.is_mask else "image"].fullmatch(word)]
        return rest if len(kept) == len(words) else "_".join(kept)


def place_items(items: Sequence[Item], organs: Collection[str] = (), mask_words: Collection[str] = ()) -> list[Placed]:
    """Return items with their roles; the last word of a folder's name states one only if that leaves images."""
    placed = [place_item(item, organs, mask_words, by_last_word=True) for item in items]
    return [place_item(item, organs, mask_words) for item in items] if all(one.is_mask for one in placed) else placed


def place_item(
    item: Item, organs: Collection[str] = (), mask_words: Collection[str] = (), by_last_word: bool = False
) -> Placed:
    """Return an item with its role: a mask by its header, its name, its folder, or if ``organs`` name it.

    ``mask_words`` are further words of masks, in lower case.
    """
    *parents, stem = item.key.split("/") if item.key else ("",)
    of_derivatives = ""
    if is_derivative := DERIVATIVES in parents[:-1]:
        at = parents.index(DERIVATIVES)
        by_pipeline = not is_a("subject", parents[at + 1])
        of_derivatives = parents[at + 1] * by_pipeline
        del parents[at : at + 1 + by_pipeline]
    elif RAW in parents[:-1] and any(is_a("subject", name) for name in parents):
        parents.remove(RAW)
    named: list[tuple[Role, str]] = [
        ("mask", "") if name.casefold() in mask_words else read_folder(name, by_last_word) for name in parents
    ]
    folders = [
        (role, "" if _repeats(role, rest, above) else rest)
        for above, (role, rest) in zip(("", *parents), named, strict=False)
    ]
    roles = [place for place, (role, _) in enumerate(folders) if role in ("image", "mask")]
    words = split_name(PATTERNS["of mask"].sub("", stem) if PATTERNS["subject"].match(stem) else stem)
    is_organ = stem in organs or any(re.search(rf"[_\-. ]{re.escape(organ)}$", stem) for organ in organs)
    further = [word for word in words if word.casefold() in mask_words]
    says_mask = bool(further) or any(FILE_WORD["mask"].fullmatch(word) or READER.fullmatch(word) for word in words)
    by_name = says_mask or read_folder(of_derivatives)[0] == "mask"
    by_folder = folders[roles[-1]][0] == "mask" if roles else by_name
    is_mask = by_folder or item.is_region or is_organ
    role = FILE_WORD["mask" if is_mask else "image"]
    return Placed(
        item,
        is_mask,
        tuple(name for _, name in folders if name),
        tuple(name for _, name in folders[: roles[0] + 1] if name) if roles else None,
        stem,
        tuple(words) if is_organ else tuple(word for word in words if not (role.fullmatch(word) or word in further)),
        tuple(name for name, (kind, _) in zip(parents, folders, strict=True) if kind == "split"),
        is_derivative,
    )


def _repeats(role: Role, rest: str, above: str) -> bool:
    """Return whether a folder names nothing that the folder above does not, as IMD002_lesion in IMD002."""
    words, first = words_of(rest), words_of(above)
    more = words[len(first) :]
    return bool(first) and words[: len(first)] == first and bool(role or (more and all(map(MARKED.fullmatch, more))))
