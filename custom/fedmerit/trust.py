"""What is imported, started, connected to or searched for images: what a person names, not what a record may name.

A record is whatever a file says of a run: run.json, model.json, a job's plan, a bundle, a TOML file of options.
"""

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from fedmerit.errors import Untrusted

TRUST = "FEDMERIT_TRUST"  # variable: what a person named, or `ALL`; child processes inherit it
ALL = "all"
PLACES = "FEDMERIT_PLACES"  # variable: folders of images that a person named, if the file of them cannot be written
NAMED = re.compile(r"[A-Za-z_]\w*(\.\w+)*:[A-Za-z_]\w*")
TRACKER = re.compile(r"\w+:\w+=\S+")  # with options, such as the address to which scalars are sent


def allow(*texts: str) -> None:
    """Let this process and its children use every ``package.module:name`` and tracker in ``texts``: a person's."""
    _add(*(match.group() for text in texts for kind in (NAMED, TRACKER) for match in kind.finditer(text)))


def allow_script(digest: str) -> None:
    """Let this process and its children run the training script of this SHA-256: a person named it."""
    _add(digest)


def trust_records() -> None:
    """Let this process and its children use whatever records name: ``--trust``."""
    os.environ[TRUST] = ALL


def require_trusted(name: str, where: str) -> None:
    """Raise `Untrusted` if ``name``, a ``package.module:name``, is of a record, and nobody trusts that.

    Args:
        name: the part.
        where: what names it, for the message.
    """
    _require(name, f"{where}: names {name!r}, code that is not imported only because a record names it")


def require_trusted_script(file: Path, digest: str, where: str) -> None:
    """Raise `Untrusted` if the script ``file``, of SHA-256 ``digest``, is of a record, and nobody trusts that."""
    _require(digest, f"{where}: names the script {file}, which is not run only because a record names it")


def require_trusted_trackers(specs: Iterable[str], where: str) -> None:
    """Raise `Untrusted` if a record names a tracker with options, such as an address, and nobody trusts that."""
    for spec in specs:
        if "=" in spec:
            _require(spec, f"{where}: names the tracker {spec!r:.200}, to which nothing is sent only for that")


def allow_places(*folders: Path | None) -> None:
    """Let this and later processes of this machine open folders of images that a record names: a person named them."""
    known = _places()
    new = [place for place in (str(folder.resolve()) for folder in folders if folder) if place not in known]
    if not new:
        return
    try:
        (file := _places_file()).parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as stream:
            stream.write("".join(f"{place}\n" for place in new))
    except OSError:
        os.environ[PLACES] = "\n".join([*known, *new])


def allowed_place(folder: object) -> Path | None:
    """Return the folder of images that a record names, if a person named it on this machine."""
    place = Path(folder) if isinstance(folder, str | Path) and folder else None
    return place if place and str(place.resolve()) in _places() else None


def require_place(folder: object, run: Path) -> Path:
    """Return the folder of images in run.json of a run folder; `Untrusted` if nobody named it."""
    if place := allowed_place(folder):
        return place
    raise Untrusted(
        f"{run / 'run.json'}: names images in {folder!r:.200}, which nobody named on this machine; look at them, then "
        "name them with --sites or --server-sites"
    )


def state_folder() -> Path:
    """Return the folder in which FedMerit keeps what this machine's user decided, for all runs and kits."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(state) / "fedmerit"


def _places_file() -> Path:
    return state_folder() / "places"


def _places() -> list[str]:
    with suppress(OSError):
        return [*os.environ.get(PLACES, "").splitlines(), *_places_file().read_text().splitlines()]
    return os.environ.get(PLACES, "").splitlines()


def _add(*words: str) -> None:
    if words:
        os.environ[TRUST] = " ".join(dict.fromkeys([*os.environ.get(TRUST, "").split(), *words]))


def _require(word: str, what: str) -> None:
    if not {ALL, word} & set(os.environ.get(TRUST, "").split()):
        raise Untrusted(f"{what}; look at it, then give the same command with --trust")
