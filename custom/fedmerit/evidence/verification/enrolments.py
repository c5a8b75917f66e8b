"""The enrolments in a ledger against certificates, the sites' logs, and the cases that sites open."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedmerit.errors import BadInput
from fedmerit.evidence.verification.chains import SiteLog
from fedmerit.evidence.verification.findings import Report, at, join_names, make_finding, stop
from fedmerit.evidence.verification.replay import all_images, certified_organisation, distinct_cases
from fedmerit.files import read_object
from fedmerit.guard.enrolment import count_once, find_shared_cases, may_share
from fedmerit.schema.declarations import read
from fedmerit.schema.records import ENROLLED, EnrolmentRecord, LogEntry, OpeningRecord, RoundRecord
from fedmerit.site.enrolment import OPENING, open_enrolment

IMAGES_ROUNDING = 1e-6  # of the images that count


def require_certified(ledger: Path, records: Sequence[RoundRecord], report: Report = stop) -> None:
    """Require of each enrolment the organisation in its certificate, and what its signed counts allow."""
    cases: dict[str, int] = {}
    for record in records:
        where = at(ledger, record.round + 1)
        cases |= {site: distinct_cases(one) for site, one in record.guard.enrolled.items()}
        for site, one in record.guard.enrolled.items():
            place = {"site": site, "round": record.round}
            if (expected := certified_organisation(one, site)) != one.organisation:
                report(make_finding("organisation", where, **place, found=one.organisation, expected=expected))
            if one.images > (most := all_images(one)) + 1e-6:
                report(make_finding("impossible count", where, **place, found=one.images, expected=most))
            for other in one.shares_with:
                if other in cases and not may_share(cases[site], cases[other]):
                    pair = {"site": join_names([site, other]), "round": record.round}
                    found = f"{cases[site]} and {cases[other]}"
                    report(make_finding("impossible sharing", where, **pair, found=found))


def compare_enrolments(ledger: Path, records: Sequence[RoundRecord], log: SiteLog, report: Report = stop) -> None:
    """Require that the log has every commitment of its site that the ledger has, and the ledger one if the log does."""
    logged = [(entry.round, _commitment(entry)) for _, entry in log.lines(ENROLLED)]
    for record in records:
        enrolment = record.guard.enrolled.get(log.site)
        if enrolment is not None and (record.round, _commitment(enrolment)) not in logged:
            place = {"site": log.site, "round": record.round}
            report(make_finding("enrolment", at(ledger, record.round + 1), **place, log=log.path))
    took_part = any(log.site in record.participants for record in records)
    if logged and took_part and not any(log.site in record.guard.enrolled for record in records):
        report(make_finding("enrolment left out", str(ledger), site=log.site, log=log.path))


def _commitment(record: LogEntry | EnrolmentRecord) -> tuple[object, ...]:
    return record.cases, record.slices, record.fingerprint, record.filters


def compare_cases(
    ledger: Path, records: Sequence[RoundRecord], logs: Sequence[SiteLog], report: Report = stop
) -> Sequence[str]:
    """Compare which sites hold the same cases, and how many images count, with the cases that all sites open.

    Returns:
        The kinds of open questions that this answers; none, if a site opens nothing, or enrolled later than others: it
        is not known which sites' cases the server had then.

    Raises:
        Contradiction: other sites share cases, or other images count, than the ledger has.
    """
    enrolling = [record for record in records if record.guard.enrolled]
    openings = {log.site: _read_openings(log.path.parent / OPENING) for log in logs}
    cases: dict[str, frozenset[str]] = {}
    for record in enrolling:
        for site, one in record.guard.enrolled.items():
            opened = open_enrolment(one.fingerprint, openings.get(site, {}))
            if opened is None or len(opened) != distinct_cases(one):
                return ()
            cases[site] = frozenset(opened)
        sites = sorted(cases)
        of_sites = [cases[site] for site in sites]
        shared, once = find_shared_cases(of_sites), dict(zip(sites, count_once(of_sites), strict=True))
        may_differ = record is not enrolling[0] or not {*record.guard.enrolled} <= {*record.participants}
        for site, one in record.guard.enrolled.items():
            pairs = zip(sites, shared[sites.index(site)], strict=True)
            sharing = sorted(other for other, both in pairs if both)
            images = all_images(one) * len(cases[site]) / max(distinct_cases(one), 1) * once[site]
            differing = {
                "cases shared": (sorted(one.shares_with), sharing, sorted(one.shares_with) != sharing),
                "images": (one.images, images, abs(one.images - images) > IMAGES_ROUNDING),
            }
            for quantity, (found, expected, differs) in differing.items():
                if differs and may_differ:
                    return ()
                if differs:
                    place = {"site": site, "round": record.round, "quantity": quantity}
                    report(make_finding("cases", at(ledger, record.round + 1), **place, found=found, expected=expected))
    return ("sharing unproven", "duplicates unproven") if enrolling else ()


def _read_openings(path: Path) -> Mapping[str, OpeningRecord]:
    """Return what a site opens, by fingerprint; nothing if the file cannot be read, as if the site opened nothing."""
    try:
        return {name: read(OpeningRecord, content, path) for name, content in read_object(path).items()}
    except (BadInput, FileNotFoundError):
        return {}
