"""Enrolment: what a site commits to before round 0, and what the guard takes from it."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from cryptography.exceptions import InvalidSignature
from cryptography.x509 import Certificate, load_pem_x509_certificate
from cryptography.x509.oid import NameOID
from torch import Tensor

from fedmerit.configuration.run import RunConfiguration
from fedmerit.guard.guard import Enrolled
from fedmerit.guard.reward_groups import find_shared_cases
from fedmerit.records.signatures import certificate_name
from fedmerit.trainers.monai_trainer.data import SiteFolder, Slices
from fedmerit.wire.messages import Enrolment

DIGITS = 32  # of a case's digest, hexadecimal


def make_enrolment(
    folder: SiteFolder, config: RunConfiguration, round: int, num_samples: int, certificate: str
) -> Enrolment:
    """Counts of all splits, and a digest of the image of every training case with slices to train on.

    The digests are salted with the run's plan: they show equal images at two sites of one run, but not across runs.
    """
    started = time.perf_counter()
    salt = json.dumps(config.to_dict(), sort_keys=True).encode()
    trained = [case for case in folder.cases("training") if case.slices != ()]
    digests = (hashlib.sha256(salt + np.ascontiguousarray(case.image).tobytes()).hexdigest() for case in trained)
    cases = {split: len(of_split) for split, of_split in folder.splits.items()} | {"training": len(trained)}
    slices = {split: len(Slices(of_split)) for split, of_split in folder.splits.items()}
    return Enrolment(
        round=round,
        cases=cases,
        slices=slices | {"training": num_samples},
        fingerprint=tuple(sorted(one[:DIGITS] for one in digests)),
        certificate=certificate,
        seconds=time.perf_counter() - started,
    )


def check_certificate(enrolment: Enrolment, site: str, root: Certificate | None) -> str | None:
    """Why the certificate is not that of ``site``, issued by ``root``; None: it is, or there is no ``root``."""
    if root is None:
        return None
    try:
        certificate = load_pem_x509_certificate(enrolment.certificate.encode())
        certificate.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature):
        return "enrolment without a certificate of this federation"
    return None if certificate_name(certificate) == site else "enrolment with another site's certificate"


def read_organisation(enrolment: Enrolment, site: str, root: Certificate | None) -> str:
    """The organisation in a certificate of ``root``; without one, the site itself."""
    if root is None or not enrolment.certificate:
        return f"site {site}"
    subject = load_pem_x509_certificate(enrolment.certificate.encode()).subject
    organisations = subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    return f"organisation {organisations[0].value!s}" if organisations else f"site {site}"


def collect_enrolments(sites: Sequence[str], enrolments: Mapping[str, Enrolment], root: Certificate | None) -> Enrolled:
    """What the guard knows of ``sites``, those without an enrolment included.

    If all that have enrolled are of one organisation, each is rewarded for itself.
    """
    of_site = {site: read_organisation(one, site, root) for site, one in enrolments.items()}
    counts = {site: count_images(one) for site, one in enrolments.items()}
    prints = [frozenset(enrolments[site].fingerprint if site in enrolments else ()) for site in sites]
    return enrolled_sites(sites, counts, of_site, find_shared_cases(prints))


def enrolled_sites(
    sites: Sequence[str], counts: Mapping[str, float], organisations: Mapping[str, str], shared: Tensor
) -> Enrolled:
    """By the images and organisations of those that have enrolled; ``shared`` (n, n) as in `Enrolled`."""
    differ = len(set(organisations.values())) > 1
    names = [organisations[site] if differ and site in organisations else f"site {site}" for site in sites]
    images = torch.tensor([counts.get(site, 0.0) for site in sites], dtype=torch.float64)
    return Enrolled(images, torch.tensor([names.index(name) for name in names]), shared)


def count_images(enrolment: Enrolment) -> float:
    """Training images; a case that was enrolled twice counts once."""
    unique = len(set(enrolment.fingerprint)) / len(enrolment.fingerprint)
    return enrolment.slices["training"] * unique
