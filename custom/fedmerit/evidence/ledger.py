"""Chains of records: each carries the hash of the one before it, and a signature if there is a key.

``ledger.jsonl``, the server's, holds one record per round; ``site_log.jsonl`` is what a site writes down itself.
"""

import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.x509 import Certificate

from fedmerit.errors import BadInput, Tampered
from fedmerit.evidence.signatures import Signer, is_signed_by_any
from fedmerit.files import parse_json, read_bytes, record_hash, require_disk_space, require_few_values, write_atomically

GENESIS = "0" * 64
UNREADABLE = (ValueError, KeyError, AttributeError, TypeError, RecursionError)  # whatever reading a line ends with
MOST_BYTES = 1 << 30  # of a chain
TAIL = 1 << 16  # bytes read at a time, from the end


def texts_digest(texts: Iterable[str]) -> str:
    """Return the SHA-256 over lines of text, in hexadecimal."""
    return hashlib.sha256("".join(f"{text}\n" for text in texts).encode()).hexdigest()


class Ledger:
    """A chain, open for appending.

    Args:
        signer: of every record; None: the records are not signed.
        chain: as of `RecordSignature`, of the first record, if it is signed; "": drawn.
    """

    def __init__(self, path: Path, signer: Signer | None = None, chain: str = ""):
        self.path, self.signer, self._chain = path, signer, chain

    def append(self, record: Mapping[str, Any]) -> str:
        """Add a record (JSON values), with ``previous``, ``hash`` and any ``signature``, and flush it to disk.

        Returns its hash. The signature is a `RecordSignature`. What a crash cut short at the file's end is dropped.
        """
        with require_disk_space(self.path), self.path.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # another thread, or a process that was replaced, may be at work
            last, rest = _last_line(self.path)
            file.truncate(file.seek(0, os.SEEK_END) - rest)
            chained = {**record, "previous": self._line_hash(last)}
            closing = {"hash": record_hash(chained)}
            if self.signer:
                before = self._parsed(last, "the last line").get("signature", "") if last else ""
                chain = RecordSignature.parse(before).chain or self._chain or secrets.token_hex(16)
                signature = self.signer.sign(signature_payload(chain, chained.get("round"), closing["hash"]))
                closing["signature"] = str(RecordSignature(chain, signature))
            file.write(json.dumps(chained | closing).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
            return closing["hash"]

    @property
    def last_hash(self) -> str:
        """The hash of the last record; `GENESIS` if there is none."""
        return self._line_hash(_last_line(self.path)[0])

    @property
    def last(self) -> dict[str, Any] | None:
        """The last complete record; the others are not read."""
        line = _last_line(self.path)[0]
        return None if line is None else self._parsed(line, "the last line")

    def _line_hash(self, line: bytes | None) -> str:
        return GENESIS if line is None else str(self._parsed(line, "the last line")["hash"])

    def _parsed(self, line: bytes, where: str) -> dict[str, Any]:
        try:
            record: dict[str, Any] = parse_json(line)
        except ValueError:
            raise BadInput(f"{self.path}, {where}: not a ledger record") from None
        return record

    @property
    def head(self) -> str:
        """The head that others receive: the last record's hash, and its signature if there is one."""
        return record_head(self.last)

    @property
    def records(self) -> list[dict[str, Any]]:
        """The complete records; a last line that a crash cut short does not count.

        Raises:
            BadInput: a line is no record; the message names it.
        """
        return list(self._read())

    def _read(self, first: int = 0, count: int | None = None) -> Iterator[dict[str, Any]]:
        if self.path.exists():
            for number, line in enumerate(_lines(self.path)[:-1][first:count], start=first + 1):
                yield self._parsed(line, f"line {number}")

    def follower(self, on_record: Callable[[Mapping[str, Any]], None]) -> Callable[[], None]:
        """Return a function that passes every record it has not seen yet to ``on_record``, and reads no others."""
        seen, place = 0, 0  # records, and the bytes that they take

        def follow() -> None:
            nonlocal seen, place
            place, lines = self._beyond(seen, place)
            for line in lines:
                on_record(self._parsed(line, f"line {seen + 1}"))
                seen, place = seen + 1, place + len(line) + 1

        return follow

    def _beyond(self, seen: int, place: int) -> tuple[int, list[bytes]]:
        """Return where the first ``seen`` records end, and the complete lines after them.

        ``place`` is where they ended before.
        """
        if not self.path.exists():
            return place, []
        with self.path.open("rb") as file:
            file.seek(max(place - 1, 0))
            text = file.read()
        if not place or text.startswith(b"\n"):
            return place, text[min(place, 1) :].split(b"\n")[:-1]
        lines = _lines(self.path)[:-1]  # some were taken back, and others written since
        return sum(len(line) + 1 for line in lines[:seen]), lines[seen:]

    def keep(self, count: int) -> None:
        """Forget all but the first ``count`` records; `BadInput` if there are fewer."""
        if (found := len(list(self._read(count=count)))) < count:
            raise BadInput(f"{self.path}: holds {found} records, expected {count}; some were removed")
        lines = _lines(self.path)[:-1][:count] if self.path.exists() else []
        write_atomically(self.path, lambda file: file.write(b"".join(line + b"\n" for line in lines)))


@dataclass(frozen=True)
class RecordSignature:
    """A record's signature: of its hash, its round and its chain, so it fits nowhere else."""

    chain: str  # drawn when the chain began
    signature: str

    @classmethod
    def parse(cls, text: object) -> "RecordSignature":
        """Read a record's signature from the text in a record or in a site's log."""
        chain, _, signature = str(text).rpartition(":")
        return cls(chain, signature)

    def __str__(self) -> str:
        return f"{self.chain}:{self.signature}"

    def is_signed_by(self, certificates: Sequence[Certificate], round: object, hash: str) -> bool:
        """Return whether the key of one of these certificates signed the record of a round with this hash."""
        return is_signed_by_any(certificates, signature_payload(self.chain, round, hash), self.signature)


def signature_payload(chain: str, round: object, hash: str) -> str:
    """Return the text that is signed for a record."""
    return f"{chain} {round} {hash}"


def record_head(record: Mapping[str, Any] | None) -> str:
    """Return the head of a chain that ends with ``record``: hash and signature; `GENESIS` if the record is None."""
    return " ".join(filter(None, [record["hash"], record.get("signature")])) if record else GENESIS


def log_payload(head: str, round: int, log: str) -> str:
    """Return what a site signs of its log as it answers: the log's last hash, with the server's ``head`` from the task.

    The server's signature in that head is of one run, so the site's signature cannot be shown for another run.
    """
    return f"log {head} {round} {log}"


def split_head(head: str) -> tuple[str, str | None]:
    """Split a head, of a ledger or of a site's log, into hash and signature; the signature is None if there is none."""
    said, _, signature = head.partition(" ")
    return said, signature or None


def _last_line(path: Path) -> tuple[bytes | None, int]:
    """Return the last complete line, None if there is none, and how many bytes of a cut line follow it."""
    if not path.exists():
        return None, 0
    with path.open("rb") as file:
        start, tail = file.seek(0, os.SEEK_END), b""
        while start and tail.count(b"\n") < 2:
            size = min(start, TAIL)
            start = file.seek(start - size)
            tail = file.read(size) + tail
    *lines, rest = tail.split(b"\n")
    return lines[-1] if lines else None, len(rest)


def _lines(path: Path) -> list[bytes]:
    """Return the complete lines, and last what follows them: nothing, or a record that a crash cut short."""
    content = read_bytes(path, MOST_BYTES)
    try:
        require_few_values(content)
    except ValueError as error:
        raise BadInput(f"{path}: not a chain of records ({error})") from None
    return content.split(b"\n")


def read_verified_records(path: Path) -> list[dict[str, Any]]:
    """Read the records of an intact chain; signatures are not checked.

    Raises:
        BadInput: the file is missing, or a record was changed, left out, reordered or is not JSON; the message names
            the line.
    """
    if not path.exists():
        raise BadInput(f"{path}: file not found; expected the ledger of a run")
    previous, records = GENESIS, []
    *lines, rest = _lines(path)
    if rest:
        raise BadInput(f"{path}, line {len(lines) + 1}: cut short; a record ends with a line break")
    for count, line in enumerate(lines, start=1):
        try:
            whole = parse_json(line)
            closing = {name: whole[name] for name in ("hash", "signature") if name in whole}
            record = {name: value for name, value in whole.items() if name not in closing}
            claimed, intact = closing["hash"], json.dumps(record | closing).encode() == line
            intact = intact and record_hash(record) == claimed
        except UNREADABLE:
            raise BadInput(f"{path}, line {count}: not a ledger record; expected one JSON object with a hash") from None
        if record.get("previous") != previous:
            raise Tampered(f"{path}, line {count}: does not follow from the line before; one was changed or removed")
        if not intact:
            raise Tampered(f"{path}, line {count}: its content does not match its hash; it was changed")
        previous = claimed
        records.append(whole)
    return records


def require_signatures(
    path: Path, records: Sequence[Mapping[str, Any]], certificates: Sequence[Certificate], owner: str = "the server"
) -> None:
    """Require that all records of a chain are signed.

    Args:
        path: the file of the chain.
        records: of `read_verified_records`.
        certificates: of one participant, in the order in which its key was renewed: every record has to be signed with
            the key of one, and none with one before that of the record before.
        owner: of the certificates.

    Raises:
        Tampered: a record is not signed so.
    """
    keys, chain = certificates, ""
    for count, record in enumerate(records, start=1):
        signature = record.get("signature", "")
        sealed = RecordSignature.parse(signature)
        while keys and not sealed.is_signed_by(keys[:1], record.get("round"), record["hash"]):
            keys = keys[1:]
        if not keys:
            how = f"its signature is not {owner}'s" if signature else "it is not signed"
            raise Tampered(f"{path}, line {count}: {how}; it was written or changed by somebody else")
        if chain and sealed.chain != chain:
            raise Tampered(f"{path}, line {count}: is signed for another chain than the lines before")
        chain = sealed.chain
