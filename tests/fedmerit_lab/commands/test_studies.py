"""`fedmerit lab paper` and `fedmerit lab attacks`: what is asked for, listed and printed."""

import shutil

import pytest
from run_factory import make_sites

from fedmerit.errors import BadInput
from fedmerit_lab.papers import production
from fedmerit_lab.papers.artefact import Artefact, Made, Paper
from fedmerit_lab.papers.production import Shown
from fedmerit_lab.papers.study import WithoutOne


def artefact(name, *needs, **changes):
    return Artefact(name, f"What {name} shows", lambda study, one: Made(), needs, **changes)


TABLE = artefact("table1", WithoutOne(("fedavg",)))
FIGURE = artefact("figure2", WithoutOne(("fedavg",)), WithoutOne(("fedce",)), on_demand=True)


@pytest.fixture(autouse=True)
def two_artefacts(monkeypatch):
    paper = Paper("A paper", "nowhere", "in no way", (TABLE, FIGURE), absent={"Table 9": "photographs"})
    monkeypatch.setitem(production.PAPERS, "a-paper", paper)


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    return make_sites(tmp_path_factory.mktemp("four") / "sites", size=16)


@pytest.fixture
def produced(monkeypatch):
    """What is asked of a production that trains nothing, and what it says it made and what failed."""
    found = {"made": [Shown(TABLE)], "failed": {}}

    def produce(paper, artefacts, study, workers, on_begin, on_end):
        found.update(artefacts=artefacts, study=study, jobs=workers.number)
        on_begin(2)
        on_end(study.out / "run", None)
        return found["made"], found["failed"]

    monkeypatch.setattr(production, "produce", produce)
    return found


def lines(result):
    return [" ".join(line.split()) for line in result.stdout.splitlines() if line.strip()]


def test_the_list_has_trainings_per_seed(fedmerit):
    """All sites and without each, by a method: N + 1."""
    listed = lines(fedmerit("lab", "paper", "a-paper", "--list"))
    assert "table1 What table1 shows N + 1" in listed
    assert "figure2 * What figure2 shows N + 1 + N + 1" in listed
    assert "not made: Table 9: photographs" in listed
    assert listed[-1] == "N: number of sites. Artefacts share trainings; --sites SITES counts them."


def test_trainings_that_artefacts_share_are_counted_once(fedmerit, four):
    """Of four sites five by fedavg, for the table and the figure, and five by fedce."""
    given = ("lab", "paper", "a-paper", "--list", "--sites", four)
    assert lines(fedmerit(*given))[-1].startswith("together, for 4 sites: 5 trainings per seed")
    named = lines(fedmerit(*given, "--only", "table1,figure2"))
    assert named[-1].startswith("together, for 4 sites: 10 trainings per seed")


def test_options_say_what_is_made(fedmerit, four, tmp_path, produced):
    out = tmp_path / "out"
    given = ("--rounds", 2, "--seeds", "4,7", "--into", 3, "--jobs", 1, "--set", "lr=0.1", "--preset", "paper")
    result = fedmerit("lab", "paper", "a-paper", "--sites", four, "--out", out, "--only", "figure2", *given)
    assert result.exit_code == 0, result.output
    study = produced["study"]
    assert [one.name for one in produced["artefacts"]] == ["figure2"]
    assert (study.out, study.sites, study.rounds, list(study.seeds), study.into) == (out, four, 2, [4, 7], 3)
    assert study.settings == {"lr": "0.1", "preset": "a-paper"}  # its own paper's, for every method
    assert produced["jobs"] == 1
    assert f"page: {out / 'page.html'}" in " ".join(lines(result))


def test_what_is_missing_or_failed_ends_with_exit_code_1(fedmerit, four, tmp_path, produced):
    given = ("lab", "paper", "a-paper", "--sites", four, "--out", tmp_path / "out")
    produced["made"] = [Shown(TABLE, left_out="fedce: too few sites"), Shown(FIGURE, left_out="fedce: too few sites")]
    result = fedmerit(*given)
    assert (result.exit_code, result.stderr) == (0, "fedce: too few sites\n")
    produced["made"] = [Shown(TABLE, missing="no patients")]
    result = fedmerit(*given)
    assert (result.exit_code, result.stderr) == (1, "missing: table1: no patients\n")
    produced["made"], produced["failed"] = [Shown(TABLE)], {tmp_path / "run": "no reply"}
    result = fedmerit(*given)
    assert (result.exit_code, result.stderr) == (1, f"failed: {tmp_path / 'run'}: no reply\n")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((), "--sites: missing; --list shows the artefacts without them"),
        (("--sites", "S"), "--out: missing"),
        (("--sites", "S", "--out", "O", "--rounds", 0), "--rounds 0: expected a whole number, 1 or more"),
        (("--only", "table9", "--list"), "--only table9: unknown (Table 9: photographs); there are table1, figure2"),
    ],
)
def test_bad_input_before_anything_is_made(fedmerit, tmp_path, monkeypatch, produced, given, message):
    monkeypatch.chdir(tmp_path)
    result = fedmerit("lab", "paper", "a-paper", *given)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert "study" not in produced
    assert list(tmp_path.iterdir()) == []


def plain(text):
    return " ".join(text.split())


@pytest.mark.slow
def test_attacks_give_the_matrix_and_reuse_runs(fedmerit, sites, small, tmp_path):
    out = tmp_path / "out"
    options = ("--sites", sites, "--rounds", 2, "--jobs", 1, "--methods", "fedavg", "--attackers", "site1", *small)
    for kinds, printed in (("zero", "2 runs, 2 to do"), ("zero,duplicate", "3 runs, 1 to do")):
        result = fedmerit("lab", "attacks", "--kinds", kinds, "--out", out, *options)
        assert result.exit_code == 0, result.output
        assert printed in plain(result.output)
        assert "AUROC" in plain(result.output)
    assert len(list((out / "runs").iterdir())) == 3
    assert not list((out / "runs").glob("*/sites"))
    assert {"attacks.csv", "runs.csv", "detection-rates.csv"} <= {path.name for path in (out / "tables").glob("*.csv")}


@pytest.mark.parametrize("attackers", ["site1,site1", "site1,", "site1, site1"])
def test_attackers_are_named_once_each(fedmerit, sites, tmp_path, attackers):
    result = fedmerit("lab", "attacks", "--attackers", attackers, "--sites", sites, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert f"--attackers {attackers}: expected names of sites such as A,B, each once" in plain(result.output)
    assert not (tmp_path / "out").exists()


def test_all_methods_are_those_in_which_so_many_sites_can_attack(fedmerit, own_sites, tmp_path, monkeypatch):
    shutil.rmtree(own_sites / "site3")
    asked = []

    def prepare(out, items, *further):
        asked.extend(item.method for item in items)
        raise BadInput("that is all")

    monkeypatch.setattr("fedmerit_lab.attacks.attacked_runs.prepare", prepare)
    fedmerit("lab", "attacks", "--methods", "all", "--kinds", "zero", "--sites", own_sites, "--out", tmp_path / "out")
    assert "fedavg" in asked
    assert not {"pooled", "krum"} & set(asked)
