"""closing.json: what a run left when it ended, signed like its ledger.

Digests of the run's files and models, the ledger's head, and the head of every site's own log.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import ValidationError

from fedmerit.errors import BadInput
from fedmerit.evidence.ledger import signature_payload
from fedmerit.evidence.signatures import Signer
from fedmerit.files import UNFINISHED, leads_into, read_json, record_hash, require_file, sha256, write_json
from fedmerit.schema.records import ClosingRecord

CLOSING = "closing.json"
OBSERVED = "values.csv"  # in the run folder, if the run has observers: rows of the results schema
CROSS_SITE = Path("cross_site_val", "cross_val_results.json")  # where NVFlare's cross-site validation writes its own
FILES = ("results.csv", "run.json", OBSERVED, CROSS_SITE.as_posix())
MODELS = "models"
BEST = f"{MODELS}/best"  # models of the best round
MOST_BYTES = 1 << 36  # of all files together: a sparse one of any size takes no room


class Closing(ClosingRecord):
    """A closing record."""

    @property
    def digest(self) -> str:
        """The SHA-256 of all fields except the signature, in hexadecimal."""
        return record_hash(self.model_dump(exclude={"signature"}))

    @property
    def announcement(self) -> str:
        """The digest that the server sends the sites, followed by its signature if there is one."""
        return " ".join(filter(None, [self.digest, self.signature]))


def close(run: Path, head: str, site_logs: Mapping[str, str], signer: Signer | None = None) -> Closing:
    """Write the closing record of a run folder; ``head`` is the hash of its ledger's last record."""
    files = {path.relative_to(run).as_posix(): sha256(path) for path in covered_files(run)}
    closing = Closing(ledger=head, files=files, site_logs=dict(sorted(site_logs.items())), signature=None)
    if signer:
        closing = closing.model_copy(update={"signature": signer.sign(closing_payload(head, closing.digest))})
    write_json(run / CLOSING, closing.model_dump())
    return closing


def closing_payload(head: str, digest: str) -> str:
    """Return what the server signs of a closing record.

    It contains the head of its ledger, so that no site can show the signature for another run.
    """
    return signature_payload(head, "closed", digest)


def covered_files(run: Path) -> Iterable[Path]:
    """Return the files of a run folder that its closing record covers, in order."""
    here = [run / name for name in FILES if (run / name).exists()]
    models = (path for path in (run / MODELS).rglob("*") if path.is_file() and not path.name.endswith(UNFINISHED))
    return [*here, *sorted(models)]


def require_file_sizes(run: Path, names: Iterable[str]) -> None:
    """Raise `BadInput` naming the first of some files of a run folder with which they have more than `MOST_BYTES`."""
    left = MOST_BYTES
    for name in names:
        left -= require_file(run / name, left)


def read_closing(run: Path) -> Closing | None:
    """Read the closing record of a run folder; return None if there is none.

    Raises:
        BadInput: the file holds no closing record.
    """
    path = run / CLOSING
    if not path.exists():
        return None
    try:
        closing = Closing.model_validate(read_json(path))
    except ValidationError:
        raise BadInput(f"{path}: not a closing record") from None
    if not all(leads_into(run, run / name) for name in closing.files):
        raise BadInput(f"{path}: not a closing record")
    return closing
