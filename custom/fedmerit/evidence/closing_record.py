"""closing.json: what a run left when it ended, signed like its ledger.

Digests of the run's files and models, the ledger's head, and the head of every site's own log.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fedmerit.errors import BadInput
from fedmerit.evidence.ledger import record_hash, signature_payload
from fedmerit.evidence.signatures import Signer
from fedmerit.files import UNFINISHED, leads_into, read_json, sha256, write_json

CLOSING = "closing.json"
OBSERVED = "values.csv"  # in the run folder, if the run has observers: rows of the results schema
CROSS_SITE = Path("cross_site_val", "cross_val_results.json")  # where NVFlare's cross-site validation writes its own
FILES = ("results.csv", "run.json", OBSERVED, CROSS_SITE.as_posix())
MODELS = "models"
BEST = f"{MODELS}/best"  # of the best round


@dataclass(frozen=True)
class Closing:
    """The closing record of a run."""

    ledger: str  # hash of the last record
    files: Mapping[str, str]  # SHA-256 by path in the run folder
    site_logs: Mapping[str, str]  # by site, how its log ended when it last answered: as in `messages.Reply.log`
    signature: str | None = None  # of `closing_payload`

    @property
    def digest(self) -> str:
        """Of all but the signature."""
        return record_hash({name: value for name, value in asdict(self).items() if name != "signature"})

    @property
    def announcement(self) -> str:
        """What the server sends the sites: the digest, and its signature if there is one."""
        return " ".join(filter(None, [self.digest, self.signature]))


def close(run: Path, head: str, site_logs: Mapping[str, str], signer: Signer | None = None) -> Closing:
    """Write the closing record of a run folder; ``head`` is the hash of its ledger's last record."""
    files = {path.relative_to(run).as_posix(): sha256(path) for path in covered_files(run)}
    closing = Closing(head, files, dict(sorted(site_logs.items())))
    closing = replace(closing, signature=signer.sign(closing_payload(head, closing.digest)) if signer else None)
    write_json(run / CLOSING, asdict(closing))
    return closing


def closing_payload(head: str, digest: str) -> str:
    """What the server signs of a closing record: with its ledger's head, so that no site can show it of another run."""
    return signature_payload(head, "closed", digest)


def covered_files(run: Path) -> Iterable[Path]:
    """The files of a run folder that its closing record covers, in order."""
    here = [run / name for name in FILES if (run / name).exists()]
    models = (path for path in (run / MODELS).rglob("*") if path.is_file() and not path.name.endswith(UNFINISHED))
    return [*here, *sorted(models)]


def read_closing(run: Path) -> Closing | None:
    """That of a run folder, None if there is none; `BadInput` naming it if it is no such record."""
    path = run / CLOSING
    if not path.exists():
        return None
    try:
        closing = Closing(**read_json(path))
        inside = all(leads_into(run, run / name) for name in closing.files)
        texts: list[object] = [closing.ledger, *closing.files.values(), *closing.site_logs.values()]
    except (TypeError, AttributeError):
        raise BadInput(f"{path}: not a closing record") from None
    if not inside or not all(isinstance(text, str) for text in texts) or not isinstance(closing.signature, str | None):
        raise BadInput(f"{path}: not a closing record")
    return closing
