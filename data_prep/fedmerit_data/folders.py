"""Folders that are either whole or absent, and the partial ones in which they come into being."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedmerit.errors import BadInput

OVERVIEW = "overview"  # the folder of pictures beside site folders


def is_occupied(folder: Path) -> bool:
    """Whether ``folder`` is there and no empty folder."""
    return folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))


def require_free(folder: Path) -> None:
    """`BadInput` unless ``folder`` is absent or empty: nothing is ever overwritten or mixed."""
    if is_occupied(folder):
        raise BadInput(f"{folder}: already holds something; name a new folder or remove this one first")


def partial_path(folder: Path, suffix: str = "partial") -> Path:
    """The hidden sibling in which ``folder`` comes into being; it outlives an interruption."""
    return folder.absolute().with_name(f".{folder.absolute().name}.{suffix}")


@contextmanager
def partial_folder(folder: Path, suffix: str = "partial") -> Iterator[Path]:
    """`partial_path` ``folder``, made where it is absent, for this process alone until the block ends.

    Raises:
        BadInput: it cannot be made, or another process is at work in it.
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
            # Between opening and locking, another process may have come to its end and removed the folder.
            mine = os.path.samestat(os.fstat(lock.fileno()), (partial / "lock").stat())
        except OSError:
            mine = False
        if not mine:
            raise BadInput(f"{folder}: another process is preparing it; wait for that one or name another folder")
        yield partial


@contextmanager
def new_folder(folder: Path, suffix: str = "partial") -> Iterator[Path]:
    """An empty folder to fill, which becomes ``folder`` where the block comes to its end; else nothing of it is left.

    Raises:
        BadInput: there is something already, it cannot be made, or another process is making it.
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


def link_or_copy(source: Path, target: Path) -> None:
    """Make ``target`` the same file as ``source``, or one of the same bytes where the file system has no links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)
