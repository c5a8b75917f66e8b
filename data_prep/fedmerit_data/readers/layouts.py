"""Layouts of folders: which items of an inventory are masks, which image each belongs to, and whose it is.

What folders and files are called gives an item its role (`fedmerit_data.readers.names`); a DICOM mask names its image
itself. `RULES` pair masks with images, the first that fits. A new layout is a word of a role, or a rule.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from pathlib import Path

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import RawCase, RawSite
from fedmerit_data.readers.channel_names import SYNONYMS, canonical
from fedmerit_data.readers.image_files import PHOTOGRAPHS, name_and_suffix
from fedmerit_data.readers.inventory import Inventory, Item, distinct_names, list_series
from fedmerit_data.readers.label_map import LABEL
from fedmerit_data.readers.mask_words import find_mask_words
from fedmerit_data.readers.names import (
    FILE_WORD,
    MARKED,
    NUMBER,
    PATTERNS,
    SEPARATOR,
    Placed,
    Words,
    is_a,
    is_reader,
    is_result,
    is_unmasked,
    place_item,
    place_items,
    split_name,
    without_zeros,
    words_of,
)
from fedmerit_data.readers.patients import NOBODY
from fedmerit_data.spatial.heads import Head
from fedmerit_data.spatial.structures import read_regions

UID = re.compile(r"\d+(?:\.\d+){4,}")
UNUSUAL = re.compile(r"[/\\\x00-\x1f^#?%*:|\"<>]+")  # characters that names of files may not have everywhere
MOST_FOLDERS = 4  # in which a number is looked for
MAX_NAMED = 5  # organs or series in a message


def _common(*each: Words) -> Words:
    """Return the first words that all have in common."""
    return tuple(words[0] for words in takewhile(lambda words: len(set(words)) == 1, zip(*each, strict=False)))


class Images:
    """An index of images by all that a mask may find them by."""

    def __init__(self, images: Sequence[Placed], masks: Sequence[Placed], inventory: Inventory) -> None:
        self.inventory = inventory
        self.groups: dict[frozenset[int], Group] = {}  # of the masks that have images so far, by these
        self.keys_of: dict[int, list[frozenset[int]]] = defaultdict(list)  # of the groups that an image is in
        self.by_number: dict[int, tuple[list[Placed], str]] = {}  # of the other masks, with the name of the case
        self.by: dict[str, dict[object, list[Placed]]] = defaultdict(lambda: defaultdict(list))
        paths, names = ({getattr(mask, kind) for mask in masks} for kind in ("path", "name"))
        for image in images:
            for kind in ("exact", "path", "name", "folders"):
                self.by[kind][getattr(image, kind)].append(image)
            at = len(image.folders)
            while at and not is_a("numbered", image.folders[at - 1]):
                at -= 1
            self.by["patient folder"][image.folders[:at]].append(image)
            for kind, prefixes in (("path", paths), ("name", names)):
                words = getattr(image, kind)
                if longest := next(
                    (words[:end] for end in range(len(words) - 1, 0, -1) if words[:end] in prefixes), ()
                ):
                    self.by[f"{kind} continues"][longest].append(image)
            if (head := image.item.head) is not None:
                for kind in ("series", "frame", "study"):
                    if getattr(head, kind):
                        self.by[kind][getattr(head, kind)].append(image)

    def pair(self, mask: Placed, images: list[Placed], rule: str) -> None:
        """Add a mask to the group of its images, or to one that has them, too."""
        key = frozenset(map(id, images))
        if (larger := self.larger(key)) is not None:
            key = larger
        elif key not in self.groups:
            self.groups[key] = Group(images, rule, named=self.by_number[id(mask)][1] if rule == NUMBER_RULE else "")
            for image in key:
                self.keys_of[image].append(key)
        self.groups[key].masks.append(mask)

    def larger(self, key: frozenset[int]) -> frozenset[int] | None:
        """Return the key of the largest group that has these images and more, `None` if there is none."""
        return max((known for known in self.keys_of[next(iter(key))] if key < known), key=len, default=None)

    def number(self, masks: Sequence[Placed]) -> None:
        """Find the images of ``masks`` by number, if in one way of `_ways` every mask finds its own images."""
        if not masks:
            return
        used = frozenset().union(*self.groups)
        in_folder = max(Counter((mask.item.path.parent, _number(*mask.core)) for mask in masks).values())
        free = [image for images in self.by["folders"].values() for image in images if id(image) not in used]
        for of_mask, of_image, name in _ways({without_zeros(mask.path) for mask in masks}):
            there: dict[object, list[Placed]] = defaultdict(list)
            for image in free:
                there[of_image(image)].append(image)
            wanted = Counter(map(of_mask, masks))
            found = [there[key] for key in wanted if key is not None]
            are_different = all(len({without_zeros(image.path) for image in images}) == len(images) for images in found)
            is_each = len(found) == len(masks) or (name is not None and in_folder == 1 and of_mask is _role_and_number)
            if (
                is_each
                and len(found) == len(wanted)
                and all(found)
                and (are_different if name is None else {1} == {*map(len, found)})
            ):
                for mask in masks:
                    images = there[of_mask(mask)]
                    text = name(images[0]) if name else _same_words(mask, images[0])
                    self.by_number[id(mask)] = images, text
                return


Key = Callable[[Placed], object]


def _ways(paths: Collection[Words]) -> Iterator[tuple[Key, Key, Callable[[Placed], str] | None]]:
    """Yield what to compare of masks and of images, and the name of the image, None: of its file; the most exact first.

    The names except for zeros, of ``paths`` of masks: p1 and p01, p01_t1; the numbers of both names: label1 and img001,
    also of several folders of masks, such as lung_mask and infection_mask;
    the number of the mask and of the patient or of a folder: label0001 and PANCREAS_0001.
    """

    def number(mask: Placed) -> object:
        return _number(*mask.core)

    def begins(image: Placed) -> object:
        words = without_zeros(image.path)
        return next((words[:end] for end in range(len(words), 0, -1) if words[:end] in paths), None)

    def in_folder(one: Placed) -> object:
        return (one.folders, number(one)) if number(one) else None

    yield lambda mask: without_zeros(mask.path), begins, None
    yield in_folder, in_folder, lambda image: image.stem
    yield _role_and_number, _role_and_number, lambda image: image.stem
    names: list[Callable[[Placed], str]] = [lambda image: image.item.head.patient if image.item.head else ""]
    names += [partial(_folder, depth) for depth in range(MOST_FOLDERS)]
    for name in names:
        yield number, lambda image, name=name: _number(name(image)), name  # type: ignore[misc]


def _role_and_number(one: Placed) -> object:
    """Return the number of a file in a folder of masks or images, with the folder that this one is in."""
    number = _number(*one.core)
    return (one.item.path.parent.parent, number) if number and one.above is not None else None


def _same_words(mask: Placed, image: Placed) -> str:
    """Return the stem of an image that is named as its mask, else the words in folders and stem that both have."""
    words = [word for text in (*image.folders, *image.core) for word in SEPARATOR.split(text) if word]
    return image.stem if len(words) == len(mask.path) else "_".join(words[: len(mask.path)])


def _number(*texts: str) -> tuple[str, ...] | None:
    """Return the numbers in texts without zeros before them; None if there is none."""
    return without_zeros(tuple(NUMBER.findall(" ".join(texts)))) or None


def _folder(depth: int, one: Placed) -> str:
    return "".join(one.folders[depth : depth + 1])


Rule = Callable[[Placed, Images], list[Placed]]


def by_reference(mask: Placed, images: Images) -> list[Placed]:
    """Find the series that a DICOM mask refers to, or the only one of its frame of reference or study."""
    head = mask.item.head
    if head is None or not mask.item.is_region:
        return []
    named = [found for uid in head.refers for found in images.by["series"][images.inventory.series_of.get(uid, uid)]]
    for candidates in (named, images.by["frame"][head.frame], images.by["study"][head.study]):
        chosen = list({id(found): found for found in candidates}.values())
        if len(chosen) > 1:
            near = by_equal_names(mask, images) or by_longer_image(mask, images)
            folder = [found for found in chosen if found.folders == mask.folders]
            chosen = [found for found in chosen if found in near] or folder or chosen
        if len(chosen) == 1:
            return chosen
    return []


def by_equal_names(mask: Placed, images: Images) -> list[Placed]:
    """Find the image of the same name: masks/p1 or p1_mask and images/p1, segmentation-1 and volume-1."""
    found = images.by["exact"][mask.exact] or images.by["exact"][mask.path] or images.by["path"][mask.path]
    same = [image for image in found if (image.folders, image.core) == (mask.folders, mask.core)]  # p1 beside P1
    return same or found


def by_longer_image(mask: Placed, images: Images) -> list[Placed]:
    """Find the images whose names continue that of the mask: p1_t1 and p1_t2 of p1_seg, all in P1 of P1/seg."""
    return images.by["path continues"][mask.path] if mask.path else []


def by_longer_mask(mask: Placed, images: Images) -> list[Placed]:
    """Find the image whose name that of the mask continues: p1 of p1_liver, of masks/p1/liver."""
    return _longest(mask.path, images.by["path"]) or _longest(mask.path, images.by["exact"])


def by_name_anywhere(mask: Placed, images: Images) -> list[Placed]:
    """Find the images of that name in any folders: those of one folder, the nearest, or of one for each channel."""
    found = images.by["name"][mask.name] or images.by["name continues"][mask.name] if mask.name else []
    found = found or _longest(mask.name, images.by["name"])
    common = max((len(_common(mask.folders, image.folders)) for image in found), default=0)
    near = [image for image in found if len(_common(mask.folders, image.folders)) == common]
    near = [image for image in near if image.above is not None] or near  # in a folder that is called that of images
    channels = {canonical(image.folders[-1]) for image in near if image.folders}
    is_each = len(channels) == len(near) and channels <= SYNONYMS.keys()  # T1/p1, T2/p1 and masks/p1
    return near if is_each or len({image.folders for image in near}) == 1 else []


def by_number(mask: Placed, images: Images) -> list[Placed]:
    """Find the image of the same number, if all masks left have one: p01 of p1, PANCREAS_0001 of label0001."""
    return images.by_number.get(id(mask), ([], ""))[0]


def by_folder(mask: Placed, images: Images) -> list[Placed]:
    """Find all images in the folder of the mask, that of a patient, or in folders in it, such as P1/preprocessed.

    A folder that holds images of several cases already is not one patient's.
    """
    is_site = mask.above == mask.folders and not is_a("numbered", "".join(mask.folders[-1:]))
    there = {id(image) for image in images.by["folders"][mask.folders]}
    is_shared = sum(bool(there & group) for group in images.groups) > 1
    if not mask.folders or is_site or is_shared:
        return []
    return images.by["folders"][mask.folders] or images.by["patient folder"][mask.folders]


def _longest(words: Words, found: dict[object, list[Placed]]) -> list[Placed]:
    return next((found[words[:end]] for end in range(len(words) - 1, 0, -1) if words[:end] in found), [])


RULES: dict[str, Rule] = {  # by the words for the layout
    "DICOM masks that refer to a series": by_reference,
    "images and masks of equal names": by_equal_names,
    "names of images that continue those of masks, such as P1_t1 and P1_seg": by_longer_image,
    "names of masks that continue those of images, such as p1 and p1_mask_1": by_longer_mask,
    "images and masks of equal numbers, such as p01 and p1, or PANCREAS_0001 and label0001": by_number,
    "a folder for each patient, with images and masks": by_folder,
    "images and masks of equal names in different folders": by_name_anywhere,
}


@dataclass
class Group:
    """The images and masks of one case, and what the folders say of it: the site, and the patient."""

    images: list[Placed]
    rule: str
    masks: list[Placed] = field(default_factory=list)
    more: list[Placed] = field(default_factory=list)  # that may be further channels
    site: Words = ()  # folders above the patient's, the site's first
    patient: str = ""
    named: str = ""  # if numbers pair it

    @property
    def beginning(self) -> str:
        """The words that the names of all its files begin with."""
        stems = [placed.stem for placed in (*self.images, *self.masks)]
        cuts = [match.start() for match in SEPARATOR.finditer(stems[0])]
        return next((stems[0][:cut] for cut in reversed(cuts) if len({stem[: cut + 1] for stem in stems}) == 1), "")

    @property
    def folder(self) -> Words:
        """The folders that all its images and masks are in."""
        return _common(*(placed.folders for placed in (*self.images, *self.masks)))

    @property
    def own_folders(self) -> Words:
        """The folders that say whose it is: without masks elsewhere, unless its images are in a folder each."""
        is_apart = len({image.folders for image in self.images}) > 1
        return self.folder if is_apart else self.folder or self.images[0].folders

    @property
    def head(self) -> Head | None:
        """The head of its first image, if it is DICOM."""
        return self.images[0].item.head

    @property
    def name(self) -> str:
        """The name that its files have in common, or that of its patient."""
        image, mask = self.images[0], min(self.masks, key=lambda mask: len(mask.path))
        if self.named:
            return self.named
        pairs = ((image.path, mask.path), (image.exact, mask.path), (image.name, mask.name), (image.exact, mask.name))
        if len(self.images) == 1 and any(one and other[: len(one)] == one for one, other in pairs):
            return image.stem if image.core else image.folders[-1]
        if mask.core and any(other and one[: len(other)] == other for one, other in pairs):
            stem = PATTERNS["of mask"].sub("", mask.stem)
            return stem[stem.find(mask.core[0]) : stem.rfind(mask.core[-1]) + len(mask.core[-1])]
        stated = self.head.patient if self.head else ""
        return (stated if UID.fullmatch(self.patient) else "") or self.patient or stated or "case"


@dataclass(frozen=True)
class Arrangement:
    """The cases of a folder by site, what is left out, and what keeps it from being read, each with the item."""

    sites: tuple[RawSite, ...]
    unpaired: tuple[Placed, ...]
    faults: tuple[str, ...]
    rules: tuple[str, ...]  # by which masks were paired, the most frequent first


def arrange(
    inventory: Inventory, site: str, organs: Collection[str] = (), one_site: bool = False, by_name: bool = False
) -> Arrangement:
    """Return the cases of an inventory by the first rule that finds each mask's images.

    Args:
        site: Name of the site if no folder names one.
        organs: Names of masks, and of the regions in them, that labels ask for.
        one_site: Whether ``site`` names all of it.
        by_name: Whether channels are chosen by name afterwards: among all images of a patient's folder or study, and
            patients may have others beside these.
    """
    mask_words: frozenset[str] = frozenset()
    placed = _with_masks_beside(place_items(inventory.items, organs))
    if not any(one.is_mask for one in placed) and (mask_words := find_mask_words(inventory.items)):
        placed = place_items(inventory.items, organs, mask_words)
    placed = _with_stacks(placed)
    masks, images = [one for one in placed if one.is_mask], [one for one in placed if not one.is_mask]
    results = [one for one in masks if is_result(one.item.key)]
    results = results if len(results) < len(masks) else []
    masks = [one for one in masks if one not in results]
    raw = [one for one in images if not one.is_derivative] or images
    groups, faults, unpaired = _pair(masks, Images(raw, masks, inventory))
    if by_name:
        _add_channels(groups, raw)
    used = {id(image) for group in groups for image in (*group.images, *group.more)}
    left_out, single = [(_relative(inventory, one.item.path), "in a folder without masks") for one in results], []
    by_reference_only = any(mask.item.is_region for mask in masks)
    patients = {group.folder for group in groups}
    patients |= {
        group.folder[: at + 1] for group in groups for at, name in enumerate(group.folder) if is_a("subject", name)
    }
    for image in images:
        if id(image) in used:
            continue
        if image.item.head is not None and by_reference_only:
            left_out.append((_relative(inventory, image.item.path), f"{image.item.title}: no mask refers to it"))
        elif groups and any(map(is_unmasked, image.item.key.split("/")[:-1])):
            left_out.append((_relative(inventory, image.item.path), "in a folder of images without masks"))
        elif image.is_derivative:
            left_out.append((_relative(inventory, image.item.path), "a derivative that is no mask"))
        elif image.above is None and any(
            is_a("numbered", "/".join(image.folders[:end])) and image.folders[:end] in patients
            for end in range(1, len(image.folders) + 1)
        ):
            left_out.append((_relative(inventory, image.item.path), "no mask is named for it"))
        else:
            single.append(image)
    left_out += [(_relative(inventory, path), reason) for path, reason in inventory.others]
    _find_patients(groups)
    _shorten_sites(groups, one_site)
    by_site: dict[str, list[Group]] = defaultdict(list)
    for group in groups:
        by_site[group.site[0] if group.site and not one_site else site].append(group)
    sites = []
    for name in sorted(by_site):
        cases, said = _cases(name, by_site[name], organs, left_out, inventory, by_name)
        faults += said
        numbered = [group for group in by_site[name] if group.rule == NUMBER_RULE]
        text = f"masks of {len(numbered)} case(s) paired by number only, such as"
        remarks = tuple(f"{text} {group.masks[0].item.path.name} of {group.named}" for group in numbered[:1])
        remarks += _several_ids(by_site[name])
        if mask_words:
            remarks += (f"files and folders called {', '.join(sorted(mask_words))} are masks by what they hold",)
        sites.append(RawSite(name, cases, remarks=remarks))
    if sites:
        sites[0] = replace(sites[0], left_out=tuple(sorted(left_out)))
    rules = Counter(group.rule for group in groups)
    faults += [f"{mask.item.path}: its image is missing" for mask in unpaired if not mask.item.is_region]
    faults += [f"{image.item.path}: its mask is missing" for image in single]
    return Arrangement(
        tuple(sites), (*unpaired, *single), tuple(faults), tuple(rule for rule, _ in rules.most_common())
    )


def _several_ids(groups: Sequence[Group]) -> tuple[str, ...]:
    """Return a remark if the folder of a patient holds images of several PatientIDs."""
    ids: dict[str, set[str]] = defaultdict(set)
    for group in groups:
        if group.head and group.head.patient and group.patient:
            ids[group.patient].add(group.head.patient)
    found = [folder for folder, of_folder in ids.items() if len(of_folder) > 1]
    text = (
        f"{len(found)} folder(s), such as {min(found, default='')}, hold images of several PatientIDs, which count as "
    )
    return (f"{text}patients: if each is of one, name patients with --patient-table",) * bool(found)


def _add_channels(groups: Sequence[Group], images: Sequence[Placed]) -> None:
    """Add to each group of one image the others that only it can have: of its folder, or of its study and frame."""

    def place(image: Placed) -> tuple[object, ...]:
        head = image.item.head
        return (head.study, head.frame) if head is not None and head.study else image.folders

    owners = Counter(place(group.images[0]) for group in groups)
    used = {id(image) for group in groups for image in group.images}
    free: dict[object, list[Placed]] = defaultdict(list)
    for image in images:
        if id(image) not in used:
            free[place(image)].append(image)
    for group in groups:
        at = place(group.images[0])
        if len(group.images) == 1 and owners[at] == 1 and at:
            group.more = free[at]


def _with_masks_beside(placed: Sequence[Placed]) -> list[Placed]:
    """Return the items, as masks those named as an image beside them and a word of masks, or of what they mark."""
    images = {(one.folders, words_of(*split_name(one.stem))) for one in placed if not one.is_mask}
    found = []
    for one in placed:
        words = split_name(one.stem)
        kept = tuple(word for word in words if not (FILE_WORD["mask"].fullmatch(word) or MARKED.fullmatch(word)))
        named = words_of(*kept)
        beside = any((one.folders, named[:end]) in images for end in range(len(named), 0, -1))
        is_beside = not one.is_mask and 0 < len(kept) < len(words) and beside
        found.append(replace(one, is_mask=True, core=kept) if is_beside else one)
    return found


def _with_stacks(placed: Sequence[Placed]) -> list[Placed]:
    """Return the items, with the pictures in a folder beside DICOM series, and no other image, as one mask."""
    folders: dict[Path, list[Placed]] = defaultdict(list)
    for one in placed:
        if one.is_mask and name_and_suffix(one.item.path)[1] in PHOTOGRAPHS:
            folders[one.item.path.parent].append(one)
    images = [one for one in placed if not one.is_mask]
    stacks = dict[int, Placed | None]()
    for folder, masks in folders.items():
        near = max((len(_common(image.item.path.parts, folder.parts)) for image in images), default=0)
        beside = [image for image in images if len(_common(image.item.path.parts, folder.parts)) == near]
        if len(masks) > 1 and beside and all(image.item.slices > 1 for image in beside):
            first = masks[0]
            key = first.item.key.rpartition("/")[0]
            stack = place_item(Item(folder, key, slices=len(masks)), by_last_word=True)
            stacks |= {id(mask): None for mask in masks} | {id(first): replace(stack, is_mask=True)}
    return [one for one in (stacks.get(id(one), one) for one in placed) if one is not None]


def _pair(masks: Sequence[Placed], images: Images) -> tuple[list[Group], list[str], list[Placed]]:
    """Return the groups, why DICOM masks have none, and the masks without images."""
    unpaired = [*masks]
    for rule, find in RULES.items():
        if rule == NUMBER_RULE:
            images.number([mask for mask in unpaired if not mask.item.is_region])
        unpaired, of_rule = [], unpaired
        for mask in of_rule:
            found = find(mask, images)
            if found := [image for image in found if image.splits == mask.splits] or found:
                images.pair(mask, found, rule)
            else:
                unpaired.append(mask)
    groups = images.groups
    for key, larger in [(key, larger) for key in groups if (larger := images.larger(key)) is not None]:
        groups[larger].masks += groups.pop(key).masks
    return list(groups.values()), [_unreferred(mask, images) for mask in unpaired if mask.item.is_region], unpaired


def _unreferred(mask: Placed, images: Images) -> str:
    head = mask.item.head
    near = images.by["study"][head.study] if head else []
    listed = "; ".join(image.item.title for image in near[:MAX_NAMED])
    there = f"its study has the series {listed}: name one in pairs.csv" if near else "no image of its study is here"
    return f"{mask.item.path}: names no series that is here; {there}"


def _find_patients(groups: Sequence[Group]) -> None:
    """Set the folders of the site, and the patient by folders."""
    by_folder: dict[Words, set[int]] = defaultdict(set)
    begins: dict[Words, list[bool]] = defaultdict(list)  # whether names in a folder begin with its own
    channels: dict[Words, set[str]] = defaultdict(set)  # what images in a folder are called
    for group in groups:
        channels[group.own_folders] |= {canonical(image.stem) for image in group.images}
    ids = [group.head.patient if group.head else "" for group in groups]
    known = {name: place for place, name in enumerate(sorted(set(ids)))} if len(set(ids) - {""}) > 1 else {}
    for place, (group, patient) in enumerate(zip(groups, ids, strict=True)):
        folders = group.own_folders
        for end in range(len(folders) + 1):
            by_folder[folders[:end]].add(known.get(patient, place) if patient else place)
            begins[folders[:end]].append(end > 0 and _begins(group, folders[end - 1]))
    for group in groups:
        image, folders = group.images[0], group.own_folders
        above = [folders[: place + 1] for place in range(len(folders))]
        several = [len(by_folder[folder]) > 1 for folder in above]
        at = next((place for place, folder in enumerate(above) if _is_patient(folder, begins, several[place])), None)
        if group.named in folders:
            at = folders.index(group.named)
        if image.above and at is None and is_a("patient", image.above[-1]):  # P1/images/001, P1/masks/001
            at = len(image.above) - 1
            group.site = image.above[:-1]
        elif image.above is not None and at is None:
            below = range(len(image.above), len(folders))
            at = next((place for place in below if is_a("numbered", folders[place]) or not several[place]), None)
            group.site = folders[:at]
        elif at is None and (group.head is not None or group.rule == FOLDER_RULE or not group.masks[0].core):
            places = (place for place, name in enumerate(folders) if not several[place] or is_a("patient", name))
            at = next(places, None)
            group.site = folders if at is None else folders[:at]
        else:
            if at is None and folders:
                is_one = channels[folders] <= SYNONYMS.keys() and is_a("numbered", folders[-1])  # 020/t2, 020/adc
                at = len(folders) - 1 if is_one else _visit_or_patient(folders, several)
            group.site = folders if at is None else folders[:at]
        if at and is_a("visit", folders[at]) and len(group.site) == at:  # anna/baseline, anna/followup
            at -= 1
            group.site = folders[:at]
        group.patient = "" if at is None else folders[at]


def _visit_or_patient(folders: Words, several: Sequence[bool]) -> int | None:
    """Return the place of a folder that says that it is a visit's of one case, or a patient's; None if none does."""
    last = len(folders) - 1
    if is_a("patient", folders[last]):
        return last
    is_visit = last and not several[last] and is_a("visit", folders[last]) and is_a("numbered", folders[last - 1])
    return last if is_visit else None


def _begins(group: Group, folder: str) -> bool:
    """Return whether the name of an image or mask is that of its folder, or begins with it up to a separator."""
    stems = (group.images[0].stem, group.masks[0].stem)
    return any(stem == folder or bool(re.match(rf"{re.escape(folder)}[_.-]", stem)) for stem in stems)


def _is_patient(folder: Words, begins: Mapping[Words, list[bool]], has_several: bool) -> bool:
    """Return whether a folder is a patient's: most names in it begin with its own; of several cases it has a number."""
    if is_a("subject", folder[-1]):
        return True
    own = begins[folder]
    return 2 * sum(own) > len(own) and (not has_several or is_a("numbered", folder[-1]))


def _shorten_sites(groups: Sequence[Group], one_site: bool) -> None:
    """Leave out folders that all sites lie in; folders with a case each are patients."""
    while groups and all(len(group.site) > 1 for group in groups) and len({group.site[0] for group in groups}) == 1:
        for group in groups:
            group.site = group.site[1:]
    sites = Counter(group.site for group in groups)
    if len(sites) == 1 and all(len(group.site) == 1 and not group.folder for group in groups):
        for group in groups:  # the folder of all images, whose masks are elsewhere: Original beside Ground Truth
            group.site = ()
        return
    if len(groups) >= FEWEST_PATIENTS and set(sites.values()) == {1} and all(sites):
        for group in groups:
            *above, group.patient = group.site
            group.site = tuple(above)


def _cases(
    site: str,
    groups: Sequence[Group],
    organs: Collection[str],
    left_out: list[tuple[str, str]],
    inventory: Inventory,
    by_name: bool,
) -> tuple[tuple[RawCase, ...], list[str]]:
    """Return the cases of a site, sorted by name, and what is wrong with others; adds to ``left_out``."""
    faults, cases = list[str](), list[RawCase]()
    firsts = [(group, group.images[0]) for group in groups]
    longer = [(*image.splits, *image.folders[len(group.site) :], image.stem) for group, image in firsts]
    names = distinct_names(
        [
            (group.name, "-".join(dict.fromkeys(one)) or group.name, image.item)
            for (group, image), one in zip(firsts, longer, strict=True)
        ]
    )
    ids = {group.head.patient for group in groups if group.head and group.head.patient.casefold() not in NOBODY}
    parts = [_channel_parts(group, by_name) for group in groups]
    times = Counter(mask.stem for group in groups for mask in group.masks)
    of_one_case = frozenset(stem for stem, count in times.items() if count == 1 < len(groups))
    usual = Counter(map(_needed, parts)).most_common(1)[0][0] if parts else ()
    several = not by_name and any(len(group.images) > 1 or group.rule == FOLDER_RULE for group in groups)
    for group, channels, name in zip(groups, parts, names, strict=True):
        if not channels:
            there = list_series([image.item for image in (*group.images, *group.more)])
            faults.append(f"{group.images[0].item.path}: its mask names no series; {there}; name one in pairs.csv")
            continue
        name = UNUSUAL.sub("_", name).strip() or "case"
        if several and (needed := _needed(channels)) != usual:
            have, others = (", ".join(filter(None, one)) or "one of any name" for one in (needed, usual))
            where = group.images[0].item.path.parent
            faults.append(
                f"{where}: has the images {have}, the other patients {others}; each needs the same, or name those to "
                "use, such as --channels t1,t2"
            )
            continue
        try:
            chosen, named, unused = _choose_masks(group, organs, of_one_case)
        except BadInput as error:
            faults.append(str(error))
            continue
        left_out += [(_relative(inventory, mask.item.path), reason) for mask, reason in unused]
        by_header = group.head.patient if group.head and len(ids) > 1 and group.head.patient in ids else ""
        patient = by_header or group.patient or name
        listed = tuple(replace(channels[part].item.channel, name=part) for part in sorted(channels))
        first, *more = (mask.item.path for mask in chosen)
        is_plain = len(listed) == 1 and not listed[0].files and not listed[0].name
        cases.append(
            RawCase(name, f"{site}-{patient}", listed[0].path, first, tuple(more), named, () if is_plain else listed)
        )
    return tuple(sorted(cases, key=lambda case: case.name)), faults


def _needed(channels: Collection[str]) -> Words:
    """Return the channels that each patient needs, sorted: those of known names, or all if none is known."""
    known = [name for name in channels if canonical(name) in SYNONYMS]
    return tuple(sorted(known or channels))


def _channel_parts(group: Group, by_name: bool) -> dict[str, Placed]:
    """Return the images by the names of their channels: what their names say beside that of the case.

    A single image has a name only if that is known as a channel's. Series of DICOM are called by their descriptions if
    channels are chosen ``by_name``, or if none is known by what files and folders are called.
    """
    names, images = (group.name, group.patient, group.beginning), [*group.images, *group.more]
    if len(images) == 1:
        last = SEPARATOR.split(images[0].stem)[-1:] if by_name else ()  # p1_adc beside p1_t2, each with a mask
        parts = (images[0].part(group.name, group.patient), images[0].stem, *last)
        return {next((part for part in parts if canonical(part) in SYNONYMS), ""): images[0]}
    above = len(_common(*(image.folders for image in images)))
    plain = {id(image): image.part(*names) or image.stem for image in images}
    by_header = by_name or not any(canonical(part) in SYNONYMS for part in plain.values())

    def described(image: Placed) -> str:
        description = image.item.head.description if by_header and image.item.head is not None else ""
        return description or plain[id(image)]

    ways: tuple[Callable[[Placed], str], ...] = (
        described,
        lambda image: image.entities or described(image),
        lambda image: "_".join(filter(None, (*image.folders[above:], image.part(*names)))),  # pre/flair and orig/flair
        lambda image: image.item.key.replace("/", "_"),
    )
    found = ({way(image): image for image in images} for way in ways)
    return next((parts for parts in found if len(parts) == len(images)), {})


def _choose_masks(
    group: Group, organs: Collection[str], of_one_case: Collection[str]
) -> tuple[list[Placed], tuple[str, ...], list[tuple[Placed, str]]]:
    """Return the masks of a case, the organ of each if they show one each, and the masks left out with the reason.

    Those whose names are ``of_one_case`` show no organ, but a part of one mask each, such as a lesion.

    Raises:
        BadInput: there are several, and it is not clear which are meant.
    """
    names = (group.name, group.patient, group.beginning)
    exported = [mask for mask in group.masks if mask.item.path.parent == group.images[0].item.path]
    if exported and len(exported) < len(group.masks):  # with the slices, by a planning system
        others = replace(group, masks=[mask for mask in group.masks if mask not in exported])
        used, organs_of_used, unused = _choose_masks(others, organs, of_one_case)
        return used, organs_of_used, [*unused, *((mask, ANOTHER) for mask in exported)]
    if len(group.masks) > 1 and all(mask.item.is_region for mask in group.masks):
        return _choose_regions(group, organs)
    masks = {mask.part(*names) or (mask.stem if len(group.masks) == 1 else ""): mask for mask in group.masks}
    if len(masks) < len(group.masks) or (len(masks) > 1 and "" in masks):
        folders = {mask.item.path.parent.name: mask for mask in group.masks}  # masks/liver/p1, 1st_manual/p1
        masks = folders if len(folders) == len(group.masks) and not {*names} & {*folders} else masks
    if len(masks) < len(group.masks):
        masks = {mask.item.key: mask for mask in group.masks}
    times = Counter(mask.stem for mask in group.masks)
    by_name = {mask.stem.casefold(): mask for mask in group.masks if times[mask.stem] == 1}
    by_name |= {name.casefold(): mask for name, mask in masks.items()}
    named = {organ: mask for organ in sorted(organs) if (mask := _named_mask(organ.casefold(), by_name)) is not None}
    if named:
        return [*named.values()], tuple(named), [(one, UNNAMED) for one in group.masks if one not in named.values()]
    if len(masks) == 1:
        return [*masks.values()], (), []
    plain = [name for name in masks if not name]
    readers = [name for name in masks if is_reader(name)]
    if len(plain) == 1 and len(readers) == len(masks) - 1:
        return [masks[""]], (), _without(masks, plain, OTHER_READER)
    in_own_folder = all(mask.stem == name and mask.stem in of_one_case for name, mask in masks.items())
    if in_own_folder or all(not name or is_a("part", name) for name in masks):  # parts of one mask
        return [masks[name] for name in sorted(masks)], ("",) * len(masks), []
    few = [name or masks[name].stem for name in sorted(masks)[:MAX_NAMED]]
    more = ", ..." if len(masks) > len(few) else ""
    example = few[0]
    advice = (
        "keep the masks of one reader, or list those to use in pairs.csv"
        if readers
        else f"and --labels names none of them; expected such as --labels {_label(example)}='{example}'"
    )
    raise BadInput(
        f"{group.masks[0].item.path.parent}: has masks of {len(masks)} organs ({', '.join(few)}{more}), {advice}"
    )


def _named_mask(organ: str, by_name: Mapping[str, Placed]) -> Placed | None:
    """Return the mask of an organ's name, or the only one whose name ends in it, as OAR_liver in liver."""
    ending = {id(mask): mask for name, mask in by_name.items() if re.search(rf"[_\-. ]{re.escape(organ)}$", name)}
    return by_name.get(organ) or (next(iter(ending.values())) if len(ending) == 1 else None)


def _label(organ: str) -> str:
    """Return a valid name of a label for an organ."""
    name = re.sub(r"[^\w-]+", "_", organ).strip("_-")
    return name if LABEL.fullmatch(name) else f"organ_{name}".rstrip("_")


def _choose_regions(
    group: Group, organs: Collection[str]
) -> tuple[list[Placed], tuple[str, ...], list[tuple[Placed, str]]]:
    """Return the DICOM masks of a case that mark regions of these names, (), and the others with the reason.

    Raises:
        BadInput: none does, no names are given, or two files mark a region of one name.
    """
    asked = {organ.strip().casefold() for organ in organs}
    found = [(mask, list(regions.names.values())) for mask in group.masks if (regions := read_regions(mask.item.path))]
    there = "; ".join(f"{mask.item.path.name}: {', '.join(names[:MAX_NAMED])}" for mask, names in found[:MAX_NAMED])
    case = group.images[0].item.path
    chosen, by_name = list[Placed](), dict[str, Placed]()
    for mask, names in found:
        for name in asked & {name.strip().casefold() for name in names}:
            if name in by_name:
                first, second = by_name[name].item.path, mask.item.path
                raise BadInput(f"{second}: marks {name}, and so does {first}; list the one to use in pairs.csv")
            by_name[name] = mask
        chosen += [mask] * (mask in by_name.values())
    if not chosen:
        raise BadInput(f"{case}: has several DICOM masks ({there}); name their regions in --labels, such as organ=NAME")
    return chosen, (), [(mask, UNNAMED) for mask in group.masks if mask not in chosen]


UNNAMED = "an organ that --labels does not name"
OTHER_READER = "the mask of another reader"
ANOTHER = "another mask of the case is in a folder for masks"
FEWEST_PATIENTS = 3
NAME_OF_RULE = {rule: words for words, rule in RULES.items()}
FOLDER_RULE, NUMBER_RULE, EQUAL_NAMES = map(NAME_OF_RULE.__getitem__, (by_folder, by_number, by_equal_names))


def _without(masks: dict[str, Placed], chosen: Collection[str], reason: str) -> list[tuple[Placed, str]]:
    return [(mask, reason) for name, mask in masks.items() if name not in chosen]


def _relative(inventory: Inventory, path: Path) -> str:
    return path.relative_to(inventory.source).as_posix()
