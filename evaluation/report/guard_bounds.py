"""Where the guard bounded what a site said or sent, or what it earns: rounds, and by how much."""

from collections.abc import Iterable, Sequence

import pandas as pd

from evaluation.display.table import Table
from evaluation.report.guard_verdicts import is_guarded
from evaluation.report.marks import ranges
from evaluation.results.run_folders import Run
from fedmerit.guard import bounded_statistics, clipping, counts

ROUNDING = 1e-6  # counts are float64 products of whole numbers
BOUNDS = {  # by the quantity that says it: in a word, and what was done
    "clipped": ("update", f"longer than {clipping.TIMES:g} times the others' median, and shortened to that"),
    "statistics_bound": (
        "BatchNorm statistics",
        f"moved over {bounded_statistics.TIMES:g} times as far as the others' median, and brought back to that",
    ),
    "counted_images": ("number of images", f"counted as {counts.TIMES:g} times the others' median at most"),
    "part": (
        "earnings",
        "shared with other sites: of one organisation, of shared cases, or with near copies of updates",
    ),
    "apart": ("ratings of others", "apart from those of the other raters, and without a voice"),
}


def bounded(runs: Sequence[Run]) -> Table:
    """A row per method, seed, site and bound: ``Rounds`` in which it applied, ``Least``, the smallest part left."""
    found = [part for run in runs if is_guarded(run) for part in _of_run(run)]
    frame = pd.DataFrame(found, columns=["Method", "Seed", "Site", "What", "Rounds", "Least [%]"])
    caption = f"What the guard bounded, and what was left of it where least was{meaning(frame['What'])}"
    return Table("bounds", caption, frame, decimals=0)


def meaning(names: Iterable[str]) -> str:
    """What was done about those that were bounded, to end a caption."""
    there = set(names)
    return "".join(f"; {name}: {done}" for name, done in BOUNDS.values() if name in there)


def _of_run(run: Run) -> list[tuple[str, int, str, str, str, float]]:
    rows = run.results.rows
    rows = rows[rows["split"] == ""]
    said = rows[rows["quantity"] == "num_samples"].set_index(["site", "round"])["value"]
    found = []
    for quantity, (name, _) in BOUNDS.items():
        values = rows[rows["quantity"] == quantity].set_index(["site", "round"])["value"]
        if quantity == "counted_images":
            left = values / said.reindex(values.index)
        else:
            left = 1 - values if quantity == "apart" else values
        for site, own in left[left < 1 - ROUNDING].groupby("site", sort=True):
            rounds = own.index.get_level_values("round")
            found.append((run.label, run.seed, str(site), name, ranges(map(int, rounds)), 100 * float(own.min())))
    return found
