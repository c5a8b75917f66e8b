"""Folders that are either whole or absent."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedmerit.errors import BadInput


def require_free(folder: Path) -> None:
    """`BadInput` unless ``folder`` is absent or empty: nothing is ever overwritten or mixed."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise BadInput(f"{folder}: already holds something; name a new folder or remove this one first")


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A temporary sibling to fill, renamed to ``folder`` when the block ends and removed if it fails."""
    require_free(folder)
    temporary = folder.absolute().with_name(f".{folder.absolute().name}.{os.getpid()}.tmp")
    try:
        try:
            temporary.mkdir(parents=True)
        except OSError as error:
            raise BadInput(f"{folder}: cannot be made ({error}); name a folder where you may write") from error
        yield temporary
        temporary.replace(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
