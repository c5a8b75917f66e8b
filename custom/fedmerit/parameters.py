"""Parameters that carry their range and text, and are checked in one place."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class Rule:
    """What a parameter may be. Bounds hold for every number of a tuple; None passes where it is the default."""

    low: float = -math.inf  # at least
    high: float = math.inf  # at most
    above: float = -math.inf  # more than
    below: float = math.inf  # less than
    choices: Sequence[str] = ()
    text: str = ""  # what it is

    def allows(self, value: Any) -> bool:
        """Whether ``value`` follows the rule."""
        if self.choices:
            return value in self.choices
        if isinstance(value, (tuple, list)):
            return all(self.allows(one) for one in value)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            finite = math.isfinite(value) or self == Rule(text=self.text)
            return finite and self.low <= value <= self.high and self.above < value < self.below
        return True

    def expected(self) -> str:
        """The rule in words: "0 to 1", "above 0", "one of a, b"."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
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
    """A dataclass field with a default, a text that says what it is, and a `Rule`: low, high, above, below, choices."""
    return field(default=default, metadata={"rule": Rule(text=text, **rule)})


def rules(kind: Any) -> dict[str, Rule]:
    """The rule of every field of a dataclass that has one, by name."""
    return {one.name: one.metadata["rule"] for one in fields(kind) if "rule" in one.metadata}


def check(parameters: Any) -> None:
    """`ValueError` where a field of a dataclass does not follow its rule; a field's default always does."""
    for one in fields(parameters):
        value, rule = getattr(parameters, one.name), one.metadata.get("rule")
        if rule and value != one.default and not rule.allows(value):
            raise ValueError(f"{one.name.removesuffix('_')}={value!r}: expected {rule.expected()}")


class Checked:
    """Base of frozen dataclasses whose parameters are checked when one is made.

    Raises:
        ValueError: a parameter does not follow its rule; the message names it and what was expected.
    """

    def __post_init__(self) -> None:
        check(self)
