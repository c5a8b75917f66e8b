"""The contract of an estimator of values: a frozen dataclass of parameters and one function of a run."""

from typing import ClassVar

from fedmerit.parameters import Checked
from fedmerit_evaluation.ground_truth.semivalues import FloatArray
from fedmerit_evaluation.valuation.observed_run import ObservedRun


class Estimator(Checked):
    """What is said of the sites' worth, by one run."""

    about: ClassVar[str]  # one line: what it is
    observes: ClassVar[str] = ""  # the observer that a run needs for it; "": none
    in_dice: ClassVar[bool] = False  # whether its values are fractions of Dice, not of a unit of its own

    def values(self, run: ObservedRun) -> FloatArray:
        """(n, D) by site name, higher is worth more, in units of its own.

        What does not depend on evaluated models is the same in all draws.

        Raises:
            BadInput: the run does not hold what it takes.
        """
        raise NotImplementedError
