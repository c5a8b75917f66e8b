"""The closing record of a run against the files that lie there."""

from collections.abc import Sequence
from pathlib import Path

from cryptography.x509 import Certificate

from fedmerit.errors import BadInput
from fedmerit.federation.site_log import CLOSED
from fedmerit.files import sha256
from fedmerit.records.closing import CLOSING, Closing, covered, read_closing
from fedmerit.records.signing import signed_by
from fedmerit.verification.site_chains import Log


def require_left_behind(run: Path, head: str, server: Certificate | None) -> Closing | None:
    """The closing record, None where there is none.

    Args:
        run: the run folder.
        head: hash of its ledger's last record.
        server: whose signature the ledger has; None: it is not signed.

    Raises:
        BadInput: it is not the server's, or of another ledger or files than those that lie there.
    """
    closing, path = read_closing(run), run / CLOSING
    if closing is None:
        return None
    if server and not signed_by(server, closing.digest, closing.signature):
        how = "it is not signed" if closing.signature is None else "its signature is not the server's"
        raise BadInput(f"{path}: {how}; it was written or changed by somebody else")
    if closing.signature and not server:
        raise BadInput(f"{path}: is signed, and the ledger is not; its signatures were removed")
    if closing.ledger != head:
        raise BadInput(f"{path}: is of a ledger that ended with {closing.ledger}, this one ends with {head}")
    for name, said in closing.files.items():
        if not (run / name).is_file():
            raise BadInput(f"{run / name}: is missing; {path} lists it")
        if sha256(run / name) != said:
            raise BadInput(f"{run / name}: was changed after the run; {path} has another SHA-256")
    for file in covered(run):
        if file.relative_to(run).as_posix() not in closing.files:
            raise BadInput(f"{file}: was put there after the run; {path} does not list it")
    return closing


def require_countersigned(run: Path, closing: Closing | None, logs: Sequence[Log], server: Certificate | None) -> None:
    """`BadInput` where a site was told of another closing record than that of the run folder, None: it has none."""
    for log in logs:
        for line, entry in enumerate(log.entries, start=1):
            if entry["work"] == CLOSED and (closing is None or entry["closing"] != closing.digest):
                signed = server and signed_by(server, entry["closing"], entry.get("sealed"))
                what = "was closed anew since" if closing else "is missing"
                raise BadInput(
                    f"{run / CLOSING}: {what}; by {log.path}, line {line}, {log.site} was told another when the run "
                    f"ended{', and the server signed that' if signed else ''}"
                )


def countersigned(log: Log) -> bool:
    """Whether a site was told how the run was closed."""
    return any(entry["work"] == CLOSED for entry in log.entries)


def require_last_words(closing: Closing, logs: Sequence[Log]) -> None:
    """`BadInput` where a log lacks what its site said last, by the closing record, that its log was."""
    for log in logs:
        last = closing.site_logs.get(log.site)
        if last and all(entry["hash"] != last for entry in log.entries):
            raise BadInput(
                f"{log.path}: lacks the record that {log.site} ended the run with; it was cut or written anew"
            )
