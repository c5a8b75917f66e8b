"""The best round by validation Dice, beside the last."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from fedmerit.engines import runs
from fedmerit.federation import final_models
from fedmerit.federation.final_models import BestRound
from fedmerit.federation.site import Site
from fedmerit.records.results import read_results
from fedmerit.trainers.monai_trainer.overlaps import Overlap

ROUNDS = 3


@pytest.fixture
def falling(monkeypatch):
    """Sites whose every training after the first spoils the model: round 1's models are the best."""
    learn = Site.learn

    def spoiled(self, task, received, memory):
        learned = learn(self, task, received, memory)
        if task.round:
            learned.update.mul_(0).sub_(10 * received)
        return learned

    monkeypatch.setattr(Site, "learn", spoiled)


@pytest.fixture
def run(sites, tmp_path):
    plain = {"mirrored": "false", "largest": "false"}  # the final models' masks are those of the rounds
    settings = {"architecture": "unet", "width": "4", "depth": "3", "lr": "0.02", "epochs": "4", **plain}

    def made(method="fedavg"):
        folder = tmp_path / method
        runs.create(folder, method, sites, rounds=ROUNDS, engine="local", settings=settings)
        runs.execute(folder, lambda record: None)
        return folder

    return made


def dice_by_round(results, split):
    rows = results[(results["split"] == split) & (results["quantity"] == "dice")]
    return rows.groupby(["round", "site"])["value"].mean().groupby("round").mean()


@pytest.mark.parametrize("method", ["fedavg", pytest.param("standalone", marks=pytest.mark.slow)])
def test_where_models_get_worse_the_best_round_is_tested_too(falling, run, method):
    folder = run(method)
    results = read_results(folder)
    validation = dice_by_round(results, "validation")
    assert validation.index.tolist() == [0, 1, 2, 3]  # the final models are those that round 3 would begin with
    best = int(validation.idxmax())
    assert best < ROUNDS
    tested = dice_by_round(results, "testing_best")
    assert tested.index.tolist() == [best]
    assert tested[best] > dice_by_round(results, "testing")[ROUNDS - 1]
    names = sorted(path.name for path in (folder / "models").glob("*.pt"))
    assert sorted(path.name for path in (folder / "models" / "best").glob("*.pt")) == names
    first = names[0]
    last, chosen = (
        torch.load(place / first, weights_only=True) for place in (folder / "models", folder / "models/best")
    )
    assert any(not torch.equal(last[name], chosen[name]) for name in last)
    assert not list(folder.glob(final_models.FILES))


def test_where_the_last_models_are_the_best_they_are_tested_once(run):
    folder = run()
    results = read_results(folder)
    validation = dice_by_round(results, "validation")
    if int(validation.idxmax()) == ROUNDS:
        assert dice_by_round(results, "testing_best").empty
        assert not (folder / "models" / "best").exists()
    else:
        pytest.fail(f"these sites were to learn to the end: {validation.to_dict()}")


@dataclass
class Models:
    """In the place of the server's."""

    parameters: int
    buffers: tuple[()] = ()
    alone: tuple[()] = ()

    def with_models(self, parameters, buffers, alone):
        return Models(parameters)


def test_whose_reward_is_withheld_has_no_voice(tmp_path):
    """The second says 1 of the first model; from then on it goes on alone, with a model that nobody else has."""

    def replies(*dice):
        return [SimpleNamespace(overlaps=(Overlap("000", "prostate", one, 1 - one, 1 - one),)) for one in dice]

    best = BestRound(tmp_path)
    best.consider(0, replies(0.5, 1.0), Models(0))
    best.consider(1, replies(0.4, 0.9), Models(1, alone=(1,)))
    assert best.round == 0
    best.consider(2, replies(0.6, 0.0), Models(2, alone=(1,)))
    assert best.round == 2
    best.consider(3, [replies(0.7)[0], None], Models(3, alone=(1,)))  # nor is it waited for
    assert best.round == 3


def test_the_best_before_is_kept_until_the_checkpoint_knows_of_a_better_one(tmp_path):
    def reply(dice):
        return SimpleNamespace(overlaps=(Overlap("000", "prostate", dice, 1 - dice, 1 - dice),))

    best = BestRound(tmp_path)
    best.consider(0, [reply(0.5)], Models(0))
    checkpoint = best.content()
    best.consider(1, [reply(0.8)], Models(1))  # and the server is killed before its next checkpoint

    again = BestRound(tmp_path)
    again.restore(checkpoint)
    again.consider(1, [None], Models(1))  # a site is missing this time
    assert again.models(Models(9)).parameters == 0
    for round in (2, 3, 4):
        again.consider(round, [reply(0.6 + round / 100)], Models(round))
        assert again.models(Models(9)).parameters == round
        assert len(list(tmp_path.glob(final_models.FILES))) <= 2
    again.forget()
    assert not list(tmp_path.iterdir())
