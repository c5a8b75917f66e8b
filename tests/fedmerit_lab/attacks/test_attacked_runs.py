"""The runs of a study of attacks."""

import json
import shutil

import pytest
from tiny import TINY

from fedmerit.errors import BadInput
from fedmerit.schema.run_info import read_run
from fedmerit_evaluation.studies.study import parse_methods
from fedmerit_lab.attacks import attacked_runs
from fedmerit_lab.attacks.attacked_runs import HONEST, collect_results, parse_attack_kinds, prepare

SETTINGS = TINY

# Kinds


def test_all_kinds_are_those_that_a_site_can_follow():
    kinds = parse_attack_kinds("all", ["disc", "cup"])
    assert {"repeat", "delta-noise", "swapped", "duplicate", "split"} <= set(kinds)
    assert "twin" not in kinds
    assert "swapped" not in parse_attack_kinds("all", ["prostate"])  # the same as inverted
    assert parse_attack_kinds("noise:from=3, split", ["prostate"]) == ["noise:from=3", "split"]


@pytest.mark.parametrize(
    ("text", "words"),
    [("lazy", "unknown"), ("zero,zero", "twice"), ("twin:of=A", "duplicate"), ("noise:x=1", "x=1"), ("", "unknown")],
)
def test_kinds_that_cannot_be_used_are_refused(text, words):
    with pytest.raises(BadInput, match=words):
        parse_attack_kinds(text, ["prostate"])


def config(out, sites, kinds="zero,duplicate,noise:from=2", **changes):
    options = {"sites": sites, "rounds": 3} | changes
    return prepare(out, parse_methods("fedavg"), kinds.split(","), ["site1", "site3"], [0, 1], SETTINGS, options)


def test_every_run_is_planned(sites, tmp_path):
    attacks = config(tmp_path, sites)
    assert len(attacks) == 2 * (1 + 3 * 2)
    assert len({attack.folder for attack in attacks}) == len(attacks)
    assert [attack.kind for attack in attacks[:2]] == [HONEST] * 2
    for attack in attacks:
        info = read_run(attack.folder)
        assert (info["method"], info["seed"], info["engine"]) == (attack.label, attack.seed, "local")
        assert info["training"]["validate_trained"] is True
        expected = {
            HONEST: {},
            "zero": {attack.site: "zero:from=0"},
            "noise:from=2": {attack.site: "noise:from=2:times=1.0:shared=0.0"},
            "duplicate": {f"{attack.site}-copy": f"twin:from=0:of={attack.site}"},
        }
        assert info.get("attacks", {}) == expected[attack.kind]
        assert attack.first == (2 if attack.kind.startswith("noise") else 0)
        assert len(info["sites"]) == (4 if attack.kind == "duplicate" else 3)
        assert set(attack.attackers) <= set(info["sites"])
        assert bool(attack.attackers) == (attack.kind != HONEST)
    assert {attack.attackers for attack in attacks if attack.kind == "duplicate"} == {
        ("site1", "site1-copy"),
        ("site3", "site3-copy"),
    }
    assert collect_results(attacks).rows.empty


@pytest.mark.slow
def test_every_attack_is_run_on_every_fold(folded_sites, tmp_path):
    options, items = {"sites": folded_sites, "rounds": 3}, parse_methods("fedavg")
    planned = prepare(tmp_path, items, ["zero", "split"], ["site1"], [0, 1], SETTINGS, options, range(3))
    assert len(planned) == (1 + 2) * 2 * 3
    for attack in planned:
        info = read_run(attack.folder)
        assert (info["seed"], info["fold"]) == (attack.seed, attack.fold)
        assert attack.folder.name.endswith(f"_seed{attack.seed}_fold{attack.fold}")
    assert {path.name for path in (tmp_path / "sites").iterdir()} == {f"split_site1_fold{fold}" for fold in range(3)}
    assert prepare(tmp_path, items, ["zero", "split"], ["site1"], [0, 1], SETTINGS, options, range(3)) == planned


def test_a_refused_study_writes_nothing(sites, tmp_path):
    for kinds, options, words in (("noise:from=3", {}, "begins in round 3"), ("zero", {"rounds": 0}, "rounds")):
        with pytest.raises(BadInput, match=words):
            config(tmp_path / "out", sites, kinds, **options)
        assert not (tmp_path / "out").exists()
    with pytest.raises(BadInput, match="site9"):
        prepare(tmp_path / "out", parse_methods("fedavg"), ["zero"], ["site9"], [0], {}, {"sites": sites, "rounds": 3})


@pytest.mark.slow
def test_copies_of_a_site_have_its_present_images(sites, tmp_path):
    own = shutil.copytree(sites, tmp_path / "sites")
    config(tmp_path / "out", own, "duplicate")
    info = json.loads((own / "site1" / "site.json").read_text())
    (own / "site1" / "site.json").write_text(json.dumps(info | {"prepared": "again"}))
    options = {"sites": own, "rounds": 3}
    with pytest.raises(BadInput, match=r"site1 is not what .* was started with"):  # although no run has this seed
        prepare(tmp_path / "out", parse_methods("cgsv"), ["duplicate"], ["site1"], [5], SETTINGS, options)


def test_memory_of_a_finished_run_is_deleted(tmp_path):
    (tmp_path / "sites" / "A").mkdir(parents=True)
    (tmp_path / "models").mkdir()
    attacked_runs.forget(tmp_path, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["models"]
