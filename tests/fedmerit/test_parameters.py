"""Parameters with a range and a text: what passes, and what is said of the rest."""

import math
from dataclasses import MISSING, FrozenInstanceError, dataclass

import pytest

from fedmerit.parameters import Checked, Rule, parameter, rules


@dataclass(frozen=True)
class Some(Checked):
    share: float = parameter(0.5, "of all", above=0, high=1)
    memory: float = parameter(0.5, "of the past", low=0, below=1)
    count: int = parameter(3, "of them", low=1, high=9)
    bound: float | None = parameter(None, "of an entry; None: none", above=0)
    each: tuple[float, ...] = parameter((), "one for each", low=0, high=1)
    kind: str = parameter("plain", "how", choices=("plain", "other"))
    fast: bool = parameter(True, "whether")
    any: float = parameter(0.0, "any number")
    free: object = None


ALLOWED = [
    *({"share": value} for value in (1e-9, 1, 1.0)),
    *({"memory": value} for value in (0, 0.999)),
    *({"count": value} for value in (1, 9)),
    *({"bound": value} for value in (None, 1e9)),
    *({"each": value} for value in ((), (0.0, 1.0), [0.5])),
    {"kind": "other"},
    {"fast": False},
    {"any": -1e300},
    {"free": math.nan},
]
REFUSED = [
    ({"share": 0.0}, "share=0.0: expected above 0, at most 1"),
    ({"share": 1.5}, "share=1.5: expected above 0, at most 1"),
    ({"share": math.nan}, "share=nan: expected above 0, at most 1"),
    ({"memory": 1.0}, "memory=1.0: expected 0 or more, below 1"),
    ({"memory": -0.1}, "memory=-0.1: expected 0 or more, below 1"),
    ({"count": 0}, "count=0: expected 1 to 9"),
    ({"count": 10**400}, "expected 1 to 9"),
    ({"bound": 0.0}, "bound=0.0: expected above 0"),
    ({"bound": math.inf}, "bound=inf: expected above 0"),
    ({"each": (0.5, 81.0)}, "each=(0.5, 81.0): expected each 0 to 1"),
    ({"each": (math.nan,)}, "each=(nan,): expected each 0 to 1"),
    ({"kind": "none"}, "kind='none': expected one of plain, other"),
    ({"kind": ""}, "kind='': expected one of plain, other"),
    ({"any": math.inf}, "any=inf: expected a finite number"),
    ({"any": math.nan}, "any=nan: expected a finite number"),
]


@pytest.mark.parametrize("values", ALLOWED, ids=str)
def test_what_follows_its_rule_passes(values):
    assert vars(Some(**values)) == vars(Some()) | values or "free" in values


@pytest.mark.parametrize(("values", "told"), REFUSED, ids=[told for _, told in REFUSED])
def test_what_does_not_is_named_with_what_was_expected(values, told):
    with pytest.raises(ValueError, match="expected") as error:
        Some(**values)
    assert told in str(error.value)


def test_rules_are_those_of_fields_that_have_one():
    assert list(rules(Some)) == ["share", "memory", "count", "bound", "each", "kind", "fast", "any"]
    assert rules(Some)["count"] == Rule(low=1, high=9, text="of them")


def test_a_parameter_may_have_no_default():
    @dataclass(frozen=True)
    class Needed(Checked):
        number: int = parameter(MISSING, "that has to be given", low=1)

    assert Needed(1).number == 1
    with pytest.raises(TypeError):
        Needed()
    with pytest.raises(ValueError, match="number=0: expected 1 or more"):
        Needed(0)
    with pytest.raises(FrozenInstanceError):
        Needed(1).number = 0
