"""The benchmark of detectors: which federations, who has which part, what is kept, and what is made of it."""

import json
from dataclasses import replace

import pandas as pd
import pytest
from made_federations import federation, honest
from run_factory import make_sites

from fedmerit.errors import BadInput
from fedmerit_evaluation.studies.study_folders import parse_methods
from fedmerit_lab.benchmarks import detection_benchmark as module
from fedmerit_lab.benchmarks.detection_benchmark import (
    MADE_UP,
    TRAINED,
    WORST,
    DetectionBench,
    assign_roles,
    detection,
    federations,
    require_known,
)
from fedmerit_lab.detection import monitored_federation
from fedmerit_lab.detection.monitored_federation import Roles


def bench(**changes):
    asked = {"world": MADE_UP, "methods": parse_methods("fedavg,fedce:combine=plus"), "attacks": ["zero update"]}
    return DetectionBench(**asked | {"seeds": [0, 1]} | changes)


@pytest.fixture
def sites(tmp_path):
    return make_sites(tmp_path / "sites", ("Alder", "Birch", "Cedar", "Dogwood"), size=16)


@pytest.fixture
def played(monkeypatch):
    """What was played: in its place stand numbers that are made up."""
    played = []

    def watch(method, label, attack, seed, guarded, on_verdict):
        played.append((label, attack, seed, guarded, on_verdict, getattr(method, "combine", None)))
        return replace(honest(seed) if attack == "honest" else federation(attack, seed), method=label)

    monkeypatch.setattr(module, "monitor_synthetic", watch)
    return played


def test_honest_federations_come_first_and_once():
    cases = bench(attacks=["zero update", "honest", "replay"]).cases
    told = [(method.label, attack, seed) for method, attack, seed in cases]
    assert told[:4] == [("fedavg", "honest", 0), ("fedce:combine=plus", "honest", 0), ("fedavg", "zero update", 0),
                        ("fedce:combine=plus", "zero update", 0)]  # fmt: skip
    assert len(told) == len(set(told)) == 2 * 3 * 2


def test_federations_are_played_once_and_kept(played, tmp_path):
    told = []
    found = federations(bench(), tmp_path, lambda *case: told.append(case))
    assert [(one.method, one.attack, one.seed) for one in found] == [
        (method.label, attack, seed) for method, attack, seed in bench().cases
    ]
    assert told[0] == ("fedavg, honest, seed 0", 0, 8)
    assert played[3] == ("fedce:combine=plus", "zero update", 0, True, "withhold", "plus")
    assert (tmp_path / "federations" / "fedce_combine-plus_zero_update_seed1.json").exists()
    (tmp_path / "federations" / "fedavg_honest_seed1.json").unlink()
    assert federations(bench(), tmp_path) == found
    assert [one[:3] for one in played[8:]] == [("fedavg", "honest", 1)]
    more = federations(bench(seeds=[0, 1, 2]), tmp_path)  # another seed goes beside them
    assert len(more) == 12


@pytest.mark.parametrize(
    ("changes", "told"),
    [({"guard": "off"}, "other guard;"), ({"on_verdict": "show", "rounds": 9}, "on_verdict, rounds")],
)
def test_federations_asked_for_otherwise_are_not_mixed(played, tmp_path, changes, told):
    federations(bench(), tmp_path)
    with pytest.raises(BadInput, match=told):
        federations(bench(**changes), tmp_path)


def test_an_attack_of_the_other_world_is_unknown(tmp_path):
    with pytest.raises(BadInput, match="--attacks claims 1e9 images: unknown for trained sites"):
        require_known(bench(world=TRAINED, attacks=["honest", "claims 1e9 images"]))
    with pytest.raises(BadInput, match="claims 1,000 times its images: unknown for made-up sites"):
        federations(bench(attacks=["claims 1,000 times its images"]), tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_worst_are_attacks_on_trained_networks():
    require_known(bench(world=TRAINED, attacks=WORST))
    assert len(set(WORST)) == 10
    assert set(WORST) <= set(monitored_federation.ATTACKS)


def test_who_attacks_and_who_is_trusted_goes_by_name(sites):
    assert assign_roles(sites) == Roles("Dogwood", "Alder", "Birch", "")
    assert assign_roles(sites, outlier="Dogwood") == Roles("Cedar", "Alder", "Birch", "Dogwood")
    assert assign_roles(sites, "Alder", "Birch") == Roles("Alder", "Cedar", "Dogwood", "Birch")
    with pytest.raises(BadInput, match="holds no site Elm; there are Alder, Birch, Cedar, Dogwood"):
        assign_roles(sites, "Elm")


def test_three_sites_are_needed_beside_an_outlier(tmp_path):
    few = make_sites(tmp_path / "few", ("Alder", "Birch", "Cedar"), size=16)
    assert assign_roles(few).attacker == "Cedar"
    with pytest.raises(BadInput, match="has 3 sites; an attacker, a partner and a trusted site are needed"):
        assign_roles(few, outlier="Birch")


def test_trained_federations_depend_on_sites_roles_and_settings(sites, tmp_path, monkeypatch):
    asked = bench(
        world=TRAINED, sites=sites, methods=parse_methods("fedce"), seeds=[3], settings={"width": "2"}, rounds=4
    )
    assert asked.to_dict() == {
        "world": "trained", "guard": "on", "on_verdict": "withhold", "rounds": 4, "sites": str(sites.resolve()),
        "roles": {"attacker": "Dogwood", "partner": "Alder", "trusted": "Birch", "outlier": ""},
        "settings": {"width": "2"},
    }  # fmt: skip
    trained = []

    def watch(training, label, attack, seed, run):
        trained.append((training, label, attack, seed, run))
        return federation(attack, seed)

    monkeypatch.setattr(module, "monitor_trained", watch)
    federations(asked, tmp_path / "out")
    (_, attacked) = trained
    training = attacked[0]
    assert attacked[1:] == ("fedce", "zero update", 3, tmp_path / "out" / "runs" / "fedce_zero_update_seed3")
    assert (training.sites, training.rounds, training.method) == (sites, 4, "fedce")
    assert training.settings == {"guard": "on", "on_verdict": "withhold", "width": "2"}
    assert training.roles == Roles("Dogwood", "Alder", "Birch", "")


def test_tables_figures_and_rounds_are_written(played, undrawn, tmp_path):
    asked = bench(methods=parse_methods("fedce"), after=2)
    tables = detection(asked, federations(asked, tmp_path), tmp_path)
    told = tables[0].frame.set_index("Detector")
    assert told.loc["one", ["AUROC", "Named [%]"]].to_list() == [1, 100]
    written = pd.read_csv(tmp_path / "detection.csv").set_index("Detector")
    assert written.loc["one", "AUROC"] == 1
    content = json.loads((tmp_path / "detection.json").read_text())
    assert content["settings"]["seeds"] == [0, 1]
    assert content["settings"]["after"] == 2
    rounds = [row for row in content["measured"] if row["Detector"] == "one"]
    assert {(row["Round"], row["AUROC"]) for row in rounds} == {(0, 1), (1, 1)}
    assert {file.stem for file in tmp_path.glob("*.png")} == {"detection-fedce", "rounds-fedce"}
