"""Sites that misbehave in whole runs: on both engines, by the options of `run`, `attack` and `freeriders`."""

import json
import re

import pytest

from fedmerit.attacks.catalogue import parse
from fedmerit.engines import runs
from fedmerit.errors import BadInput
from fedmerit.records.ledger import verify
from fedmerit.records.results import read_results, read_run

SMALL = ("--set", "width=2", "--set", "depth=2", "--set", "residual_units=0", "--set", "augment=false")


def plain(text):
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())


def make(run, sites, engine, attacks, rounds=3, method="fedce"):
    settings = {"width": "2", "depth": "2", "residual_units": "0", "validate_trained": "true"}
    runs.create(run, method=method, sites=sites, rounds=rounds, engine=engine, settings=settings, attacks=attacks)
    runs.execute(run, lambda record: None)
    return run


@pytest.mark.parametrize(
    "behaviours",
    [
        {"site2": "delta-noise:from=1"},
        pytest.param({"site1": "label-noise:share=0.5", "site3": "replay"}, marks=pytest.mark.slow),
    ],
    ids=["an update", "data and an update"],
)
def test_a_simulated_site_misbehaves_as_a_local_one(tmp_path, sites, assert_same_run, attacks):
    local = make(tmp_path / "local" / "run", sites, "local", attacks)
    simulated = make(tmp_path / "sim" / "run", sites, "sim", attacks)
    assert_same_run(local, simulated)
    assert read_run(local)["behaviours"] == read_run(simulated)["behaviours"]
    honest = make(tmp_path / "honest" / "run", sites, "local", {})
    digests = [[json.loads(line)["updates"] for line in (run / "ledger.jsonl").open()] for run in (local, honest)]
    misbehaving = {site for site, sent in digests[0][0].items() if sent != digests[1][0][site]}
    assert misbehaving == {site for site, spec in attacks.items() if parse(spec).first == 0}
    assert digests[0][1] != digests[1][1]
    kinds = [spec.partition(":")[0] for spec in attacks.values()]
    jobs = [path.read_text() for path in (tmp_path / "sim").rglob("config_fed_*.json")]
    told = [kind for kind in kinds for job in jobs if kind in job]
    assert told == []  # the job carries nothing of it


def test_rounds_record_norms_cosines_and_repetitions(tmp_path, sites):
    run = make(tmp_path / "run", sites, "local", {"site1": "zero", "site2": "replay"}, method="fedavg")
    rounds = read_results(run).query("split == ''").pivot(index=["round", "site"], columns="quantity", values="value")
    zero, replay, honest = (rounds.xs(f"site{number}", level="site") for number in (1, 2, 3))
    assert (zero[["norm", "cosine_to_mean", "largest_pair_cosine"]] == 0).all(axis=None)
    assert zero["cosine_to_previous"].isna().to_list() == [True, False, False]
    assert (zero["cosine_to_previous"][1:] == 0).all()
    assert zero["repeated"].to_list() == [0, 1, 1]
    assert replay["repeated"].to_list() == [0, 1, 1]
    assert replay["norm"].nunique() == 1
    assert honest["repeated"].to_list() == [0, 0, 0]
    assert (honest["norm"] > 0).all()
    assert honest["largest_pair_cosine"].to_list() == pytest.approx(replay["largest_pair_cosine"].to_list())
    assert zero["train_loss"].isna().all()
    assert verify(run / "ledger.jsonl") == 3
    trained, received = (read_results(run).query(f"split == '{name}'") for name in ("validation_trained", "validation"))
    assert set(trained["round"]) == {0, 1, 2}
    keys = ["round", "site", "case", "label"]
    both = trained.query("quantity == 'dice'").merge(received.query("quantity == 'dice'"), on=keys)
    assert len(both) == len(trained) / 4
    same = both["value_x"] == both["value_y"]
    assert same[both["site"] == "site1"].all()


def test_a_run_says_who_misbehaves(fedmerit, sites, tmp_path):
    given = ("--method", "fedavg", "--sites", sites, "--rounds", 2, "--engine", "local", *SMALL)
    run = tmp_path / "run"
    result = fedmerit("run", "--out", run, *given, "--behave", "site2=scaled:from=1:by=3")
    assert result.exit_code == 0, result.output
    assert read_run(run)["behaviours"] == {"site2": "scaled:from=1:by=3.0"}
    norms = read_results(run).query("quantity == 'norm' and site == 'site2'")["value"].to_list()
    assert norms[1] > 2 * norms[0]
    assert fedmerit("run", "--resume", "--out", run, "--behave", "site2=scaled:by=3:from=1").exit_code == 0
    other = fedmerit("run", "--resume", "--out", run, "--behave", "site2=zero")
    assert other.exit_code == 2
    assert "behaviours" in other.output


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("site9=zero", "no site site9; there are site1, site2, site3"),
        ("site1=lazy", "'lazy': unknown; expected one of repeat"),
        ("zero", "--behave zero: expected NAME=VALUE"),
        ("site1=shifted:share=2", "share=2"),
    ],
)
def test_an_unusable_behaviour_is_told_before_anything_is_written(fedmerit, sites, tmp_path, spec, words):
    result = fedmerit("run", "--out", tmp_path / "run", "--method", "fedavg", "--sites", sites, "--behave", spec)
    assert result.exit_code == 2
    assert words in plain(result.output)
    assert not (tmp_path / "run").exists()


def test_a_config_file_may_hold_behaviours(fedmerit, sites, tmp_path):
    config = tmp_path / "run.toml"
    config.write_text(f'method = "fedavg"\nsites = "{sites}"\nrounds = 1\n[behaviours]\nsite9 = "zero"\n')
    result = fedmerit("run", "--out", tmp_path / "run", "--config", config)
    assert result.exit_code == 2
    assert "no site site9" in plain(result.output)


def test_runs_of_earlier_versions_are_of_honest_sites(own_run):
    info = read_run(own_run)
    del info["behaviours"]
    (own_run / "run.json").write_text(json.dumps(info))
    runs.require_same(own_run, {"rounds": 3})
    with pytest.raises(BadInput, match="behaviours"):
        runs.require_same(own_run, {"behaviours": {"site1": "zero"}})


def test_attack_prints_the_run_beside_the_honest_one(fedmerit, sites, tmp_path):
    given = ("--method", "fedavg", "--sites", sites, "--rounds", 2, "--jobs", 1, "--out", tmp_path, *SMALL)
    result = fedmerit("attack", "--kind", "zero", "--site", "site2", *given)
    assert result.exit_code == 0, result.output
    told = plain(result.output)
    assert "site2 beside the run in which all are honest" in told
    assert "small norm (0)" in told
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"fedavg_honest_seed0", "fedavg_zero_site2_seed0"}
    assert {path.name for path in (tmp_path / "tables").iterdir()} == {"attack.csv", "attack.tex"}
    refused = fedmerit("attack", "--kind", "all", "--site", "site2", *given)
    assert refused.exit_code == 2
    assert "freeriders" in refused.output


def test_freeriders_prints_the_matrix_and_goes_on(fedmerit, sites, tmp_path):
    given = ("--sites", sites, "--rounds", 2, "--jobs", 1, "--out", tmp_path, "--methods", "fedavg", *SMALL)
    result = fedmerit("freeriders", "--kinds", "zero", "--riding", "site1", *given)
    assert result.exit_code == 0, result.output
    assert "2 runs, 2 to do" in plain(result.output)
    result = fedmerit("freeriders", "--kinds", "zero,duplicate", "--riding", "site1", *given)
    assert result.exit_code == 0, result.output
    told = plain(result.output)
    assert "3 runs, 1 to do" in told
    for heading in ("What riding for free gives", "AUROC", "Honest sites flagged in honest runs"):
        assert heading in told
    tables = {path.name for path in (tmp_path / "tables").glob("*.csv")}
    assert tables == {f"{name}.csv" for name in ("freeriders", "flagged", "auroc", "false-flags", "runs", "roc")}
    figures = {path.name for path in (tmp_path / "figures").iterdir()}
    assert figures == {"figure4_fedavg_zero.png", "figure7_fedavg_zero.png"}
    assert not list((tmp_path / "runs").glob("*/sites"))


@pytest.mark.parametrize(
    "command", [("attack", "--kind", "zero", "--site", "site1"), ("freeriders", "--kinds", "zero")]
)
def test_a_number_of_runs_at_a_time_is_checked_first(fedmerit, sites, tmp_path, command):
    result = fedmerit(*command, "--sites", sites, "--out", tmp_path / "out", "--jobs", -1)
    assert result.exit_code == 2
    assert "--jobs -1: expected 1 or more" in plain(result.output)
    assert not (tmp_path / "out").exists()
