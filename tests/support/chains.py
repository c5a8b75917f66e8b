"""Chains of records."""

from collections.abc import Sequence
from pathlib import Path

from cryptography.x509 import Certificate

from fedmerit.evidence.ledger import read_verified_records, require_signatures


def verify(path: Path, certificates: Sequence[Certificate] | None = None) -> int:
    """The number of records of an intact chain, signed by the owner of certificates, if these are given."""
    records = read_verified_records(path)
    if certificates is not None:
        require_signatures(path, records, certificates)
    return len(records)
