"""Files: written whole or not at all, and read within bounds, since others may have made them.

Tensors are read by `fedmerit.tensor_files`, tables by `fedmerit.schema.results`, images by `fedmerit_data`.
"""

import fcntl
import hashlib
import json
import os
import stat
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.machinery import all_suffixes
from pathlib import Path
from typing import IO, Any

from fedmerit.errors import BadInput, RunFailed
from fedmerit.reasons import is_full

LOCK = ".lock"  # of a run folder
RUN_NAME = "fedmerit"  # of the run folder inside NVFlare's folder of the job
UNFINISHED = ".tmp"  # ends the name of what is being written
MOST_TEXT = 1 << 25  # bytes of a file of text or JSON
BESIDE = 160_000_000  # bytes of memory that what a text holds may take, beside as many as three times the text has
COSTS = {b"{": 200, b"[": 100, b":": 80, b",": 36, b'"': 30}  # bytes of memory that an object takes, a list, and so on
FLUSHED_AT_ONCE = 16  # files
DEEPEST = 50  # of lists and objects in each other
IMPORTABLE = tuple(all_suffixes())  # ends of the names of files that Python imports
LONGEST_NAME = 100  # characters of what becomes a file's name


@contextmanager
def require_disk_space(path: Path) -> Iterator[None]:
    """Raise `RunFailed` naming ``path`` if the disk is full."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        if not is_full(error):
            raise
        raise RunFailed(
            f"{path}: cannot be written, the disk is full; make room, then continue with --resume, or the same command"
        ) from error


def write_atomically(path: Path, write: Callable[[IO[bytes]], object], flush: bool = True) -> None:
    """Let ``write`` fill a temporary file beside ``path``, flush it to disk, then rename it to ``path``.

    Without ``flush`` a loss of power may leave an incomplete file; `flush_files` flushes many at once.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}{UNFINISHED}")
    try:
        temporary.unlink(missing_ok=True)
        with require_disk_space(path), temporary.open("xb") as file:  # follows no link that lies in its place
            write(file)
            file.flush()
            if flush:
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def flush_files(paths: Iterable[Path]) -> None:
    """Store files durably on disk, several at a time: the disk then commits them together, not one after the other."""

    def flush(path: Path) -> None:
        with require_disk_space(path), path.open("rb") as file:
            os.fsync(file.fileno())

    with ThreadPoolExecutor(FLUSHED_AT_ONCE) as pool:
        for _ in pool.map(flush, paths):
            pass


def write_durably(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write as `write_atomically` does; a later loss of power does not bring back the old ``path``."""
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
    """Keep a folder for only this process: by a lock that lasts as long as a process has its file descriptor,
    which is given.

    Raises:
        BadInput: another process has it.
    """
    with (folder / name).open("a+") as file:
        file.seek(0)
        begun_by = file.read(LONGEST_NAME).strip()
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            who = f", begun by process {begun_by}" * begun_by.isdecimal()
            raise BadInput(
                f"{folder}: another process is at work on this run{who}; wait for it, or stop it first"
            ) from None
        with suppress(OSError):  # as on a full disk
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
        yield file.fileno()


def write_text(path: Path, text: str, flush: bool = True) -> None:
    """Write UTF-8 ``text`` to ``path`` as `write_atomically` does."""
    write_atomically(path, lambda file: file.write(text.encode()), flush)


def write_json(path: Path, value: Any, flush: bool = True) -> None:
    """Write ``value`` to ``path`` as indented JSON, as `write_atomically` does."""
    write_text(path, json.dumps(value, indent=2) + "\n", flush)


def require_file(path: Path, most: int) -> int:
    """Return the bytes of a file; `BadInput` naming it if it is missing, no regular file, or has more than ``most``."""
    try:
        found = path.stat()
    except FileNotFoundError:
        raise BadInput(f"{path}: file not found") from None
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: not readable ({error})") from None
    if not stat.S_ISREG(found.st_mode):
        raise BadInput(f"{path}: is no file that can be read; expected a regular one")
    if found.st_size > most:
        raise BadInput(f"{path}: has {found.st_size} bytes; expected at most {most} of such a file")
    return found.st_size


def read_bytes(path: Path, most: int = MOST_TEXT) -> bytes:
    """Return what a file holds; `BadInput` as of `require_file`."""
    require_file(path, most)
    with path.open("rb") as file:
        return file.read(most)


def read_text(path: Path, most: int = MOST_TEXT) -> str:
    """Return the UTF-8 text in a file; `BadInput` as of `require_file`, or if it is none."""
    try:
        return read_bytes(path, most).decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: not readable as text ({error})") from None


def read_json(path: Path) -> Any:
    """Return the JSON in ``path``; `BadInput` naming the file if it is missing, not JSON, or beyond the bounds."""
    content = read_bytes(path)
    try:
        return parse_json(content)
    except ValueError as error:
        raise BadInput(f"{path}: not readable as JSON ({error})") from error


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in ``path``; `BadInput` as of `read_json`, or if it holds anything else."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise BadInput(f"{path}: holds no JSON object")
    return found


def require_few_values(content: bytes) -> None:
    """Raise ValueError if what JSON says may take more memory than `BESIDE` and three times its text."""
    taken = sum(cost * content.count(sign) for sign, cost in COSTS.items())
    if taken > BESIDE + 3 * len(content):
        raise ValueError("more values than a text of its size may have")


def parse_json(text: bytes | str) -> Any:
    """Return what JSON says.

    ValueError if it is none, too long, deeper than `DEEPEST`, not of `require_few_values`, or has a name twice in an
    object, of which readers take either value.
    """
    content = text.encode() if isinstance(text, str) else text
    if len(content) > MOST_TEXT:
        raise ValueError(f"{len(content)} bytes, expected at most {MOST_TEXT}")
    require_few_values(content)
    try:
        found = json.loads(content.decode("utf-8"), object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError(f"nested deeper than {DEEPEST}") from None
    level = [found]
    for _ in range(DEEPEST):
        inner = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list))
        level = [one for values in inner for one in values]
    if level:
        raise ValueError(f"nested deeper than {DEEPEST}")
    if b"\\ud" in content.lower():
        json.dumps(found, ensure_ascii=False).encode()  # raises if half a character is there, which nothing can write
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of these names and values; ValueError if a name is there twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        (name, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"has {name!r:.80} twice in one object")
    return found


def as_file_name(text: str) -> str:
    """Return the text; ValueError if it is no `is_file_name`."""
    if not is_file_name(text):
        raise ValueError(f"expected 1 to {LONGEST_NAME} printable characters without slashes, a letter or digit first")
    return text


def is_file_name(text: object) -> bool:
    """Return whether a text of others may be part of a file's name or of a configuration: printable, no path or
    expression.
    """
    if not isinstance(text, str) or not 0 < len(text) <= LONGEST_NAME or not text.isprintable():
        return False
    return (text[0].isalnum() or text[0] == "_") and not set(text) & {"/", "\\"}


def require_inside(folder: Path) -> None:
    """Raise `BadInput` naming a symbolic link in ``folder``, or below, that leads out of it: others may have put
    it there. Likewise if ``folder`` is none, such as an archive.
    """
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder}: is no folder; expected a run folder: unpack it first, if it is an archive")
    for place, folders, names in os.walk(folder):
        for path in (os.path.join(place, name) for name in (*folders, *names)):
            if os.path.islink(path) and not leads_into(folder, Path(path)):
                raise BadInput(
                    f"{path}: is a symbolic link out of {folder}, through which nothing is read or written; "
                    "replace it by what it points to, if that is yours"
                )


def require_no_code(folder: Path, skipped: Collection[str] = ()) -> None:
    """Raise `BadInput` naming a file in ``folder``, or below, that Python could import: no run needs one there.

    Args:
        folder: a folder that others may have sent.
        skipped: names of folders directly in it in which a run's own programs work.
    """
    for place, folders, names in os.walk(folder):
        if place == os.fspath(folder):
            folders[:] = [name for name in folders if name not in skipped]
        for name in names:
            if name.endswith(IMPORTABLE):
                raise BadInput(
                    f"{os.path.join(place, name)}: a run folder holds no code, and Python could import this file; "
                    "look at who put it there, and move it away"
                )


def leads_into(folder: Path, path: Path) -> bool:
    """Return whether a path, its symbolic links followed, lies in ``folder``. A loop of links leads nowhere."""
    try:
        end = path.resolve()
    except (OSError, RuntimeError, ValueError):  # a loop before Python 3.13; no path at all
        return False
    return end.is_relative_to(folder.resolve()) and not end.is_symlink()  # from 3.13 on a loop's end is a link


def record_hash(record: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a record's JSON, in hexadecimal."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_digest(folder: Path) -> str:
    """Return one SHA-256 of all files of a folder, the same as in a shell.

    That is ``find . -type f | LC_ALL=C sort | xargs sha256sum | sha256sum`` in the folder.
    """
    return files_digest(folder, folder.rglob("*"), "./")


def files_digest(folder: Path, paths: Iterable[Path], prefix: str = "") -> str:
    """Return one SHA-256 of those ``paths`` in ``folder`` that are files, in the order of their names after
    ``prefix``.
    """
    files = sorted(f"{prefix}{path.relative_to(folder).as_posix()}" for path in paths if path.is_file())
    lines = "".join(f"{sha256(folder / name)}  {name}\n" for name in files)
    return hashlib.sha256(lines.encode()).hexdigest()
