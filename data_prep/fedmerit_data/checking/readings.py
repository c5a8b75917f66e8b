"""What `prepare` noted in site.json on how it read each case, as findings."""

from collections import Counter
from collections.abc import Iterator, Sequence

from fedmerit.trainers.monai_trainer.data import SiteFolder
from fedmerit_data.checking.findings import Finding, LocatedCase, locate_cases
from fedmerit_data.spatial.readings import LITTLE, MUCH, MUCH_CUT, Reading, stated_readings


def check_readings(sites: Sequence[SiteFolder]) -> Iterator[Finding]:
    """Findings on what resizing and windows left, on planes that differ, and on files that were left out."""
    readings = {site.path: {one.case: one for one in stated_readings(site.info)} for site in sites}
    planes = Counter(one.plane for found in readings.values() for one in found.values() if one.plane)
    usual = planes.most_common(1)[0][0] if planes else None
    for site in sites:
        for where in locate_cases(site):
            if reading := readings[site.path].get(where.case.name):
                yield from _case(where, reading, usual)
        left_out = site.info.get("left_out")
        if isinstance(left_out, list) and left_out:
            detail = f"{len(left_out)} files"
            yield Finding("left out", site.name, site.path / "site.json", f"{detail} left out", detail=detail)


def _case(where: LocatedCase, reading: Reading, usual: str | None) -> Iterator[Finding]:
    mask = where.case.label_file
    for label, (lost, pieces) in reading.lost.items():
        if lost:
            detail = f"{lost} of {pieces} pieces of {label}"
            message = f"{detail} lost in resizing; prepare at a larger --size"
            yield where.finding("lost in resizing", message, file=mask, detail=detail)
    for label, share in reading.kept.items():
        if not LITTLE <= share <= MUCH:
            detail = f"{label} has {share:.0%} of the volume in its mask"
            message = f"{detail} after resizing; prepare at a larger --size"
            yield where.finding("volume changed", message, file=mask, detail=detail)
    if reading.cut is not None and reading.cut > MUCH_CUT:
        detail = f"{reading.cut:.0%} of its values"
        yield where.finding("values cut", f"{detail} beyond the window; name another --modality", detail=detail)
    if reading.plane and reading.plane != usual:
        detail = f"{reading.plane}, most are {usual}"
        yield where.finding("another plane", f"its slices are {detail}; train on one plane", detail=detail)
