"""Long updates: shortened to three times the median norm."""

from torch import Tensor

from fedmerit.guard.rule import Rule, shrinking

TIMES = 3.0  # Sun et al. 2019 bound norms likewise; honest ones of one round differ by less

RULE = Rule(
    "norms",
    f"An update longer than {TIMES:g} times the median of the others is shortened to that; recorded as `clipped`. "
    "Where fewer than two others answered, the last median counts.",
    "a huge update (1e6 in every entry) that kills the model, and model boosting",
    "none was shortened in honest runs; a site that trains very many more steps would be",
)


def clipping(lengths: Tensor, present: Tensor, before: Tensor) -> Tensor:
    """(n,) factors in (0, 1] for updates of these norms ``lengths`` (n,); ``before`` (n,) is the last known median."""
    return shrinking(lengths, present, TIMES, before)
