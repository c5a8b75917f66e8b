"""A site's log: read by itself, and compared with the ledger and with the logs of other sites.

The log is complete in itself and signed only by the site. What the site sent, committed to, and answered about models
has to be what the ledger says of it. What sites gave each other is not in the ledger: there, the logs of the two have
to agree.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.x509 import Certificate

from fedmerit.errors import BadInput
from fedmerit.evidence.ledger import read_verified_records, texts_digest
from fedmerit.evidence.signatures import CERTIFICATE, Trust, read_certificates, require_owner
from fedmerit.evidence.verification.record_schema import LogEntry, Record, require_fields
from fedmerit.schema.messages import EVALUATE, TRAIN
from fedmerit.site.site_log import CLOSED, ENROLLED, GAVE, GOT

NEEDED: Mapping[str, Sequence[str]] = {  # needed, by its work
    TRAIN: ("received", "update"),
    GAVE: ("peer", "model"),
    GOT: ("peer", "model"),
    CLOSED: ("closing",),
}


@dataclass(frozen=True)
class SiteLog:
    """A site's log."""

    path: Path
    site: str
    entries: Sequence[Record]
    certificates: Sequence[Certificate] = ()  # that its entries are signed with, in order; none: they are not

    def peer_records(self, work: str, peer: str) -> list[tuple[int, Record]]:
        """The records of peers' models, ``work`` is `GAVE` or `GOT`, that name ``peer``; with their lines."""
        return [
            (line, entry)
            for line, entry in enumerate(self.entries, start=1)
            if entry.get("work") == work and entry["peer"] == peer
        ]


def read_site_log(path: Path, trust: Trust | None = None) -> SiteLog:
    """A site's log.

    Raises:
        BadInput: it is missing, its chain is not whole, it is of several sites, signed by another than the site, or a
            record is none of a site's log.
    """
    if not path.exists():
        raise BadInput(f"{path}: file not found; expected the site_log.jsonl of a site's workspace")
    entries = read_verified_records(path)
    for line, entry in enumerate(entries, start=1):
        where = f"{path}, line {line}: not a record of a site's log"
        require_fields(LogEntry, entry, NEEDED.get(str(entry.get("work")), ()), where)
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
        read_verified_records(path, certificates, site)
    return SiteLog(path, site, entries, tuple(certificates))


def compare_updates(ledger: Path, records: Sequence[Record], own: SiteLog) -> int:
    """In how many rounds the update of a log's site is in the ledger; `BadInput` if the two disagree."""
    log, site = own.path, own.site
    sent: dict[int, list[tuple[int, Record]]] = {}
    for line, entry in enumerate(own.entries, start=1):
        if entry["work"] == TRAIN:
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


def explain_missing(records: Sequence[Record], own: SiteLog) -> Iterator[str]:
    """In sentences, what a log's site trained in rounds whose record has nothing of it, by what the ledger says of it.

    That is no contradiction: a reply may have come too late, or was no usable one. By the log it was trained.
    """
    trained = {entry["round"] for entry in own.entries if entry["work"] == TRAIN}
    reasons: dict[str, list[int]] = {}
    for record in records:
        if record["round"] in trained and own.site not in (*record["participants"], *record["updates"]):
            said = record.get("rejected", {}).get(own.site, "nothing of it")
            reasons.setdefault(said, []).append(record["round"])
    for said, rounds in reasons.items():
        when = f"round{'s' * (len(rounds) > 1)} {', '.join(map(str, rounds))}"
        yield f"why what {own.site} trained in {when} did not count: its log has it, the ledger says: {said}"


COMMITTED_FIELDS = ("cases", "slices", "fingerprint")  # what both have of it


def compare_enrolments(ledger: Path, records: Sequence[Record], own: SiteLog) -> None:
    """`BadInput` if the ledger has a commitment of a log's site that the log has not."""
    said = [(entry["round"], _commitment(entry)) for entry in own.entries if entry["work"] == ENROLLED]
    for record in records:
        round, taken = record["round"], record.get("guard", {}).get("enrolled", {}).get(own.site)
        if taken is not None and (round, _commitment(taken)) not in said:
            raise BadInput(
                f"{ledger}, line {round + 1}: {own.site} enrolled other cases, or another number of them, than "
                f"{own.path} has in round {round}"
            )


def _commitment(entry: Record) -> list[object]:
    return [entry.get(name) for name in COMMITTED_FIELDS]


Kind = tuple[str, int]  # the split, and how many models: if a round was repeated one answer of each counts


def compare_ratings(ledger: Path, records: Sequence[Record], own: SiteLog) -> Iterator[str]:
    """In sentences, what a log's site said of models in rounds whose record has not that it counted.

    That is no contradiction: an answer may have come too late, or was no usable one.

    Raises:
        BadInput: a record has what the site did not say.
    """
    reasons: dict[str, list[int]] = {}
    for record in records:
        round, taken = record["round"], record["evaluated"].get(own.site, ())
        said = _rating_digests(own, round)
        if any(all(digest not in answers for answers in said.values()) for digest in taken):
            raise BadInput(
                f"{ledger}, line {round + 1}: holds what {own.site} said of models, but {own.path} has no such answer "
                f"in round {round}"
            )
        if any(not answers.intersection(taken) for answers in said.values()):
            reasons.setdefault(record.get("rejected", {}).get(own.site, "nothing of it"), []).append(round)
    for reason, rounds in reasons.items():
        when = f"round{'s' * (len(rounds) > 1)} {', '.join(map(str, rounds))}"
        yield f"why what {own.site} said of models in {when} did not count: its log has it, the ledger says: {reason}"


def _rating_digests(own: SiteLog, round: int) -> dict[Kind, set[str]]:
    """Digests of what a site said of models in a round, by kind."""
    said: dict[Kind, set[str]] = {}
    for entry in own.entries:
        if (entry["work"], entry["round"]) == (EVALUATE, round) and entry.get("overlaps"):
            kind = entry.get("split", ""), len(entry["overlaps"])
            said.setdefault(kind, set()).add(texts_digest(entry["overlaps"]))
    return said


@dataclass(frozen=True)
class PeerExchange:
    """What one site gave another, by the logs of both."""

    giver: str
    receiver: str
    models: int  # that both have, each round's once
    lost: tuple[int, ...] = ()  # rounds in which the receiver says that no answer came


def compare_peer_models(giver: SiteLog, receiver: SiteLog) -> PeerExchange:
    """What the first site gave the second; `BadInput` if one log lacks what the other has.

    Either may have a round more than once: a process that was killed asks again. That no answer came is no
    contradiction to what was sent.
    """
    gave, got = giver.peer_records(GAVE, receiver.site), receiver.peer_records(GOT, giver.site)
    lost = set()
    for line, entry in got:
        if entry["model"] is not None:
            said = f"{receiver.path}, line {line}: {receiver.site} got model {entry['model']} of {giver.site}"
            _require_matching(gave, entry, said, giver.path)
    for line, entry in gave:
        answers = [one["model"] for _, one in got if one["round"] == entry["round"]]
        if entry["model"] in answers:
            continue
        if None not in answers:
            said = f"{giver.path}, line {line}: {giver.site} gave {receiver.site} model {entry['model']}"
            _require_matching(got, entry, said, receiver.path)
        lost.add(entry["round"])
    shared = {entry["round"] for _, entry in got if entry["model"] is not None}
    return PeerExchange(giver.site, receiver.site, len(shared), tuple(sorted(lost - shared)))


def _require_matching(others: Sequence[tuple[int, Record]], entry: Record, said: str, path: Path) -> None:
    """`BadInput`, beginning with what was ``said``, if no record of that round in the log at ``path`` is alike."""
    lines = [(line, other["model"]) for line, other in others if other["round"] == entry["round"]]
    if all(model != entry["model"] for _, model in lines):
        says = f"line {lines[-1][0]}, says {lines[-1][1]}" if lines else "has no such record"
        raise BadInput(f"{said} in round {entry['round']}, but {path}{', ' if lines else ' '}{says}")
