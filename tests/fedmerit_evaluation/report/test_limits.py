"""The limits of a report, as codes with their numbers, from results made for them."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_results import SITES, made_dice, made_results, made_rounds, made_row
from run_factory import add_rows, make_run

from fedmerit.evidence.ledger import Ledger
from fedmerit.schema.results import Row
from fedmerit_evaluation.report.limits import (
    Limit,
    _count_unshown,
    list_attack_limits,
    list_case_limits,
    list_contribution_limits,
    list_run_limits,
)
from fedmerit_evaluation.results.runs import combine_results, open_runs
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.statistics.intervals import select_sites


def _of_runs(*folders: Path) -> list[Limit]:
    runs = open_runs(folders)
    return list_run_limits(runs, combine_results(runs))


def _codes(limits: list[Limit]) -> list[str]:
    return [limit.code for limit in limits]


def test_case_limits_count_few_patients_and_empty_cases_by_site() -> None:
    rows = made_dice({"a": (0.7, 0.7, 0.7)}, cases=2).rows
    single = (rows["site"] == "Birch") & (rows["case"] == "001")
    counts = [
        made_row("a", 0, 5, "Cedar", quantity, value, "testing", "000")
        for quantity, value in (("true_positives", 0.0), ("false_negatives", 0.0), ("false_positives", 9.0))
    ]
    rows = pd.concat([rows[~single], made_results(counts, ["a"]).rows], ignore_index=True)
    rows.loc[(rows["site"] == "Alder") & (rows["case"] == "001") & (rows["seed"] == 0), "value"] = np.nan
    assert list(list_case_limits(Results(rows))) == [
        Limit("few_patients", counts={"Alder": 2, "Birch": 1, "Cedar": 2}),
        Limit("both_empty", counts={"Alder": 1}),
        Limit("false_positives", counts={"Cedar": 1}),
    ]


def test_few_patients_are_those_of_the_seed_with_the_fewest() -> None:
    """Of six in each of three seeds four are gone in one."""
    rows = made_dice({"fedce": (0.8, 0.7, 0.9)}).rows
    gone = (rows["site"] == "Birch") & (rows["seed"] == 1) & (rows["case"] > "001")
    results = Results(rows[~gone])
    assert list(list_case_limits(results)) == [Limit("few_patients", counts={"Birch": 2})]
    assert select_sites(results.dice.intervals, "dice").loc[("fedce", "Birch"), ["low", "high"]].isna().all()


def test_contribution_limits_name_methods_without_shares_and_with_negative_numbers() -> None:
    contributions = {
        "a": [(0.5, 0.5, 0.5), (0.2, 0.3, 0.25), (0.2, 0.1, 0.25)],
        "b": [(-0.5, -0.6, -0.4), (0.1, 0.1, 0.1), (0.2, 0.2, 0.2)],
        "c": [(-0.1, -0.1, -0.1), (0.3, 0.3, 0.3), (0.6, 0.6, 0.6)],
    }
    results = made_results(made_rounds("contribution", contributions), ["a", "b", "c"])
    ends = select_sites(results.rounds.intervals, "contribution").loc["a", "Birch"]
    reach = 4.3 * 0.05 / 3**0.5  # standard errors of three seeds
    assert (ends["mean"], ends["low"], ends["high"]) == pytest.approx((0.25, 0.25 - reach, 0.25 + reach), abs=0.02)
    limits = list(list_contribution_limits(results))
    assert limits == [Limit("no_shares", values={"methods": ["b"]}), Limit("negative", values={"methods": ["c"]})]


def test_seeds_are_limits_until_there_are_three(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / str(seed), rounds=2, seed=seed) for seed in range(3)]
    assert _codes(_of_runs(*runs[:1])) == ["one_seed"]
    assert _of_runs(*runs[:2]) == [Limit("few_seeds", values={"seeds": 2})]
    assert _of_runs(*runs) == []
    other = make_run(tmp_path / "other", method="fedavg", rounds=3)
    assert _codes(_of_runs(*runs, other)) == ["one_seed", "other_seeds", "other_rounds"]


def test_incomplete_and_untested_runs_are_named_with_their_seeds(tmp_path: Path) -> None:
    part = [make_run(tmp_path / str(seed), rounds=10, done=3, seed=seed) for seed in range(3)]
    incomplete, untested = _of_runs(*part)
    assert incomplete == Limit("incomplete", "fedce", ("0", "1", "2"), values={"done": 3, "rounds": 10})
    assert untested == Limit("untested", "fedce", ("0", "1", "2"))


def test_site_without_final_test_is_counted(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    lines = (run / "results.csv").read_text().splitlines(keepends=True)
    (run / "results.csv").write_text("".join(line for line in lines if "Birch,,testing" not in line))
    limit = _of_runs(run)[0]
    assert (limit.code, limit.counts, limit.values) == ("untested_sites", {"Birch": 1}, {"number": 1, "sites": 4})


def test_attacked_runs_are_limits() -> None:
    class Attacked:
        label, attacks = "fedce (attacked)", {"Birch": "zero"}

    class Honest:
        label, attacks = "fedce", dict[str, str]()

    assert list(list_attack_limits([Honest(), Attacked()])) == [
        Limit("attacked", values={"methods": ["fedce (attacked)"]})
    ]
    assert _codes(list(list_attack_limits([Attacked()]))) == ["all_attacked"]
    assert list(list_attack_limits([Honest()])) == []


@pytest.mark.parametrize("differ", [True, False])
def test_runs_on_differently_prepared_images_cannot_be_compared(tmp_path: Path, differ: bool) -> None:
    digests = dict.fromkeys(SITES, "a" * 64)
    other = digests | ({"Cedar": "b" * 64} if differ else {})
    limits = _of_runs(
        make_run(tmp_path / "fedce", sites=SITES, site_digests=digests),
        make_run(tmp_path / "fedavg", sites=SITES, method="fedavg", site_digests=other),
        make_run(tmp_path / "second", sites=SITES, seed=1, site_digests=dict.fromkeys(SITES, "c" * 64)),
    )
    assert ("other_cases" in _codes(limits)) is differ


def test_membership_changes_are_limits(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=2)
    ledger = Ledger(run / "ledger.jsonl")
    for record in ({"round": 0}, {"round": 1, "joined": ["Birch"], "left": {"Cedar": {"rounds": 1}}}):
        ledger.append(record)
    limits = [(limit.counts, limit.values) for limit in _of_runs(run) if limit.code == "membership"]
    assert limits == [
        ({"Birch": 1}, {"what": "joined with", "round": 1}),
        ({"Cedar": 1}, {"what": "left before", "round": 1}),
    ]


def test_encrypted_runs_are_limits(tmp_path: Path) -> None:
    for privacy, is_limit in ((["he"], True), ([], False), (["gaussian:clip=1,noise=0.01"], False)):
        run = make_run(tmp_path / str(len(privacy) + is_limit), sites=SITES, privacy=privacy)
        assert ("encrypted" in _codes(_of_runs(run))) is is_limit


@pytest.mark.parametrize(
    ("measured", "engine", "shares", "codes"),
    [(None, "prod", False, {"self_reported"}), (0.3, "prod", True, {"shared_models"}), (0.3, "local", True, set())],
)
def test_self_reported_errors_and_shared_models_are_limits(
    tmp_path: Path, measured: float | None, engine: str, shares: bool, codes: set[str]
) -> None:
    run = make_run(tmp_path / "run", sites=SITES, engine=engine, plan={"share_models": shares})
    values = {"minus_error": 0.4, "measured_error": measured}
    add_rows(run, [Row("run", "fedce", 0, 1, "Alder", *one) for one in values.items()])
    assert set(_codes(_of_runs(run))) & {"self_reported", "shared_models"} == codes


def test_innovation_below_two_standard_errors_is_a_limit() -> None:
    """Of the last round, in any run; others' quantities have no such limit."""
    made = []
    for seed, value in ((0, 3.9), (1, 4.1)):
        for round, factor in ((0, 100.0), (1, 1.0)):
            made += [(seed, round, "a", "innovation", value * factor), (seed, round, "a", "standard_error", 2.0)]
            made += [(seed, round, "b", "innovation", 9.0), (seed, round, "b", "standard_error", 2.0)]
    rows = pd.DataFrame(made, columns=["seed", "round", "site", "quantity", "value"])
    rows = rows.assign(method="innovation", fold="", split="")
    assert _count_unshown(rows) == {"a": 1}
    assert _count_unshown(rows[rows["quantity"] == "standard_error"]) == {}
