"""A site's enrolment: what it commits to before round 0.

With the digests, an image and the plan anyone can test whether a site trained on that image. So no file holds them: the
server compares them in memory, keeps which sites share images and what only the site can make of the digests again, and
asks again when a run resumes.
"""

import hashlib
import json
from collections.abc import Sequence

from fedmerit.evidence.ledger import texts_digest
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.messages import Enrolment
from fedmerit.trainers.trainer import Holdings

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
