"""The estimators of values that there are, by name."""

from collections.abc import Sequence
from functools import cache

from evaluation.values import from_games, from_images, from_records
from evaluation.values.estimator import Estimator
from fedmerit.configuration import options
from fedmerit.errors import BadInput
from fedmerit.plugins import Catalogue


@cache
def estimators() -> Catalogue[type[Estimator]]:
    """By name, ours and those of others."""
    return Catalogue(
        "estimators",
        {**from_games.ESTIMATORS, **from_records.ESTIMATORS, **from_images.ESTIMATORS},
        lambda part: isinstance(part, type) and issubclass(part, Estimator),
        "a frozen dataclass derived from evaluation.values.estimator.Estimator",
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
