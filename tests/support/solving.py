"""What can be solved for: the least and the most that another site's number can be, by all that a page shows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

Key = tuple[str, str]  # quantity and method


@dataclass(frozen=True)
class Shown:
    """What is reported of one quantity of one method."""

    own: float
    median: tuple[float, float] | None = None  # the others' one lies between
    above: Sequence[int] | None = None  # how many others may lie above the own number
    whole: float | None = None  # what all sites' numbers sum to
    limits: tuple[float, float] = (0.0, 100.0)
    is_difference: tuple[Key, Key] | None = None  # of these two, site by site


@dataclass
class _Program:
    """A mixed-integer linear program in the making: rows ``low <= a x <= high``."""

    bounds: list[tuple[float, float]] = field(default_factory=list)
    integer: list[int] = field(default_factory=list)
    rows: list[tuple[dict[int, float], float, float]] = field(default_factory=list)

    def variable(self, low: float, high: float, *, integer: bool = False) -> int:
        self.bounds.append((low, high))
        self.integer.append(int(integer))
        return len(self.bounds) - 1

    def switches(self, variables: Sequence[int], edge: float, side: int, reach: float) -> list[int]:
        """A 0/1 variable for each: where it is 1, the number lies above (``side`` 1) or below (-1) the edge."""
        found = []
        for one in variables:
            switch = self.variable(0, 1, integer=True)
            # side (x - edge) >= -reach (1 - switch)
            self.rows.append(({one: side, switch: -reach}, side * edge - reach, np.inf))
            found.append(switch)
        return found

    def count(self, switches: Sequence[int], low: float, high: float = np.inf) -> None:
        self.rows.append((dict.fromkeys(switches, 1.0), low, high))

    def ends(self, variable: int) -> tuple[float, float]:
        """The least and the most that a variable can be."""
        matrix = np.zeros((len(self.rows), len(self.bounds)))
        for place, (parts, _, _) in enumerate(self.rows):
            for one, factor in parts.items():
                matrix[place, one] = factor
        limits = LinearConstraint(matrix, [row[1] for row in self.rows], [row[2] for row in self.rows])
        low, high = np.array(self.bounds).T
        found = []
        for sign in (1, -1):
            cost = np.zeros(len(self.bounds))
            cost[variable] = sign
            solved = milp(cost, integrality=self.integer, bounds=Bounds(low, high), constraints=limits)
            assert solved.success, solved.message
            found.append(float(solved.x[variable]))
        return found[0], found[1]


def ranges(shown: Mapping[Key, Shown], others: int) -> dict[Key, tuple[float, float]]:
    """By quantity and method: the ends between which a site's number can lie, by all that is shown, taken together.

    Whatever is reported, is reported of the others alike: what one of them can be, each can be.
    """
    program = _Program()
    numbers = {key: [program.variable(*one.limits) for _ in range(others)] for key, one in shown.items()}
    for key, one in shown.items():
        mine, reach = numbers[key], 2 * (one.limits[1] - one.limits[0])
        if one.median is not None:  # at least half of them lie on either side of the median
            half = -(-others // 2)
            program.count(program.switches(mine, one.median[1], -1, reach), half)
            program.count(program.switches(mine, one.median[0], 1, reach), half)
        if one.above is not None:
            switches = program.switches(mine, one.own, 1, reach)
            for number, switch in zip(mine, switches, strict=True):  # off: it lies below
                program.rows.append(({number: 1.0, switch: -reach}, -np.inf, one.own))
            program.count(switches, min(one.above), max(one.above))
        if one.whole is not None:
            program.rows.append((dict.fromkeys(mine, 1.0), one.whole - one.own, one.whole - one.own))
        if one.is_difference is not None:
            for gain, more, less in zip(mine, *(numbers[part] for part in one.is_difference), strict=True):
                program.rows.append(({gain: 1.0, more: -1.0, less: 1.0}, 0.0, 0.0))
    return {key: program.ends(mine[0]) for key, mine in numbers.items()}
