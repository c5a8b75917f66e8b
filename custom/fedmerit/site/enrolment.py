"""A site's enrolment: what it commits to before round 0.

With the digests, an image and the plan anyone can test whether a site trained on that image. So no file of the server
holds them: it compares them in memory, keeps which sites share images and what only the site can make of the digests
again, and asks again when a run resumes. A site with a key keeps them beside its log, to open its commitment to whom it
likes: only then can a verification compare the cases, too.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedmerit.evidence.ledger import texts_digest
from fedmerit.files import read_object, write_json
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.messages import Enrolment, recorded
from fedmerit.schema.records import OpeningRecord
from fedmerit.trainers.trainer import Holdings

OPENING = "enrolled_cases.json"  # beside the site's log
DIGITS = 32  # of a case's digest, hexadecimal


def make_enrolment(
    holdings: Holdings, config: RunConfiguration, round: int, certificate: str, secret: str, filters: Sequence[str] = ()
) -> Enrolment:
    """Return the enrolment of a site: its counts, a digest of each of its training cases, and a seal.

    Args:
        holdings: of the site's trainer.
        config: of the run, which salts the digests: equal images at two sites show in one run, but not across runs.
        round: of the task.
        certificate: PEM of the site; "" if it has none.
        secret: of the site, the same whenever it enrols in a run, so that a run repeats bit for bit.
        filters: classes of the privacy filters of its updates.
    """
    salt = json.dumps(config.to_dict(), sort_keys=True).encode()
    digests = (hashlib.sha256(salt + image).hexdigest()[:DIGITS] for image in holdings.identities)
    return Enrolment(
        round,
        holdings.cases,
        holdings.slices,
        tuple(sorted(digests)),
        certificate,
        seal=hashlib.sha256(f"seal {secret}".encode()).hexdigest()[:DIGITS],
        preparation=holdings.preparation,
        channels=texts_digest(holdings.channel_names) if holdings.channel_names else "",
        modality=texts_digest([holdings.modality]) if holdings.modality else "",
        filters=tuple(filters),
    )


def keep_opening(folder: Path, enrolment: Enrolment) -> None:
    """Write what opens an enrolment into ``folder``, under the fingerprint that ledger and log have of it."""
    opening = OpeningRecord(seal=enrolment.seal, cases=list(enrolment.fingerprint))
    fingerprint = str(recorded(enrolment.sealed())["fingerprint"])
    path = folder / OPENING
    before = read_object(path) if path.exists() else {}
    if fingerprint not in before:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, {**before, fingerprint: opening.model_dump()})


def open_enrolment(fingerprint: str, openings: Mapping[str, OpeningRecord]) -> list[str] | None:
    """Return the digests of the cases behind a fingerprint; None: nothing opens it."""
    opening = openings.get(fingerprint)
    if opening is None:
        return None
    sealed = sorted(texts_digest((opening.seal, case)) for case in opening.cases)
    return opening.cases if texts_digest(sealed) == fingerprint else None
