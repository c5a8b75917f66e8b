"""Where the guard bounded what a site said or sent, or what it earns: rounds, and by how much."""

from collections.abc import Sequence

import pandas as pd

from evaluation.display.table import Table
from evaluation.report.guard_verdicts import is_guarded
from evaluation.report.marks import ranges
from evaluation.results.run_folders import Run
from fedmerit.guard import bounded_statistics, clipping, counts

ROUNDING = 1e-6  # counts are float64 products of whole numbers
WORDS = {
    "clipped": f"its update was longer than {clipping.TIMES:g} times the others' median, and was shortened to that",
    "statistics_bound": f"its BatchNorm statistics moved over {bounded_statistics.TIMES:g} times as far as the others' "
    "median, and were brought back to that",
    "counted_images": f"it is not counted with all its images: at most {counts.TIMES:g} times the others' median",
    "part": "it earns as one with other sites: of one organisation, of shared cases, or with near copies of updates",
    "apart": "its ratings of others stood apart from those of the other raters, and had no voice",
}


def bounded(runs: Sequence[Run]) -> Table:
    """A row per method, seed, site and bound: ``Rounds`` in which it applied, ``Least``, the smallest part left."""
    found = [part for run in runs if is_guarded(run) for part in _of_run(run)]
    columns = ["Method", "Seed", "Site", "Rounds", "Least [%]", "What"]
    frame = pd.DataFrame(found, columns=columns)
    return Table("bounds", "What the guard bounded, and what was left of it where least was", frame, decimals=0)


def _of_run(run: Run) -> list[tuple[str, int, str, str, float, str]]:
    rows = run.results.rows
    rows = rows[rows["split"] == ""]
    said = rows[rows["quantity"] == "num_samples"].set_index(["site", "round"])["value"]
    found = []
    for quantity, words in WORDS.items():
        values = rows[rows["quantity"] == quantity].set_index(["site", "round"])["value"]
        if quantity == "counted_images":
            left = values / said.reindex(values.index)
        else:
            left = 1 - values if quantity == "apart" else values
        for site, own in left[left < 1 - ROUNDING].groupby("site", sort=True):
            rounds = own.index.get_level_values("round")
            found.append((run.label, run.seed, str(site), ranges(map(int, rounds)), 100 * float(own.min()), words))
    return found
