"""Messages as NVFlare carries them, and their inspection: both follow from the fields of `fedmerit.schema.messages`.

Every message has one form: its parameters by name, which NVFlare's filters may change, and a table of all other fields
with the entry "kind". Reading and judging an answer are two steps, since the local engine only needs the second.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError
from torch import nn

from fedmerit.contract import flat
from fedmerit.errors import BadInput
from fedmerit.schema.messages import ANSWERS, WORK, Failure, Params, PeerModel
from fedmerit.schema.rules import Message, parts_of
from fedmerit.schema.tensors import Context, Expected, Shapes

KIND = "kind"  # the entry that names a message's class
KINDS: Mapping[str, type[Message]] = {kind.__name__: kind for kind in (*WORK, *ANSWERS, PeerModel)}
UNREADABLE = (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError)


@cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    """Return pydantic's adapter of a message; making one takes longer than all its checks."""
    return TypeAdapter(kind)


@cache
def params_field(kind: Any) -> str | None:
    """Return the name of the field that is carried as parameters, or None."""
    return next((part.name for part in parts_of(kind) if part.mark(Params)), None)


def _shapes(network: nn.Module) -> Shapes:
    return {name: tuple(parameter.shape) for name, parameter in flat.trainable(network).items()}


def encode(message: Message, network: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a message as parameters by name and a table of its other fields, without copies of models.

    Args:
        message: of one of the `KINDS`.
        network: whose parameters name the parts of vectors.
    """
    kind: Any = type(message)
    fields = adapter(kind).dump_python(message, context=Context(_shapes(network)), warnings=False)
    name = params_field(kind)
    params = fields.pop(name) if name else {}
    return params, {KIND: kind.__name__, **fields}


def decode(params: object, fields: object, network: nn.Module, kinds: tuple[type[Message], ...]) -> Any:
    """Return the message that `encode` took apart; what it says is not judged yet.

    Args:
        params: the parameters by name.
        fields: the table of the other fields; entries of no field are ignored.
        network: whose parameters name the parts of vectors.
        kinds: the expected kinds of messages.

    Raises:
        BadInput: it is no such message; the text names the field and has no control characters.
    """
    name = fields.get(KIND) if isinstance(fields, Mapping) else None
    kind: Any = next((kind for kind in kinds if kind.__name__ == name), None)
    if kind is None or not isinstance(fields, Mapping):
        raise BadInput(f"no message of a kind that is expected here ({' or '.join(kind.__name__ for kind in kinds)})")
    carried = params_field(kind)
    content = {**fields, **({carried: params} if carried else {})}
    names = [part.name for part in parts_of(kind)]
    if lacking := [part for part in names if part not in content]:
        raise BadInput(f"{name} lacks {lacking[0]}")
    try:
        wanted = {part: content[part] for part in names}
        return adapter(kind).validate_python(wanted, context=Context(shapes=_shapes(network)))
    except ValidationError as error:
        raise BadInput(explain(kind, error)) from None
    except UNREADABLE as error:
        raise BadInput(f"{name} cannot be read ({type(error).__name__})") from None


def inspect(answer: object, kind: Any, expected: Expected) -> str | None:
    """Return why an answer cannot be used, in one line, or None.

    Args:
        answer: of a site.
        kind: the expected kind of message.
        expected: the sizes, names and ranges of this task, by the symbols that the rules of the fields name.
    """
    if not isinstance(answer, kind):
        return answer.reason if isinstance(answer, Failure) else f"no answer to the task ({type(answer).__name__})"
    try:
        adapter(kind).validate_python(answer, strict=True, context=Context(expected=expected))
        answer.judge(expected)
    except ValidationError as error:
        return explain(kind, error)
    except PydanticCustomError as error:
        return f"{kind.__name__}: {error.message()}"
    except UNREADABLE as error:
        return f"{kind.__name__} cannot be checked ({type(error).__name__})"
    return None


def explain(kind: type, error: ValidationError) -> str:
    """Return the first thing that is wrong with a message, in one line: the field, what is there, what is expected.

    Of the sender's own words only names of entries are shown, quoted and cut.
    """
    first = error.errors(include_url=False)[0]
    place = ".".join([kind.__name__, *(_step(step) for step in first["loc"] if step != "[key]")])
    if first["type"] == "missing":
        return f"{place} is missing"
    if first["type"] != "expected":
        return f"{place}: {first['msg']}"
    found = first["input"]
    shown = f"{found!s:.20}" if isinstance(found, int | float) else type(found).__name__
    return f"{place}: {shown}, {first['msg']}"


def _step(step: str | int) -> str:
    return str(step) if isinstance(step, int) or (step.isidentifier() and len(step) <= 40) else f"{step!r:.40}"
