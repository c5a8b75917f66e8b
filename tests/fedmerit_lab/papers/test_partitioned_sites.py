"""Tables and figures of repartitioned sites: correlations, reputations, means and lines, computed independently."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from math import isnan, nan
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from paper_runs import artefact_of

from fedmerit.errors import BadInput
from fedmerit.schema.results import Row
from fedmerit_evaluation.results.views import Results
from fedmerit_lab.papers import cgsv
from fedmerit_lab.papers.artefact import Artefact, Made
from fedmerit_lab.papers.fedave_fedsac import FEDAVE
from fedmerit_lab.papers.partitioned_sites import (
    accuracies,
    agents,
    bars,
    fairness,
    highest_dice,
    keep_own,
    lines,
    local_only_and_final,
    needs,
    reputations,
)
from fedmerit_lab.papers.study import Compared, Partition

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


POW, CLA = Partition("POW", "powerlaw"), Partition("CLA", "variety")
TWO_SEEDS = {("standalone", 0): [0.5, 0.6, 0.8], ("cgsv", 0): [0.6, 0.7, 0.8], ("cgsv", 1): [0.7, 0.9, 0.8]}


def compared(labels, partitions=(POW,)):
    return Artefact("table0", "Numbers", lambda study, artefact: Made(), needs(labels, partitions))


def test_correlations_are_means_over_seeds_with_the_papers_columns(study, make):
    artefact = artefact_of(FEDAVE, "table2")
    cells = make(artefact).tables[0].frame.set_index("Method")
    results = study.results(artefact.needs[0]).rows
    rows = results[(results["split"] == "union") & (results["quantity"] == "dice")].astype({"method": str})
    dice = rows.groupby(["method", "seed", "site"])["value"].mean().unstack("site")
    expected = [100 * np.corrcoef(dice.loc["standalone", seed], dice.loc["fedave", seed])[0, 1] for seed in (0, 1)]
    assert cells.loc["fedave", "POW"] == pytest.approx(np.mean(expected))
    assert math.isfinite(cells.loc["fedavg:last_round=own", "POW"])
    assert math.isfinite(cells.loc["fedavg:last_round=own", "POW, MNIST"])  # the paper's fedavg
    assert cells.loc["fedave", "POW, MNIST"] == 97.59
    assert "standalone" not in cells.index
    without = replace(artefact, needs=(Compared(("fedave",), POW),))
    with pytest.raises(BadInput, match="no local-only training is finished"):
        make(without)
    with pytest.raises(BadInput, match="no local-only training"):
        local_only_and_final(study.results(without.needs[0]))


def test_reputations_of_any_method_follow_equation_4(study, make):
    artefact = artefact_of(cgsv.PAPER, "table7")
    make(artefact)
    results = study.results(artefact.needs[0])
    found, rows = reputations(results), results.rows
    assert "standalone" not in found.index.get_level_values("method")
    psi = rows[(rows["method"] == "fedavg") & (rows["seed"] == 1) & (rows["quantity"] == "cosine_to_mean")]
    memory = np.zeros(5)
    for row in psi.pivot(index="round", columns="site", values="value").to_numpy():
        memory = 0.95 * memory + 0.05 * row
        memory /= memory.sum()
    assert found.loc["fedavg", 1].to_numpy(float) == pytest.approx(memory)
    own = rows[(rows["method"] == "cgsv") & (rows["seed"] == 1) & (rows["quantity"] == "reputation")]
    last = own[own["round"] == 3].set_index("site")["value"]
    assert found.loc["cgsv", 1].to_numpy(float) == pytest.approx(last[found.columns].to_numpy())


def test_an_absent_site_counts_as_zero_and_keeps_the_least_reputation():
    """Round 1: (0.05 * 0.4, floor 0.001) is 20 : 1. Round 2: 0.95 of 20 / 21, and 0.95 / 21 + 0.05 * 0.2."""
    cosines = [{("fedavg", 0): [0.4, math.nan]}, {("fedavg", 0): [math.nan, 0.2]}]
    study = study_of({"POW": {("fedavg", 0): [0.5, 0.6]}}, {"cosine_to_mean": cosines, "reputation": []})
    first, second = reputations(study.results(Compared(("fedavg",), POW))).loc["fedavg", 0]
    assert second == pytest.approx((0.95 / 21 + 0.01) / (0.95 + 0.01))
    assert first == pytest.approx(1 - second)


def test_labels_say_which_methods_keep_the_last_round(study):
    assert keep_own(["standalone", "fedavg", "cgsv"]) == ("standalone", "fedavg:last_round=own", "cgsv")
    wanted = agents(study)
    assert [group for group in ("MNIST, 5 agents", "MNIST, 15 agents", "MNIST") if wanted(group)] == ["MNIST, 5 agents"]


def test_lines_are_means_over_seeds_in_a_panel_for_each_partition(study, make):
    artefact = replace(artefact_of(cgsv.PAPER, "figure4"), needs=(Compared(("cgsv",), POW),))
    make(artefact)
    (drawn,) = lines(train_loss="Training loss")(study, artefact).drawn
    rows = study.results(artefact.needs[0]).rows
    own = rows[(rows["quantity"] == "train_loss") & (rows["round"] == 2) & (rows["site"] == "site-3")]
    line = drawn.numbers[drawn.numbers["round"] == 2].iloc[0]
    assert line["panel"] == "POW"
    assert line["site-3"] == pytest.approx(own["value"].sum() / 2)
    assert len(drawn.numbers) == 4  # rounds
    with pytest.raises(BadInput, match="no run records nothing"):
        lines(nothing="Nothing")(study, artefact)


def test_means_over_sites_and_the_highest_are_means_over_seeds():
    """Means over sites of cgsv are 70 and 80, the highest 80 and 90: deviations of two such are 10 / sqrt(2)."""
    study = study_of({"POW": TWO_SEEDS, "CLA": {("cgsv", 0): [0.1, 0.2, 0.3]}}, seeds=(0, 1))
    artefact = compared(("fedavg", "cgsv", "standalone"), (POW, CLA))
    (table,) = accuracies()(study, artefact).tables
    assert table.headings == ["Method", "POW", "POW, highest", "CLA", "CLA, highest"]
    assert table.frame["Method"].to_list() == ["cgsv", "standalone"]  # in the artefact's order; fedavg has no run
    assert table.frame.iloc[0, 1:].to_list() == pytest.approx([75, 85, 20, 30])
    assert table.frame.iloc[1, 1:].to_list() == pytest.approx([190 / 3, 80, math.nan, math.nan], nan_ok=True)
    assert table.spread.iloc[0, 1:3].to_list() == pytest.approx([10 / math.sqrt(2)] * 2)
    assert table.cell(0, 2) == "85.00 ± 7.07"
    (highest,) = highest_dice(study, artefact).tables
    assert highest.headings == ["Method", "POW", "CLA"]
    assert highest.frame.iloc[0, 1:].to_list() == pytest.approx([85, 30])


def test_fairness_is_the_correlation_of_every_seed_with_its_own_local_only_training():
    """Local-only 5, 6, 8 and 3, 2, 1 tenths; final Dice rises with it, then falls: r of 1 and -1, mean 0."""
    dice = {("standalone", 0): [0.5, 0.6, 0.8], ("standalone", 1): [0.3, 0.2, 0.1]}
    study = study_of({"POW": dice | {("cgsv", 0): [0.6, 0.7, 0.9], ("cgsv", 1): [0.6, 0.7, 0.8]}}, seeds=(0, 1))
    (table,) = fairness(study, compared(("standalone", "cgsv"))).tables
    assert table.frame["Method"].to_list() == ["cgsv"]
    assert table.frame["POW"].to_list() == pytest.approx([0], abs=1e-9)
    assert table.spread["POW"].to_list() == pytest.approx([100 * math.sqrt(2)])


def test_bars_are_a_figure_for_each_partition():
    study = study_of({"POW": TWO_SEEDS, "DIR(0.1)": TWO_SEEDS}, seeds=(0, 1))
    first, second = bars(study, compared(("cgsv",), (POW, Partition("DIR(0.1)", "dirichlet", alpha=0.1)))).drawn
    assert [first.name, second.name] == ["table0-POW", "table0-DIR_0.1"]
    assert first.caption == "Numbers, POW"
    assert first.numbers.set_index("method").loc["cgsv"].to_list() == pytest.approx([65, 80, 80])
