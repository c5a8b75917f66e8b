"""Sites that attack in whole runs, on both engines."""

import json

import pytest

from fedmerit.attacks.catalogue import parse
from fedmerit.engines import runs
from fedmerit.records.ledger import verify
from fedmerit.records.results import read_results, read_run


def make(run, sites, engine, attacks, rounds=3, method="fedce"):
    settings = {"architecture": "unet", "width": "2", "depth": "2", "residual_units": "0", "validate_trained": "true"}
    runs.create(run, method=method, sites=sites, rounds=rounds, engine=engine, settings=settings, attacks=attacks)
    runs.execute(run, lambda record: None)
    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    "attacks",
    [{"site2": "delta-noise:from=1"}, {"site1": "label-noise:share=0.5", "site3": "replay"}],
    ids=["an update", "data and an update"],
)
def test_a_simulated_site_attacks_as_a_local_one(tmp_path, sites, assert_same_run, attacks):
    local = make(tmp_path / "local" / "run", sites, "local", attacks)
    simulated = make(tmp_path / "sim" / "run", sites, "sim", attacks)
    assert_same_run(local, simulated)
    assert read_run(local)["attacks"] == read_run(simulated)["attacks"]
    honest = make(tmp_path / "honest" / "run", sites, "local", {})
    digests = [[json.loads(line)["updates"] for line in (run / "ledger.jsonl").open()] for run in (local, honest)]
    attacking = {site for site, sent in digests[0][0].items() if sent != digests[1][0][site]}
    assert attacking == {site for site, spec in attacks.items() if parse(spec).first == 0}
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
