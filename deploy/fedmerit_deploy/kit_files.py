"""Startup kits as NVFlare provisioned them: whose they are, and where the server is.

Loads nothing heavy: an admin's commands need no more.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedmerit.errors import BadInput
from fedmerit.files import read_object

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
    return read_object(kit / "startup" / f"fed_{kind}.json")


@contextmanager
def _reading(kit: Path, what: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Give the kind of a kit and its startup/fed_KIND.json; raise `BadInput` if the block finds no ``what`` in it."""
    content = require_kind(kit, kind := read_kind(kit))
    try:
        yield kind, content
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise BadInput(f"{kit}/startup/fed_{kind}.json: says no {what} ({error}); unpack the kit again") from error


def read_name(kit: Path) -> str:
    """Return the name of the participant that the kit belongs to, as the server knows it."""
    with _reading(kit, "name") as (kind, content):
        if kind == "client":
            return str(content["client"]["fqsn"]).split(".")[-1]
        return str(content["admin"]["username"] if kind == "admin" else content["servers"][0]["admin_server"])


def server_address(kit: Path) -> tuple[str, int]:
    """Return host and port at which a kit's owner reaches the server, or the server listens."""
    with _reading(kit, "address") as (kind, content):
        if kind == "admin":
            return str(content["admin"]["host"]), int(content["admin"]["port"])
        host, _, port = str(content["servers"][0]["service"]["target"]).rpartition(":")
        return host, int(port)


def admin_port(kit: Path) -> int:
    """Return the port at which the server of a kit listens for admins."""
    with _reading(kit, "port for admins") as (_, content):
        return int(content["servers"][0]["admin_port"])
