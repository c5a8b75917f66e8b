"""What a run's ledger says of its rounds."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from fedmerit.errors import BadInput
from fedmerit.records.ledger import Ledger

Key = TypeVar("Key")
Value = TypeVar("Value")


def of_rounds(run: Path, read: Callable[[Mapping[str, Any]], Iterable[tuple[Key, Value]]]) -> dict[Key, Value]:
    """What ``read`` finds in each record, in order; nothing where the run has no ledger.

    Raises:
        BadInput: what is there is no ledger, or its records lack what ``read`` looks for.
    """
    path = run / "ledger.jsonl"
    if not path.exists():
        return {}
    try:
        return {key: value for record in Ledger(path).records for key, value in read(record)}
    except (ValueError, KeyError, TypeError, AttributeError, BadInput) as error:
        raise BadInput(f"{path}: not a ledger of rounds ({error}); check it with `fedmerit verify {run}`") from error
