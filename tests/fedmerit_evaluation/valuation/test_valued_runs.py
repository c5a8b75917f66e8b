"""Runs valued: as observed, afterwards from kept updates, with intervals, tables, figure; and what is refused."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from run_factory import make_run, make_sites, prepare_again
from tiny import TINY

from fedmerit.engines import runs
from fedmerit.errors import BadInput
from fedmerit.evidence.closing_record import OBSERVED
from fedmerit.files import read_json, write_json
from fedmerit.schema.configuration.run import read_plan
from fedmerit.schema.configuration.settings import guarded
from fedmerit.schema.results import read_results, read_table
from fedmerit.schema.site_folder import open_sites
from fedmerit.trainers.factory import build_network
from fedmerit.trainers.monai.prediction import evaluate
from fedmerit_evaluation.figures.dots_and_bars import value_ranges
from fedmerit_evaluation.figures.drawing import png
from fedmerit_evaluation.valuation.estimators import MultiRoundValues
from fedmerit_evaluation.valuation.observed_run import ObservedRun
from fedmerit_evaluation.valuation.replay import FOLDER, replay_observers
from fedmerit_evaluation.valuation.valued_runs import default_estimators, units, value_runs, value_tables

SITES = ("Alder", "Birch", "Cedar")
OBSERVERS = ("multi_round", "leave_one_out_loss", "one_round")


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    return make_sites(tmp_path_factory.mktemp("valued") / "sites", SITES, size=16)


@pytest.fixture(scope="module")
def observed(sites, tmp_path_factory):
    """Two seeds that were observed and kept their updates: never change them."""
    folders = [tmp_path_factory.mktemp("valued") / f"seed{seed}" for seed in range(2)]
    for seed, run in enumerate(folders):
        runs.create(run, method="fedavg", sites=sites, rounds=2, seed=seed, engine="local", threads=1, settings=TINY,
                    values=OBSERVERS, keep_updates=True)  # fmt: skip
        runs.execute(run, lambda record: None)
    return folders


@pytest.fixture
def own(observed, tmp_path):
    """A copy of the first that a test may spoil."""
    return shutil.copytree(observed[0], tmp_path / "run")


def _without(run, field):
    info = read_json(run / "run.json")
    del info[field]
    write_json(run / "run.json", info)


@pytest.mark.slow
def test_replayed_values_equal_observed(observed, own):
    (own / OBSERVED).unlink()
    asked = []
    table = replay_observers(own, OBSERVERS, on_round=lambda name, done, of: asked.append((name, done, of)))
    keys = ["split", "round", "site", "coalition", "case", "label"]
    expected = read_table(observed[0] / OBSERVED)
    of = [one[one["quantity"] == "dice"].set_index(keys)["value"].sort_index() for one in (expected, table)]
    assert of[0].index.equals(of[1].index)
    np.testing.assert_allclose(*of, atol=1e-12)
    assert asked[:2] == [("multi_round", 1, 2), ("multi_round", 2, 2)]


def test_replayed_reward_group_divides_value(tmp_path):
    """Birch holds Alder's images: copies, which divide equally what one site is worth."""
    sites = make_sites(tmp_path / "sites", SITES, size=16)
    for image in (sites / "Alder").glob("*.npy"):
        shutil.copy(image, sites / "Birch" / image.name)
    run = tmp_path / "run"
    runs.create(run, method="fedce", sites=sites, rounds=2, engine="local", threads=1, settings=guarded(TINY),
                values=["multi_round"], keep_updates=True)  # fmt: skip
    runs.execute(run, lambda record: None)
    table = read_table(run / OBSERVED)
    assert set(table["coalition"].dropna()) - {""} == {"(nobody)", "Alder+Birch", "Cedar", "Alder+Birch+Cedar"}
    assert set(table["site"]) == set(SITES)
    observed = ObservedRun(run, 20)
    values = MultiRoundValues().values(observed)
    np.testing.assert_array_equal(values[0], values[1])
    assert (values[0] != 0).any()
    (run / OBSERVED).unlink()
    afterwards = ObservedRun(run, 20, replay_observers(run, ["multi_round"]))
    np.testing.assert_allclose(MultiRoundValues().values(afterwards), values, atol=1e-12)


def test_replay_resumes_after_written_rounds(own, monkeypatch):
    (own / OBSERVED).unlink()
    whole = replay_observers(own, ["multi_round"])
    file = own / FOLDER / "multi_round.csv"
    table = read_table(file)
    table[table["round"] == 0].to_csv(file, index=False)
    evaluated = []
    from fedmerit_evaluation.valuation import replay

    original = replay.candidate_task
    monkeypatch.setattr(replay, "candidate_task", lambda *rest: evaluated.append(rest[2]) or original(*rest))
    again = replay_observers(own, ["multi_round"])
    assert set(evaluated) == {1}
    pd.testing.assert_frame_equal(again[again["quantity"] == "dice"], whole[whole["quantity"] == "dice"])


@pytest.mark.parametrize(
    ("spoil", "reported"),
    [
        (lambda run: shutil.rmtree(run / "updates"), "was run without --values multi_round and kept no updates"),
        (lambda run: (run / "updates" / "round_00001.pt").unlink(), "round_00001.pt: file not found"),
        (lambda run: (run / "updates" / "round_00001.pt").write_bytes(b"?"), "round_00001.pt: not a file of tensors"),
        (lambda run: _without(run, "sites_folder"), "its images are at the sites"),
    ],
)
def test_value_runs_without_observations_or_updates_raises(own, spoil, reported):
    (own / OBSERVED).unlink()
    spoil(own)
    with pytest.raises(BadInput, match=reported):
        replay_observers(own, ["multi_round"])


def test_value_runs_of_encrypted_run_raises(own):
    (own / OBSERVED).unlink()
    info = json.loads((own / "run.json").read_text())
    (own / "run.json").write_text(json.dumps(info | {"privacy": ["he"]}))
    with pytest.raises(BadInput, match="multi_round cannot be computed: updates leave encrypted"):
        value_runs([own], ["multi_round"])


def test_value_runs_of_moved_sites_names_place(observed, own, sites, tmp_path):
    """Of an estimator that looks at images, and of an observer afterwards."""
    (own / OBSERVED).unlink()
    moved = shutil.copytree(sites, tmp_path / "moved")
    write_json(own / "run.json", read_json(own / "run.json") | {"sites_folder": str(tmp_path / "gone")})
    specs = ["label_volume", "multi_round"]
    for spec in specs:
        with pytest.raises(
            BadInput, match=r"gone: no such folder; .*run had its sites there. Name the folder with --sites PLACE"
        ):
            value_runs([own], [spec], draws=5)
    found, expected = value_runs([own], specs, 5, place=moved), value_runs(observed[:1], specs, 5)
    for spec in specs:
        np.testing.assert_allclose(found.of_each[spec], expected.of_each[spec], atol=1e-12)
    np.testing.assert_array_equal(found.runs[0].holders, expected.runs[0].holders)
    prepare_again(moved / "Birch")
    with pytest.raises(BadInput, match=r"moved: Birch is not what .*run was started with"):
        value_runs([own], ["data_size"], place=moved)


def test_value_runs_rejects_unfinished_run(observed, own):
    results = read_results(own)
    results[results["round"] == 0].to_csv(own / "results.csv", index=False)
    with pytest.raises(BadInput, match=r"run: stands at 1 of 2 rounds.*`fedmerit run --resume --out .*run`"):
        value_runs([observed[1], own], ["multi_round"])


def test_every_estimator_values_every_site(observed):
    specs = ["multi_round", "one_round", "leave_one_out_loss", "contribution", "data_size", "label_volume",
             "knn_shapley", "label_distance", "intensity_distance"]  # fmt: skip
    valued = value_runs(observed, specs, draws=20)
    assert {spec: values.shape for spec, values in valued.of_each.items()} == dict.fromkeys(specs, (2, 3, 21))
    assert all(np.isfinite(values).all() for values in valued.of_each.values())
    assert valued.of_each["data_size"][0, :, 0].tolist() == [15, 15, 15]
    tables = {table.name: table for table in value_tables(valued)}
    assert {"values-multi-round", "value-flips", "value-costs", "values-by-site"} <= set(tables)
    assert "a count or another measure of data: no test shows" in tables["values-data-size"].caption
    assert (
        "NO SIGNIFICANT DIFFERENCE between any two sites" in tables["values-multi-round"].caption
        or valued.rankings["multi_round"].has_significant_pairs
    )
    for spec, factor in {"multi_round": 100, "data_size": 1}.items():
        table = tables[f"values-{spec.replace('_', '-')}"].frame.set_index("Site")
        value = table["Value [points]" if factor == 100 else "Value"].loc[valued.sites]
        assert value.to_numpy() == pytest.approx(factor * valued.rankings[spec].value)
        assert valued.shown[spec].value == pytest.approx(factor * valued.rankings[spec].value)
    assert units(valued)["multi_round"] == "points of Dice"
    gains = tables["values-by-site"].frame.set_index("Site")
    assert gains.mean(axis=1).to_numpy() == pytest.approx(100 * valued.of_each["multi_round"][..., 0].mean(axis=0))
    assert len(png(value_ranges(valued.shown, units(valued)))) > 10_000


def test_values_first_draw_is_observed(observed):
    table = read_table(observed[0] / OBSERVED)
    run = ObservedRun(observed[0], draws=300)
    (game, _) = run.games("multi_round")
    rows = table[(table["split"] == "multi_round") & (table["round"] == 0) & (table["coalition"] == "Alder+Birch")]
    cases = rows[rows["quantity"] == "dice"].groupby("site")["value"]
    drawn = game.utilities[frozenset({"Alder", "Birch"})]
    np.testing.assert_allclose(drawn[:, 0], cases.mean())
    error = (cases.std(ddof=1) / np.sqrt(5)).to_numpy()  # of the mean of five patients
    half = np.quantile(np.abs(drawn[:, 1:] - drawn[:, :1]), 0.5, axis=1)
    np.testing.assert_allclose(half, 0.741 * error, rtol=0.25, atol=1e-6)  # Student's t of four degrees
    counts = np.stack([one.counts for one in run.games("multi_round")])
    assert counts[:, 0].tolist() == [1, 1]
    assert (counts.sum(axis=0) == 2).all()
    assert set(counts[0, 1:]) == {0, 1, 2}


def test_value_runs_rejects_other_settings(observed, own):
    with pytest.raises(BadInput, match="differ only in their seeds"):
        value_runs([observed[0], own], ["data_size"])
    write_json(own / "run.json", {**read_json(own / "run.json"), "seed": 2, "privacy": ["gaussian:sigma=0.1"]})
    with pytest.raises(BadInput, match=r"are fedavg \(privacy=none\) and fedavg \(privacy=gaussian:sigma=0\.1\); exp"):
        value_runs([observed[0], own], ["data_size"])
    with pytest.raises(BadInput, match="are of the seeds 0, 0; expected runs"):
        value_runs([observed[0], observed[0]], ["data_size"])
    with pytest.raises(BadInput, match="--estimators 'shap': unknown"):
        value_runs(observed, ["shap"])
    with pytest.raises(BadInput, match="name each once"):
        value_runs(observed, ["data_size", "data_size"])


def test_default_estimators_are_observed_ones(observed, own, tmp_path):
    assert default_estimators(observed) == [*OBSERVERS, "data_size"]  # FedAvg estimates nothing
    (own / OBSERVED).unlink()
    assert default_estimators([own]) == ["data_size"]
    replayed = ["multi_round", "innovation", "leave_one_out_loss", "one_round"]
    assert default_estimators([own], everything=True) == [*replayed, "data_size"]
    assert default_estimators([make_run(tmp_path / "median", method="median", rounds=1)]) == ["data_size"]
    assert default_estimators([make_run(tmp_path / "cgsv", method="cgsv", rounds=1)]) == ["contribution", "data_size"]


def test_local_only_models_are_tested_by_all_sites(sites, tmp_path):
    """As `evaluate` has it, of the models that the run leaves."""
    run = tmp_path / "run"
    runs.create(run, method="standalone", sites=sites, rounds=2, engine="local", threads=1, settings=TINY,
                values=["local_only"])  # fmt: skip
    runs.execute(run, lambda record: None)
    assert default_estimators([run]) == ["local_only", "data_size"]
    valued = value_runs([run], ["local_only", "local_only:voice=others"], draws=10)
    network = build_network(read_plan(run).network, torch.device("cpu"))
    reached = np.zeros((3, 3))
    for row, site in enumerate(SITES):
        network.load_state_dict(torch.load(run / "models" / f"{site}.pt", weights_only=True))
        for column, tester in enumerate(open_sites(sites)):
            found = evaluate(network, tester.cases("validation"), ("prostate",))
            reached[row, column] = np.mean([one.dice for one in found])
    np.testing.assert_allclose(valued.of_each["local_only"][0, :, 0], reached.mean(axis=1), atol=1e-6)
    off = reached[~np.eye(3, dtype=bool)].reshape(3, 2)
    np.testing.assert_allclose(valued.of_each["local_only:voice=others"][0, :, 0], off.mean(axis=1), atol=1e-6)
    assert units(valued)["local_only"] == "points of Dice"


def test_estimate_command_prints_and_writes(observed, fedmerit, tmp_path):
    result = fedmerit("value", "estimate", *observed, "--out", tmp_path / "out", "--draws", 20)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "out" / "figures" / "values.png").exists()
    assert (tmp_path / "out" / "tables" / "values-multi-round.csv").exists()
    assert "Not significantly different from" in result.output
