"""What is readable and yet not plausible: all the checks of masks, of images and of patients, in order."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from fedmerit.trainers.monai_trainer.data import SPLITS, SiteFolder
from fedmerit_data.checking import image_checks, mask_checks
from fedmerit_data.checking.duplicates import duplicates
from fedmerit_data.checking.findings import Finding, Located
from fedmerit_data.checking.measured import COMPARABLE, measure

FEW_PATIENTS = 3


def plausibility(
    sites: Sequence[SiteFolder], cases: Sequence[Located], checksums: Mapping[Path, str]
) -> Iterator[Finding]:
    """Findings about ``cases``, whose arrays are readable and of the stated shape, and their ``sites``."""
    measured = [measure(case) for case in cases]
    yield from _few_patients(sites)
    seen = [(case.where, case.fingerprint) for case in measured if case.fingerprint is not None]
    yield from duplicates(seen, checksums)
    yield from mask_checks.sizes(measured)
    yield from mask_checks.volumes(measured)
    yield from mask_checks.label_conventions(measured)
    yield from mask_checks.borders(measured)
    for _, group in groupby(measured, key=lambda item: item.where.site.path):
        site = list(group)
        yield from image_checks.flat(site)
        if len(site) >= COMPARABLE:
            yield from image_checks.flips(site)
            yield from image_checks.intensities(site)


def _few_patients(sites: Sequence[SiteFolder]) -> Iterator[Finding]:
    for site in sites:
        for split in SPLITS:
            patients = len({case.patient for case in site.cases(split)})
            if 0 < patients < FEW_PATIENTS:
                detail = f"{patients} patient(s)"
                message = f"split {split} has {detail}; below {FEW_PATIENTS} its results say little"
                yield Finding("few patients", site.name, site.path / "datalist.json", message, split, detail=detail)
