"""Trainings that estimators observe: begun once, gone on with, and what observing cost."""

from types import SimpleNamespace

import pytest
from run_factory import make_sites, prepare_anew

from fedmerit.engines import runs
from fedmerit.errors import BadInput, RunFailed
from fedmerit.files import read_json
from fedmerit.observers import OWN
from fedmerit_evaluation.studies.cluster import Workers
from fedmerit_evaluation.valuation.estimators import parse
from fedmerit_lab.benchmarks.observed_trainings import (
    ALONE,
    ESTIMATORS,
    TOGETHER,
    begin,
    by_method,
    cost,
    require_success,
    run_estimators,
    work_off,
)

TOGETHER_ESTIMATORS = by_method(ESTIMATORS)[TOGETHER]
TINY = {"architecture": "unet", "width": "2", "depth": "2"}


def test_what_estimators_need_is_observed():
    assert {parse(spec).observes for spec in ESTIMATORS} == {"", *OWN}
    of = by_method(ESTIMATORS)
    assert of[ALONE] == ["local_only", "local_only:voice=others"]
    assert of[TOGETHER] == [spec for spec in ESTIMATORS if spec not in of[ALONE]]


def test_a_training_is_begun_once_and_never_as_another(tmp_path):
    sites = make_sites(tmp_path / "sites", ("Alder", "Birch"), size=16)
    begin(tmp_path / "run", sites, 3, 2, TINY, TOGETHER_ESTIMATORS)
    info = read_json(tmp_path / "run" / "run.json")
    assert (info["method"], info["seed"], info["rounds"], info["engine"]) == ("fedavg", 3, 2, "local")
    assert [spec.partition(":")[0] for spec in info["plan"]["values"]] == [
        "multi_round",
        "one_round",
        "leave_one_out_loss",
    ]
    begin(tmp_path / "run", sites, 3, 2, TINY, TOGETHER_ESTIMATORS)
    assert read_json(tmp_path / "run" / "run.json") == info
    for seed, rounds, settings, told in ((4, 2, TINY, "seed 3"), (3, 5, TINY, "rounds 2"), (3, 2, {}, "settings")):
        with pytest.raises(BadInput, match=f"was started with {told}"):
            begin(tmp_path / "run", sites, seed, rounds, settings, TOGETHER_ESTIMATORS)
    begin(tmp_path / "less", sites, 3, 2, TINY, ["data_size", "one_round:kind=leave_one_out"])
    less = read_json(tmp_path / "less" / "run.json")["plan"]["values"]
    assert [spec.partition(":")[0] for spec in less] == ["one_round"]
    begin(tmp_path / "run", sites, 3, 2, TINY, ["data_size", "one_round"])  # which observes more
    with pytest.raises(BadInput, match="was started with values"):
        begin(tmp_path / "less", sites, 3, 2, TINY, ["multi_round"])
    for _ in range(2):
        begin(tmp_path / "counted", sites, 3, 2, TINY, ["data_size"])
    assert "values" not in read_json(tmp_path / "counted" / "run.json")["plan"]
    begin(tmp_path / "alone", sites, 4, 2, TINY, ["local_only:voice=others"], ALONE)
    info = read_json(tmp_path / "alone" / "run.json")
    assert (info["method"], info["seed"], info["plan"]["values"]) == ("standalone", 4, ["local_only:every=0"])
    prepare_anew(sites / "Birch")
    with pytest.raises(BadInput, match=r"Birch is not what .*run was started with"):
        begin(tmp_path / "run", sites, 3, 2, TINY, TOGETHER_ESTIMATORS)


def test_what_is_finished_is_not_trained_again_and_what_failed_is_told(tmp_path, monkeypatch):
    done, left, given = tmp_path / "done", tmp_path / "left", []
    monkeypatch.setattr("fedmerit_lab.benchmarks.observed_trainings.is_finished", lambda run, rounds: run == done)
    monkeypatch.setattr(
        "fedmerit_lab.benchmarks.observed_trainings.execute_all",
        lambda folders, workers, on_end: given.append(folders) or {},
    )
    work_off([done, left], 2, Workers(1), lambda folder, error: None)
    assert given == [[left]]
    with pytest.raises(RunFailed, match=r"left: out of memory; .*done: no disk"):
        require_success({left: "out of memory", done: "no disk"})
    require_success({})


def test_cost_is_the_mean_of_seconds_beside_those_of_training():
    together = [
        SimpleNamespace(seconds={"training": 10.0, "multi_round": 5.0}),
        SimpleNamespace(seconds={"training": 4.0}),
    ]
    assert cost(together, "multi_round:voice=others", together) == 0.25  # a half, and nothing
    assert cost(together, "one_round", together) == 0
    assert cost(together, "data_size", together) == 0
    alone = [SimpleNamespace(seconds={"training": 9.0, "local_only": 2.0}), SimpleNamespace(seconds={"training": 3.0})]
    assert cost(alone, "local_only", together) == pytest.approx((1.1 + 0.75) / 2)  # their own training, too


def test_each_estimator_hears_the_trainings_that_it_looks_at(tmp_path):
    sites = make_sites(tmp_path / "sites", ("Alder", "Birch"), size=16)
    specs = ["local_only", "data_size", "leave_one_out_loss"]
    folders = {TOGETHER: [tmp_path / "together"], ALONE: [tmp_path / "alone"]}
    for method, (folder,) in folders.items():
        begin(folder, sites, 0, 1, TINY, by_method(specs)[method], method)
        runs.execute(folder, lambda record: None)
    heard = run_estimators(folders, specs, draws=3)
    assert {spec: values.shape for spec, values in heard.said.items()} == dict.fromkeys(specs, (1, 2, 4))
    assert list(heard.said) == specs
    assert [run.path for run in heard.together] == folders[TOGETHER]
    assert heard.costs["data_size"] == 0
    assert heard.costs["local_only"] > heard.costs["leave_one_out_loss"] > 0
    assert list(run_estimators(folders, ["data_size"], draws=3).said) == ["data_size"]
