"""The verdicts of a report page, as one family: of pages on equal hospitals and methods at most 5 % err in any verdict.

A page answers a few questions. Each has an equal part of the 5 %, which its comparisons share equally; what a
significant comparison does not need goes to the others (weighted Holm 1979, whatever the dependence). A comparison that
could not be significant by any outcome, such as a permutation test of three hospitals, takes no part (Tarone 1990).
Pages by simulation: docs/studies/statistics.md.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from math import isnan, nan

from fedmerit_evaluation.statistics.inference import SIGNIFICANCE_LEVEL, Estimate, holm
from fedmerit_evaluation.statistics.sample_size import detectable_difference


class Question(StrEnum):
    """A question that a page answers."""

    MEAN_GAIN = "mean gain"  # of the report's method over local training
    GAIN = "gain of a hospital"
    METHODS = "difference of two methods"
    FAILURES = "fewer failures"  # of the report's method than of local training
    SHARE = "share of a hospital"  # from an equal one
    VALUE = "difference of two values"  # of ground truth
    AGREEMENT = "agreement with ground truth"


@dataclass(frozen=True)
class Verdict:
    """A comparison that a page judges."""

    question: Question
    subject: str  # the hospital or method
    other: str  # what it is compared with: a hospital, a method, a ground truth, an equal share
    estimate: Estimate  # of the difference; p is corrected for the family by `judge`
    insufficient_data: str = ""  # why it is not tested; "": it is
    smallest_p: float = 0.0  # that its test can give
    reference: str = ""  # the ground truth that values are of
    level: float = nan  # its part of the 5 %

    @property
    def is_tested(self) -> bool:
        """Whether it takes part in the family."""
        return not self.insufficient_data and not isnan(self.estimate.p)

    @property
    def sign(self) -> int:
        """The sign of a significant difference: 1 above 0, -1 below, 0 neither or not tested."""
        return self.estimate.compare(0)

    @property
    def detectable(self) -> float:
        """The difference that this design finds in four of five studies, in the estimate's unit; NaN: not tested.

        The standard error is taken for the true one, and no other comparison for significant.
        """
        return detectable_difference(self.estimate.error, self.estimate.freedom, self.level)


def judge(comparisons: Iterable[Verdict]) -> list[Verdict]:
    """Return the comparisons of a page with their parts of the 5 % and corrected p-values; NaN: not tested.

    Args:
        comparisons: with p-values of single tests.
    """
    able = [
        one if one.smallest_p <= SIGNIFICANCE_LEVEL or one.insufficient_data
        else replace(one, insufficient_data=f"no p-value can be below {one.smallest_p:.2g}")
        for one in comparisons
    ]  # fmt: skip
    tested = [one for one in able if one.is_tested]
    number = Counter(one.question for one in tested)
    levels = [SIGNIFICANCE_LEVEL / len(number) / number[one.question] for one in tested]
    corrected = zip(levels, holm([one.estimate.p for one in tested], levels), strict=True)
    return [
        replace(one, level=level, estimate=replace(one.estimate, p=float(p)))
        for one in able
        for level, p in [next(corrected) if one.is_tested else (nan, nan)]
    ]
