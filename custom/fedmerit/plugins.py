"""Plugins: methods, networks, losses and the like from other packages, without a change to this one.

A part has a name in one of `GROUPS`. It comes from an installed distribution, by a Python entry point of the group
``fedmerit.GROUP``; or from a script that calls `register`, which every process of a run imports again (`SCRIPTS`); or
a setting names it as ``package.module:name``, except attacks and observers, in whose specs a colon begins the options.
FedMerit's own parts come first: no other can replace them. What only a record names is not imported (`fedmerit.trust`).

On a machine of a deployed federation nothing is imported that is not approved there: the manifest in its kit names
each part with the SHA-256 of the distribution, or of the script, that holds it.
"""

import importlib
import importlib.util
import inspect
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from functools import cache
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, distributions, entry_points, requires
from pathlib import Path
from typing import Any, TypeVar

from fedmerit.errors import BadInput, require_known
from fedmerit.plugin_references import (
    SCRIPTS,
    Reference,
    imported_digest,
    installed_reference,
    refusal,
    script_reference,
)
from fedmerit.trust import NAMED, require_trusted

GROUPS = (
    "methods",
    "networks",
    "losses",
    "optimizers",
    "readers",
    "attacks",
    "metrics",
    "observers",
    "estimators",
    "detectors",
)
APPROVED = "FEDMERIT_APPROVED"  # variable of a deployed machine: JSON of SHA-256 by reference; not set: all may be used
WITH_PARTS = ("torch", "monai")  # of the packages that FedMerit needs

T = TypeVar("T")
_registered: dict[tuple[str, str], Any] = {}
_imported: set[str] = set()  # scripts


class Catalogue(MutableMapping[str, T]):
    """A mapping of parts by name: ours, and those that others bring, each loaded when it is asked for.

    Args:
        group: one of `GROUPS`.
        own: ours.
        fits: whether an object can be such a part.
        expected: what ``fits`` wants, for messages.
    """

    def __init__(self, group: str, own: Mapping[str, T], fits: Callable[[Any], bool], expected: str):
        self.group, self._own, self._fits, self.expected = group, dict(own), fits, expected
        self._loaded: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name in self._own:
            return self._own[name]
        if name not in self._loaded:
            part = load(self.group, name)
            if not self._fits(part):
                raise BadInput(f"{self.group}: {name!r} is {part!r}; expected {self.expected}")
            self._loaded[name] = part
        return self._loaded[name]

    @property
    def ours(self) -> list[str]:
        """The names of the parts that the distribution of FedMerit brings, the laboratory's among them.

        None is loaded.
        """
        return [*self._own, *sorted(own_entries(self.group).keys() - self._own.keys())]

    def loaded(self) -> list[T]:
        """Return our parts, and of the others those that this process has loaded."""
        return [*self._own.values(), *self._loaded.values()]

    def __setitem__(self, name: str, part: T) -> None:
        self._own[name] = part

    def __delitem__(self, name: str) -> None:
        del self._own[name]

    def __iter__(self) -> Iterator[str]:
        ours = self.ours
        yield from ours
        yield from (name for name in names(self.group) if name not in ours)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def get_part(catalogue: Catalogue[T], name: str, what: str) -> T:
    """Return a part of a catalogue; `BadInput` that lists them if there is none of this name."""
    try:
        return catalogue[name]
    except KeyError:
        there = f"one of {', '.join(catalogue)}" if len(catalogue) else "module:name; no package here brings one"
        raise BadInput(f"{what} {name!r}: unknown; expected {there}") from None


def register(group: str, name: str) -> Callable[[T], T]:
    """Return a decorator of a part in a script of yours: ``@register("methods", "mine")``.

    Every process of a run imports the script again, so put all else that it does under
    ``if __name__ == "__main__":``.

    Raises:
        BadInput: there is no such group.
    """
    require_known("group", [group], GROUPS)

    def remember(part: T) -> T:
        _registered[group, name] = part
        file = inspect.getsourcefile(inspect.stack()[1].frame)
        if file and Path(file).is_file():
            _imported.add(str(Path(file).resolve()))
            use_scripts([file])
        return part

    return remember


def scripts() -> list[str]:
    """Return the scripts that child processes import, absolute."""
    return [str(Path(path).resolve()) for path in os.environ.get(SCRIPTS, "").split(os.pathsep) if path]


def use_scripts(paths: list[str]) -> None:
    """Have this process and its children import further scripts."""
    absolute = [str(Path(path).resolve()) for path in paths]
    os.environ[SCRIPTS] = os.pathsep.join(dict.fromkeys([*scripts(), *absolute]))


def script_digests() -> dict[str, str]:
    """Return, by path of a script that child processes import, the SHA-256 of what an import of it executes."""
    return {path: imported_digest(path) for path in scripts()}


def require_given(recorded: Mapping[str, str], record: Path) -> None:
    """Raise `BadInput` if a ``record``, which may be by others, names scripts that this process was not given as
    before.

    Args:
        recorded: as of `script_digests`.
        record: the file.
    """
    given = scripts()
    if others := [path for path in recorded if str(Path(path).resolve()) not in given]:
        wanted = os.pathsep.join(dict.fromkeys([*given, *others]))
        raise BadInput(
            f"{record}: names {others[0]} as a script of own parts, which is not imported unless you name it, too; "
            f"look at it, then give the same command with {SCRIPTS}={shlex.quote(wanted)} before it"
        )
    for path, digest in recorded.items():
        if imported_digest(path) != digest:
            raise BadInput(
                f"{path}: was changed since {record} was written, and not only the code under "
                'if __name__ == "__main__"; put back what it was, or start another run'
            )


def names(group: str) -> list[str]:
    """Return the names of the parts that others bring, sorted; only scripts load any."""
    _import_scripts()
    found = {name for of, name in _registered if of == group} | {
        one.name for one in entry_points(group=_entries(group))
    }
    return sorted(found)


@cache
def own_entries(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of FedMerit's own distribution by name: its laboratory, which needs no approval."""
    return {one.name: one for one in entry_points(group=_entries(group)) if one.dist and one.dist.name == "fedmerit"}


def is_name(group: str, name: str) -> bool:
    """Return whether ``name`` may be a part of others; nothing of a distribution is loaded."""
    return bool(NAMED.fullmatch(name)) or name in names(group)


def load(group: str, name: str) -> Any:
    """Load a part of others.

    Raises:
        KeyError: there is none of this name.
        BadInput: it is not approved here, only a record names it, it cannot be imported, or several distributions have
            one of this name.
    """
    if own := own_entries(group).get(name):
        return own.load()
    _import_scripts()
    if (group, name) in _registered:
        return _registered[group, name]
    reference = find_reference(group, name)
    if reference is None:
        raise KeyError(name)
    if NAMED.fullmatch(name) and _brings_no_parts(name):
        raise BadInput(
            f"{group}: {name!r}: is of Python, of a program, or of a package that FedMerit needs for something else; "
            "nothing of them is imported only for its name: name a part of torch, monai or a package of your own"
        )
    if (approved := _approved()) is not None:
        if refused := refusal(reference, approved):
            raise BadInput(f"{group}: {name!r}: {refused}")
        _ignore_compiled_files()
    elif NAMED.fullmatch(name):
        require_trusted(name, group)
    module, _, attribute = reference.text.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # whatever that code raises on import
        raise BadInput(f"{group}: {name!r}: {reference} cannot be loaded ({type(error).__name__}: {error})") from error


def find_reference(group: str, name: str) -> Reference | None:
    """Return where the part of an installed distribution is; None: there is none of this name.

    Raises:
        BadInput: several distributions have one.
    """
    if NAMED.fullmatch(name):
        top = re.split(r"[.:]", name)[0]
        return installed_reference(name, next(iter(_holders(top)), None))
    found = {entry.value: entry for entry in entry_points(group=_entries(group), name=name)}
    if len(found) > 1:
        raise BadInput(f"{group}: {name!r} is the name of {' and of '.join(sorted(found))}; remove one of the packages")
    return next((installed_reference(value, entry.dist) for value, entry in found.items()), None)


def _brings_no_parts(name: str) -> bool:
    """Return whether the part of this ``name``, package.module:name, is of a program, or of a package that has none."""
    top, *others = re.split(r"[.:]", name)
    ours = top in WITH_PARTS or "fedmerit" in (one.name for one in _holders(top))
    return "__main__" in (top, *others) or (not ours and (top in sys.stdlib_module_names or _is_bundled(top)))


def _is_bundled(top: str) -> bool:
    """Return whether a top-level module is of what is installed with FedMerit."""
    from packaging.requirements import Requirement  # it would be a twentieth of the time of `fedmerit --help`
    from packaging.utils import canonicalize_name

    needed, waiting = set[str](), {"fedmerit"}
    while waiting:
        name = waiting.pop()
        needed.add(name)
        with suppress(PackageNotFoundError):
            waiting |= {canonicalize_name(Requirement(one).name) for one in requires(name) or ()} - needed
    return any(canonicalize_name(one.name) in needed for one in _holders(top))


def _holders(top: str) -> list[Distribution]:
    """Return the distributions that bring a top-level module; ``packages_distributions`` of all takes half a second."""
    file = re.compile(rf"^{top}(/.*)?\.py,", re.MULTILINE)
    all_named = ((one, (one.read_text("top_level.txt") or "").split()) for one in distributions())
    return [one for one, named in all_named if (top in named if named else file.search(one.read_text("RECORD") or ""))]


def approvable(text: str) -> Reference:
    """Return the part that `fedmerit deploy approve` names: ``package.module:name``, or a script.

    Raises:
        BadInput: there is no such part here, or it is not installed only from a wheel.
    """
    if text.endswith(".py"):
        path = Path(text).resolve()
        if not path.is_file():
            raise BadInput(f"{text}: no such file")
        return script_reference(str(path))
    if not NAMED.fullmatch(text):
        raise BadInput(f"{text}: expected package.module:name, or a script SCRIPT.py")
    reference = find_reference("methods", text)
    if reference is None or not reference.digest:
        raise BadInput(
            f"{text}: of no distribution that is installed here from a wheel, with nothing beside its files; "
            "pip install it again"
        )
    return reference


def _entries(group: str) -> str:
    return f"fedmerit.{group}"


def _approved() -> Mapping[str, str] | None:
    text = os.environ.get(APPROVED)
    return None if text is None else dict(json.loads(text or "{}"))


def _import_scripts() -> None:
    """Import the scripts that this process has not imported yet.

    If only approved parts may be used, the approved ones.
    """
    approved = _approved()
    paths = scripts() if approved is None else [text for text in approved if text.endswith(".py")]
    for path in paths:
        if path in _imported:
            continue
        script = script_reference(path)
        if approved is not None:
            if refused := refusal(script, approved):
                raise BadInput(refused)
            _ignore_compiled_files()
        _imported.add(path)
        spec = importlib.util.spec_from_file_location(f"fedmerit_script_{Path(path).stem}", path)
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            raise BadInput(f"{path}: cannot be imported ({type(error).__name__}: {error})") from error


def _ignore_compiled_files() -> None:
    """Have Python take no compiled file that lies beside a source for it: no digest is of those."""
    sys.pycache_prefix = os.devnull
