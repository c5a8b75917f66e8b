"""What a comparison will be able to tell, in words, before it trains."""

from collections.abc import Iterator, Sequence
from math import isnan

from fedmerit.trainers.monai.data import SiteFolder
from fedmerit_evaluation.statistics.expected_width import expected_width

ENOUGH = 20  # test patients of a hospital; with fewer, folds are named
FOLDS = 5  # that are proposed to sites without
INTERVAL = "95 % CI of the gain over local training"


def describe_precision(sites: Sequence[SiteFolder], seeds: int, folds: int) -> Iterator[str]:
    """How wide intervals will be; with one split and a hospital of few test patients, also with folds.

    Args:
        sites: to train on; none: those of scripts, of which nothing is known.
        seeds: of each training.
        folds: that are trained; 0: one split.
    """
    if not sites:
        return
    everyone = {site.name: len({case.patient for cases in site.splits.values() for case in cases}) for site in sites}
    tested = everyone if folds else {site.name: count_test_patients(site) for site in sites}
    fewest = min(tested, key=lambda name: (tested[name], name))
    width = _words(expected_width(tested[fewest], seeds, folds))
    trained = "1 seed" if seeds == 1 else f"{seeds} seeds"
    if folds:
        yield (
            f"{folds} folds, {trained}: every patient is tested. {INTERVAL} at {fewest} ({tested[fewest]} patients): "
            f"{width}."
        )
    elif tested[fewest] < ENOUGH:
        number = sites[0].folds or FOLDS
        way = "the default of `compare` and `value`" if sites[0].folds else f"prepare with --folds {number}"
        better = _words(expected_width(everyone[fewest], seeds, number))
        yield (
            f"One split, {trained}: {fewest} has {tested[fewest]} test patient(s). {INTERVAL} there: {width}; with "
            f"{number} folds ({number} times as many trainings): {better} ({way})."
        )


def count_test_patients(site: SiteFolder) -> int:
    """Of one split."""
    return len({case.patient for case in site.cases("testing")})


def _words(width: float) -> str:
    return "none" if isnan(width) else f"about {width:.0f} points wide"
