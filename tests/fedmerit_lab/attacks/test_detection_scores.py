"""Detectors of free riders on synthetic tables with a known free rider: suspicions, flags, AUROC and ROC."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import mannwhitneyu

from fedmerit.errors import BadInput
from fedmerit.schema.results import COLUMNS
from fedmerit_evaluation.results.views import Results
from fedmerit_lab.attacks.outcomes import auroc, first_flags, highest_site
from fedmerit_lab.detection import rules
from fedmerit_lab.detection.rules import SERVER, VALUE, of_rounds

SITES = ("A", "B", "C", "D")
HONEST = {"weight": 0.25, "cosine_to_mean": 0.6, "train_loss": 0.5, "flagged": 0.0, "before": 0.5, "after": 0.6}
FREE_RIDER = "B"
# By detector, the values of the free rider that only it flags.
EVIDENCE = {"free-rider value": {"after": 0.2}, "training loss": {"train_loss": 0.1}, "server": {"flagged": 1.0}}


def table(run="run", rounds=6, start=2, **evidence) -> Results:
    """A run in which `FREE_RIDER` has other values from round ``start`` on."""
    rows = []
    for round in range(rounds):
        for site in SITES:
            values = HONEST | (evidence if site == FREE_RIDER and round >= start else {})
            for quantity, value in values.items():
                where = {"before": "validation", "after": "validation_trained"}.get(quantity, "")
                if where:
                    for case, add in (("000", -0.1), ("001", 0.1), ("002", math.nan)):
                        rows.append((run, round, site, where, case, "dice", value + add))
                else:
                    rows.append((run, round, site, "", "", quantity, value))
    frame = pd.DataFrame(rows, columns=["run", "round", "site", "split", "case", "quantity", "value"])
    return Results(frame.assign(method="fedavg", seed=0, coalition="", label="prostate", fold="", patient="")[COLUMNS])


def flagged(results, since=None):
    found = first_flags(results, since)
    return {(row.detector, row.site): row.round for row in found.itertuples()}


def test_no_honest_site_is_flagged():
    assert flagged(table()) == {}


@pytest.mark.parametrize("name", EVIDENCE)
def test_each_detector_flags_the_free_rider_of_its_evidence(name):
    assert flagged(table(start=0, **EVIDENCE[name])) == {(name, FREE_RIDER): 0}
    later = flagged(table(start=4, **EVIDENCE[name]))
    assert later.get((name, FREE_RIDER)) == (4 if name == "server" else None)  # the others are means over rounds


def test_the_free_rider_value_is_the_cosine_times_the_growth_of_the_error():
    values = rules.free_rider_values(table(start=2, after=0.2, cosine_to_mean=0.5))
    assert list(values.columns) == list(SITES)
    assert values.loc[("run", 0), FREE_RIDER] == pytest.approx(0.6 * (0.5 - 0.6))
    assert values.loc[("run", 2), FREE_RIDER] == pytest.approx(0.5 * (0.5 - 0.2))
    running = rules.accumulated(values)[FREE_RIDER].to_list()
    assert running == pytest.approx(np.cumsum([-0.06, -0.06, 0.15, 0.15, 0.15, 0.15]) / np.arange(1, 7))
    assert highest_site(rules.accumulated(values)).to_list() == ["", "", *[FREE_RIDER] * 4]
    against = rules.free_rider_values(table(rounds=1, start=0, after=0.2, cosine_to_mean=-0.5))
    assert (against < 0).all(axis=None)  # worse but against the others, or better


def test_the_free_rider_value_has_to_lead_five_times():
    results = table(rounds=1, start=0, after=0.2)  # 0.18
    worse = (results.rows["site"] == "C") & (results.rows["split"] == "validation_trained")
    for growth, leads in ((0.05, True), (0.07, False)):  # 0.03 and 0.042: a fifth of 0.18 is 0.036
        both = Results(results.rows.copy())
        both.rows.loc[worse, "value"] = np.array([0.4, 0.6, math.nan]) - growth
        assert VALUE.see(both).flagged.loc[("run", 0), [FREE_RIDER, "C"]].to_list() == [leads, False]


def test_results_without_trained_models_say_what_to_do():
    rows = table().rows
    with pytest.raises(BadInput, match="--set validate_trained=true"):
        rules.free_rider_values(Results(rows[rows["split"] != "validation_trained"]))


def test_missing_values_are_unknown():
    rows = table(start=0, **EVIDENCE["training loss"]).rows
    absent = (rows["site"] == FREE_RIDER) & (rows["round"] == 3) & (rows["quantity"] != "weight")
    assert math.isnan(of_rounds(Results(rows[~absent]), "train_loss").loc[("run", 3), FREE_RIDER])
    assert flagged(Results(rows[rows["quantity"] != "train_loss"])) == {}


def test_flags_before_a_round_do_not_count():
    results = table(start=1, **EVIDENCE["server"])
    assert flagged(results, {"run": 3}) == {("server", FREE_RIDER): 3}
    assert flagged(results, {"another": 3}) == {("server", FREE_RIDER): 1}


def test_runs_are_separate():
    results = Results(pd.concat([table("one", start=1, **EVIDENCE["server"]).rows, table("other").rows]))
    suspicion = SERVER.see(results).suspicion
    assert suspicion[FREE_RIDER].groupby(level="run").sum().to_dict() == {"one": 5, "other": 0}


def test_auroc_counts_pairs():
    attackers, honest = [0.9, 0.5, 0.5], [0.5, 0.1]
    pairs = [1.0 if one > other else 0.5 if one == other else 0.0 for one in attackers for other in honest]
    assert auroc(attackers, honest) == pytest.approx(sum(pairs) / len(pairs))
    assert auroc(attackers, honest) == mannwhitneyu(attackers, honest).statistic / 6
    assert auroc([2.0], [1.0]) == auroc([math.inf], [1.0, math.nan]) == 1
    assert auroc([1.0, 1.0], [1.0]) == 0.5
    assert math.isnan(auroc([math.nan], [1.0]))
    assert math.isnan(auroc([1.0], []))
