"""Enrolment: what a site commits to before round 0, and what the server keeps of it.

With the digests, an image and the plan anyone can test whether a site trained on that image. So no file holds them: the
server compares them in memory, keeps which sites share images and what only the site can make of the digests again, and
asks again when a run resumes.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from cryptography.exceptions import InvalidSignature
from cryptography.x509 import Certificate, load_pem_x509_certificate
from cryptography.x509.oid import NameOID

from fedmerit.evidence.ledger import log_payload, split_head, texts_digest
from fedmerit.evidence.signatures import certificate_name, is_signed_by_any
from fedmerit.guard.guard import Enrolled
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.messages import Enrolment, Evaluated, Reply
from fedmerit.trainers.trainer import Holdings

DIGITS = 32  # of a case's digest, hexadecimal
MOST_MISSING = 0.1  # of the training images that a site had at first, the share that may be missing later


def may_train_on(images: float, first: float) -> bool:
    """Whether a site that first had ``first`` training images may continue with ``images``: some cannot be read."""
    return (1 - MOST_MISSING) * first <= images <= first


@dataclass(frozen=True)
class Commitment:
    """What the server keeps of an enrolment, also on disk: nothing that shows which images a site has."""

    round: int
    cases: Mapping[str, int]  # by split
    slices: Mapping[str, int]  # likewise
    sealed: tuple[str, ...]  # as in `Enrolment`
    certificate: str

    @classmethod
    def of(cls, one: Enrolment) -> "Commitment":
        """That of an enrolment."""
        return cls(one.round, dict(one.cases), dict(one.slices), one.sealed, one.certificate)

    @property
    def committed(self) -> dict[str, object]:
        """What ledger and site's log have of it: the counts, and one digest of those of its cases."""
        return {"cases": self.cases, "slices": self.slices, "fingerprint": texts_digest(self.sealed)}

    @property
    def images(self) -> float:
        """Training images, of distinct cases: one that was enrolled twice counts once."""
        return self.slices["training"] * (len(set(self.sealed)) / self.cases["training"])

    def is_kept_by(self, other: "Commitment") -> bool:
        """Whether a later enrolment is of the same images, or of some of them, as when others cannot be read any more.

        With another key, which seals otherwise, only the counts tell, and have to be the same.
        """
        if self.certificate != other.certificate:
            return (self.cases, self.slices, self.images) == (other.cases, other.slices, other.images)
        if self.sealed == other.sealed:
            return (self.cases, self.slices) == (other.cases, other.slices)
        rest = [{**counts, "training": 0} for counts in (self.cases, other.cases, self.slices, other.slices)]
        is_part = not Counter(other.sealed) - Counter(self.sealed)
        may_train = may_train_on(other.slices["training"], self.slices["training"])
        return is_part and may_train and rest[0] == rest[1] and rest[2] == rest[3]


def make_enrolment(
    holdings: Holdings, config: RunConfiguration, round: int, certificate: str, secret: str
) -> Enrolment:
    """Return the enrolment of a site: its counts, and a digest of each of its training cases.

    The digests are salted with the run's plan: they show equal images at two sites of one run, but not across runs.
    ``secret``: of the site, the same whenever it enrols in a run, so that a run repeats bit for bit.
    """
    counts = holdings.cases, holdings.slices
    enrolment = Enrolment(round, *counts, (), certificate, preparation=holdings.preparation)
    return seal_cases(config, holdings.identities, enrolment, secret)


def seal_cases(config: RunConfiguration, images: Iterable[bytes], enrolment: Enrolment, secret: str) -> Enrolment:
    """An enrolment with salted digests of ``images``, what identifies each training case, and a seal of ``secret``."""
    salt = json.dumps(config.to_dict(), sort_keys=True).encode()
    digests = (hashlib.sha256(salt + image).hexdigest()[:DIGITS] for image in images)
    seal = hashlib.sha256(f"seal {secret}".encode()).hexdigest()[:DIGITS]
    return replace(enrolment, fingerprint=tuple(sorted(digests)), seal=seal)


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


def check_log(answer: object, certificate: str, head: str) -> str | None:
    """Why what an answer says of the site's own log is not the site's word, or None.

    ``certificate``: PEM, that it enrolled with; ``head``: of the server's ledger, that came with the task.
    """
    if not isinstance(answer, Reply | Evaluated):
        return None
    last, signature = split_head(answer.log)
    key = load_pem_x509_certificate(certificate.encode())
    if is_signed_by_any([key], log_payload(head, answer.round, last), signature):
        return None
    return "the end of its log is not signed with the key that it enrolled with; resume the run if it has a new one"


def read_organisation(enrolment: Commitment, site: str, root: Certificate | None) -> str:
    """The organisation in a certificate of ``root``; without one, the site itself."""
    if root is None or not enrolment.certificate:
        return f"site {site}"
    subject = load_pem_x509_certificate(enrolment.certificate.encode()).subject
    organisations = subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    return f"organisation {organisations[0].value!s}" if organisations else f"site {site}"


def collect_enrolments(
    sites: Sequence[str], enrolments: Mapping[str, Commitment], root: Certificate | None, shared: torch.Tensor
) -> Enrolled:
    """What the guard knows of ``sites``, those without an enrolment included; ``shared``: `Enrolled.shared`.

    If all that have enrolled are of one organisation, each is rewarded for itself.
    """
    of_site = {site: read_organisation(one, site, root) for site, one in enrolments.items()}
    counts = {site: one.images for site, one in enrolments.items()}
    return enrolled_sites(sites, counts, of_site, shared)


def enrolled_sites(
    sites: Sequence[str], counts: Mapping[str, float], organisations: Mapping[str, str], shared: torch.Tensor
) -> Enrolled:
    """By the images and organisations of those that have enrolled; ``shared`` (n, n) as in `Enrolled`."""
    differ = len(set(organisations.values())) > 1
    names = [organisations[site] if differ and site in organisations else f"site {site}" for site in sites]
    images = torch.tensor([counts.get(site, 0.0) for site in sites], dtype=torch.float64)
    return Enrolled(images, torch.tensor([names.index(name) for name in names]), shared)
