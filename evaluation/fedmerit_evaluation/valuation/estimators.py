"""The estimators of values that there are, by name."""

from collections.abc import Sequence
from functools import cache

from fedmerit.errors import BadInput
from fedmerit.plugins import Catalogue
from fedmerit.schema.configuration import spec_syntax
from fedmerit_evaluation.valuation import estimator, game_estimators
from fedmerit_evaluation.valuation.estimator import Estimator


@cache
def estimators() -> Catalogue[type[Estimator]]:
    """By name, built-in ones and plugins."""
    return Catalogue(
        "estimators",
        {**game_estimators.ESTIMATORS, **estimator.ESTIMATORS},
        lambda part: isinstance(part, type) and issubclass(part, Estimator),
        "a frozen dataclass derived from fedmerit_evaluation.valuation.estimator.Estimator",
    )


def parse(spec: str) -> Estimator:
    """The estimator of a spec such as ``multi_round:voice=others``; `BadInput` if there is none."""
    estimator: Estimator = spec_syntax.parse(spec, estimators(), "--estimators")
    return estimator


def parse_all(specs: Sequence[str]) -> dict[str, Estimator]:
    """By spec; `BadInput` if one is given twice."""
    found = {spec: parse(spec) for spec in specs}
    if len(found) < len(specs):
        raise BadInput(f"--estimators {','.join(specs)}: name each once")
    return found
