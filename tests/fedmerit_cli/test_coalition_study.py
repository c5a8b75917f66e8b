"""A folder of trained coalitions: what is reported of the trainings, and which of them sampling asks for."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from run_factory import make_sites

from fedmerit.contract.semivalues import EMPTY_COALITION, Sampling
from fedmerit.errors import BadInput
from fedmerit.files import read_json
from fedmerit_cli import coalition_study
from fedmerit_cli.coalition_study import CoalitionStudy
from fedmerit_evaluation.studies import study as study_module
from fedmerit_evaluation.studies.execution import Workers

A, B, BOTH = frozenset("A"), frozenset("B"), frozenset("AB")


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return make_sites(tmp_path_factory.mktemp("two") / "sites", ("A", "B"), size=16)


@pytest.fixture
def study(two, tmp_path):
    return CoalitionStudy(tmp_path / "out", "fedavg", "3,5", Workers(2), {}, {"sites": two, "rounds": 1})


@pytest.fixture
def synthetic(monkeypatch):
    """Four trainings, of which three are unfinished and one is only untested; nothing is trained."""
    planned = [
        SimpleNamespace(folder=Path(f"run{place}"), finished=place == 0, trained=place < 2) for place in range(4)
    ]
    calls = SimpleNamespace(asked=[], trained=[], failed={})

    def work_off(left, workers, on_end):
        calls.trained += left
        return calls.failed

    changes = {
        "prepare": lambda out, asked, seeds, *_: calls.asked.append((list(asked), list(seeds))) or planned,
        "execute_trainings": work_off,
        "write_results": lambda out: calls.asked.append("written"),
    }
    for name, function in changes.items():
        monkeypatch.setattr(coalition_study.coalitions, name, function)
    monkeypatch.setattr(study_module, "read_run", lambda folder: {})
    monkeypatch.setattr(study_module, "count_training_images", lambda folder: 6000)
    return calls


def test_train_prints_cost_of_unfinished_trainings(study, synthetic, capsys):
    study.train([BOTH, A])
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith("3 of 4 trainings to do, 12,000 images in all")
    assert [one.folder.name for one in synthetic.trained] == ["run1", "run2", "run3"]
    assert synthetic.asked == [([BOTH, A], [3, 5]), "written"]
    assert [folder.name for folder in study.trainings] == ["run0", "run1", "run2", "run3"]


def test_sampling_trains_what_it_needs_for_every_seed_until_it_ends(study, monkeypatch, capsys):
    """In a game without interplay every order gives a site what it has only: no standard error, 20 orders."""
    worth = {3: {A: 0.3, B: 0.5, BOTH: 0.8}, 5: {A: 0.1, B: 0.2, BOTH: 0.3}}
    games = {3: {EMPTY_COALITION: 0.0}, 5: {EMPTY_COALITION: 0.0}}
    asked = []

    def train(coalitions, seeds):
        (seed,) = seeds
        asked.extend((seed, coalition) for coalition in coalitions)
        games[seed] |= {coalition: worth[seed][coalition] for coalition in coalitions}

    drawn = []
    estimate = Sampling.estimate
    monkeypatch.setattr(Sampling, "estimate", lambda rule, game: drawn.append(rule.seed) or estimate(rule, game))
    monkeypatch.setattr(coalition_study.coalitions, "prepare", lambda out, asked, *_: list(asked))
    monkeypatch.setattr(study, "train", train)
    monkeypatch.setattr(coalition_study, "coalition_utilities", lambda results: games)
    rule = Sampling(("A", "B"), truncation=0.0, precision=0.005, fewest=20, most=100)
    estimates = study.sample(rule)
    assert {seed: one.values.tolist() for seed, one in estimates.items()} == {
        3: pytest.approx([0.3, 0.5]), 5: pytest.approx([0.1, 0.2])
    }  # fmt: skip
    assert next(one for seed, one in asked if seed == 3) == BOTH
    assert sorted(asked, key=str) == sorted(((seed, one) for seed in worth for one in worth[seed]), key=str)
    assert set(drawn) == {3, 5}  # an order of its own for each
    ended = "20 permutations: no standard error above 0.005"
    assert capsys.readouterr().out.splitlines() == [f"seed 3: {ended}", f"seed 5: {ended}"]
    (written,) = study.out.iterdir()
    assert read_json(written)["most"] == 100


def test_what_cannot_be_asked_for(two, tmp_path):
    def asked(sites, seeds="0"):
        return CoalitionStudy(tmp_path / "out", "fedavg", seeds, Workers(1), {}, {"sites": sites, "rounds": 1})

    assert (asked(two).names, list(asked(two, "4,2").seeds)) == (["A", "B"], [4, 2])
    with pytest.raises(BadInput, match="--seeds 0,one: expected whole numbers"):
        asked(two, "0,one")
    one = make_sites(tmp_path / "one", ("A",), size=16)
    with pytest.raises(BadInput, match="holds only A; a site's value needs at least one other site"):
        asked(one)
    assert not (tmp_path / "out").exists()
