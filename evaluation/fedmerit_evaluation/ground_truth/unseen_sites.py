"""Unseen hospitals: each is left out of the training once, and the others' model segments its patients."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from fedmerit.schema.run_info import read_run
from fedmerit.trainers.monai.batch_norm import has_statistics
from fedmerit.trainers.monai.data import open_sites
from fedmerit.trainers.monai.prediction import evaluate
from fedmerit_evaluation.figures.tables import HEADINGS, HIDDEN_COLUMNS, UNITS, Table
from fedmerit_evaluation.ground_truth.coalitions import Training, collect_results
from fedmerit_evaluation.results.dice import SURFACES
from fedmerit_evaluation.results.evaluation import final_models, with_batch_statistics

UNSEEN, ESTIMATED, SEEN = ("Unseen", "Unseen, BatchNorm statistics of its own images", "Taking part")


def leave_each_out(sites: Sequence[str]) -> list[frozenset[str]]:
    """The coalitions to train: all sites, and all but each."""
    everyone = frozenset(sites)
    return [everyone, *(everyone - {site} for site in sorted(sites))]


def generalisation_tables(trainings: Sequence[Training], sites: Path | None) -> list[Table]:
    """Test Dice, HD95 and NSD of every hospital by the model trained without it, and by that trained with all.

    BatchNorm statistics are those that the others shared, or estimated from the hospital's own training images, which
    needs no label; without BatchNorm, or if scripts test, the column is left out. Of folds the mean.

    Args:
        trainings: finished, of `leave_each_out`.
        sites: the folder of all sites; None: they have scripts.
    """
    everyone = max((training.coalition for training in trainings), key=len)
    of_site = {folder.name: folder for folder in (open_sites(sites) if sites else ())}
    rows = []
    for training in trainings:
        tested = collect_results([training]).rows
        for name in sorted(everyone - training.coalition) or sorted(everyone):
            outside = name not in training.coalition
            of_tests = tested[(tested["site"] == name) & (tested["split"] == "testing")]
            scores = mean_scores(zip(of_tests["quantity"], of_tests["case"], of_tests["value"], strict=True))
            rows.append((training.seed, name, UNSEEN if outside else SEEN, scores))
            if outside and name in of_site:
                run = read_run(training.folder)
                site = of_site[name].in_fold(run.get("fold"))
                network = final_models(training.folder)(site)
                if has_statistics(network):
                    amp = run["training"].get("amp", False)
                    own = with_batch_statistics(site, network)
                    found = evaluate(own, site.cases("testing"), site.labels, amp, final=True)
                    scores = mean_scores((name, one.case, value) for one in found for name, value in one.scores.items())
                    rows.append((training.seed, site.name, ESTIMATED, scores))
    measured = {quantity for *_, scores in rows for quantity in scores}
    return [_table(rows, quantity) for quantity in ("dice", *SURFACES) if quantity in measured]


def mean_scores(found: Iterable[tuple[str, str, float | None]]) -> dict[str, float]:
    """By quantity, in the units shown: mean over test cases of the mean over labels, without missing numbers.

    ``found``: quantity, case and value of each label.
    """
    known: dict[str, dict[str, list[float]]] = {}  # by quantity and case
    for quantity, case, value in found:
        if value is not None and not np.isnan(value):
            known.setdefault(quantity, {}).setdefault(case, []).append(value)
    return {
        quantity: UNITS.get(quantity, 1.0) * float(np.mean([np.mean(values) for values in cases.values()]))
        for quantity, cases in known.items()
    }


def _table(rows: Sequence[tuple[int, str, str, Mapping[str, float]]], quantity: str) -> Table:
    """A row per hospital, of one quantity."""
    what, _, unit = HEADINGS[quantity].rpartition(" ")
    long = pd.DataFrame(
        [(seed, site, f"{name} {unit}", scores.get(quantity, np.nan)) for seed, site, name, scores in rows],
        columns=["seed", "Site", "name", "value"],
    )
    seeds = long.pivot_table(index=["seed", "Site"], columns="name", values="value")
    seeds = seeds.reindex(
        columns=[name for name in (f"{one} {unit}" for one in (UNSEEN, ESTIMATED, SEEN)) if name in seeds]
    )
    means = pd.concat([seeds, pd.concat({"Mean": seeds.groupby("seed").mean()}, names=["Site"]).swaplevel()])
    by_site = means.groupby("Site", sort=False)
    count = long["seed"].nunique()
    caption = f"Test {what} of each hospital by the model trained without it, and by the model trained by all"
    if count > 1:
        caption += f"; mean ± std over {count} seeds"
    caption += HIDDEN_COLUMNS.get(quantity, "")
    spread = by_site.std(ddof=1)
    name = "unseen" if quantity == "dice" else f"unseen-{quantity}"
    return Table(name, caption, by_site.mean().reset_index(), spread=spread.reset_index(), decimals=1)
