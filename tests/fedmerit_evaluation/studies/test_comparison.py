"""The runs of a comparison: which there are to be, what may continue, and how they are worked off."""

from pathlib import Path

import pytest
import torch
from run_factory import make_sites
from tiny import TINY
from torch import nn

from fedmerit.engines import runs
from fedmerit.errors import BadInput, RunFailed
from fedmerit.schema.run_info import read_run
from fedmerit_evaluation.studies import comparison
from fedmerit_evaluation.studies.comparison import Ensemble, PlannedRun, execute_runs, prepare, write_tables
from fedmerit_evaluation.studies.execution import Workers
from fedmerit_evaluation.studies.study import parse_methods, parse_seeds


@pytest.fixture
def options(tmp_path):
    return {"sites": make_sites(tmp_path / "sites", ("A", "B")), "rounds": 2, "engine": "local"}


def read_plan(tmp_path, options, methods="fedavg,fedce:combine=plus", seeds="0,3", settings=None, **changes):
    return prepare(tmp_path / "out", parse_methods(methods), parse_seeds(seeds), settings or {}, options | changes)


def test_prepare_creates_runs_seed_by_seed(tmp_path, options):
    planned = read_plan(tmp_path, options, settings={"width": "4"})
    names = ["fedavg_seed0", "fedce_combine-plus_seed0", "fedavg_seed3", "fedce_combine-plus_seed3"]
    assert planned == [
        PlannedRun(label, seed, tmp_path / "out" / name)
        for name, (label, seed) in zip(
            names, [("fedavg", 0), ("fedce:combine=plus", 0), ("fedavg", 3), ("fedce:combine=plus", 3)], strict=True
        )
    ]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted([*names, "compare.json"])
    info = read_run(planned[3].folder)
    assert (info["run"], info["method"], info["seed"], info["rounds"]) == (names[3], "fedce", 3, 2)
    assert info["plan"]["parameters"]["combine"] == "plus"
    assert info["plan"]["network"]["width"] == 4
    assert not any(run.finished for run in planned)


BAD: dict[str, tuple[dict[str, object], str]] = {
    "a parameter of no method": ({"methods": "fedavg,fedce:nonsense=1"}, "'nonsense'"),
    "a value that is none": ({"methods": "fedavg,fedce:combine=minus"}, "combine='minus'"),
    "a setting that not all have": ({"settings": {"combine": "plus"}}, "unknown with method fedavg"),
    "a parameter in both places": ({"methods": "fedce:combine=plus", "settings": {"combine": "plus"}}, "also given"),
    "no rounds": ({"rounds": 0}, "rounds=0"),
    "no threads": ({"threads": 0}, "threads=0"),
    "a device of no site": ({"device": "C=cpu"}, "no site C"),
    "no sites": ({"sites": Path("nowhere")}, "nowhere"),
}


@pytest.mark.parametrize("bad", BAD)
def test_prepare_with_bad_input_leaves_no_folder(tmp_path, options, bad):
    changes, words = BAD[bad]
    with pytest.raises(BadInput, match=words):
        read_plan(tmp_path, options, **changes)
    assert not (tmp_path / "out").exists()


def test_prepare_with_bad_input_keeps_existing_runs(tmp_path, options):
    read_plan(tmp_path, options)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BadInput, match="nonsense"):
        read_plan(tmp_path, options, methods="standalone,fedce:nonsense=1")
    assert sorted(tmp_path.rglob("*")) == before


def test_prepare_rejects_sites_prepared_again(tmp_path, options):
    """By the study too, where no run that is there is asked for again."""
    read_plan(tmp_path, options)
    make_sites(options["sites"], ("A", "B"), size=32)
    for methods in ("fedavg,fedprox", "fedprox"):
        with pytest.raises(BadInput, match=r"sites: A, B are not what .* was started with; .* another --out"):
            read_plan(tmp_path, options, methods=methods)
    assert not list((tmp_path / "out").glob("fedprox*"))
    (tmp_path / "out/compare.json").unlink()
    with pytest.raises(BadInput, match=r"sites: holds images of 32x32, run .*fedavg_seed0 was started with 64x64"):
        read_plan(tmp_path, options)


def test_prepare_rejects_folder_of_other_files(tmp_path, options):
    (tmp_path / "out/fedavg_seed3").mkdir(parents=True)
    (tmp_path / "out/fedavg_seed3/letter.txt").write_text("dear")
    with pytest.raises(BadInput, match=r"fedavg_seed3: holds no run\.json"):
        read_plan(tmp_path, options)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["fedavg_seed3"]


def tiny(tmp_path, engine, settings=None):
    sites = make_sites(tmp_path / "sites", ("A", "B"), size=32)
    options = {"sites": sites, "rounds": 1, "engine": engine}
    return read_plan(tmp_path, options, methods="fedavg", seeds="0,1,2", settings=TINY | (settings or {}))


@pytest.mark.slow
def test_execute_runs_in_parallel(tmp_path):
    planned, rounds, ended = tiny(tmp_path, "local"), [], []
    (planned[1].folder / "results.csv").mkdir()
    with Workers(2) as workers:
        failed = execute_runs(
            planned,
            workers,
            lambda folder, error: ended.append((folder, error)),
            lambda folder, record: rounds.append(folder),
        )
    assert list(failed) == [planned[1].folder]
    assert failed[planned[1].folder].startswith("IsADirectoryError")
    assert sorted(ended) == sorted((run.folder, failed.get(run.folder)) for run in planned)
    assert sorted(rounds) == [planned[0].folder, planned[2].folder]
    assert [run.finished for run in planned] == [True, False, True]
    assert execute_runs(planned[::2], Workers(2), lambda folder, error: ended.clear()) == {}
    assert ended
    assert write_tables(tmp_path / "out", planned)


def test_execute_runs_failed_simulator_run_leaves_others(tmp_path, monkeypatch):
    planned, done, ended = tiny(tmp_path, "sim"), [], []

    def execute(folder, on_round, *places):
        done.append(folder)
        on_round({"round": 0})
        if folder == planned[0].folder:
            raise RunFailed("the simulator ended")
        if folder == planned[1].folder:
            raise MemoryError("the GPU is full")

    monkeypatch.setattr(runs, "execute", execute)
    rounds = []
    failed = execute_runs(
        planned, Workers(2), lambda folder, error: ended.append(folder), lambda folder, record: rounds.append(folder)
    )
    assert done == ended == rounds == [run.folder for run in planned]
    log = planned[1].folder / "failed.log"
    reported = {planned[0]: "the simulator ended", planned[1]: f"MemoryError: the GPU is full\nlog: {log}"}
    assert failed == {run.folder: reason for run, reason in reported.items()}
    assert log.read_text().startswith("Traceback")
    assert write_tables(tmp_path / "out", planned) == []


def test_execute_runs_simulator_runs_are_sequential(tmp_path, monkeypatch):
    planned = [*tiny(tmp_path / "one", "local"), *tiny(tmp_path / "other", "sim")]
    side_by_side, in_turn = [], []
    monkeypatch.setattr(comparison, "execute_all", lambda folders, *_, **options: side_by_side.extend(folders) or {})
    monkeypatch.setattr(comparison, "execute_in_turn", lambda folders, *_: in_turn.extend(folders) or {})
    assert execute_runs(planned, Workers(2), lambda folder, error: None) == {}
    assert side_by_side == [run.folder for run in planned[:3]]
    assert in_turn == [run.folder for run in planned[3:]]


@pytest.mark.parametrize(
    ("cores", "workers", "asked", "settings", "threads"),
    [(8, 2, {}, {}, 4), (8, 8, {}, {}, 2), (1, 4, {}, {}, 1), (8, 2, {"threads": 3}, {}, 3)],
)
def test_execute_runs_gives_free_cores_to_sites(
    tmp_path, options, monkeypatch, cores, workers, asked, settings, threads
):
    planned, heard = read_plan(tmp_path, options | asked, settings=settings), {}
    monkeypatch.setattr(comparison, "cores", lambda: cores)
    monkeypatch.setattr(comparison, "execute_all", lambda *_, threads: heard.update(threads=threads) or {})
    assert execute_runs(planned, Workers(workers), lambda folder, error: None) == {}
    assert heard == {"threads": threads}


def test_ensemble_probabilities_are_mean_of_members():
    members = [nn.Conv2d(1, 2, 3, padding=1) for _ in range(3)]
    members[0].mirrored = True
    images = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    ensemble = Ensemble(members)
    expected = torch.stack([torch.sigmoid(member(images)) for member in members]).mean(dim=0)
    torch.testing.assert_close(torch.sigmoid(ensemble(images)), expected)
    assert ensemble.mirrored
    assert not hasattr(ensemble, "patch")
    masks = torch.cat([100 * torch.ones(1), -100 * torch.ones(1)])  # sure members do not make it infinite
    assert torch.isfinite(torch.logit(torch.sigmoid(masks), eps=1e-7)).all()


def test_ensemble_needs_standalone(sites, tmp_path):
    items = parse_methods("fedavg,ensemble")
    with pytest.raises(BadInput, match="--methods ensemble: standalone is not compared; name it among the methods"):
        prepare(tmp_path / "out", items, [0], {}, {"sites": sites, "rounds": 1, "engine": "local"})
    with pytest.raises(BadInput, match="method 'ensemble': unknown"):
        parse_methods("ensemble:members=2")
