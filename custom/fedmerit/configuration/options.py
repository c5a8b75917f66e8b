"""Options of the form KIND or KIND:NAME=VALUE,NAME=VALUE, each kind a frozen dataclass of its parameters."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from fedmerit.configuration.run import build
from fedmerit.errors import BadInput


def parse(spec: str, kinds: Mapping[str, type[Any]], option: str) -> Any:
    """The dataclass that a spec describes, complete with its defaults.

    Raises:
        BadInput: the kind or a parameter is unknown, or a value is none for it.
    """
    kind, _, rest = spec.partition(":")
    if kind not in kinds:
        raise BadInput(f"{option} {spec}: unknown; expected one of {', '.join(kinds)}")
    values = {}
    for part in filter(None, rest.split(",")):
        name, equals, value = part.partition("=")
        known = [one.name for one in fields(kinds[kind])]
        if not equals or name not in known or name in values:
            raise BadInput(
                f"{option} {spec}: {part!r}: expected NAME=VALUE, each once, of {', '.join(known) or 'no parameters'}"
            )
        values[name] = value
    return build(kinds[kind], values, f"{option} {spec}")


def text_of(one: Any, kinds: Mapping[str, type[Any]]) -> str:
    """The spec of such a dataclass; `parse` gives it back."""
    kind = next(name for name, known in kinds.items() if known is type(one))
    return ":".join(filter(None, [kind, ",".join(f"{name}={value}" for name, value in vars(one).items())]))
