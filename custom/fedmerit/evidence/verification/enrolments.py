"""The enrolments in a ledger against certificates, the sites' logs, and the cases that sites open."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedmerit.errors import BadInput
from fedmerit.evidence.signatures import organisation, parse_certificates
from fedmerit.evidence.verification.chains import RunFiles, SiteLog
from fedmerit.evidence.verification.findings import join_names
from fedmerit.files import read_object
from fedmerit.guard.enrolment import count_once, find_shared_cases, may_share
from fedmerit.schema.declarations import read
from fedmerit.schema.records import ENROLLED, EnrolmentRecord, LogEntry, OpeningRecord
from fedmerit.site.enrolment import OPENING, open_enrolment

IMAGES_ROUNDING = 1e-6  # of the images that count


def certified_organisation(enrolment: EnrolmentRecord, site: str) -> str:
    """Return the organisation of a site by the certificate in its enrolment; without one, the site by itself.

    Raises:
        BadInput: the certificate cannot be read.
    """
    pem = enrolment.certificate.encode()
    return organisation(parse_certificates(pem, f"certificate of {site}")[0] if pem else None, site)


def distinct_cases(enrolment: EnrolmentRecord) -> int:
    """Return the most distinct training cases that an enrolment can have."""
    return enrolment.cases.get("training", 0)


def all_images(enrolment: EnrolmentRecord) -> float:
    """Return the training images that a site enrolled, by what it signed."""
    return float(enrolment.slices.get("training", enrolment.images))


def require_certified(files: RunFiles) -> None:
    """Require of each enrolment the organisation in its certificate, and what its signed counts allow."""
    cases: dict[str, int] = {}
    for record in files.records:
        cases |= {site: distinct_cases(one) for site, one in record.guard.enrolled.items()}
        for site, one in record.guard.enrolled.items():
            if (expected := certified_organisation(one, site)) != one.organisation:
                files.contradict("organisation", record, site=site, found=one.organisation, expected=expected)
            if one.images > (most := all_images(one)) + IMAGES_ROUNDING:
                files.contradict("impossible count", record, site=site, found=one.images, expected=most)
            for other in one.shares_with:
                if other in cases and not may_share(cases[site], cases[other]):
                    found = f"{cases[site]} and {cases[other]}"
                    files.contradict("impossible sharing", record, site=join_names([site, other]), found=found)


def compare_enrolments(files: RunFiles, log: SiteLog) -> None:
    """Require that the log has every commitment of its site that the ledger has, and the ledger one if the log does."""
    logged = [(entry.round, _commitment(entry)) for _, entry in log.lines(ENROLLED)]
    for record in files.records:
        enrolment = record.guard.enrolled.get(log.site)
        if enrolment is not None and (record.round, _commitment(enrolment)) not in logged:
            files.contradict("enrolment", record, log)
    took_part = any(log.site in record.participants for record in files.records)
    if logged and took_part and log.site not in files.enrolments:
        files.contradict("enrolment left out", files.ledger, log)


def _commitment(record: LogEntry | EnrolmentRecord) -> tuple[object, ...]:
    return record.cases, record.slices, record.fingerprint, record.filters


def compare_cases(files: RunFiles) -> Sequence[str]:
    """Compare which sites hold the same cases, and how many images count, with the cases that all sites open.

    Returns:
        The kinds of open questions that this answers; none, if a site opens nothing, or enrolled later than others: it
        is not known which sites' cases the server had then.
    """
    enrolling = [record for record in files.records if record.guard.enrolled]
    openings = {log.site: _read_openings(log.path.parent / OPENING) for log in files.logs}
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
                    files.contradict("cases", record, site=site, quantity=quantity, found=found, expected=expected)
    return ("sharing unproven", "duplicates unproven") if enrolling else ()


def _read_openings(path: Path) -> Mapping[str, OpeningRecord]:
    """Return what a site opens, by fingerprint; nothing if the file cannot be read, as if the site opened nothing."""
    try:
        return {name: read(OpeningRecord, content, path) for name, content in read_object(path).items()}
    except (BadInput, FileNotFoundError):
        return {}
