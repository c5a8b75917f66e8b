"""The contract of an estimator of values, and those there are, by name.

An estimator is a frozen dataclass of parameters and one function of a run.
"""

from collections.abc import Sequence
from functools import cache
from typing import ClassVar

from evaluation.truth.semivalues import FloatArray
from evaluation.values.observed_run import ObservedRun
from fedmerit.configuration import options
from fedmerit.errors import BadInput
from fedmerit.parameters import Checked
from fedmerit.plugins import Catalogue


class Estimator(Checked):
    """What is said of the sites' worth, by one run."""

    about: ClassVar[str]  # one line: what it is
    observes: ClassVar[str] = ""  # the observer that a run needs for it; "": none

    def values(self, run: ObservedRun) -> FloatArray:
        """(n, D) by site name, higher is worth more, in units of its own.

        What does not depend on evaluated models is the same in all draws.

        Raises:
            BadInput: the run does not hold what it takes.
        """
        raise NotImplementedError


@cache
def estimators() -> Catalogue[type[Estimator]]:
    """By name, ours and those of others."""
    from evaluation.values import from_games, from_images, from_records  # they are made of the contract above

    return Catalogue(
        "estimators",
        {**from_games.ESTIMATORS, **from_records.ESTIMATORS, **from_images.ESTIMATORS},
        lambda part: isinstance(part, type) and issubclass(part, Estimator),
        "a frozen dataclass derived from evaluation.values.estimators.Estimator",
    )


def parse(spec: str) -> Estimator:
    """The estimator of a spec such as ``in_run:voice=others``; `BadInput` where it is none."""
    estimator: Estimator = options.parse(spec, estimators(), "--estimators")
    return estimator


def parse_all(specs: Sequence[str]) -> dict[str, Estimator]:
    """By spec; `BadInput` where one is given twice."""
    found = {spec: parse(spec) for spec in specs}
    if len(found) < len(specs):
        raise BadInput(f"--estimators {','.join(specs)}: name each once")
    return found
