"""What a site folder says of its cases: datalist.json and site.json."""

from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedmerit.errors import BadInput
from fedmerit.files import write_json
from fedmerit.trainers.monai_trainer.data import SERVER_SPLIT, SPLITS, require_name
from fedmerit_data.folders import OVERVIEW
from fedmerit_data.preparation import Preparation
from fedmerit_data.preparing.cases import CaseOutcome, Finished, Unusable, Work, raw_files
from fedmerit_data.preparing.split import split_patients
from fedmerit_data.raw import RawCase, RawSite

NAMED = 10  # unreadable cases to name at once
LONGEST_NAME = 200  # bytes, of a site or a case: what is stored adds endings


def require_site_name(name: str, raw: Path) -> None:
    """`BadInput` where a site of ``raw`` cannot be called so, or as the folder of pictures beside site folders is."""
    require_name(name, raw)
    if name == OVERVIEW:
        told = "which is the folder of pictures beside site folders"
        raise BadInput(f"{raw}: the site's name is {OVERVIEW!r}, {told}; rename it")


def split_site(site: RawSite, cases: Sequence[RawCase], asked: Preparation) -> dict[str, str]:
    """The split of every patient of a site's ``cases``.

    Raises:
        BadInput: a name is too long or stands for two cases, or there are too few patients.
    """
    names = Counter(case.name for case in cases)
    if long := [name for name in (site.name, *names) if len(name.encode()) > LONGEST_NAME]:
        raise BadInput(f"site {site.name}: {long[0]} is too long a name for its files; rename what is called so")
    if twice := [name for name, count in names.items() if count > 1]:
        count = names[twice[0]]
        raise BadInput(
            f"site {site.name}: {twice[0]} is the name of {count} cases; keep one of their files, or rename one"
        )
    patients = [case.patient for case in cases]
    return split_patients(site.name, patients, asked.ratios, asked.seed, asked.server_share)


def write_lists(site: RawSite, outcomes: Sequence[CaseOutcome], asked: Preparation) -> None:
    """Write both of one site, whose cases came to these ``outcomes``.

    Raises:
        BadInput: too few patients are left, or no slice to train on.
    """
    usable = [(work, outcome) for work, outcome in outcomes if isinstance(outcome, Finished)]
    unusable = [(work, outcome) for work, outcome in outcomes if isinstance(outcome, Unusable)]
    try:
        entries, counts = _datalist(site, usable, asked)
    except BadInput as error:
        raise BadInput(f"{error}{_told([outcome.reason for _, outcome in unusable], len(outcomes))}") from error
    folder = outcomes[0][0].array("")
    write_json(folder / "datalist.json", entries)
    left_out = [*site.left_out]
    for work, outcome in unusable:
        reason = outcome.reason.replace(f"{work.source}/", "")
        left_out += [(path.as_posix(), f"unreadable case: {reason}") for path in raw_files(work)]
    spacing = None if asked.field_of_view is None else [asked.field_of_view / asked.size] * 2
    write_json(
        folder / "site.json",
        {
            "name": site.name,
            **asked.meaning(),
            "image_size": [asked.size, asked.size],
            "spacing": spacing,
            **asked.record(),
            "licence": asked.layout.licence,
            "citation": asked.layout.citation,
            "counts": counts,
            "used": {"cases": len(usable), "files": len({path for _, finished in usable for path in finished.raw})},
            "unreadable_cases": len(unusable),
            "left_out": [{"file": name, "reason": reason} for name, reason in left_out],
            "remarks": [{"case": work.case.name, "remark": text} for work, done in usable for text in done.remarks],
            "checksums": {name: known for _, finished in usable for name, known in finished.checksums.items()},
            "fedmerit_version": version("fedmerit"),
        },
    )


def _told(reasons: Sequence[str], cases: int) -> str:
    """What to add to an error about a site where so many of its ``cases`` are left out."""
    if not reasons:
        return ""
    more = [f"and {len(reasons) - NAMED} more"] if len(reasons) > NAMED else []
    return "\n  ".join([f"\n{len(reasons)} of its {cases} cases are left out as unreadable:", *reasons[:NAMED], *more])


def _datalist(
    site: RawSite, usable: Sequence[tuple[Work, Finished]], asked: Preparation
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, dict[str, int]]]:
    """The entries of every split, and how many cases, patients and slices it has."""
    splits = split_site(site, [work.case for work, _ in usable], asked)
    entries: dict[str, list[dict[str, Any]]] = {split: [] for split in (*SPLITS, SERVER_SPLIT)}
    counts = {split: {"cases": 0, "patients": 0, "slices": 0} for split in entries}
    for split in splits.values():
        counts[split]["patients"] += 1
    for work, finished in usable:
        split = splits[work.case.patient]
        entry: dict[str, Any] = {
            "case": work.case.name,
            "patient": work.case.patient,
            **work.arrays,
            "crop": finished.crop,
            "spacing": finished.spacing,
        }
        used = finished.slices
        if split == "training" and asked.slices == "organ":
            entry["slices"] = finished.organ
            used = len(finished.organ)
        entries[split].append(entry)
        counts[split]["cases"] += 1
        counts[split]["slices"] += used
    if counts["training"]["cases"] and not counts["training"]["slices"]:
        raise BadInput(f"site {site.name}: no training slice shows the organ; prepare with slices=all or add cases")
    return entries, counts
