"""Startup kits as NVFlare provisioned them: whose they are, where the server is, and which old files nobody needs.

Loads nothing heavy: an admin's commands need no more.
"""

import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedmerit.engines.site_errors import ERRORS
from fedmerit.errors import BadInput
from fedmerit.files import read_object

KINDS = {"server": "the server", "client": "a site", "admin": "an admin"}
CERTIFICATES = {"server": "server", "client": "client", "admin": "client"}  # names of key and certificate, by kind
DAY = 86400.0  # seconds
JOB = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # name of NVFlare's folder of a job
EVIDENCE = ("site_log.jsonl", "certificate.pem", "enrolled_cases.json", ERRORS)  # of a site's part of a run: kept
ROTATED = ("*.txt.*", "*.json.*", "*.log.*")  # logs that NVFlare has ended


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


def find_prunable(kit: Path, days: float) -> list[Path]:
    """Return the files and folders of a kit that have not changed for ``days``, and that nobody needs any more.

    At every machine: NVFlare's folders of jobs, and rotated logs. At a site also the memory of its runs, but not its
    log, its certificate, what opens its enrolment, and its errors. Run folders at the server are results, and stay.

    Raises:
        BadInput: the folder is no startup kit.
    """
    before = time.time() - days * DAY
    found = [path for path in kit.iterdir() if path.is_dir() and JOB.fullmatch(path.name)]
    found += [path for pattern in ROTATED for path in kit.glob(pattern)]
    if read_kind(kit) == "client":
        for folder in kit.glob("runs/*/sites/*"):
            if _latest(folder) < before:
                found += [path for path in folder.iterdir() if path.name not in EVIDENCE]
        return sorted(path for path in found if path.is_relative_to(kit / "runs") or _latest(path) < before)
    return sorted(path for path in found if _latest(path) < before)


def delete_files(paths: list[Path]) -> int:
    """Delete files and folders, and return the bytes that they took."""
    freed = sum(file.lstat().st_size for path in paths for file in _files(path))
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    return freed


def _latest(path: Path) -> float:
    """Return when anything in a folder changed last, in seconds since 1970."""
    return max((file.lstat().st_mtime for file in (path, *_files(path))), default=0.0)


def _files(path: Path) -> Iterator[Path]:
    yield from (path.rglob("*") if path.is_dir() and not path.is_symlink() else [path])
