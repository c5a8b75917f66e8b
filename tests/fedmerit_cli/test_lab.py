"""`fedmerit lab paper`: what it lists and how it ends; what is made is tested with what it calls."""

import pytest
from run_factory import make_sites

from fedmerit_lab.papers import production
from fedmerit_lab.papers.artefact import Artefact, Made, Paper
from fedmerit_lab.papers.production import Shown
from fedmerit_lab.papers.required_trainings import WithoutOne


def artefact(name, *needs, **changes):
    return Artefact(name, f"What {name} shows", lambda study, one: Made(), needs, **changes)


TABLE = artefact("table1", WithoutOne("fedavg"))
FIGURE = artefact("figure2", WithoutOne("fedavg"), WithoutOne("fedce"), on_demand=True)


@pytest.fixture(autouse=True)
def two_artefacts(monkeypatch):
    paper = Paper("Made up", "nowhere", "in no way", (TABLE, FIGURE), {"Table 9": "photographs"})
    monkeypatch.setitem(production.PAPERS, "made-up", paper)


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


def test_the_list_tells_trainings_of_one_seed(fedmerit):
    """All sites and without each, by a method: N + 1."""
    told = lines(fedmerit("lab", "paper", "made-up", "--list"))
    assert "table1 What table1 shows N + 1" in told
    assert "figure2 * What figure2 shows N + 1 + N + 1" in told
    assert "not made: Table 9: photographs" in told
    assert told[-1] == "N: number of sites. Artefacts share trainings; --sites SITES counts them."


def test_trainings_that_artefacts_share_are_counted_once(fedmerit, four):
    """Of four sites five by fedavg, for the table and the figure, and five by fedce."""
    given = ("paper", "made-up", "--list", "--sites", four)
    assert lines(fedmerit(*given))[-1].startswith("together, for 4 sites: 5 trainings of a seed")
    named = lines(fedmerit(*given, "--only", "table1,figure2"))
    assert named[-1].startswith("together, for 4 sites: 10 trainings of a seed")


def test_options_say_what_is_made(fedmerit, four, tmp_path, produced):
    out = tmp_path / "out"
    given = ("--rounds", 2, "--seeds", "4,7", "--into", 3, "--jobs", 1, "--set", "lr=0.1", "--preset", "paper")
    result = fedmerit("lab", "paper", "made-up", "--sites", four, "--out", out, "--only", "figure2", *given)
    assert result.exit_code == 0, result.output
    study = produced["study"]
    assert [one.name for one in produced["artefacts"]] == ["figure2"]
    assert (study.out, study.sites, study.rounds, list(study.seeds), study.into) == (out, four, 2, [4, 7], 3)
    assert study.settings == {"lr": "0.1", "preset": "made-up"}  # its own paper's, for every method
    assert produced["jobs"] == 1
    assert f"page: {out / 'page.html'}" in " ".join(lines(result))


def test_what_is_missing_or_failed_is_told_with_exit_code_1(fedmerit, four, tmp_path, produced):
    given = ("paper", "made-up", "--sites", four, "--out", tmp_path / "out")
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
    ("given", "told"),
    [
        ((), "--sites: missing; --list shows what there is without them"),
        (("--sites", "S"), "--out: missing"),
        (("--sites", "S", "--out", "O", "--rounds", 0), "--rounds 0: expected 1 or more"),
        (("--sites", "S", "--out", "O", "--into", 0), "--into 0: expected 1 or more"),
        (("--only", "table9", "--list"), "--only table9: unknown (Table 9: photographs); there are table1, figure2"),
    ],
)
def test_bad_input_before_anything_is_made(fedmerit, tmp_path, monkeypatch, produced, given, told):
    monkeypatch.chdir(tmp_path)
    result = fedmerit("lab", "paper", "made-up", *given)
    assert result.exit_code == 2
    assert told in " ".join(result.stderr.split())
    assert "study" not in produced
    assert list(tmp_path.iterdir()) == []
