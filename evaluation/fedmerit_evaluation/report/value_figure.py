"""What observed runs say of their sites' worth, for the report: one figure, where any was observed."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedmerit.federation.recorder import OBSERVED
from fedmerit_evaluation.figures.dots_and_bars import value_ranges
from fedmerit_evaluation.figures.pages import Drawing
from fedmerit_evaluation.report.hospitals import sample_size
from fedmerit_evaluation.results.run_folders import Run, combine_results
from fedmerit_evaluation.statistics.ranks import Ranking
from fedmerit_evaluation.valuation.valued_runs import default_estimators, units, value_runs

DRAWS = 200
CAPTION = (
    "What each site is worth by what was observed of the run, with 95 % intervals over patients, rounds and seeds. "
    "Sites on one grey band cannot be told apart, and the ranks beside them are all that can be said. No payment "
    "should rest on a difference that is not told."
)
COUNTED = ("contribution", "data_size")  # estimators that the report shows elsewhere


def value_figure(runs: Sequence[Run]) -> dict[str, Drawing]:
    """The figure with its caption, by its name; nothing where no method's runs were all observed."""
    rankings, of_values, caption = dict[str, Ranking](), dict[str, str](), CAPTION
    labels = list(dict.fromkeys(run.label for run in runs))
    for label in labels:
        tested = [run for run in runs if run.label == label and run.tested]
        folders = [run.path for run in tested]
        if not folders or not all((folder / OBSERVED).exists() for folder in folders):
            continue
        insufficient_data = sample_size(combine_results(tested), methods=[label]).insufficient_data
        if asked := [spec for spec in default_estimators(folders) if spec not in COUNTED]:
            valued = value_runs(folders, asked, DRAWS)
            named = {spec: spec if len(labels) == 1 else f"{label}: {spec}" for spec in asked}
            found = {spec: _unranked_sites(one) if insufficient_data else one for spec, one in valued.shown.items()}
            rankings |= {named[spec]: one for spec, one in found.items()}
            caption += f" {label}: {insufficient_data}, so no two sites are told apart." if insufficient_data else ""
            of_values |= {named[spec]: unit for spec, unit in units(valued).items()}
    return {"values": Drawing(caption, value_ranges(rankings, of_values))} if rankings else {}


def _unranked_sites(one: Ranking) -> Ranking:
    """The same values, no two sites told apart."""
    ranks = np.ones(len(one.sites), dtype=int)
    return replace(
        one, order_signs=np.zeros_like(one.order_signs), highest_rank=ranks, lowest_rank=ranks * len(one.sites)
    )
