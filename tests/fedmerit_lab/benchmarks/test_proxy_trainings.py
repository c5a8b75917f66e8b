"""Proxy of retraining: its coalitions, their settings, and the values of the sites."""

from types import SimpleNamespace

import numpy as np
import pytest
from games_reference import random_game, shapley_by_permutations
from run_factory import make_sites

from fedmerit.errors import BadInput, RunFailed
from fedmerit.files import write_json
from fedmerit_evaluation.ground_truth import coalitions
from fedmerit_evaluation.ground_truth.shapley_approximations import least_squares_values
from fedmerit_evaluation.studies.execution import Workers
from fedmerit_lab.benchmarks import observed_trainings
from fedmerit_lab.benchmarks.observed_trainings import Proxy, train_proxy
from fedmerit_lab.partitioning.downsampling import shrink


def test_a_proxy_folder_belongs_to_its_sites(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "fedmerit_evaluation.ground_truth.coalitions.prepare", lambda *_: pytest.fail("trained on other sites")
    )
    first, other = (make_sites(tmp_path / name, ("Alder", "Birch"), size=16) for name in ("first", "other"))
    write_json(tmp_path / "proxy" / "sites.json", {"sites": str(first), "shrink": 2})
    shrink(first, tmp_path / "proxy" / "sites", 2)
    with pytest.raises(BadInput, match=f"holds trainings with sites {first}"):
        train_proxy(Proxy(shrink=2), other, tmp_path / "proxy", [0], {}, Workers(1))


@pytest.fixture
def trained(monkeypatch):
    """The trainings that would be executed; ``answer`` replaces their results."""
    answer = SimpleNamespace(failed={}, sites=["A"], asked=None)

    def prepare(out, chosen, seeds, method, settings, options, folds):
        asked = {"chosen": chosen, "seeds": seeds, "method": method, "settings": settings, "options": options}
        answer.asked = SimpleNamespace(**asked, folds=folds)
        return []

    monkeypatch.setattr(coalitions, "prepare", prepare)
    monkeypatch.setattr(coalitions, "execute_trainings", lambda trainings, workers, on_end: answer.failed)
    monkeypatch.setattr(coalitions, "collect_results", lambda trainings: SimpleNamespace(sites=answer.sites))
    monkeypatch.setattr(coalitions, "sum_seconds", lambda trainings: 12.5)
    monkeypatch.setattr(
        observed_trainings, "resample", lambda results, values: SimpleNamespace(values="", of_folds=None)
    )
    return answer


def trainings_of(proxied, root, tmp_path, settings=None):
    return train_proxy(proxied, root, tmp_path / "out", [0, 1], settings or {}, Workers(1))


def test_few_coalitions_are_all_trained_with_the_proxys_network(trained, tmp_path):
    root = make_sites(tmp_path / "sites", ("Alder", "Birch", "Cedar"), size=16)
    given = {"width": "32", "lr": "0.1"}
    found = trainings_of(Proxy(rounds=3, width=2, depth=2, most=8), root, tmp_path, given)
    asked = trained.asked
    assert len(asked.chosen) == len(set(asked.chosen)) == 7  # without the empty one
    assert asked.settings == {"width": "2", "depth": "2", "lr": "0.1"}
    assert asked.options == {"sites": root, "rounds": 3, "engine": "local"}
    assert (asked.method, asked.seeds, found.seconds) == ("fedavg", [0, 1], 12.5)


def test_of_many_coalitions_a_sample_is_trained(trained, tmp_path):
    """Four sites have 16 coalitions; the regression needs 10 of them, the empty one among them."""
    root = make_sites(tmp_path / "sites", ("Alder", "Birch", "Cedar", "Dogwood"), size=16)
    trainings_of(Proxy(most=10), root, tmp_path)
    chosen = set(trained.asked.chosen)
    assert len(chosen) == len(trained.asked.chosen) == 9
    assert frozenset({"Alder", "Birch", "Cedar", "Dogwood"}) in chosen
    with pytest.raises(BadInput, match="9 coalitions of 4 sites: expected 10 or more"):
        trainings_of(Proxy(most=9), root, tmp_path)


def test_smaller_images_are_made_once(trained, tmp_path):
    root = make_sites(tmp_path / "sites", ("Alder", "Birch"), size=16)
    for _ in range(2):
        trainings_of(Proxy(shrink=4), root, tmp_path)
        assert trained.asked.options["sites"] == tmp_path / "out" / "sites"
    assert np.load(tmp_path / "out" / "sites" / "Birch" / "training0_image.npy").shape == (3, 1, 4, 4)


def test_failed_or_missing_trainings_are_errors(trained, tmp_path):
    root = make_sites(tmp_path / "sites", ("Alder", "Birch"), size=16)
    trained.failed = {tmp_path / "Alder_seed0": "out of memory"}
    with pytest.raises(RunFailed, match="Alder_seed0: out of memory"):
        trainings_of(Proxy(), root, tmp_path)
    trained.failed, trained.sites = {}, []
    with pytest.raises(BadInput, match="no training is finished"):
        trainings_of(Proxy(), root, tmp_path)


def test_values_are_exact_if_all_coalitions_are_trained_and_else_a_regression():
    game = random_game("ABCD", 0)
    np.testing.assert_allclose(Proxy().values(game), shapley_by_permutations(game, "ABCD"), atol=1e-12)
    some = {one: utility for one, utility in game.items() if one not in (frozenset("AB"), frozenset("BCD"))}
    values = Proxy().values(some)
    np.testing.assert_allclose(values, least_squares_values(some), atol=1e-12)
    assert values.sum() == pytest.approx(game[frozenset("ABCD")] - game[frozenset()])
