"""What observed runs say of their sites' worth, for the report: one figure, where any was observed."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from evaluation.display.value_ranges import value_ranges
from evaluation.results.run_folders import Run
from evaluation.values.valuing import default_estimators, units, value_runs
from fedmerit.federation.recorder import OBSERVED

DRAWS = 200
COUNTED = ("contribution", "data_size")  # estimators that the report shows elsewhere


def drawn_values(runs: Sequence[Run]) -> dict[str, tuple[str, Figure]]:
    """By the file's name its caption and figure, one a method; none where its runs were not observed."""
    drawn = {}
    for number, label in enumerate(dict.fromkeys(run.label for run in runs)):
        folders = [run.path for run in runs if run.label == label and run.tested]
        if not folders or not all((folder / OBSERVED).exists() for folder in folders):
            continue
        asked = [spec for spec in default_estimators(folders) if spec not in COUNTED]
        if not asked:
            continue
        valued = value_runs(folders, asked, DRAWS)
        caption = (
            f"{label}: what each site is worth by what was observed of the run, with 95 % intervals over patients, "
            "rounds and seeds. Sites on one grey band cannot be told apart, and the ranks beside them are all "
            "that can be said. No payment should rest on a difference that is not told."
        )
        drawn["values" if not number else f"values-{number + 1}"] = (
            caption,
            value_ranges(valued.rankings, units(valued)),
        )
    return drawn
