"""Folders that are either complete or absent, made in a hidden partial folder."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedmerit.errors import BadInput

OVERVIEW = "overview"  # the folder of pictures beside site folders


def is_occupied(folder: Path) -> bool:
    """Return whether ``folder`` exists and is not an empty folder."""
    return folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))


def require_free(folder: Path) -> None:
    """Raise `BadInput` unless ``folder`` is absent or empty: nothing is overwritten or mixed."""
    if is_occupied(folder):
        raise BadInput(f"{folder}: is not empty; name a new folder or remove this one first")


def partial_path(folder: Path, suffix: str = "partial") -> Path:
    """Return the hidden folder beside ``folder`` in which it is made; an interruption leaves it."""
    return folder.absolute().with_name(f".{folder.absolute().name}.{suffix}")


@contextmanager
def partial_folder(folder: Path, suffix: str = "partial") -> Iterator[Path]:
    """Provide the `partial_path` of ``folder``, made if absent and locked by this process until the block ends.

    Raises:
        BadInput: it cannot be made, or another process has locked it.
    """
    partial = partial_path(folder, suffix)
    try:
        partial.mkdir(parents=True, exist_ok=True)
        lock = (partial / "lock").open("w")
    except OSError as error:
        raise BadInput(f"{folder}: cannot be made ({error}); name a folder where you may write") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Between opening and locking, another process may have finished and removed the folder.
            mine = os.path.samestat(os.fstat(lock.fileno()), (partial / "lock").stat())
        except OSError:
            mine = False
        if not mine:
            raise BadInput(f"{folder}: another process is preparing it; wait for that one or name another folder")
        yield partial


@contextmanager
def new_folder(folder: Path, suffix: str = "partial") -> Iterator[Path]:
    """Provide an empty folder to fill, renamed to ``folder`` when the block ends; after an error nothing of it is left.

    Raises:
        BadInput: ``folder`` is not empty, it cannot be made, or another process is making it.
    """
    require_free(folder)
    with partial_folder(folder, suffix) as partial:
        try:
            shutil.rmtree(partial / "new", ignore_errors=True)  # a killed process's
            (partial / "new").mkdir()
            yield partial / "new"
            (partial / "new").replace(folder)
        finally:
            shutil.rmtree(partial)
