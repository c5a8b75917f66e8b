"""Where a part of another package or script is, and the digest by which an operator approves it."""

import ast
import hashlib
import re
import tokenize
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.metadata import Distribution
from pathlib import Path

from fedmerit.errors import BadInput

SCRIPTS = "FEDMERIT_PARTS"  # variable: scripts that register parts, separated as in PATH; child processes inherit it
VARYING = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")  # of a distribution: the installer writes them
COMMANDS = ("console_scripts", "gui_scripts")  # groups of entry points of which an installer writes programs, likewise


@dataclass(frozen=True)
class Reference:
    """A place of a part, before anything of it is imported."""

    text: str  # package.module:name, or the path of a script
    holder: str  # the distribution and its version, or the script
    digest: str  # SHA-256 of its files; "": they are not those of an installed distribution

    def __str__(self) -> str:
        return f"{self.text} of {self.holder}"


def refusal(reference: Reference, approved: Mapping[str, str]) -> str:
    """Return why a part may not be used on a deployed machine, and what to approve; "" if it may."""
    if not reference.digest:
        return (
            f"{reference} is not installed from a wheel, or has files beside those of its wheel, so that nobody "
            "could tell what was approved"
        )
    if approved.get(reference.text) == reference.digest:
        return ""
    other = "another version of it is approved here" if reference.text in approved else "is not approved here"
    return (
        f"{reference}: {other}; the operator of this machine looks at it, and then runs "
        f"`fedmerit deploy approve {reference.text} --sha256 {reference.digest} --kit KIT`"
    )


def script_reference(path: str) -> Reference:
    """Return the reference of a script; `BadInput` if there is no such file."""
    if not Path(path).is_file() or not path.endswith(".py"):
        raise BadInput(f"{path}: no such script of own parts, SCRIPT.py; {SCRIPTS} names it")
    return Reference(path, "this machine", hashlib.sha256(Path(path).read_bytes()).hexdigest())


def imported_digest(path: str) -> str:
    """Return SHA-256 of a script's text without the code under ``if __name__ == "__main__":``."""
    script_reference(path)  # raises if it is not there
    try:
        with tokenize.open(path) as file:  # in the encoding that it names
            text = file.read()
    except (SyntaxError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read ({error})") from error
    lines = text.split("\n")
    with suppress(SyntaxError):  # the import reports it
        for node in reversed(ast.parse(text).body):
            if isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'":
                del lines[node.lineno - 1 : node.body[-1].end_lineno]  # an else is for those that import it
    return hashlib.sha256("\n".join(lines).rstrip().encode()).hexdigest()


def installed_reference(text: str, dist: Distribution | None) -> Reference:
    """Return the reference of a part, package.module:name, of an installed distribution; None: it is of none."""
    if dist is None:
        return Reference(text, "no installed distribution", "")
    return Reference(text, f"{dist.name} {dist.version}", _digest(dist, text.partition(":")[0]))


def _digest(dist: Distribution, module: str) -> str:
    """Return one SHA-256 of a distribution's files; "" if ``module`` is not what Python would import of it.

    Of lines ``SHA-256  PATH`` by path, without compiled files, which are not read if parts are approved, and what
    differs from one installation to another.
    """
    files = {file.as_posix(): Path(str(dist.locate_file(file))) for file in dist.files or ()}
    programs = {one.name for one in dist.entry_points if one.group in COMMANDS}
    kept = {name: path for name, path in files.items() if not _is_varying(name, programs)}
    stem = module.replace(".", "/")
    mine = kept.get(f"{stem}.py") or kept.get(f"{stem}/__init__.py")
    top = PathFinder.find_spec(module.partition(".")[0])
    origin = Path(top.origin).parent if top and top.origin else None
    if mine is None or origin is None or not mine.resolve().is_relative_to(origin.resolve()):
        return ""
    if not all(path.is_file() for path in kept.values()):
        return ""
    there = {path.resolve() for path in files.values()}
    beside = origin.resolve().rglob("*") if top and top.submodule_search_locations else ()
    if any(path.is_file() and path not in there and not _is_compiled(path.as_posix()) for path in beside):
        return ""  # an installer need not say that it put them there
    lines = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}\n" for name, path in sorted(kept.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _is_varying(name: str, programs: Collection[str]) -> bool:
    """Return whether a distribution's file is made where that is installed, as those are that start its
    ``programs``.
    """
    folder, _, last = name.rpartition("/")
    made = folder.endswith(".dist-info") and last in VARYING
    return made or _is_compiled(name) or (folder.startswith("..") and last in programs)


def _is_compiled(name: str) -> bool:
    """Return whether a file is what Python makes of a source beside it, and no module of its own."""
    return bool(re.search(r"/__pycache__/[^/]+\.[\w-]+(\.opt-\w+)?\.pyc$", f"/{name}"))
