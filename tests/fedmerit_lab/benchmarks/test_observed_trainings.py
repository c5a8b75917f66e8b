"""Trainings that estimators observe: creation, resumption, cost."""

from types import SimpleNamespace

import pytest
from run_factory import make_sites, prepare_again
from tiny import TINY

from fedmerit.contract.observers import OBSERVERS
from fedmerit.engines import runs
from fedmerit.errors import BadInput, RunFailed
from fedmerit.files import read_json
from fedmerit_evaluation.studies.execution import Workers
from fedmerit_evaluation.valuation.estimators import parse
from fedmerit_lab.benchmarks.value_benchmark import (
    ESTIMATORS,
    FEDERATED,
    LOCAL_ONLY,
    by_method,
    create_run,
    execute_runs,
    relative_cost,
    require_few_sites,
    require_success,
    run_estimators,
)
from fedmerit_lab.valuation import image_estimators

OF_FEDERATED = by_method(ESTIMATORS)[FEDERATED]


def test_runs_observe_what_estimators_need():
    assert {parse(spec).observes for spec in ESTIMATORS} == {"", *OBSERVERS.ours}
    chosen = by_method(ESTIMATORS)
    assert {spec.partition(":")[0] for spec in chosen[LOCAL_ONLY]} == {"local_only", "coverage", "safe"}
    assert chosen[FEDERATED] == [spec for spec in ESTIMATORS if spec not in chosen[LOCAL_ONLY]]


def test_estimator_for_fewer_sites_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(image_estimators, "MAX_ENSEMBLED", 1)
    sites = make_sites(tmp_path / "sites", ("Alder", "Birch"), size=16)
    require_few_sites(["local_only"], sites)
    with pytest.raises(BadInput, match=r"sites: safe: 2 sites; expected at most 1, .*; name other estimators"):
        require_few_sites(ESTIMATORS, sites)


def test_a_run_is_created_once_and_keeps_its_options(tmp_path):
    sites = make_sites(tmp_path / "sites", ("Alder", "Birch"), size=16)
    create_run(tmp_path / "run", sites, 3, 2, TINY, OF_FEDERATED)
    info = read_json(tmp_path / "run" / "run.json")
    assert (info["method"], info["seed"], info["rounds"], info["engine"]) == ("fedavg", 3, 2, "local")
    assert [spec.partition(":")[0] for spec in info["plan"]["values"]] == [
        "multi_round",
        "one_round",
        "leave_one_out_loss",
        "innovation",
    ]
    create_run(tmp_path / "run", sites, 3, 2, TINY, OF_FEDERATED)
    assert read_json(tmp_path / "run" / "run.json") == info
    for seed, rounds, settings, words in ((4, 2, TINY, "seed 3"), (3, 5, TINY, "rounds 2"), (3, 2, {}, "settings")):
        with pytest.raises(BadInput, match=f"was started with {words}"):
            create_run(tmp_path / "run", sites, seed, rounds, settings, OF_FEDERATED)
    create_run(tmp_path / "less", sites, 3, 2, TINY, ["data_size", "one_round:kind=leave_one_out"])
    less = read_json(tmp_path / "less" / "run.json")["plan"]["values"]
    assert [spec.partition(":")[0] for spec in less] == ["one_round"]
    create_run(tmp_path / "run", sites, 3, 2, TINY, ["data_size", "one_round"])  # which observes more
    with pytest.raises(BadInput, match="was started with values"):
        create_run(tmp_path / "less", sites, 3, 2, TINY, ["multi_round"])
    for _ in range(2):
        create_run(tmp_path / "counted", sites, 3, 2, TINY, ["data_size"])
    assert "values" not in read_json(tmp_path / "counted" / "run.json")["plan"]
    create_run(tmp_path / "local_only", sites, 4, 2, TINY, ["local_only:voice=others"], LOCAL_ONLY)
    info = read_json(tmp_path / "local_only" / "run.json")
    assert (info["method"], info["seed"], info["plan"]["values"]) == ("standalone", 4, ["local_only:every=0"])
    prepare_again(sites / "Birch")
    with pytest.raises(BadInput, match=r"Birch is not what .*run was started with"):
        create_run(tmp_path / "run", sites, 3, 2, TINY, OF_FEDERATED)


def test_finished_runs_are_not_executed_and_failures_are_raised(tmp_path, monkeypatch):
    done, left, given = tmp_path / "done", tmp_path / "left", []
    monkeypatch.setattr("fedmerit_lab.benchmarks.value_benchmark.is_finished", lambda run, rounds: run == done)
    monkeypatch.setattr(
        "fedmerit_lab.benchmarks.value_benchmark.execute_all",
        lambda folders, workers, on_end: given.append(folders) or {},
    )
    execute_runs([done, left], 2, Workers(1), lambda folder, error: None)
    assert given == [[left]]
    with pytest.raises(RunFailed, match=r"left: out of memory; .*done: no disk"):
        require_success({left: "out of memory", done: "no disk"})
    require_success({})


def test_cost_is_relative_to_the_seconds_of_training():
    federated = [
        SimpleNamespace(seconds={"training": 10.0, "multi_round": 5.0}),
        SimpleNamespace(seconds={"training": 4.0}),
    ]
    assert relative_cost(federated, "multi_round:voice=others", federated) == 0.25  # a half, and nothing
    assert relative_cost(federated, "one_round", federated) == 0
    assert relative_cost(federated, "data_size", federated) == 0
    local_only = [
        SimpleNamespace(seconds={"training": 9.0, "local_only": 2.0}),
        SimpleNamespace(seconds={"training": 3.0}),
    ]
    assert relative_cost(local_only, "local_only", federated) == pytest.approx((1.1 + 0.75) / 2)  # with training


def test_each_estimator_gets_the_trainings_that_it_observes(tmp_path):
    sites = make_sites(tmp_path / "sites", ("Alder", "Birch"), size=16)
    specs = ["local_only", "data_size", "leave_one_out_loss"]
    folders = {FEDERATED: [tmp_path / "federated"], LOCAL_ONLY: [tmp_path / "local_only"]}
    for method, (folder,) in folders.items():
        create_run(folder, sites, 0, 1, TINY, by_method(specs)[method], method)
        runs.execute(folder, lambda record: None)
    found = run_estimators(folders, specs, draws=3)
    assert {spec: values.shape for spec, values in found.values.items()} == dict.fromkeys(specs, (1, 2, 4))
    assert list(found.values) == specs
    assert [run.path for run in found.federated] == folders[FEDERATED]
    assert {spec: cost > 0 for spec, cost in found.costs.items()} == {
        "local_only": True, "data_size": False, "leave_one_out_loss": True
    }  # fmt: skip
    assert list(run_estimators(folders, ["data_size"], draws=3).values) == ["data_size"]
