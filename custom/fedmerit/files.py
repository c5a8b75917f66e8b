"""Files that are either whole or absent."""

import errno
import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from fedmerit.errors import BadInput, RunFailed

FULL = (errno.ENOSPC, errno.EDQUOT)
LOCK = ".lock"  # of a run folder
UNFINISHED = ".tmp"  # ends the name of what is being written


def is_full(error: BaseException) -> bool:
    """Whether an error says that a disk or a disk quota is full; torch raises other errors than the system."""
    return any(isinstance(one, OSError) and one.errno in FULL for one in (error, error.__context__))


@contextmanager
def require_disk_space(path: Path) -> Iterator[None]:
    """`RunFailed` naming ``path`` if the disk is full."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        if not is_full(error):
            raise
        raise RunFailed(
            f"{path}: cannot be written, the disk is full; make room, then continue with --resume, or the same command"
        ) from error


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, flush it to disk, then rename it to ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}{UNFINISHED}")
    try:
        with require_disk_space(path), temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_durably(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """As `write_atomically`; a later loss of power does not bring back the old ``path``."""
    write_atomically(path, write)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def remove_partial_files(folder: Path) -> None:
    """Remove half-written files of killed processes in ``folder`` and below; no process may be writing there."""
    for path in folder.rglob(f".*{UNFINISHED}"):
        path.unlink(missing_ok=True)


@contextmanager
def lock_folder(folder: Path, name: str = LOCK) -> Iterator[int]:
    """A folder for only this process: a lock that lasts as long as a process has its file descriptor, which is given.

    Raises:
        BadInput: another process has it.
    """
    with (folder / name).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BadInput(f"{folder}: another process is at work on this run; wait for it, or stop it first") from None
        yield file.fileno()


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 ``text`` to ``path`` atomically."""
    write_atomically(path, lambda file: file.write(text.encode()))


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` to ``path`` as indented JSON, atomically."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def read_json(path: Path) -> Any:
    """The JSON in ``path``; `BadInput` naming the file if it is missing or not JSON."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise BadInput(f"{path}: file not found") from None
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path}: not readable as JSON ({error})") from error


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_digest(folder: Path) -> str:
    """One SHA-256 of all files of a folder, the same as in a shell.

    That is ``find . -type f | LC_ALL=C sort | xargs sha256sum | sha256sum`` in the folder.
    """
    return files_digest(folder, folder.rglob("*"), "./")


def files_digest(folder: Path, paths: Iterable[Path], prefix: str = "") -> str:
    """One SHA-256 of those ``paths`` in ``folder`` that are files, in the order of their names after ``prefix``."""
    files = sorted(f"{prefix}{path.relative_to(folder).as_posix()}" for path in paths if path.is_file())
    lines = "".join(f"{sha256(folder / name)}  {name}\n" for name in files)
    return hashlib.sha256(lines.encode()).hexdigest()
