"""ledger.jsonl: one record per round, each carrying the hash of the one before it."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedmerit.errors import BadInput
from fedmerit.files import write_atomically

GENESIS = "0" * 64


def digest(vector: Tensor) -> str:
    """SHA-256 of a vector's float32 bytes, in hexadecimal."""
    return hashlib.sha256(vector.float().numpy().tobytes()).hexdigest()


def _hash(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


class Ledger:
    """The chain of a run, open for appending."""

    def __init__(self, path: Path):
        self.path = path

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a record (JSON values), with ``previous`` and ``hash`` filled in, and flush it to disk."""
        records = self.records
        chained = {**record, "previous": records[-1]["hash"] if records else GENESIS}
        with self.path.open("a") as file:
            file.write(json.dumps(chained | {"hash": _hash(chained)}) + "\n")
            file.flush()
            os.fsync(file.fileno())

    @property
    def records(self) -> list[dict[str, Any]]:
        """All complete records; a last line cut short by a crash does not count. `BadInput` naming one that is none."""
        return list(self._read())

    def _read(self, count: int | None = None) -> Iterator[dict[str, Any]]:
        if self.path.exists():
            for number, line in enumerate(_lines(self.path)[:-1][:count], start=1):
                try:
                    yield json.loads(line)
                except ValueError:
                    raise BadInput(f"{self.path}, line {number}: not a ledger record") from None

    def follower(self, on_record: Callable[[Mapping[str, Any]], None]) -> Callable[[], None]:
        """A function that hands ``on_record`` every record that it has not seen yet."""
        seen = 0

        def follow() -> None:
            nonlocal seen
            for record in self.records[seen:]:
                on_record(record)
                seen += 1

        return follow

    def keep(self, count: int) -> None:
        """Forget all but the first ``count`` records; `BadInput` where there are fewer."""
        if (found := len(list(self._read(count)))) < count:
            raise BadInput(f"{self.path}: holds {found} records, expected {count}; some were removed")
        lines = _lines(self.path)[:-1][:count] if self.path.exists() else []
        write_atomically(self.path, lambda file: file.write(b"".join(line + b"\n" for line in lines)))


def _lines(path: Path) -> list[bytes]:
    """The complete lines, and last what follows them: nothing, or a record cut short by a crash."""
    return path.read_bytes().split(b"\n")


def verify(path: Path) -> int:
    """The number of records of an intact chain.

    Raises:
        BadInput: the file is missing, or a record was changed, left out, reordered or is not JSON; its line is named.
    """
    if not path.exists():
        raise BadInput(f"{path}: file not found; expected the ledger of a run")
    previous, count = GENESIS, 0
    *lines, rest = _lines(path)
    if rest:
        raise BadInput(f"{path}, line {len(lines) + 1}: cut short; a record ends with a line break")
    for count, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            claimed = record.pop("hash")
        except (ValueError, KeyError, AttributeError, TypeError):
            raise BadInput(f"{path}, line {count}: not a ledger record") from None
        if record.get("previous") != previous:
            raise BadInput(f"{path}, line {count}: does not follow from the line before; one was changed or removed")
        if _hash(record) != claimed or json.dumps(record | {"hash": claimed}).encode() != line:
            raise BadInput(f"{path}, line {count}: its content does not match its hash; it was changed")
        previous = claimed
    return count
