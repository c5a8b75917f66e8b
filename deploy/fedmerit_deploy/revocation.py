"""Revoked certificates: the server refuses their owners, without a restart, and accepts renewed ones.

NVFlare 2.9 revokes no certificate. Its TLS is gRPC's, whose server credentials take no list
(nvflare/fuel/f3/drivers/grpc/utils.py); its "disable_clients" shuts out a name, whatever its certificate. So the
certificate is looked at where a participant proves its name, and the name is shut out while the certificate of its last
proof is on the list. A token, once given, is bound to no certificate: a site that NVFlare disables could continue with
a job at work, so the job's controller refuses its answers.
"""

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from cryptography import x509
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.private.fed.utils.identity_utils import IdentityVerifier, InvalidAsserterCert

from fedmerit.errors import BadInput
from fedmerit.evidence.signatures import MOST_PEM
from fedmerit.files import read_bytes, read_object, write_json
from fedmerit_deploy.membership import QUESTION, Membership

REVOKED = "revoked.pem"  # in local/ of the server's kit: a certificate revocation list, signed by the authority
REGISTERED = "registered.json"  # in the server's kit: by name, the serial number of the certificate of its last proof
KNOWN = "revoked.json"  # in the server's kit: the serial numbers of all lists that were in force there
ROOT = "rootCA.pem"
REASON = "its certificate is revoked"
UNPROVEN = f"{REGISTERED} at the server does not know its certificate; it registers again by itself"
UNREADABLE = f"{REVOKED} at the server cannot be read, so nobody is let in until it is the coordinator's list again"
MOST_DIGITS = 60  # of a serial number
EVENTS = (EventType.CLIENT_REGISTER_RECEIVED, EventType.CLIENT_REGISTER_PROCESSED, EventType.CLIENT_HEARTBEAT_RECEIVED)


class Revocations:
    """A list of who is shut out, by the files in the server's ``kit``, which are read again whenever they change.

    What was on a list once stays revoked, whether that list is gone or an older one is put in its place. If a list is
    there and cannot be read, or is not the authority's, the last one that could is in force; without any, everybody is
    shut out.

    Args:
        kit: of the server.
        keeps: whether the serial numbers are kept in `KNOWN`.
    """

    def __init__(self, kit: Path, keeps: bool = False):
        self.kit, self.keeps, self._seen = kit, keeps, (0, 0)
        self.listed = frozenset[int]()  # on the last list that could be read
        self._known = frozenset(self._numbers(KNOWN).values())

    @property
    def is_unreadable(self) -> bool:
        """Whether there is a list, and none could be read since the process began."""
        self._read()
        return self._seen == (0, 0) and os.path.lexists(self.kit / "local" / REVOKED)

    @property
    def serials(self) -> frozenset[int]:
        """The serial numbers of all lists that were in force."""
        self._read()
        return self._known

    def _read(self) -> None:
        path = self.kit / "local" / REVOKED
        try:
            stat = path.stat()
            if (seen := (stat.st_mtime_ns, stat.st_size)) == self._seen:
                return
            revoked = x509.load_pem_x509_crl(read_bytes(path, MOST_PEM))
            root: Any = x509.load_pem_x509_certificate((self.kit / "startup" / ROOT).read_bytes()).public_key()
            if not revoked.is_signature_valid(root):
                return
        except (OSError, ValueError, TypeError, BadInput):
            return
        self._seen, self.listed = seen, frozenset(entry.serial_number for entry in revoked)
        if self.keeps and self.listed - self._known:
            with suppress(OSError, BadInput):  # of a full disk: they are in force, and kept after the next start
                write_json(self.kit / KNOWN, {str(serial): serial for serial in sorted(self._known | self.listed)})
        self._known |= self.listed

    def _numbers(self, file: str) -> dict[str, int]:
        try:
            return {str(name): int(number) for name, number in read_object(self.kit / file).items()}
        except (BadInput, AttributeError, TypeError, ValueError):
            return {}

    def registered(self) -> Mapping[str, int]:
        """Return, by name, the serial number of the certificate that the participant last proved itself with."""
        return self._numbers(REGISTERED)

    def register(self, name: str, serial: int) -> None:
        """Note which certificate a participant proved itself with."""
        write_json(self.kit / REGISTERED, {**self.registered(), name: serial})

    def shut_out(self, name: str) -> bool:
        """Return whether the certificate of a name's last proof is revoked, or, while any is, not known."""
        return self.explain(name) in (REASON, UNPROVEN)

    def explain(self, name: str) -> str:
        """Return why a participant is shut out; "": it is not."""
        if self.is_unreadable:
            return UNREADABLE
        serial = self.registered().get(name) if self.serials else 0
        return UNPROVEN if serial is None else REASON if serial in self.serials else ""


class ListedVerifier(IdentityVerifier):
    """A check of a participant's proof of its name, NVFlare's, which also refuses a certificate on the list."""

    def __init__(self, revocations: Revocations):
        super().__init__(root_cert_file=str(revocations.kit / "startup" / ROOT))
        self.revocations = revocations

    def verify_common_name(
        self, asserted_cn: str, nonce: str, asserter_cert: x509.Certificate, *args: Any, **kwargs: Any
    ) -> bool:
        """Return whether a participant has proved its name; the arguments are NVFlare's."""
        is_proven = bool(super().verify_common_name(asserted_cn, nonce, asserter_cert, *args, **kwargs))
        if self.revocations.is_unreadable:
            raise InvalidAsserterCert(UNREADABLE)
        if asserter_cert.serial_number in self.revocations.serials:
            raise InvalidAsserterCert(f"the certificate of {asserted_cn} is revoked")
        self.revocations.register(asserted_cn, asserter_cert.serial_number)
        return is_proven


def _asked_serial(fl_ctx: FLContext) -> int | None:
    """Return the serial number of the certificate that a site asks about (`fedmerit_deploy.membership`)."""
    text = str(fl_ctx.get_peer_context().get_prop(QUESTION, ""))
    return int(text) if text.isascii() and text.isdecimal() and len(text) < MOST_DIGITS else None


class RevocationCheck(FLComponent):
    """A part of the server's main process: shuts out owners of revoked certificates, and answers sites about theirs."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Shut a participant out, or let it in again, before NVFlare judges its registration or heartbeat.

        A question about membership is a registration without proof: NVFlare refuses it, with the answer as its reason.
        """
        if event_type not in EVENTS:
            return
        engine, name = fl_ctx.get_engine(), str(fl_ctx.get_peer_context().get_identity_name())
        manager = engine.server.client_manager
        keeper = manager.cred_keeper
        if not isinstance(keeper.id_verifier, ListedVerifier):
            keeper.id_verifier = ListedVerifier(Revocations(Path(engine.get_workspace().get_root_dir()), keeps=True))
        revocations = keeper.id_verifier.revocations
        is_out, is_disabled = revocations.shut_out(name), manager.is_client_disabled(name)
        serial = _asked_serial(fl_ctx)
        if event_type == EventType.CLIENT_HEARTBEAT_RECEIVED:
            if is_out and not is_disabled:
                self.log_warning(fl_ctx, f"{name} is shut out: {revocations.explain(name)}")
                engine.disable_clients([name])
        elif event_type == EventType.CLIENT_REGISTER_RECEIVED:
            if serial is None and is_out and is_disabled:  # it may have a renewed one, which the verifier now looks at
                engine.enable_clients([name])
        elif serial is not None:
            self.log_info(fl_ctx, f"{name} asks about its membership, which registers nothing")
            answer = Membership(
                is_revoked=serial in revocations.serials,
                is_disabled=is_disabled and not is_out,
                is_newest=revocations.registered().get(name, serial) in (serial, *revocations.serials),
                clock=time.time(),
            )
            fl_ctx.set_prop(FLContextKey.UNAUTHENTICATED, answer.model_dump_json(), private=True, sticky=False)
