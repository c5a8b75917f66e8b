"""Rules of tensors in messages: shapes and types, how they are carried, and what their entries may be.

A rule says what always holds. What differs by run (sizes, names, ranges) a rule refers to by a symbol, such as "d" for
the number of trainable parameters. The receiver puts the value of every symbol into `Context.expected`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic_core import core_schema
from torch import Tensor

from fedmerit.contract.flat import Buffers
from fedmerit.contract.vectors import extremes
from fedmerit.schema.rules import Rule, fault

Expected = Mapping[str, Any]
Shapes = Mapping[str, tuple[int, ...]]
Arrays = Mapping[str, NDArray[Any]]
NUMPY = {torch.float32: np.float32, torch.float64: np.float64, torch.int32: np.int32}


@dataclass(frozen=True)
class Context:
    """The knowledge of a validation: the shapes of parameters to read a message, or what is expected to judge it."""

    shapes: Shapes | None = None  # by parameter name, in the order of the vector; None: the message is not read
    expected: Expected | None = None  # by symbol; None: the message is not judged


@dataclass(frozen=True)
class Check(Rule):
    """A rule that judges a value, after its type was checked."""

    judge: Callable[[Any, Expected], None]  # raises a `fault` if the value breaks the rule
    text: str = ""  # what is allowed, in words

    def words(self) -> str:
        """Return what is allowed."""
        return self.text

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        def run(value: Any, info: Any) -> Any:
            if info.context is not None and info.context.expected is not None:
                self.judge(value, info.context.expected)
            return value

        return core_schema.with_info_after_validator_function(run, handler(source))


class Carried(Rule):
    """A base class of rules of tensors, which know the form that messages carry."""

    is_payload: bool = True  # whether the tensors are models or statistics, whose bytes count

    def pack(self, value: Any, shapes: Shapes) -> Any:
        """Return the form in which messages carry the value, without copies of large arrays."""
        raise NotImplementedError

    def unpack(self, value: Any, shapes: Shapes) -> Any:
        """Return the value of what a message carried, copied."""
        raise NotImplementedError

    def check(self, value: Any, expected: Expected) -> None:
        """Raise a `fault` if the value has another form than expected."""
        raise NotImplementedError

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        def read(value: Any, info: Any) -> Any:
            context: Context = info.context
            read = value if context.shapes is None else self.unpack(value, context.shapes)
            if context.expected is not None:
                self.check(read, context.expected)
            return read

        def write(value: Any, info: Any) -> Any:
            return self.pack(value, info.context.shapes)

        serialization = core_schema.plain_serializer_function_ser_schema(write, info_arg=True)
        return core_schema.with_info_plain_validator_function(read, serialization=serialization)


def _require(tensor: Any, axes: tuple[str, ...], dtype: torch.dtype | None, expected: Expected) -> None:
    if not isinstance(tensor, Tensor):
        fault(f"{type(tensor).__name__}, expected a tensor")
    sizes = tuple(expected.get(axis, axis) for axis in axes)  # an axis of no expected size has any
    fits = tensor.ndim == len(sizes) and all(
        size in (axis, *axes) for size, axis in zip(sizes, tensor.shape, strict=True)
    )
    if not fits or dtype not in (tensor.dtype, None):
        wanted = f"({', '.join(map(str, sizes))})" + (f" and {dtype}" if dtype else "")
        fault(f"shape {tuple(tensor.shape)} and {tensor.dtype}, expected {wanted}")


@dataclass(frozen=True, init=False)
class Axes(Carried):
    """A small tensor, carried as one array. Each axis is a symbol."""

    axes: tuple[str, ...]
    dtype: torch.dtype | None  # None: any, carried in float64
    is_payload: bool

    def __init__(self, *axes: str, dtype: torch.dtype | None = torch.float64, is_payload: bool = False):
        for name, value in {"axes": axes, "dtype": dtype, "is_payload": is_payload}.items():
            object.__setattr__(self, name, value)

    def pack(self, value: Tensor, shapes: Shapes) -> NDArray[Any]:
        """Return the array that shares the tensor's memory."""
        return value.numpy() if self.dtype else value.double().numpy()

    def unpack(self, value: Any, shapes: Shapes) -> Tensor:
        """Return a copy of the array as a tensor."""
        if not isinstance(value, np.ndarray) or value.dtype != NUMPY[self.dtype or torch.float64]:
            fault(f"{type(value).__name__}, expected an array {self.words()}")
        return torch.from_numpy(np.array(value))

    def check(self, value: Any, expected: Expected) -> None:
        """Raise a `fault` if shape or type differ."""
        _require(value, self.axes, self.dtype, expected)

    def words(self) -> str:
        """Return the shape and the type of the entries."""
        dtype = str(self.dtype or torch.float64).removeprefix("torch.")
        return f"({', '.join(self.axes)}{',' * (len(self.axes) == 1)}) {dtype}"


@dataclass(frozen=True)
class Bits(Carried):
    """A boolean vector, carried as one bit an entry."""

    def pack(self, value: Tensor, shapes: Shapes) -> list[Any]:
        """Return the packed bits and their number."""
        return [np.packbits(value.numpy()), len(value)]

    def unpack(self, value: Any, shapes: Shapes) -> Tensor:
        """Return the boolean vector."""
        bits, count = value if isinstance(value, list | tuple) and len(value) == 2 else (None, 0)
        if not isinstance(bits, np.ndarray) or (bits.dtype, bits.ndim) != (np.uint8, 1):
            fault("no bits with their number")
        if type(count) is not int or not 0 <= count <= 8 * len(bits):  # NumPy would pad to any count
            fault(f"{count!s:.20} bits in {len(bits)} bytes")
        return torch.from_numpy(np.unpackbits(bits, count=count).astype(bool))

    def check(self, value: Any, expected: Expected) -> None:
        """Raise a `fault` if the value is no boolean vector."""
        _require(value, ("H",), torch.bool, expected)

    def words(self) -> str:
        """Return the shape and the type of the entries."""
        return "(H,) bool"


@dataclass(frozen=True)
class Vector(Carried):
    """A vector (d,) of trainable parameters in float32, carried as arrays by parameter name."""

    or_empty: bool = False  # whether (0,) may replace it: the receiver has the vector, or shall not have it

    def pack(self, value: Tensor, shapes: Shapes) -> dict[str, NDArray[Any]]:
        """Return views of the vector by parameter name; nothing of an empty vector."""
        if self.or_empty and not len(value):
            return {}
        pieces = torch.split(value, [math.prod(shape) for shape in shapes.values()])
        return {name: piece.view(shape).numpy() for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}

    def unpack(self, value: Any, shapes: Shapes) -> Tensor:
        """Return the vector of arrays by parameter name, with one copy."""
        if not isinstance(value, Mapping):
            fault(f"{type(value).__name__}, expected arrays by parameter name")
        if self.or_empty and not value:
            return torch.empty(0)
        if set(value) != set(shapes):
            fault("other parameter names than the model's")
        vector, start = np.empty(sum(map(math.prod, shapes.values())), np.float32), 0
        for name, shape in shapes.items():
            array = value[name]
            if not isinstance(array, np.ndarray) or (array.shape, array.dtype) != (tuple(shape), np.float32):
                form = f"{array.shape} and {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
                fault(f"{name} of shape {form}, expected {tuple(shape)} and float32")
            vector[start : start + array.size] = array.reshape(-1)
            start += array.size
        return torch.from_numpy(vector)

    def check(self, value: Any, expected: Expected) -> None:
        """Raise a `fault` if shape or type differ."""
        _require(value, ("d",), torch.float32, expected)

    def words(self) -> str:
        """Return the shape and the type of the entries."""
        return "(d,) float32"


@dataclass(frozen=True)
class Vectors(Vector):
    """A stack (m, d) of vectors, carried as a list of arrays by parameter name; (1, 0) if the receiver has its own."""

    def pack(self, value: Tensor, shapes: Shapes) -> Any:
        """Return the list of views of the rows by parameter name."""
        row = Vector(or_empty=True)
        return [row.pack(vector, shapes) for vector in value]

    def unpack(self, value: Any, shapes: Shapes) -> Tensor:
        """Return the stack of rows."""
        if not isinstance(value, list | tuple) or not value:
            fault(f"{type(value).__name__}, expected a list of vectors")
        row = Vector(or_empty=len(value) == 1)
        return torch.stack([row.unpack(vector, shapes) for vector in value])

    def check(self, value: Any, expected: Expected) -> None:
        """Raise a `fault` if shape or type differ."""
        _require(value, ("m", "d"), torch.float32, expected)

    def words(self) -> str:
        """Return the shape and the type of the entries."""
        return "(m, d) float32"


@dataclass(frozen=True)
class Statistics(Carried):
    """The BatchNorm statistics and counters of a network: arrays by name, with the model's names, shapes and types."""

    def pack(self, value: Buffers, shapes: Shapes) -> dict[str, NDArray[Any]]:
        """Return arrays by name that share the tensors' memory."""
        return {name: tensor.numpy() for name, tensor in value.items()}

    def unpack(self, value: Any, shapes: Shapes) -> Buffers:
        """Return copies of the arrays as tensors by name."""
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            fault(f"{type(value).__name__}, expected arrays by name")
        try:
            return {name: torch.from_numpy(np.array(array)) for name, array in value.items()}
        except (TypeError, ValueError, RuntimeError):
            fault("something else than arrays of numbers")

    def check(self, value: Any, expected: Expected) -> None:
        """Raise a `fault` if names, shapes or types differ from those expected."""
        if "buffers" in expected and _forms(value) != _forms(expected["buffers"]):
            fault("other names, shapes or types than the model's")

    def words(self) -> str:
        """Return the form in words."""
        return "names, shapes and types of the model's"


def _forms(buffers: Buffers) -> dict[str, Any]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in buffers.items()}


def max_abs(largest: float) -> Check:
    """Return a bound of the magnitude of all entries, which are finite; every entry is read once."""

    def judge(value: Tensor | Buffers, expected: Expected) -> None:
        for tensor in (value,) if isinstance(value, Tensor) else value.values():
            low, high = extremes(tensor)
            if not (math.isfinite(low) and math.isfinite(high)):
                fault("NaN or infinite entries")
            if max(-low, high) > largest:
                fault(f"entries beyond {largest:g}")

    return Check(judge, f"finite, up to {largest:g}")


class WholeCounts(Check):
    """A bound of all entries, which are whole numbers from 0 on."""

    def __init__(self, largest: float):
        words = f"whole numbers from 0 to {largest:g}"

        def judge(value: Tensor, expected: Expected) -> None:
            if not bool(((value >= 0) & (value <= largest) & (value == value.round())).all()):
                fault(f"entries that are no counts, {words}")

        super().__init__(judge, words)


def not_negative(endings: tuple[str, ...]) -> Check:
    """Return the rule that tensors by name are at least 0 if their names have one of the ``endings``."""

    def judge(value: Buffers, expected: Expected) -> None:
        if any(bool((tensor < 0).any()) for name, tensor in value.items() if name.endswith(endings)):
            fault("a negative variance or count")

    return Check(judge)


def keys(names: str | tuple[str, ...], all: bool = False) -> Check:
    """Return a rule of the names of a mapping.

    Args:
        names: the names, or the symbol of the expected ones.
        all: whether each name has to be there.
    """

    def judge(value: Mapping[str, Any], expected: Expected) -> None:
        allowed = expected.get(names) if isinstance(names, str) else names
        if allowed is None:
            return
        if all and set(value) != set(allowed):
            fault(f"{len(value)} names, expected {', '.join(allowed) or 'none'}")
        if unknown := [name for name in value if name not in allowed]:
            fault(f"{unknown[0]!r:.40}, which is none of the {names}")

    return Check(judge, f"by {'each of ' * all}{names if isinstance(names, str) else ', '.join(names)}")


def ranges(symbol: str) -> Check:
    """Return a rule of numbers by quantity, within the expected ranges by name, those of the method."""

    def judge(value: Mapping[str, Any], expected: Expected) -> None:
        for name, entry in value.items():
            if name not in expected[symbol]:
                fault(f"{name!r:.40}, which the method does not ask for")
            low, high = expected[symbol][name]
            for number in entry.values() if isinstance(entry, Mapping) else (entry,):
                if not low <= number <= high:
                    fault(f"{name} {number}, expected {low:g} to {high:g}")

    return Check(judge, "by quantity, in the range that the method declares")


def at_most(symbol: str) -> Check:
    """Return the rule that a count is no larger than an expected one."""

    def judge(value: int, expected: Expected) -> None:
        if value > expected[symbol]:
            fault(f"{value}, expected at most {expected[symbol]}")

    return Check(judge, f"up to the expected {symbol}")


def equal(symbol: str) -> Check:
    """Return the rule that a value is the expected one."""

    def judge(value: Any, expected: Expected) -> None:
        if value != expected[symbol]:
            fault(f"{value!s:.20}, expected {expected[symbol]}")

    return Check(judge, f"the expected {symbol}")


def as_many_as(symbol: str) -> Check:
    """Return the rule that there are as many entries as expected."""

    def judge(value: Any, expected: Expected) -> None:
        if len(value) != expected[symbol]:
            fault(f"{len(value)} {symbol}, expected {expected[symbol]}")

    return Check(judge, f"as many as {symbol}")


def most_entries(most: int) -> Check:
    """Return a bound of the number of entries."""

    def judge(value: Any, expected: Expected) -> None:
        if len(value) > most:
            fault(f"{len(value)} entries, expected at most {most}")

    return Check(judge, f"at most {most}")
