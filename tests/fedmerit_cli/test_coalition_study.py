"""A folder of trained coalitions: what is said of the trainings, and which of them sampling asks for."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from run_factory import make_sites

from fedmerit.contract.semivalues import EMPTY_COALITION
from fedmerit.errors import BadInput
from fedmerit.files import read_json
from fedmerit_cli import coalition_study
from fedmerit_cli.coalition_study import CoalitionStudy
from fedmerit_evaluation.ground_truth.shapley_approximations import Sampling
from fedmerit_evaluation.studies.execution import Workers
from fedmerit_evaluation.studies.study import Cost

A, B, BOTH = frozenset("A"), frozenset("B"), frozenset("AB")


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return make_sites(tmp_path_factory.mktemp("two") / "sites", ("A", "B"), size=16)


@pytest.fixture
def study(two, tmp_path):
    return CoalitionStudy(tmp_path / "out", "fedavg", "3,5", Workers(2), {}, {"sites": two, "rounds": 1})


@pytest.fixture
def synthetic(monkeypatch):
    """Four trainings, of which three are left, that take 600 of the sites' seconds; nothing is trained."""
    planned = [SimpleNamespace(folder=Path(f"run{place}"), finished=place == 0) for place in range(4)]
    calls = SimpleNamespace(asked=[], trained=[], cost=Cost(3, 12_000, 5.0), failed={}, seconds=[100.0, 700.0])

    def work_off(left, workers, on_end):
        calls.trained += left
        return calls.failed

    changes = {
        "prepare": lambda out, asked, seeds, *_: calls.asked.append((list(asked), list(seeds))) or planned,
        "estimate_cost": lambda trainings: calls.cost,
        "sum_seconds": lambda trainings: calls.seconds.pop(0),
        "execute_trainings": work_off,
        "write_results": lambda out: calls.asked.append("written"),
    }
    for name, function in changes.items():
        monkeypatch.setattr(coalition_study.coalitions, name, function)
    clock = iter((0.0, 360.0))
    monkeypatch.setattr(coalition_study, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    return calls


def test_cost_is_told_before_and_what_it_took_afterwards(study, synthetic, capsys):
    """Two at a time took 720 seconds of processes for 600 of the sites: a fifth more."""
    study.train([BOTH, A])
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith("3 of 4 trainings to do, 12,000 images in all: about 2.5 hours with 2 at a time")
    assert "took 6 minutes: +20.0% over the sites' own time, 10 minutes / 2" in printed
    assert [one.folder.name for one in synthetic.trained] == ["run1", "run2", "run3"]
    assert synthetic.asked == [([BOTH, A], [3, 5]), "written"]
    assert [folder.name for folder in study.trainings] == ["run0", "run1", "run2", "run3"]


def test_sampling_trains_what_it_needs_for_every_seed_until_it_ends(study, monkeypatch, capsys):
    """In a game without interplay every order gives a site what it has alone: no standard error, 20 orders."""
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


def test_what_ends_with_a_model_per_site_is_refused_before_anything_is_written(two, tmp_path):
    study = CoalitionStudy(tmp_path / "out", "silobn", "0", Workers(1), {}, {"sites": two, "rounds": 1})
    with pytest.raises(BadInput, match=r"each site a model of its own.*; add --set statistics=mean, or take a method"):
        study.sample(Sampling(("A", "B")))
    with pytest.raises(BadInput, match="each site a model of its own"):
        study.train([BOTH])
    assert not study.out.exists()


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
