"""Parameters that carry their range and text, and are checked in one place."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from fedmerit import plugins


@dataclass(frozen=True)
class Rule:
    """What a parameter may be. Bounds are of numbers, which are finite, and hold for every number of a tuple."""

    low: float = -math.inf  # at least
    high: float = math.inf  # at most
    above: float = -math.inf  # more than
    below: float = math.inf  # less than
    choices: Sequence[str] = ()
    others: str = ""  # the group of `fedmerit.plugins` whose names are choices too
    text: str = ""  # what it is

    def allows(self, value: Any) -> bool:
        """Whether ``value`` follows the rule; None does, unless there are choices."""
        if self.choices:
            return value in self.choices or bool(self.others and plugins.is_name(self.others, str(value)))
        if isinstance(value, (tuple, list)):
            return all(map(self.allows, value))
        if not isinstance(value, (int, float)):
            return True
        return self.low <= value <= self.high and self.above < value < self.below  # no NaN, and nothing infinite

    def expected(self) -> str:
        """The rule in words: "0 to 1", "above 0", "one of a, b"."""
        if self.choices:
            return f"one of {', '.join(self.choices)}" + (", or a part of that name" if self.others else "")
        if self.low > -math.inf and self.high < math.inf:
            return f"{self.low:g} to {self.high:g}"
        bounds = [
            f"above {self.above:g}" if self.above > -math.inf else "",
            f"{self.low:g} or more" if self.low > -math.inf else "",
            f"below {self.below:g}" if self.below < math.inf else "",
            f"at most {self.high:g}" if self.high < math.inf else "",
        ]
        return ", ".join(filter(None, bounds)) or "a finite number"


def parameter(default: Any, text: str, **rule: Any) -> Any:
    """A dataclass field that says what it is and may be.

    Args:
        default: its default value; `dataclasses.MISSING`: none; ``dict``: an empty one.
        text: what it is.
        **rule: the bounds or choices of its `Rule`.
    """
    metadata = {"rule": Rule(text=text, **rule)}
    return (
        field(default_factory=dict, metadata=metadata) if default is dict else field(default=default, metadata=metadata)
    )


def rules(kind: Any) -> dict[str, Rule]:
    """The rule of every field of a dataclass that has one, by name."""
    return {one.name: one.metadata["rule"] for one in fields(kind) if "rule" in one.metadata}


def check(parameters: Any) -> None:
    """`ValueError` if a field of a dataclass does not follow its rule; it names the field and what was expected."""
    for one in fields(parameters):
        value, rule = getattr(parameters, one.name), one.metadata.get("rule")
        if rule and not rule.allows(value):
            each = "each " if isinstance(value, (tuple, list)) else ""
            raise ValueError(f"{one.name.removesuffix('_')}={value!r}: expected {each}{rule.expected()}")


@dataclass(frozen=True)
class Checked:
    """Base of frozen dataclasses whose parameters are checked when one is made.

    Raises:
        ValueError: a parameter does not follow its rule.
    """

    def __post_init__(self) -> None:
        check(self)
