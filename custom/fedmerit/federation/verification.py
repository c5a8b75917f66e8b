"""Whether a run's ledger is whole and the server's own, and whether what sites wrote down agrees with it.

What one site gave another stands in no ledger: there, the logs of the two have to agree with each other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any

from cryptography.x509 import Certificate

from fedmerit.errors import BadInput
from fedmerit.federation.checkpoint import CHECKPOINT, complete_rounds
from fedmerit.federation.site_log import GAVE, GOT
from fedmerit.records.ledger import GENESIS, verified_records
from fedmerit.records.signing import CERTIFICATE, read_certificate, require_vouched, subject
from fedmerit.wire.messages import TRAIN

Record = Mapping[str, Any]


@dataclass(frozen=True)
class _Log:
    """A site's log, whole in itself."""

    path: Path
    site: str
    entries: Sequence[Record]

    def of(self, work: str, peer: str) -> list[tuple[int, Record]]:
        """The records of peers' models, ``work`` is `GAVE` or `GOT`, that name ``peer``; with their lines."""
        return [
            (line, entry)
            for line, entry in enumerate(self.entries, start=1)
            if entry.get("work") == work and entry["peer"] == peer
        ]


@dataclass(frozen=True)
class PeerModels:
    """What one site gave another, by the logs of both."""

    giver: str
    receiver: str
    models: int  # that stand in both, each round's once
    lost: tuple[int, ...] = ()  # rounds in which the receiver says that no answer came


@dataclass(frozen=True)
class Verified:
    """What was found to be whole."""

    records: int  # of the ledger
    signer: str | None  # whose certificate signed them; None: they are not signed
    updates: Mapping[str, int] = field(default_factory=dict)  # by site whose log agrees: how many stand in both
    peer_models: tuple[PeerModels, ...] = ()  # between those sites


def verify_run(run: Path, site_logs: Sequence[Path] = (), trusted: Path | None = None) -> Verified:
    """Check the ledger of a run folder; the logs of sites against it, and against each other.

    Args:
        run: the run folder.
        site_logs: of some of its sites.
        trusted: the server's certificate, or that of who issued it; the records have to be signed then. Without it
            they are checked with the certificate in the run folder, where they are signed.

    Raises:
        BadInput: a record was changed, left out or reordered, is not signed, or the two disagree; file and line are
            named, and what differs.
    """
    ledger = run / "ledger.jsonl"
    records = verified_records(ledger)
    certificate = _certificate(run, records, trusted)
    if certificate:
        verified_records(ledger, certificate)
    expected = complete_rounds(run)
    if expected is not None and len(records) != expected:
        raise BadInput(
            f"{ledger}: holds {len(records)} records, but {run / CHECKPOINT} stands at {expected} complete rounds; "
            "records were removed or put in at its end"
        )
    for line, record in enumerate(records, start=1):
        if record.get("round") != line - 1:
            raise BadInput(f"{ledger}, line {line}: is of round {record.get('round')}, expected {line - 1}")
    signer = subject(certificate) if certificate else None
    updates: dict[str, int] = {}
    logs = [_read_log(path) for path in site_logs]
    for one in logs:
        if one.site in updates:
            raise BadInput(f"{one.path}: is a second log of {one.site}; give one of each site")
        updates[one.site] = _compare(ledger, records, one)
    between = [_peer_models(giver, receiver) for giver, receiver in permutations(logs, 2)]
    return Verified(len(records), signer, updates, tuple(one for one in between if one.models or one.lost))


def _certificate(run: Path, records: Sequence[Record], trusted: Path | None) -> Certificate | None:
    """What the records have to be signed with; None where they are not signed and need not be."""
    if not any("signature" in record for record in records):
        if trusted and records:
            raise BadInput(f"{run / 'ledger.jsonl'}, line 1: it is not signed; expected a signature of {trusted}")
        return None
    certificate = read_certificate(run / CERTIFICATE)
    if trusted:
        require_vouched(certificate, trusted)
    return certificate


def _read_log(path: Path) -> _Log:
    """A site's log; `BadInput` where its chain is not whole, or it is of several sites."""
    entries = verified_records(path)
    names = {entry.get("site") for entry in entries}
    if len(names) != 1:
        raise BadInput(f"{path}: holds the log of {len(names)} sites, expected that of one")
    return _Log(path, str(names.pop()), entries)


def _compare(ledger: Path, records: Sequence[Record], own: _Log) -> int:
    """In how many rounds the update of a log's site is in the ledger; `BadInput` where the two disagree."""
    log, site = own.path, own.site
    sent: dict[int, list[tuple[int, Record]]] = {}
    for line, entry in enumerate(own.entries, start=1):
        if entry.get("work") in (GAVE, GOT) and not {"round", "peer", "model"} <= set(entry):
            raise BadInput(f"{log}, line {line}: not a record of a site's log")
        if entry.get("work") != GAVE:  # the server has no part in that
            _require_told(ledger, records, log, line, entry)
        if entry.get("work") == TRAIN:
            sent.setdefault(entry["round"], []).append((line, entry))
    taken = [record for record in records if site in record["updates"]]
    for record in taken:
        where = f"{ledger}, line {record['round'] + 1}"
        if record["round"] not in sent:
            raise BadInput(f"{where}: holds an update of {site}, but {log} has none in round {record['round']}")
        for what, name in (("model it began with", "began"), ("update", "updates")):
            part = "received" if name == "began" else "update"
            lines = sent[record["round"]]
            if all(entry[part] != record[name][site] for _, entry in lines):
                raise BadInput(
                    f"{where}: the {what} of {site} is {record[name][site]}, "
                    f"{log}, line {lines[-1][0]}, says {lines[-1][1][part]}"
                )
    return len(taken)


def _peer_models(giver: _Log, receiver: _Log) -> PeerModels:
    """What the first site gave the second; `BadInput` where one log lacks what stands in the other.

    A round may stand in either more than once: a process that was killed asks again. That no answer came is no
    contradiction to what was sent.
    """
    gave, got = giver.of(GAVE, receiver.site), receiver.of(GOT, giver.site)
    lost = set()
    for line, entry in got:
        if entry["model"] is not None:
            said = f"{receiver.path}, line {line}: {receiver.site} got model {entry['model']} of {giver.site}"
            _require_among(gave, entry, said, giver.path)
    for line, entry in gave:
        answers = [one["model"] for _, one in got if one["round"] == entry["round"]]
        if entry["model"] in answers:
            continue
        if None not in answers:
            said = f"{giver.path}, line {line}: {giver.site} gave {receiver.site} model {entry['model']}"
            _require_among(got, entry, said, receiver.path)
        lost.add(entry["round"])
    shared = {entry["round"] for _, entry in got if entry["model"] is not None}
    return PeerModels(giver.site, receiver.site, len(shared), tuple(sorted(lost - shared)))


def _require_among(others: Sequence[tuple[int, Record]], entry: Record, said: str, path: Path) -> None:
    """`BadInput`, beginning with what was ``said``, where no record of that round in the log at ``path`` is alike."""
    lines = [(line, other["model"]) for line, other in others if other["round"] == entry["round"]]
    if all(model != entry["model"] for _, model in lines):
        says = f"line {lines[-1][0]}, says {lines[-1][1]}" if lines else "has no such record"
        raise BadInput(f"{said} in round {entry['round']}, but {path}{', ' if lines else ' '}{says}")


def _require_told(ledger: Path, records: Sequence[Record], log: Path, line: int, entry: Record) -> None:
    """`BadInput` where the ledger is not the one that the server told the site of."""
    complete = [GENESIS, *(record["hash"] for record in records)]
    try:
        told, before = entry["ledger"], entry["round"]
        stands = complete[before] if before < len(complete) else None
    except (KeyError, TypeError, IndexError):
        raise BadInput(f"{log}, line {line}: not a record of a site's log") from None
    if told != stands:
        raise BadInput(
            f"{log}, line {line}: the server said its ledger ended with {told}; "
            + (
                f"{ledger} lacks that record, or is older than the log"
                if stands is None
                else f"{ledger}, line {before}, has {stands}"
            )
        )
