"""Repeated work: which steps of a site's training are drawn, and what auditors who repeated them found.

A site's log has, for each round, a `CommitmentRecord` to the states of its training. Which of these an auditor repeats
follows from how the other sites' logs ended in a later round: nobody knew that as the site committed itself. This is
proof of learning (Jia et al., IEEE S&P 2021) without tolerance, which lets forgeries pass (Zhang et al., IEEE S&P 2022;
Fang et al., IEEE EuroS&P 2023).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding

from fedmerit.evidence.closing_record import Closing
from fedmerit.evidence.ledger import split_head, texts_digest
from fedmerit.evidence.signatures import Signer
from fedmerit.files import record_hash, write_json
from fedmerit.schema.records import (
    ENROLLED,
    TRAIN,
    AuditStatement,
    CommitmentRecord,
    LogEntry,
    RepeatedRound,
    RoundRecord,
)

AUDITS = "audits"  # in the run folder: a statement for each site


@dataclass(frozen=True)
class RepeatedWork:
    """A summary of what is shown of a site's work."""

    site: str
    trained: Sequence[int]  # rounds in which the site's update counted
    drawn: Sequence[int] = ()  # those with a commitment of which a state was drawn
    repeated: Sequence[int] = ()  # those whose drawn steps gave the committed states
    faults: Mapping[int, str] = field(default_factory=dict)  # by round, what did not agree
    auditor: str = ""  # who signed that; "": nobody
    is_independent: bool = False  # whether the auditor's key is another than the site's
    rounds: int = 0  # of the run, since the site first took part

    @property
    def share(self) -> float:
        """The share of rounds whose drawn steps somebody else than the site repeated, 0 to 1, to multiply pay with.

        Rounds without the site count: a site that stops training is paid for the rounds that it trained.
        """
        return len(self.repeated) / self.rounds if self.rounds and self.is_independent else 0.0


def find_commitments(entries: Sequence[LogEntry], records: Sequence[RoundRecord]) -> dict[int, CommitmentRecord]:
    """Return by round the commitment of a site that counts.

    It is the last in the part of the log that the site signed in that round, as the ledger has it: a site cannot choose
    one after the draw.
    Commitments to other images than the site enrolled, or to another model or update than the log has beside them, do
    not count.

    Args:
        entries: the site's log.
        records: the ledger.
    """
    lines, enrolled = {entry.hash: line for line, entry in enumerate(entries)}, _enrolled_samples(entries)
    unknown_end = -1 if any(entry.signature for entry in entries) else len(entries)  # a site without a key signs none
    by_round: dict[int, list[tuple[int, LogEntry]]] = {}
    for line, entry in enumerate(entries):
        if entry.work == TRAIN and entry.commitment:
            by_round.setdefault(entry.round, []).append((line, entry))
    counted = {}
    for record in records:
        site = entries[0].site if entries else ""
        last = lines.get(split_head(record.logs.get(site, ""))[0], unknown_end)
        signed = [entry for line, entry in by_round.get(record.round, ()) if line <= last]
        if site in record.participants and signed and (commitment := signed[-1].commitment):
            is_seen = record.inputs.size > 0
            ends = (commitment.received, commitment.update) == (signed[-1].received, signed[-1].update)
            if commitment.samples == enrolled and (ends or not is_seen):
                counted[record.round] = commitment
    return counted


def _enrolled_samples(entries: Sequence[LogEntry]) -> str:
    """Return the digest of the images and masks that a site enrolled, or, if it was not asked to, first trained on."""
    enrolled = [entry.samples for entry in entries if entry.work == ENROLLED and entry.samples]
    trained = [entry.commitment.samples for entry in entries if entry.commitment]
    return (enrolled or trained or [""])[0]


def draw_leaf(
    site: str,
    round: int,
    committed: CommitmentRecord | RepeatedRound,
    records: Sequence[RoundRecord],
    closing: Closing | None,
) -> int | None:
    """Return the number of the state to repeat, from 1; None if no other site has answered since.

    The draw is the SHA-256 of the site, the round, the commitment, and how the others' logs ended in the first later
    round, or as the run was closed, modulo the number of states.
    """
    ends = [record.logs for record in records if record.round > round]
    ends += [closing.site_logs] if closing else []
    for logs in ends:
        others = sorted((peer, split_head(end)[0]) for peer, end in logs.items() if peer != site)
        if others:
            lines = [f"draw {site} {round} {committed.root}", *(f"{peer} {end}" for peer, end in others)]
            return 1 + int(texts_digest(lines), 16) % committed.leaves
    return None


def statement_payload(statement: AuditStatement) -> str:
    """Return what an auditor signs."""
    return f"audit {record_hash(statement.model_dump(exclude={'signature'}))}"


def write_statement(folder: Path, statement: AuditStatement, signer: Signer | None) -> Path:
    """Write a statement, signed if there is a signer, into ``folder``; return the file."""
    if signer:
        pem = signer.certificate.public_bytes(Encoding.PEM).decode()
        statement = statement.model_copy(update={"certificate": pem})
        statement = statement.model_copy(update={"signature": signer.sign(statement_payload(statement))})
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path := folder / f"{statement.site}.json", statement.model_dump())
    return path
