"""What is imported, started or connected to: what a person names here and now, not what a record of others may name.

A record is whatever a file says of a run: run.json, model.json, a job's plan, a bundle, a TOML file of options.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from fedmerit.errors import Untrusted

TRUST = "FEDMERIT_TRUST"  # variable: what a person named, or `ALL`; child processes inherit it
ALL = "all"
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
    """`Untrusted` if ``name``, a ``package.module:name``, is of a record, and nobody trusts that.

    Args:
        name: the part.
        where: what names it, for the message.
    """
    _require(name, f"{where}: names {name!r}, code that is not imported only because a record names it")


def require_trusted_script(file: Path, digest: str, where: str) -> None:
    """Likewise of the script ``file``, of SHA-256 ``digest``."""
    _require(digest, f"{where}: names the script {file}, which is not run only because a record names it")


def require_trusted_trackers(specs: Iterable[str], where: str) -> None:
    """Likewise of trackers that have options, such as an address."""
    for spec in specs:
        if "=" in spec:
            _require(spec, f"{where}: names the tracker {spec!r:.200}, to which nothing is sent only for that")


def _add(*words: str) -> None:
    if words:
        os.environ[TRUST] = " ".join(dict.fromkeys([*os.environ.get(TRUST, "").split(), *words]))


def _require(word: str, what: str) -> None:
    if not {ALL, word} & set(os.environ.get(TRUST, "").split()):
        raise Untrusted(f"{what}; look at it, then give the same command with --trust")
