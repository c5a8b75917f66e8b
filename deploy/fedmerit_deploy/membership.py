"""What the server says of a site's membership, asked with the certificate of the site's kit; nothing is registered.

The question is NVFlare's registration without the signature that would complete it; `fedmerit_deploy.revocation`
answers it in the server's main process.
"""

import logging
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from cryptography import x509
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.defs import IdentityChallengeKey, MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.private.defs import CellChannel, CellChannelTopic, CellMessageHeaderKeys, ClientType, new_cell_message
from pydantic import BaseModel, ConfigDict, ValidationError

from fedmerit_deploy.kit_files import read_name, require_kind, server_address

QUESTION = "fedmerit_membership"  # in the context that a registration brings: the serial number of the certificate
ANSWER_SECONDS, PAUSE = 10.0, 0.5  # to wait for the server's answer; between tries
CLOCK_SECONDS = 60.0  # by which the clocks of two machines may differ


class Membership(BaseModel):
    """An answer of the server about the certificate of a site's kit."""

    model_config = ConfigDict(frozen=True, strict=True)
    is_revoked: bool
    is_disabled: bool  # whether an admin shut the name out
    is_newest: bool  # whether the site last proved itself with this certificate, or never did
    clock: float  # the server's, seconds since 1970

    @classmethod
    def read(cls, text: str) -> "Membership | None":
        """Return the answer in a server's text; None if it is none, as of a server that does not know the question."""
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            return None

    def find_faults(self, now: float) -> Iterator[str]:
        """Yield in a sentence each what is wrong with the kit's membership; ``now``: this machine's clock."""
        if self.is_revoked:
            yield (
                "the coordinator has revoked the certificate of this kit: the site was removed, or its kit renewed; "
                "ask the coordinator for the new kit"
            )
        elif not self.is_newest:
            yield "a newer kit of this site is in use; run that, or ask the coordinator for a new one"
        if self.is_disabled and not self.is_revoked:
            yield "an admin has shut this site out; ask the coordinator"
        if abs(now - self.clock) > CLOCK_SECONDS:
            ahead = "ahead of" if now > self.clock else "behind"
            yield f"this machine's clock is {abs(now - self.clock):.0f} s {ahead} the server's; set it"


def ask_membership(kit: Path) -> Membership | None:
    """Return what the server says of a site's kit; None if it gives no such answer within ten seconds.

    Raises:
        BadInput: the folder is no site's startup kit.
    """
    content = require_kind(kit, "client")
    certificate = x509.load_pem_x509_certificate((kit / "startup" / "client.crt").read_bytes())
    name, project = read_name(kit), str(content["servers"][0]["name"])
    context, payload = FLContext(), Shareable()
    context.set_prop("__identity_name__", name, private=False, sticky=False)
    context.set_prop(QUESTION, str(certificate.serial_number), private=False, sticky=False)
    payload.set_peer_context(context)
    headers = {
        CellMessageHeaderKeys.CLIENT_NAME: name,
        CellMessageHeaderKeys.CLIENT_TYPE: ClientType.REGULAR,
        CellMessageHeaderKeys.CLIENT_IP: "127.0.0.1",
        CellMessageHeaderKeys.PROJECT_NAME: project,
    }
    nonce = {IdentityChallengeKey.COMMON_NAME: name, IdentityChallengeKey.NONCE: str(uuid.uuid4())}
    deadline = time.monotonic() + ANSWER_SECONDS
    with _open_cell(kit) as cell:
        while time.monotonic() < deadline:
            if _send(cell, CellChannelTopic.Challenge, nonce, None).get_header(MessageHeaderKey.RETURN_CODE) == (
                ReturnCode.OK
            ):
                answer = _send(cell, CellChannelTopic.Register, headers, payload)
                return Membership.read(str(answer.get_header(MessageHeaderKey.ERROR, "")))
            time.sleep(PAUSE)
    return None


def _send(cell: Cell, topic: str, headers: Mapping[str, Any], payload: Any) -> Any:
    message = new_cell_message(dict(headers), payload)
    return cell.send_request(
        target=FQCN.ROOT_SERVER,
        channel=CellChannel.SERVER_MAIN,
        topic=topic,
        request=message,
        timeout=ANSWER_SECONDS / 2,
        optional=True,
    )


@contextmanager
def _open_cell(kit: Path) -> Iterator[Cell]:
    """Open a connection of NVFlare's to the server under a name of its own, so that a running site is not disturbed."""
    startup, (host, port) = kit / "startup", server_address(kit)
    quiet, silent = logging.NullHandler(), StringIO()
    flare_decomposers.register()
    logging.getLogger().addHandler(quiet)
    try:
        with redirect_stdout(silent), redirect_stderr(silent):
            cell = Cell(
                fqcn=FQCN.join([read_name(kit), f"check-{uuid.uuid4()}"]),  # below its own, as a certificate may claim
                root_url=f"grpc://{host}:{port}",
                secure=True,
                credentials={
                    DriverParams.CA_CERT.value: str(startup / "rootCA.pem"),
                    DriverParams.CLIENT_CERT.value: str(startup / "client.crt"),
                    DriverParams.CLIENT_KEY.value: str(startup / "client.key"),
                },
                create_internal_listener=False,
            )
            cell.start()
            try:
                yield cell
            finally:
                cell.stop()
    finally:
        logging.getLogger().removeHandler(quiet)
