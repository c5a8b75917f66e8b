"""Results of a few numbers by partition, for the tables and figures of papers."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import isnan, nan
from types import SimpleNamespace

import pandas as pd

from fedmerit.schema.results import Row
from fedmerit_evaluation.results.views import Results

Runs = Mapping[tuple[str, int], Sequence[float]]  # by method and seed, a number for each site


def study_of(
    dice: Mapping[str, Runs], recorded: Mapping[str, Sequence[Runs]] | None = None, seeds: Sequence[int] = (0,)
) -> SimpleNamespace:
    """A study that has only results.

    Args:
        dice: by the name of the partition, each site's on the test cases of all.
        recorded: by quantity, its rounds, the same on every partition; NaN: the site was absent.
        seeds: of the runs.
    """
    found = {name: _results(runs, recorded or {}) for name, runs in dice.items()}
    return SimpleNamespace(seeds=list(seeds), into=5, results=lambda need: found[need.partition.name])


def _results(dice: Runs, recorded: Mapping[str, Sequence[Runs]]) -> Results:
    rows = []
    for (method, seed), values in dice.items():
        sites = [f"site-{number}" for number in range(1, len(values) + 1)]
        for site, value in zip(sites, values, strict=True):
            head = (f"{method}-{seed}", method, seed)
            rows += [Row(*head, 9, site, "dice", value, "union", f"{tester}/000", "organ") for tester in sites]
            for quantity, rounds in recorded.items():
                for number, runs in enumerate(rounds):
                    known = runs.get((method, seed), [nan] * len(values))[sites.index(site)]
                    if not isnan(known):
                        rows.append(Row(*head, number, site, quantity, known))
    return Results(pd.DataFrame([asdict(row) for row in rows]))
