"""Startup kits as NVFlare provisioned them: whose they are, where the server is, and whether they were changed.

Loads nothing heavy: an admin's commands need no more.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmerit.errors import BadInput
from fedmerit.files import files_digest, read_json

KINDS = {"server": "the server", "client": "a site", "admin": "an admin"}
CERTIFICATES = {"server": "server", "client": "client", "admin": "client"}  # names of key and certificate, by kind


def read_kind(kit: Path) -> str:
    """Return ``"server"``, ``"client"`` or ``"admin"``; `BadInput` if the folder is no startup kit."""
    for kind in KINDS:
        if (kit / "startup" / f"fed_{kind}.json").is_file():
            return kind
    raise BadInput(f"{kit}: no startup kit (no startup/fed_*.json in it); name the folder that `deploy init` printed")


def require_kind(kit: Path, kind: str) -> Mapping[str, Any]:
    """Return startup/fed_KIND.json of a kit; `BadInput` if the kit is of another kind."""
    if (actual := read_kind(kit)) != kind:
        raise BadInput(f"{kit}: startup kit of {KINDS[actual]}, expected that of {KINDS[kind]}")
    content: Mapping[str, Any] = read_json(kit / "startup" / f"fed_{kind}.json")
    return content


def read_name(kit: Path) -> str:
    """Return the name of the participant that the kit belongs to, as the server knows it."""
    content = require_kind(kit, kind := read_kind(kit))
    try:
        if kind == "client":
            return str(content["client"]["fqsn"]).split(".")[-1]
        return str(content["admin"]["username"] if kind == "admin" else content["servers"][0]["admin_server"])
    except (KeyError, IndexError, TypeError) as error:
        raise BadInput(f"{kit}/startup/fed_{kind}.json: lacks {error}; unpack the kit again") from error


def server_address(kit: Path) -> tuple[str, int]:
    """Return host and port at which a kit's owner reaches the server, or the server listens."""
    content = require_kind(kit, kind := read_kind(kit))
    try:
        if kind == "admin":
            return str(content["admin"]["host"]), int(content["admin"]["port"])
        host, _, port = str(content["servers"][0]["service"]["target"]).rpartition(":")
        return host, int(port)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise BadInput(f"{kit}/startup/fed_{kind}.json: says no address ({error}); unpack the kit again") from error


def kit_digest(kit: Path) -> str:
    """Return the SHA-256 of what the coordinator wrote into a kit: startup/, and the defaults in local/.

    Keys are left out, which have to be those of the certificates. A shell gives the same in the kit: ``find startup
    local/*.default -type f ! -name '*.key' | LC_ALL=C sort | xargs sha256sum | sha256sum``. NVFlare signs no kit that
    has no keys for encryption, and then some files, by a certificate in the same kit: only a digest that comes another
    way shows that a kit was changed.
    """
    read_kind(kit)
    startup = [path for path in (kit / "startup").rglob("*") if path.suffix != ".key"]
    return files_digest(kit, [*startup, *(kit / "local").glob("*.default")])


def require_digest(kit: Path, digest: str) -> None:
    """Raise `BadInput` naming both if a kit does not have this `kit_digest`."""
    if (actual := kit_digest(kit)) != digest.strip().lower():
        raise BadInput(
            f"{kit}: startup/ and local/*.default have SHA-256 {actual}, the coordinator names {digest:.100}; do not "
            "start it: ask the coordinator for the kit, and for its SHA-256, again"
        )
