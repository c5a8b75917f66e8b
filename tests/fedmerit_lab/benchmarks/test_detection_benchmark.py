"""The comparison of detectors: its federations, their storage, and its tables."""

from dataclasses import replace
from pathlib import Path

import pytest
from made_federations import federation, honest
from run_factory import make_sites

from fedmerit.errors import BadInput
from fedmerit_evaluation.figures.tables import file_name
from fedmerit_evaluation.studies.study import parse_methods
from fedmerit_lab.benchmarks import detection_benchmark as module
from fedmerit_lab.benchmarks.detection_benchmark import DetectionBench, detection_tables, federations
from fedmerit_lab.detection.scenarios import Roles, assign_roles

SITES, ROLES = Path("sites"), Roles("site6", "site1", "site2", "site4")


def bench(**changes):
    options = {
        "sites": SITES,
        "methods": parse_methods("fedavg,fedce:combine=plus"),
        "attacks": ["zero update"],
        "seeds": [0, 1],
    }
    return DetectionBench(**options | changes)


@pytest.fixture
def sites(tmp_path):
    return make_sites(tmp_path / "sites", ("Alder", "Birch", "Cedar", "Dogwood"), size=16)


@pytest.fixture
def monitored(monkeypatch):
    """The federations that would be trained; invented numbers replace theirs."""
    found = []

    def monitor(training, label, attack, seed, run):
        found.append((training, label, attack, seed, run))
        return replace(honest(seed) if attack == "honest" else federation(attack, seed), method=label)

    monkeypatch.setattr(module, "monitor", monitor)
    monkeypatch.setattr(module, "assign_roles", lambda sites, *_: assign_roles(sites, *_) if sites != SITES else ROLES)
    return found


def test_honest_federations_come_first_and_once():
    cases = bench(attacks=["zero update", "honest", "replay"]).cases
    found = [(method.label, attack, seed) for method, attack, seed in cases]
    both = ["fedavg", "fedce:combine=plus"]
    assert found[:4] == [(label, attack, 0) for attack in ("honest", "zero update") for label in both]
    assert len(found) == len(set(found)) == 2 * 3 * 2


def test_federations_are_trained_once_and_stored(monitored, tmp_path):
    cases = []
    found = federations(bench(), tmp_path, lambda *case: cases.append(case))
    expected = [(method.label, attack, seed) for method, attack, seed in bench().cases]
    assert [(one.method, one.attack, one.seed) for one in found] == expected
    assert cases[0] == ("fedavg, honest, seed 0", 0, 8)
    training, *case = monitored[3]
    assert case == [
        "fedce:combine=plus",
        "zero update",
        0,
        tmp_path / "runs" / file_name("fedce:combine=plus, zero update, seed 0"),
    ]
    assert (training.method, training.parameters, training.rounds) == ("fedce", {"combine": "plus"}, 15)
    assert training.roles == ROLES
    (tmp_path / "federations" / f"{file_name('fedavg, honest, seed 1')}.json").unlink()
    assert federations(bench(), tmp_path) == found
    assert [one[1:4] for one in monitored[8:]] == [("fedavg", "honest", 1)]
    assert len(federations(bench(seeds=[0, 1, 2]), tmp_path)) == 12  # another seed is added


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"settings": {"guard": "off"}}, "other settings;"), ({"attacker": "site1", "rounds": 9}, "attacker, rounds")],
)
def test_federations_of_other_options_are_not_mixed(monitored, tmp_path, changes, words):
    federations(bench(), tmp_path)
    with pytest.raises(BadInput, match=words):
        federations(bench(**changes), tmp_path)


def test_unknown_attacks_and_sites_are_refused_before_anything_is_written(sites, tmp_path):
    for changes, words in (
        ({"attacks": ["honest", "sleep"]}, "--attacks sleep: unknown; there are honest; zero update;"),
        ({"sites": sites, "attacker": "Elm"}, "holds no site Elm; there are Alder, Birch, Cedar, Dogwood"),
    ):
        with pytest.raises(BadInput, match=words):
            federations(bench(**changes), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_roles_are_assigned_by_name(sites, tmp_path):
    assert assign_roles(sites) == Roles("Dogwood", "Alder", "Birch", "")
    assert assign_roles(sites, outlier="Dogwood") == Roles("Cedar", "Alder", "Birch", "Dogwood")
    assert assign_roles(sites, "Alder", "Birch") == Roles("Alder", "Cedar", "Dogwood", "Birch")
    few = make_sites(tmp_path / "few", ("Alder", "Birch", "Cedar"), size=16)
    assert assign_roles(few).attacker == "Cedar"
    with pytest.raises(BadInput, match="has 3 sites; an attacker, a partner and a trusted site are needed"):
        assign_roles(few, outlier="Birch")


def test_federations_of_site_folders_depend_on_sites_roles_and_settings(monitored, sites, tmp_path):
    options = {"sites": sites, "methods": parse_methods("fedce"), "seeds": [3], "settings": {"width": "2"}, "rounds": 4}
    asked = bench(**options)
    assert asked.to_dict() == {
        "sites": str(sites.resolve()), "attacker": None, "outlier": None, "rounds": 4, "settings": {"width": "2"},
    }  # fmt: skip
    federations(asked, tmp_path / "out")
    training = monitored[1][0]
    assert (training.sites, training.rounds, training.method) == (sites, 4, "fedce")
    assert training.settings == {"width": "2"}
    assert training.roles == Roles("Dogwood", "Alder", "Birch", "")


def test_tables_hold_each_detector_of_the_attacked_federations(monitored, tmp_path):
    asked = bench(methods=parse_methods("fedce"), after=2)
    tables = detection_tables(asked, federations(asked, tmp_path))
    found = tables[0].frame.set_index("Detector")
    assert found.loc["one", ["AUROC", "Detected [%]"]].to_list() == [1, 100]
    assert [table.name for table in tables] == ["detection", "false-positives", "attack-rewards"]
