"""The closing record of a run against its files, and against what the sites noted of it."""

from collections.abc import Sequence
from pathlib import Path

from cryptography.x509 import Certificate

from fedmerit.errors import BadInput
from fedmerit.federation.site_log import CLOSED
from fedmerit.files import sha256
from fedmerit.records.closing_record import CLOSING, Closing, closing_payload, covered_files, read_closing
from fedmerit.records.signatures import is_signed_by_any
from fedmerit.verification.record_schema import Record
from fedmerit.verification.site_logs import SiteLog


def verify_closing(run: Path, head: str, server: Sequence[Certificate]) -> Closing | None:
    """The closing record, None if there is none.

    Args:
        run: the run folder.
        head: hash of its ledger's last record.
        server: certificates of whose signature the ledger has; none: it is not signed.

    Raises:
        BadInput: it is not the server's, or of another ledger or other files than those there.
    """
    closing, path = read_closing(run), run / CLOSING
    if closing is None:
        return None
    signed = closing_payload(closing.ledger, closing.digest)
    if server and not is_signed_by_any(server, signed, closing.signature):
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
    for file in covered_files(run):
        if file.relative_to(run).as_posix() not in closing.files:
            raise BadInput(f"{file}: was put there after the run; {path} does not list it")
    return closing


def require_same_closing(
    run: Path, closing: Closing | None, logs: Sequence[SiteLog], server: Sequence[Certificate]
) -> None:
    """`BadInput` if a site noted another closing record than the run folder's; None: the folder has none."""
    for log in logs:
        for line, entry in enumerate(log.entries, start=1):
            if entry["work"] != CLOSED or (closing and entry["closing"] == closing.digest):
                continue
            if server and not _has_server_signature(entry, server):
                raise BadInput(
                    f"{log.path}, line {line}: says that the run was closed otherwise than {run / CLOSING}, and has no "
                    "signature of the server's for that: the log was changed, or the server did not sign what it sent"
                )
            what = "was closed again since" if closing else "is missing"
            raise BadInput(
                f"{run / CLOSING}: {what}; by {log.path}, line {line}, {log.site} noted another when the run "
                f"ended{', and the server signed that' if server else ', or that log is of another run'}"
            )


def has_countersigned(log: SiteLog, server: Sequence[Certificate]) -> bool:
    """Whether a site noted how the run was closed, with the server's signature if it has a key."""
    return any(
        entry["work"] == CLOSED and (not server or _has_server_signature(entry, server)) for entry in log.entries
    )


def _has_server_signature(entry: Record, server: Sequence[Certificate]) -> bool:
    return is_signed_by_any(server, closing_payload(str(entry.get("ledger")), entry["closing"]), entry.get("sealed"))


def require_complete_logs(closing: Closing, logs: Sequence[SiteLog]) -> None:
    """`BadInput` if a log lacks what its site said last, by the closing record, that its log was."""
    for log in logs:
        last = closing.site_logs.get(log.site)
        if last and all(entry["hash"] != last for entry in log.entries):
            raise BadInput(f"{log.path}: lacks the record that {log.site} ended the run with; it was cut or rewritten")
