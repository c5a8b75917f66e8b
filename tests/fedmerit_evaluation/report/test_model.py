"""The model of a report: hospitals, states, shares and payment, and the sample sizes that they rest on."""

import shutil
from dataclasses import asdict
from math import isnan
from pathlib import Path

import pandas as pd
import pytest
from made_results import SITES, made_dice, made_results, made_rounds, made_row, made_runs
from run_factory import make_run

from fedmerit.errors import BadInput
from fedmerit.files import read_json, write_json
from fedmerit.schema.results import COLUMNS, Row
from fedmerit_evaluation.figures.tables import Table
from fedmerit_evaluation.report.agreement import Agreement
from fedmerit_evaluation.report.assembly import (
    FEW_FOLDS,
    ONE_SPLIT,
    align_local_only,
    averaged,
    build_model,
    choose_method,
    collect_verdicts,
    contribution_shares,
    count_share_seeds,
    has_ambiguous_baseline,
    image_shares,
    list_hospitals,
    methods_by_image_count,
    model_of_results,
    sample_size,
    training_days,
)
from fedmerit_evaluation.report.flags import collect_flags
from fedmerit_evaluation.report.model import Condition, Hospital, ReportModel
from fedmerit_evaluation.report.redaction import hide_image_shares
from fedmerit_evaluation.results.runs import Run, combine_results, folds_as_seeds, open_runs, pool_folds
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.statistics.family import Question
from fedmerit_evaluation.statistics.inference import Comparison, SampleSize


def _results(*more: Row) -> Results:
    """Alder gains 10 points, Birch loses 10, Cedar has what it had; Alder contributes half of all."""
    said = made_rounds("contribution", {"fedce": [(2.0,) * 3, (1.0,) * 3, (1.0,) * 3]})
    levels = {"standalone": (0.6, 0.7, 0.8), "fedce": (0.7, 0.6, 0.8)}
    return made_dice(levels, noise=0.0, rounds=[*said, *more])


def _model(results: Results) -> ReportModel:
    return model_of_results(made_runs(results, Path("nowhere")), results, results)


def _hospitals(
    runs: list[Run], results: Results, method: str, agreements: tuple[Agreement, ...] = ()
) -> list[Hospital]:
    verdicts = collect_verdicts(results, method)
    return list_hospitals(runs, results, method, agreements, collect_flags(runs), verdicts)


def test_what_a_comparison_rests_on_is_what_was_tested_in_all_of_it() -> None:
    """A seed that trained and was not tested, or that training locally has not, is no ground."""
    rows = made_dice({"standalone": (0.6, 0.6, 0.6), "a": (0.7, 0.7, 0.7), "b": (0.7, 0.7, 0.7)}).rows
    gone = ((rows["method"] == "standalone") & (rows["seed"] > 0)) | ((rows["method"] == "b") & (rows["seed"] == 2))
    results = Results(rows[~gone])
    assert sample_size(results, methods=["a"]) == SampleSize(6, 3)
    assert sample_size(results, methods=["a", "b"]) == SampleSize(6, 2)
    assert sample_size(results, "Alder", ["a", "standalone"]) == SampleSize(6, 1)
    assert sample_size(results, "Dogwood") == sample_size(Results(rows.iloc[:0])) == SampleSize(0, 0)


def test_a_seed_in_which_a_site_did_not_answer_the_last_test_is_no_ground() -> None:
    rows = made_dice({"standalone": (0.6, 0.6, 0.6), "a": (0.7, 0.7, 0.7), "b": (0.7, 0.7, 0.7)}).rows
    silent = (rows["method"] == "b") & (rows["site"] == SITES[2]) & (rows["seed"] > 0)
    results = Results(rows[~silent])
    assert sample_size(results) == sample_size(results, SITES[2]) == SampleSize(6, 1)
    assert sample_size(results, SITES[0]) == sample_size(results, methods=["a", "standalone"]) == SampleSize(6, 3)
    never = Results(rows[~silent & ~((rows["method"] == "b") & (rows["site"] == SITES[2]))])
    assert sample_size(never) == SampleSize(6, 0)
    assert _model(never).sample == SampleSize(6, 0)
    empty = rows.assign(value=rows["value"].mask(silent))  # as of cases without an organ in reference and prediction
    assert sample_size(Results(empty), SITES[2]) == SampleSize(6, 1)


def test_the_method_that_is_judged_is_the_first_that_estimates_contributions(tmp_path: Path) -> None:
    images = made_rounds("num_samples", {"fedavg": [(10.0,), (30.0,), (60.0,)]})
    counted = made_rounds("contribution", {"fedavg": [(0.1,), (0.3,), (0.6,)]})
    single = made_rounds("train_loss", dict.fromkeys(("standalone", "pooled"), [(1.0,)] * 3))
    estimated = made_rounds("contribution", {"fedce": [(0.2,), (0.1,), (0.6,)]})
    rows = [*single, *images, *counted]
    everything = made_results([*rows, *estimated], ["standalone", "pooled", "fedavg", "fedce"])
    assert choose_method(made_runs(everything, tmp_path), everything) == "fedce"
    without = made_results(rows, ["standalone", "pooled", "fedavg"])
    assert choose_method(made_runs(without, tmp_path), without) == "fedavg"
    apart = made_results(single, ["standalone", "pooled"])
    assert choose_method(made_runs(apart, tmp_path), apart) is None


def test_the_benefit_and_the_contribution_of_each(tmp_path: Path) -> None:
    results = _results()
    values = pd.DataFrame({"Alder": [4.0, 6.0], "Birch": [1.0, 1.0], "Cedar": [-2.0, 0.0]}, index=[0, 1])
    nothing = Table("t", "", pd.DataFrame())
    agreed = Agreement("Shapley", values, {}, {}, {}, nothing, nothing, [], "", None)
    found = _hospitals(made_runs(results, tmp_path), results, "fedce", (agreed,))
    assert [row.name for row in found] == list(SITES)
    for row, single, joint, share, value in zip(
        found, (0.6, 0.7, 0.8), (0.7, 0.6, 0.8), (0.5, 0.25, 0.25), (0.05, 0.01, -0.01), strict=True
    ):
        gain = joint - single
        assert row.local == pytest.approx(single)
        assert (row.federated.mean, row.federated.low, row.federated.high) == pytest.approx((joint,) * 3)
        assert (row.gain.mean, row.gain.low, row.gain.high) == pytest.approx((gain,) * 3)
        assert (row.share.mean, row.share_seeds, row.equal) == (pytest.approx(share), 3, 0.333)
        assert row.values["Shapley"] == pytest.approx(value)
        assert row.sample == SampleSize(6, 3)
    assert [row.state for row in found] == [Comparison.BETTER, Comparison.WORSE, Comparison.TIE]
    assert {row.share_untested for row in found} == {ONE_SPLIT}
    assert not any(row.flags or row.verdicts or row.needs_review for row in found)


def test_who_is_flagged_is_to_be_looked_at_first(tmp_path: Path) -> None:
    results = _results(made_row("fedce", 0, 1, "Birch", "flagged", 1.0))
    found = _hospitals(made_runs(results, tmp_path), results, "fedce")
    assert [[(flag.what, flag.rounds) for flag in row.flags] for row in found] == [[], [("flagged", "1")], []]
    assert [row.needs_review for row in found] == [False, True, False]


def test_what_was_not_measured_is_not_known(tmp_path: Path) -> None:
    results = made_results(made_rounds("weight", {"fedavg": [(0.2,), (0.3,), (0.5,)]}), ["fedavg"])
    for row in _hospitals(made_runs(results, tmp_path), results, "fedavg"):
        assert all(map(isnan, (row.local, row.federated.mean, row.gain.mean, row.share.mean)))
        assert (row.state, row.sample, row.share_seeds) == (Comparison.UNKNOWN, SampleSize(0, 0), 0)
        assert row.lacking == "untested"


def _with_local(tmp_path: Path, **rounds: int) -> list[Run]:
    """FedCE of three rounds, and training locally of as many as the names say; opened."""
    fedce = make_run(tmp_path / "fedce", rounds=3)
    runs = [make_run(tmp_path / name, method="standalone", rounds=number) for name, number in rounds.items()]
    return align_local_only(open_runs([fedce, *runs]))


def test_local_training_with_the_settings_of_the_method_is_compared(tmp_path: Path) -> None:
    runs = _with_local(tmp_path, short=1, like=3)
    assert [run.label for run in runs] == ["fedce", "standalone (rounds=1)", "standalone"]
    assert not has_ambiguous_baseline(runs)
    results = combine_results(runs)
    mean = results.dice.by_site.loc["standalone"].iloc[0]
    for row in _hospitals(runs, results, "fedce"):
        assert row.local == pytest.approx(mean[row.name])
        assert row.gain.mean == pytest.approx(row.federated.mean - row.local)


@pytest.mark.parametrize("rounds", [{"short": 1, "shorter": 2}, {"one": 3, "twin": 3}])
def test_where_none_does_or_two_do_no_gain_is_known(tmp_path: Path, rounds: dict[str, int]) -> None:
    runs = _with_local(tmp_path, **rounds)
    assert has_ambiguous_baseline(runs)
    for row in _hospitals(runs, combine_results(runs), "fedce"):
        assert (row.state, row.lacking) == (Comparison.UNKNOWN, "ambiguous")


def test_nobody_is_judged_by_other_cases_than_it_had_with_local(tmp_path: Path) -> None:
    """Birch's folder was prepared differently for local training: its cases are in the same places, and others."""
    digests = {site: f"{place}" * 64 for place, site in enumerate(SITES)}
    runs = [
        make_run(tmp_path / f"{method}{seed}", method=method, seed=seed, site_digests=one, sites=SITES)
        for method, one in (("fedce", digests), ("standalone", digests | {"Birch": "f" * 64}))
        for seed in (0, 1)
    ]
    opened = align_local_only(open_runs(runs))
    results = combine_results(opened)
    found = {row.name: row for row in _hospitals(opened, results, "fedce")}
    assert {name: row.sample for name, row in found.items()} == {
        "Alder": SampleSize(5, 2), "Birch": SampleSize(5, 0), "Cedar": SampleSize(5, 2),
    }  # fmt: skip
    assert found["Birch"].state is Comparison.UNKNOWN
    assert isnan(found["Birch"].gain.mean)
    assert not isnan(found["Birch"].local + found["Birch"].federated.mean + found["Alder"].gain.mean)
    assert sample_size(results, methods=["fedce", "standalone"]) == sample_size(results) == SampleSize(5, 0)


def test_a_single_run_of_local_training_is_compared_with_any_settings(tmp_path: Path) -> None:
    assert [run.label for run in _with_local(tmp_path, short=1)] == ["fedce", "standalone"]
    attacked = make_run(tmp_path / "attacked", method="standalone", rounds=3, attacks={"Alder": "zero"})
    runs = align_local_only(open_runs([tmp_path / "fedce", tmp_path / "short", attacked]))
    assert [run.label for run in runs] == ["fedce", "standalone", "standalone (rounds=3, attacked)"]


def test_shares_are_of_the_sum_of_each_seed_and_their_mean_over_seeds() -> None:
    said = made_rounds("contribution", {"fedce": [(1.0, 3.0), (2.0, 4.0), (1.0, 1.0)]})
    results = made_results(said, ["fedce"])
    (shares,) = contribution_shares(results).values()
    # seed 0: 1/4, 2/4, 1/4; seed 1: 3/8, 4/8, 1/8. 12.7 times 1/16 to either side are beyond what a share can be
    expected = {"Alder": (0.3125, 0, 1), "Birch": (0.5, 0.5, 0.5), "Cedar": (0.1875, 0, 1)}
    assert shares.keys() == expected.keys()
    for site, one in shares.items():
        assert (one.mean, one.low, one.high) == pytest.approx(expected[site], abs=0.02)
    assert count_share_seeds(results) == {"fedce": 2}


def test_estimates_whose_shares_mean_nothing_are_left_out() -> None:
    said = {
        "negative": [(1.0, 1.0), (2.0, -3.0), (1.0, 1.0)],  # sums to less than 0 in the second seed
        "alike": [(1.0, 1.0), (1.0, 1.0), (1.0, 1.0)],
        "fine": [(1.0, 1.0), (2.0, 2.0), (-0.5, -0.5)],
    }
    results = made_results(made_rounds("contribution", said), list(said))
    assert {method: {site: one.mean for site, one in sites.items()} for method, sites in
            contribution_shares(results).items()} == {
        "fine": pytest.approx({"Alder": 0.4, "Birch": 0.8, "Cedar": -0.2})
    }  # fmt: skip
    assert contribution_shares(made_results([], [])) == {}


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"method": "fedavg"}, True),
        ({"method": "cgsv"}, False),
        ({"method": "standalone", "undefined": ["contribution"]}, False),
        ({"method": "elsewhere", "estimates": True}, False),
        ({"method": "elsewhere", "estimates": False}, True),
    ],
)
def test_methods_by_image_count_follow_what_the_method_declares(info: dict[str, object], expected: bool) -> None:
    """Not its numbers: an estimate may be a multiple of the images, and shares of images may be bounded."""
    rows = [
        *made_rounds("num_samples", {"a": [(1.0,), (3.0,)]}, "AB"),
        *made_rounds("contribution", {"a": [(1.0,), (3.0,)]}, "AB"),
    ]
    run = Run(Path("nowhere"), info, made_results(rows, ["a"]), "a")
    assert methods_by_image_count([run, run]) == (["a"] if expected else [])


def test_image_shares_are_multiples_of_the_numbers_of_images() -> None:
    methods = ("shares", "multiple", "expelled", "other")
    images = made_rounds("num_samples", {method: [(10.0,), (30.0,), (60.0,)] for method in methods})
    said = {
        "shares": [(0.1,), (0.3,), (0.6,)],
        "multiple": [(1.0,), (3.0,), (6.0,)],
        "expelled": [(0.0,), (1 / 3,), (2 / 3,)],  # the others share by images still
        "other": [(0.1,), (0.31,), (0.59,)],
    }
    results = made_results([*images, *made_rounds("contribution", said)], methods)
    found = image_shares(results, "contribution")
    assert found.index.names == ["method", "seed", "round"]
    assert found.to_list() == [True, True, True, False]


def test_one_update_that_is_taken_is_no_share_of_images() -> None:
    """As by Krum; a round in which one hospital only answered says nothing of how the others are made."""
    rounds = [(0.0, 1.0, 0.0), (1.0, 0.0, 0.0)]
    taken = [row for number, line in enumerate(rounds) for row in _in_round(number, "contribution", line)]
    images = [row for number in range(3) for row in _in_round(number, "num_samples", (10.0, 30.0, 60.0))]
    assert image_shares(made_results([*images, *taken], ["fedce"]), "contribution").empty
    shared = _in_round(2, "contribution", (0.1, 0.3, 0.6))
    results = made_results([*images, *taken, *shared], ["fedce"])
    assert image_shares(results, "contribution").index.get_level_values("round").to_list() == [2]


def _in_round(number: int, quantity: str, values: tuple[float, ...]) -> list[Row]:
    return [made_row("fedce", 0, number, site, quantity, value) for site, value in zip(SITES, values, strict=True)]


def test_shares_of_images_are_found_over_folds_whose_images_differ() -> None:
    """Two seeds of each of three folds: of means over folds the multiples are not the same."""
    images = {0: (10, 30, 60), 1: (20, 30, 50), 2: (40, 10, 50)}
    rows = pd.DataFrame(
        [
            asdict(Row("r", "fedavg", seed, number, site, quantity, value, fold=str(fold)))
            for fold, counts in images.items()
            for seed in range(2)
            for number in range(2)
            for site, count in zip("ABC", counts, strict=True)
            for quantity, value in (("num_samples", float(count)), ("contribution", count / 100), ("norm", 1.0 + fold))
        ],
        columns=COLUMNS,
    )
    results = Results(pool_folds(rows), folds_as_seeds(rows))
    assert image_shares(results, "contribution").all()
    left, reasons = hide_image_shares(results, 2)
    assert reasons == ["images"]
    for frame in (left.rows, left.folds):
        assert set(frame["quantity"]) == {"num_samples", "norm"}


def _codes(results: Results) -> list[str]:
    return [one.code for one in _model(results).unmet]


def test_payment_needs_estimate_seeds_order_and_ground_truth() -> None:
    assert _codes(_results()) == ["one_split", "no_ground_truth"]
    counted = made_rounds("contribution", {"fedavg": [(2.0,) * 3, (1.0,) * 3, (1.0,) * 3]})
    assert _codes(made_dice({"fedavg": (0.7, 0.6, 0.8)}, rounds=counted)) == ["no_estimate"]
    assert _codes(made_dice({"fedce": (0.7, 0.6, 0.8)})) == ["no_estimate"]
    levels, one_seed = {"fedce": (0.7, 0.6, 0.8)}, made_rounds("contribution", {"fedce": [(2.0,), (1.0,), (1.5,)]})
    assert _codes(made_dice(levels, seeds=1, rounds=one_seed)) == ["one_seed", "no_ground_truth"]
    tied = made_rounds("contribution", {"fedce": [(2.0, 1.0), (1.0, 2.0), (1.5, 1.4)]})
    assert _codes(made_dice(levels, seeds=2, rounds=tied)) == ["one_split", "no_ground_truth"]


def test_leads_are_those_of_the_best_training_over_others_than_local() -> None:
    model = _model(made_dice({"standalone": (0.9,) * 3, "a": (0.8,) * 3, "b": (0.8,) * 3, "c": (0.6,) * 3}))
    best, leads = model.leads
    assert (best, list(leads)) == ("a", ["b", "c"])
    assert [one.sign for one in leads.values()] == [0, 1]
    assert [one.question for one in leads.values()] == [Question.METHODS] * 2


def test_flagged_sites_are_those_of_any_round() -> None:
    rounds = [
        made_row("fedce", 0, 0, "Cedar", "flagged", 1.0),
        made_row("fedce", 0, 0, "Alder", "flagged", 0.0),
        made_row("fedce", 0, 1, "Birch", "rejected", 1.0),
    ]
    model = _model(made_results(rounds, ["fedce"]))
    assert model.flagged_sites == ["Cedar"]


def test_attacked_runs_have_rounds_and_flags_but_no_dice(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / method, method=method, rounds=2) for method in ("standalone", "fedce")]
    runs.append(make_run(tmp_path / "ridden", method="fedce", rounds=2, attacks={"Birch": "zero:from=0"}))
    model = build_model(align_local_only(open_runs(runs)))
    assert {str(method) for method, _ in model.tested.index} == {"standalone", "fedce"}
    assert "fedce (attacked)" in {str(method) for method, _ in model.contributions.index}
    assert [one.method for one in model.flags.attacked] == ["fedce (attacked)"]


def test_quantities_that_are_the_very_same_are_shown_once() -> None:
    numbers = {"cgsv": [(0.2,), (0.3,), (0.5,)]}
    same = [*made_rounds("contribution", numbers), *made_rounds("reputation", numbers)]
    weights = made_rounds("weight", {"cgsv": [(0.2,), (0.3,), (0.4,)]})
    assert _model(made_results([*same, *weights], ["cgsv"])).same_quantities == {
        "weight": [],
        "contribution": ["reputation"],
    }


def test_means_over_seeds_of_which_counts_stay_whole() -> None:
    index = pd.MultiIndex.from_product([["a"], [0, 1], ["Alder", "Birch"]], names=["method", "seed", "site"])
    table = pd.DataFrame({"dice": [0.5, 0.6, 0.7, 0.7], "cases": [5, 6, 5, 6], "both_empty": [0, 0, 1, 0]}, index)
    mean = averaged(table)
    assert mean.loc["a", "Alder"].to_list() == pytest.approx([0.6, 5, 0.5])
    assert mean["cases"].to_list() == [5, 6]
    assert [mean[name].dtype.kind for name in mean] == ["f", "i", "f"]


@pytest.mark.parametrize(
    ("started", "days"),
    [
        (["2026-01-02T03:04:05"], ("2026-01-02",)),
        (["2026-02-01T00:00", "2026-01-02T03:04", None, "2026-01-09T00:00"], ("2026-01-02", "2026-02-01")),
        ([None], ()),
    ],
)
def test_training_days_are_the_first_and_the_last(started: list[str | None], days: tuple[str, ...]) -> None:
    runs = [Run(Path("x"), {"started": day}, made_results([], []), "fedce") for day in started]
    assert training_days(runs) == days


def test_an_equal_share_is_of_the_sites_that_have_an_estimate(tmp_path: Path) -> None:
    """Cedar never answered: a test of the others' shares and what they are called compare with one half."""
    levels = {"standalone": (0.6, 0.7, 0.8), "fedce": (0.7, 0.6, 0.8)}
    results = made_dice(levels, rounds=made_rounds("contribution", {"fedce": [(2.0,) * 3, (3.0,) * 3]}, SITES[:2]))
    found = _hospitals(made_runs(results, tmp_path), results, "fedce")
    assert [row.equal for row in found] == [0.5] * 3


def test_without_variance_no_difference_is_detectable() -> None:
    dice = dict.fromkeys(("standalone", "fedce"), (0.0,) * 3)
    assert isnan(_model(made_dice(dice, noise=0.0)).detectable_mean_gain)


@pytest.mark.parametrize("change", [{"seed": 1}, {"fold": 1}])
def test_a_run_that_is_shown_as_several_is_refused(tmp_path: Path, change: dict[str, int]) -> None:
    """A copy, or a script that does not use its seed: a variance of 0 would make every difference significant."""
    one = make_run(tmp_path / "one", fold=0)
    other = Path(shutil.copytree(one, tmp_path / "other"))
    write_json(other / "run.json", read_json(other / "run.json") | change)
    with pytest.raises(BadInput, match=r"other: has the results of .*one, number for number"):
        open_runs([one, other])


def test_shares_of_two_folds_have_no_interval_and_no_verdict(tmp_path: Path) -> None:
    """The standard error over two folds that share training patients is infinite."""
    for fold in range(2):
        run = make_run(tmp_path / str(fold), seed=fold, rounds=2, fold=fold)
        rows = pd.read_csv(run / "results.csv", dtype=str, keep_default_na=False).assign(fold=str(fold), seed="0")
        rows.to_csv(run / "results.csv", index=False)
        write_json(run / "run.json", read_json(run / "run.json") | {"seed": 0})
    model = build_model(open_runs([tmp_path / "0", tmp_path / "1"]))
    assert {one.share_untested for one in model.hospitals} == {FEW_FOLDS}
    assert not any(one.share.has_interval or one.share_sign for one in model.hospitals)
    assert [one.code for one in model.unmet] == ["one_split", "no_ground_truth"]


def test_payment_names_hospitals_without_an_estimate_if_others_have_one() -> None:
    silent = made_rounds("contribution", {"fedce": [(2.0,) * 3, (1.0,) * 3]}, SITES[:2])
    assert _model(made_dice({"fedce": (0.7, 0.6, 0.8)}, rounds=silent)).unmet == (Condition("no_estimate", SITES[2]),)
