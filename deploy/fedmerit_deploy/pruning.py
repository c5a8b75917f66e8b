"""Old jobs in a startup kit: what may be deleted after a time, and what is kept as evidence."""

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from fedmerit.engines.site_errors import ERRORS
from fedmerit_deploy.kit_files import read_kind

DAY = 86400.0  # seconds
JOB = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # name of NVFlare's folder of a job
EVIDENCE = ("site_log.jsonl", "certificate.pem", ERRORS)  # of a site's part of a run: kept
ROTATED = ("*.txt.*", "*.json.*", "*.log.*")  # logs that NVFlare has ended


def find_prunable(kit: Path, days: float) -> list[Path]:
    """Return the files and folders of a kit that have not changed for ``days``, and that nobody needs any more.

    At every machine: NVFlare's folders of jobs, and rotated logs. At a site also the memory of its runs, but not its
    log, its certificate and its errors. Run folders at the server are results, and stay.

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


def prune(paths: list[Path]) -> int:
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
