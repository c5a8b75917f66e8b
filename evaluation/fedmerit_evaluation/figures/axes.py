"""Axes of the pictures that a page draws itself, as SVG, and the marks of trainings on them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite

from matplotlib.ticker import MaxNLocator

REACH = 3.0  # interval ends are drawn as far as so many times the largest value; an arrow says that they reach further


@dataclass(frozen=True)
class Axis:
    """A horizontal axis with marked numbers."""

    ticks: tuple[float, ...]  # ascending; the first and the last are its ends

    @property
    def low(self) -> float:
        """The number at the left end."""
        return self.ticks[0]

    @property
    def high(self) -> float:
        """The number at the right end."""
        return self.ticks[-1]

    def holds(self, value: float) -> bool:
        """Return whether a number is on the axis."""
        return self.low <= value <= self.high

    def place(self, value: float) -> str:
        """Return the place of a number in percent of the width; an end for numbers beyond it."""
        part = (value - self.low) / (self.high - self.low)
        return f"{100 * min(max(part, 0.0), 1.0):.2f}%"


def axis_of(values: Iterable[float], ends: Iterable[float] = (), *, zero: bool = False, ticks: int = 5) -> Axis:
    """Return an axis that holds all values, and the ends of their intervals if these reach not too far.

    Args:
        values: numbers to show; not finite ones are left out.
        ends: ends of intervals.
        zero: whether the axis has to hold 0.
        ticks: about how many steps there are between marked numbers.
    """
    shown = [value for value in values if isfinite(value)] or [0.0]
    low, high = min(shown + [0.0] * zero), max(shown + [0.0] * zero)
    reach = REACH * max(high - low, abs(high), abs(low)) if zero else REACH * (high - low)
    known = [end for end in ends if isfinite(end)]
    low = min([low, *(max(end, low - reach) for end in known)])
    high = max([high, *(min(end, high + reach) for end in known)])
    if low == high:
        low, high = low - 1, high + 1
    places = MaxNLocator(nbins=ticks, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    return Axis(tuple(float(round(place, 9)) + 0.0 for place in places))


@dataclass(frozen=True)
class Mark:
    """A training in pictures: colour and shape are the same in all of them, and the shape differs without colour."""

    label: str  # of the training
    name: str  # that is shown
    style: str  # class of the stylesheet
    shape: str  # of the template svg.html.j2

    @property
    def identifier(self) -> str:
        """The name of the training in attributes of the page."""
        return self.style


FEDERATED = (("c1", "dot"), ("c2", "diamond"), ("c3", "triangle"), ("c4", "down"), ("c5", "cross"), ("c6", "plus"))


def mark_trainings(local: str, federated: Sequence[str], pooled: Sequence[str]) -> dict[str, Mark]:
    """Return the marks by label.

    Args:
        local: the label of local training.
        federated: the labels of at most as many methods as there are marks, the most important one first.
        pooled: the labels of training with all images in one place, at most one.
    """
    marks = {local: Mark(local, "local", "local", "ring")}
    marks |= {label: Mark(label, label, *FEDERATED[place]) for place, label in enumerate(federated)}
    return marks | {label: Mark(label, label, "pooled", "square") for label in pooled}
