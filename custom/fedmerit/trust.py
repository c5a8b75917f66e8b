"""Whose code is imported: what a person names here and now, and not what a record, which may be by others, names.

A record is whatever a file says of a run: run.json, model.json, a job's plan, a bundle, a TOML file of options.
"""

import os
import re
from pathlib import Path

from fedmerit.errors import Untrusted

TRUST = "FEDMERIT_TRUST"  # variable: the package.module:name that may be imported, or `ALL`; child processes inherit it
ALL = "all"
NAMED = re.compile(r"[A-Za-z_]\w*(\.\w+)*:[A-Za-z_]\w*")


def allow(*texts: str) -> None:
    """Let this process and its children import every ``package.module:name`` in ``texts``: a person wrote them."""
    found = [match.group() for text in texts for match in NAMED.finditer(text)]
    if found:
        os.environ[TRUST] = " ".join(dict.fromkeys([*os.environ.get(TRUST, "").split(), *found]))


def allow_script(digest: str) -> None:
    """Let this process and its children run the training script of this SHA-256: a person named it."""
    os.environ[TRUST] = " ".join(dict.fromkeys([*os.environ.get(TRUST, "").split(), digest]))


def require_trusted_script(file: Path, digest: str, where: str) -> None:
    """`Untrusted` if the script ``file``, of SHA-256 ``digest``, is named by a record ``where``, and by no person."""
    if not {ALL, digest} & set(os.environ.get(TRUST, "").split()):
        raise Untrusted(
            f"{where}: names the script {file}, which is not run only because a record names it; look at it, then give "
            "the same command with --trust"
        )


def trust_records() -> None:
    """Let this process and its children import whatever records name: ``--trust``."""
    os.environ[TRUST] = ALL


def require_trusted(name: str, where: str) -> None:
    """`Untrusted` if ``name``, a ``package.module:name``, is of a record, and nobody trusts that.

    Args:
        name: the part.
        where: what names it, for the message.
    """
    if not {ALL, name} & set(os.environ.get(TRUST, "").split()):
        raise Untrusted(
            f"{where}: names {name!r}, code that is not imported only because a record names it; "
            "look at it, then give the same command with --trust"
        )
