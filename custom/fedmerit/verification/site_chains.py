"""The log of one site, whole in itself and signed by nobody else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.x509 import Certificate

from fedmerit.errors import BadInput
from fedmerit.federation.site_log import CLOSED, GAVE, GOT
from fedmerit.records.certificates import Trust, read_certificates, require_owner
from fedmerit.records.ledger import verified_records
from fedmerit.records.signing import CERTIFICATE
from fedmerit.verification.shapes import TEXT, WHOLE, Shape, list_of, or_nothing, require_shapes
from fedmerit.wire.messages import TRAIN

Record = Mapping[str, Any]
NEEDED: Mapping[str, Shape] = {"site": TEXT, "round": WHOLE, "work": TEXT}
POSSIBLE: Mapping[str, Shape] = {  # beside these, of whatever work
    **dict.fromkeys(("ledger", "vouched", "received", "update", "split", "peer", "plan", "closing", "sealed"), TEXT),
    "model": or_nothing(TEXT),
    "overlaps": list_of(TEXT),
    "images": WHOLE,
}
PARTS: Mapping[str, Sequence[str]] = {  # needed, by its work
    TRAIN: ("received", "update"),
    GAVE: ("peer", "model"),
    GOT: ("peer", "model"),
    CLOSED: ("closing",),
}


@dataclass(frozen=True)
class Log:
    """A site's log."""

    path: Path
    site: str
    entries: Sequence[Record]
    certificates: Sequence[Certificate] = ()  # that its entries are signed with, in order; none: they are not

    def of(self, work: str, peer: str) -> list[tuple[int, Record]]:
        """The records of peers' models, ``work`` is `GAVE` or `GOT`, that name ``peer``; with their lines."""
        return [
            (line, entry)
            for line, entry in enumerate(self.entries, start=1)
            if entry.get("work") == work and entry["peer"] == peer
        ]


def read_log(path: Path, trust: Trust | None = None) -> Log:
    """A site's log.

    Raises:
        BadInput: it is missing, its chain is not whole, it is of several sites, signed by another than the site, or a
            record is none of a site's log.
    """
    if not path.exists():
        raise BadInput(f"{path}: file not found; expected the site_log.jsonl of a site's workspace")
    entries = verified_records(path)
    for line, entry in enumerate(entries, start=1):
        where = f"{path}, line {line}: not a record of a site's log"
        require_shapes(entry, NEEDED, POSSIBLE, where)
        require_shapes(entry, {name: POSSIBLE[name] for name in PARTS.get(entry["work"], ())}, {}, where)
    names = {entry["site"] for entry in entries}
    if len(names) != 1:
        raise BadInput(f"{path}: holds the log of {len(names)} sites, expected that of one")
    site, certificates = names.pop(), list[Certificate]()
    if (path.parent / CERTIFICATE).exists() or any("signature" in entry for entry in entries):
        certificates = read_certificates(path.parent / CERTIFICATE)
        for one in certificates:
            if trust and trust.is_authority:
                trust.require(one, site, str(path))
            else:
                require_owner(one, site, str(path))
        verified_records(path, certificates, site)
    return Log(path, site, entries, tuple(certificates))
