"""Names of channels: which files of a case are its channels, in which order, and what a scanner made them with.

A channel is one because a list, an option, or a name that is known says so, never because it is what else lies there.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import Channel, Origin, RawCase, RawSite
from fedmerit_data.readers.image_files import read_shape

# Names of each channel in public data sets and in scanners' protocols, in lower case without separators.
SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "t1": ("t1w", "t1n", "t1wi", "t1pre", "t1weighted", "t1native"),
    "t1ce": ("t1c", "t1gd", "t1cw", "t1ca", "t1post", "t1wce", "t1wgd", "t1wpost", "t1km", "ct1", "cet1", "t1contrast"),
    "t2": ("t2w", "t2wi", "t2weighted", "t2tse", "t2wtse"),
    "flair": ("t2f", "t2flair", "flairw", "t2wflair", "fl", "darkfluid", "t2darkfluid", "t2tirmdarkfluid"),
    "pd": ("pdw", "pdweighted"),
    "adc": ("adcmap",),
    "dwi": ("diffusion",),
    "hbv": ("highb", "highbvalue", "dwihighb"),
    "swi": (),
    "dce": (),
    "ktrans": (),
    "bold": (),
    "ct": ("cta", "cect", "nect", "ncct"),
    "pet": ("pt", "fdg"),
    "suv": ("petsuv", "suvpet"),
    "us": ("ultrasound",),
}
CANONICAL = {name: canonical for canonical, names in SYNONYMS.items() for name in (canonical, *names)}
FURTHER = (  # words of scanners and programs that do not say what an image shows
    "preprocessed processed registered reg coreg brain bet stripped n4 norm tse fse frfse se gre spc space cube vista "
    "vibe mprage mpr bravo tfe ffe ep2d epi diff tra sag cor ax axial transversal transverse sagittal coronal oblique "
    "2d 3d"
)
PROCESSED = FURTHER.split()
NUMBERED = re.compile(r"(?:phase|echo|dce|b|te|time|dyn|frame|channel)?\d{1,4}")  # b800, phase1, 0001
MODALITIES = {"ct": "CT", "pet": "PT", "suv": "PT", "us": "US"}  # DICOM's codes; other known channels are MR
GENERAL = {"mri": "MR", "mr": "MR", "ct": "CT", "pet": "PT", "us": "US", "xray": "XR"} | dict.fromkeys(
    ("image", "img", "scan"), ""
)  # names that state no channel, but perhaps a modality
# Words that say that a file shows what somebody marked.
MARKED = re.compile(
    r"mask|seg|label|reader|rater|annot|contour|observer|expert|ground|roi|lesion|tumou?r|gland|pred|gt"
)
ABSENT = "add it, name other --channels, or move the case out of the source"
NOT_NAMED = "a channel that --channels does not name"
NOT_KNOWN = "its name is not known as a channel; --channels names it if it is one"
Names = tuple[str, ...]


def canonical(name: str) -> str:
    """Return what a channel is called here: ``t1ce`` for T1c, t1gd or T1-CE; of a name that is not known, the name.

    Words for the machine, as in ``MR-T2``, are left out unless nothing else is stated; those for what a program did, as
    in ``T2_preprocessed``, if a known name is left.
    """
    words = _words(name)
    plain = "".join(word for word in words if word not in ("mr", "mri")) or "".join(words)
    kept = "".join(word for word in words if word not in ("mr", "mri", *PROCESSED))
    return CANONICAL.get(plain) or CANONICAL.get(kept, plain)


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", name.casefold().replace("2*", "2star")) if word]


def is_known(name: str) -> bool:
    """Return whether a canonical name is that of a channel."""
    return name in SYNONYMS or bool(NUMBERED.fullmatch(name))


def parse_names(text: str) -> Names:
    """Return the canonical names in ``t1,t1ce,t2,flair``.

    Raises:
        ValueError: one is empty, or two are the same channel.
    """
    parts = [part.strip() for part in text.split(",")]
    names = tuple(map(canonical, parts))
    if not all(names):
        raise ValueError("expected a number, or names such as t1,t1ce,t2,flair")
    for name, times in Counter(names).items():
        if times > 1:
            same = [part for part in parts if canonical(part) == name]
            raise ValueError(f"{' and '.join(same)} are one channel, {name}; name it once")
    return names


def modality_of(names: Names) -> str:
    """Return DICOM's code of what made channels of these names; "" if that does not follow."""
    found = {MODALITIES.get(name, "MR") if name in SYNONYMS else "" for name in names}
    return found.pop() if len(found) == 1 else ""


def find_channels(
    source: Path,
    find: Callable[[Path], list[RawSite]],
    wanted: Names,
    listed: Callable[[Path], Names | None],
    count: int,
) -> list[RawSite]:
    """Return the sites that ``find`` finds, their cases with the channels that they are to have, in order.

    Args:
        wanted: Canonical names to take, in this order; (): those that are known.
        listed: Returns the names that a list in the source states, () if it states none; None if there is no list.
        count: Expected number of channels.
    """
    names = listed(source)
    return [arrange_channels(site, wanted, names, count) for site in find(source)]


def arrange_channels(site: RawSite, wanted: Names, listed: Names | None, count: int) -> RawSite:
    """Return a site whose cases have the same channels in one order, and what is left out.

    Raises:
        BadInput: a channel is missing or there twice, none is known, or cases differ.
    """
    cases, left_out = [], [*site.left_out]
    of_others = [case for case in site.cases if wanted and _only_channel(case) not in ("", *wanted)]
    if len(of_others) == len(site.cases):  # `_arrange` says so
        of_others = []
    left_out += [(f"{case.image.parent.name}/{case.image.name}", NOT_NAMED) for case in of_others]
    for case in site.cases:
        if case in of_others:
            continue
        chosen, dropped = _arrange(case, wanted, listed)
        if dropped and not wanted and len(chosen.parts) != count:
            others = ", ".join(part.path.name for part in dropped)
            names = ",".join(canonical(part.name) for part in (*chosen.parts, *dropped))
            raise BadInput(
                f"{case.image}: case {case.name} has {len(chosen.parts)} channel(s), "
                f"{', '.join(part.path.name for part in chosen.parts)}, not {count}; of {others} no name is known as "
                f"that of a channel: name those to be read of --channels {names}"
            )
        cases.append(chosen)
        reason = NOT_NAMED if wanted else NOT_KNOWN
        left_out += [(f"{part.path.parent.name}/{part.path.name}", reason) for part in dropped]
    usual = Counter(case.channel_names for case in cases).most_common(1)[0][0] if cases else ()
    for case in cases:
        if case.channel_names != usual:
            have, others_have = (", ".join(names) or "none that is known" for names in (case.channel_names, usual))
            raise BadInput(
                f"{case.image}: case {case.name} has the channels {have}, others of {site.name} {others_have}; each "
                "needs the same: name those to use with --channels"
            )
    return replace(site, cases=tuple(cases), left_out=tuple(left_out))


def _only_channel(case: RawCase) -> str:
    """Return the known name of the only channel of a case; "" if it has several, or none of a known name."""
    name = canonical(case.parts[0].name)
    return name if len(case.parts) == 1 and is_known(name) else ""


def _arrange(case: RawCase, wanted: Names, listed: Names | None) -> tuple[RawCase, tuple[Channel, ...]]:
    """Return a case with its channels, and the parts that are none."""
    origin = Origin.LIST if listed is not None else Origin.FILE
    if len(case.parts) > 1:
        return _choose(case, wanted, listed is not None, origin)
    part, stated = case.parts[0], listed or ()
    if len(stated) > 1:
        names = wanted or stated
        if missing := [name for name in names if name not in stated]:
            raise BadInput(f"{part.path}: has no channel {missing[0]}, but {', '.join(stated)}; {ABSENT}")
        channels = tuple(replace(part, name=name, index=stated.index(name)) for name in names)
        return _named(case, names, origin, channels if names != stated else case.channels), ()
    name = canonical(part.name) if part.name else "".join(stated)
    name = name if listed is not None or is_known(name) else ""
    name = "" if name in GENERAL and name not in SYNONYMS else name
    if len(wanted) == 1 and name not in ("", *wanted):
        raise BadInput(f"{part.path}: is the channel {name}; --channels names {wanted[0]}, and no other file is there")
    if len(wanted) > 1 and name in SYNONYMS and read_shape(part.path)[3:] != (len(wanted),):
        absent = next(one for one in wanted if one != name)
        raise BadInput(f"{part.path}: case {case.name} has no channel {absent}, but {name}; {ABSENT}")
    names = wanted or ((name,) if name else ())
    found = _named(case, names, Origin.OPTION if wanted else origin, case.channels)
    general = GENERAL.get(canonical("".join(stated)), "") if listed else ""
    if general and not found.modality:
        found = replace(found, modality=general, modality_from=origin)
    return found, ()


def _choose(case: RawCase, wanted: Names, is_listed: bool, origin: Origin) -> tuple[RawCase, tuple[Channel, ...]]:
    """Return a case with those of its several files that are channels, and the others."""
    by_name: dict[str, Channel] = {}
    times = Counter(canonical(part.name) for part in case.parts)
    for place, part in enumerate(case.parts):
        name, plain = canonical(part.name) or f"channel{place}", "".join(_words(part.name))
        if times[name] > 1 and plain not in CANONICAL:  # t2_preprocessed beside t2, t2_tra beside t2_sag
            name = plain or name
        if name in by_name:
            raise BadInput(
                f"{part.path}: {by_name[name].name} and {part.name} are one channel, {name}; keep one of the two"
            )
        by_name[name] = part
    there = ", ".join(by_name)
    if wanted:
        if missing := [name for name in wanted if name not in by_name]:
            raise BadInput(f"{case.image}: case {case.name} has no channel {missing[0]}, but {there}; {ABSENT}")
        names = wanted
    elif is_listed:
        names = tuple(by_name)
    else:
        unmarked = [name for name in by_name if is_known(name) or not MARKED.search(name)]
        known = tuple(sorted(filter(is_known, unmarked)))
        if not known and len(unmarked) != 1:
            raise BadInput(
                f"{case.image}: which of {there} are channels of case {case.name} do not follow from their names; "
                f"name them: --channels {','.join(unmarked or by_name)}"
            )
        names = known or tuple(unmarked)
    channels = tuple(by_name[name] for name in names)
    dropped = tuple(part for part in case.parts if part not in channels)
    is_named = all(by_name[name].name for name in names)
    stated = names if is_named and (wanted or is_listed or all(map(is_known, names))) else ()
    return _named(case, stated, Origin.OPTION if wanted else origin, channels), dropped


def _named(case: RawCase, names: Names, origin: Origin, channels: tuple[Channel, ...]) -> RawCase:
    modality = modality_of(names)
    return replace(
        case,
        image=channels[0].path if channels else case.image,
        channels=channels,
        channel_names=names,
        channels_from=origin if names else "",
        modality=case.modality or modality,
        modality_from=case.modality_from or (origin if modality else ""),
    )
