"""The errors of sites: kept where only the site reads them, and shown to a caller whose own all sites are."""

import logging
import re
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

ERRORS = "errors.log"  # in the site's own folder of the run
TRACEBACK = "Traceback (most recent call last):"
CLASS = re.compile(r"^fedmerit[\w.]*: ")  # before a message
MOST_LINES = 16  # of an error that are shown to the caller
MOST_KEPT = 20  # errors that wait for room on the disk
log = logging.getLogger(__name__)
_waiting: dict[Path, list[str]] = {}  # by file, what could not be written


def keep_error(file: Path, error: Exception) -> None:
    """Append an error to a site's own file; while the disk has no room, keep it in memory, and write it later."""
    texts = _waiting.setdefault(file, [])
    texts.append("".join(traceback.format_exception(error)))
    del texts[:-MOST_KEPT]
    with suppress(OSError):  # such as that the disk is full, which may be the error
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as log:
            log.write("".join(texts))
        texts.clear()


def read_errors(folder: Path, since: float) -> dict[str, str]:
    """Return, by site, the last error of each site below a folder, as all sites are the caller's own.

    Args:
        folder: of the run, or of the workspaces of the sites.
        since: seconds since 1970; errors before it do not count.
    """
    errors = {}
    for file in sorted(folder.rglob(f"sites/*/{ERRORS}")):
        if file.stat().st_mtime >= since:
            lines = file.read_text(errors="replace").splitlines()
            begin = max((place for place, line in enumerate(lines) if line == TRACEBACK), default=-1)
            # the frames are of FedMerit; the message has the last lines of the script's own
            after = next((place for place in range(begin + 1, len(lines)) if not lines[place].startswith(" ")), 0)
            errors[file.parent.name] = CLASS.sub("", "\n".join(lines[after:][:MOST_LINES]))
    return errors


def describe_errors(errors: Mapping[str, str]) -> list[str]:
    """Return the errors of sites, equal ones once."""
    sites: dict[str, list[str]] = {}
    for site, error in errors.items():
        sites.setdefault(error.replace(site, "SITE"), []).append(site)
    return [f"{', '.join(those)}: {errors[those[0]].removeprefix(f'site {those[0]}: ')}" for those in sites.values()]


def warn_of_errors(folder: Path, since: float) -> None:
    """Log the errors of sites below a folder as a warning: the run came to its end without some answers of theirs.

    The arguments are those of `read_errors`.
    """
    if errors := describe_errors(read_errors(folder, since)):
        log.warning("%s", "\n".join(["sites without some of their answers:", *errors]))
