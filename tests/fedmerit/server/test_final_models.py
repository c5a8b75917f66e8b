"""The end of a run: what sites are asked, in which order, what is recorded; the best round's models."""

from types import SimpleNamespace

import pytest
import torch
from pretending import NETWORK, SITES, SIZE, tiny_plan
from tiny import TINY

from fedmerit.contract.capabilities import capabilities
from fedmerit.engines import runs
from fedmerit.evidence.closing_record import CLOSING
from fedmerit.evidence.digests import state_digest
from fedmerit.schema.messages import Evaluated, Purpose
from fedmerit.schema.results import read_results
from fedmerit.schema.scores import Overlap
from fedmerit.server import final_models
from fedmerit.server.final_models import BestRound, RunClosure
from fedmerit.server.models import ModelsInTheClear
from fedmerit.server.recorder import Recorder
from fedmerit.server.server import build_models
from fedmerit.trainers.monai.trainer import ImageTrainer


@pytest.fixture
def ended(tmp_path):
    """Runs the end of a run; ``best`` is the Dice in percent of the best round's models, None: there is none.

    Where ``own``, each site has a model of its own, of 0, 10 and 20.
    """

    def end(method="fedavg", best=None, own=False, **parameters):
        config = tiny_plan(method, **parameters)
        models = build_models(config, capabilities(config.build_method()), NETWORK, SITES, None)
        models.parameters, kept = torch.zeros(len(models.parameters)), BestRound(tmp_path)
        if best is not None:
            reply = SimpleNamespace(overlaps=[Overlap("000", "prostate", 1, 0, 0)])
            models.parameters = torch.ones(SIZE)
            kept.consider(1, [reply] * 3, models)
            models.parameters = torch.zeros(SIZE)
        if own:
            models.parameters = torch.tensor([[0.0], [10.0], [20.0]]).repeat(1, SIZE)
            models.buffers = [dict(buffers) for buffers in models.buffers]
        asked = []

        def ask(tasks):
            asked.append(tasks)
            end.saved_first = sorted(file.name for file in (tmp_path / "models").glob("*.pt"))
            yield from ()
            return [evaluated(task) for task in tasks.values()]

        def evaluated(task):
            of_best = bool(len(task.models[0])) and bool((task.models[0] == 1).all())
            positives = best if of_best else 40
            overlaps = (Overlap("000", "prostate", positives, 0, 2 * (100 - positives)),)  # Dice: positives / 100
            return Evaluated(task.round, (overlaps,) * task.count, torch.zeros(task.count, 0))

        ending = RunClosure(config, SITES, tmp_path, models, kept, Recorder(config, SITES, tmp_path))
        end.record = ending.record()
        list(ending.exchanges(ask, "head"))
        return asked

    return end


def asked_for(asked):
    return [(next(iter(tasks.values())).split, next(iter(tasks.values())).purpose) for tasks in asked]


def rounds_of(run, split):
    return set(read_results(run).query(f"split == '{split}'")["round"])


def dice(run, split):
    rows = read_results(run).query(f"quantity == 'dice' and split == '{split}'")
    return dict(zip(rows["site"], rows["value"].round(6), strict=True))


def test_final_models_are_validated_tested_and_saved_and_the_records_closed(ended, tmp_path):
    asked = ended()
    assert asked_for(asked) == [("validation", Purpose.FINAL), ("testing", Purpose.FINAL)]
    assert all(list(tasks) == list(SITES) for tasks in asked)
    assert {task.ledger for tasks in asked for task in tasks.values()} == {"head"}
    assert dice(tmp_path, "validation") == dice(tmp_path, "testing") == dict.fromkeys(SITES, 0.4)
    assert ended.saved_first == ["global.pt"]  # also if no site could test it
    assert not (tmp_path / "models" / "best").exists()
    assert (tmp_path / CLOSING).exists()


def test_a_best_round_that_validation_patients_like_better_is_tested_and_saved_too(ended, tmp_path):
    asked = ended(best=70)
    assert asked_for(asked) == [(split, Purpose.FINAL) for split in ("validation", "testing", "validation", "testing")]
    assert dice(tmp_path, "testing_best") == dict.fromkeys(SITES, 0.7)
    assert dice(tmp_path, "testing") == dict.fromkeys(SITES, 0.4)
    assert (tmp_path / "models" / "best" / "global.pt").exists()


def test_a_best_round_that_is_no_better_by_masks_as_they_are_used_is_dropped(ended, tmp_path):
    asked = ended(best=30)
    assert [split for split, _ in asked_for(asked)] == ["validation", "testing", "validation"]
    assert dice(tmp_path, "testing_best") == {}
    assert not (tmp_path / "models" / "best").exists()


@pytest.mark.parametrize("best", [None, 30, 70])
@pytest.mark.parametrize("own", [False, True])
def test_the_last_record_has_digests_of_what_is_saved_and_of_the_best_round(ended, tmp_path, best, own):
    ended("standalone" if own else "fedavg", best=best, own=own)
    saved = ended.record["saved"]
    names = SITES if own else ["global"]
    assert [name for name in saved if "/best/" not in name] == [f"models/{name}.pt" for name in names]
    assert ("models/best/global.pt" in saved) == (best is not None)
    for path in (tmp_path / "models").rglob("*.pt"):
        state = torch.load(path, weights_only=True)
        assert saved[path.relative_to(tmp_path).as_posix()] == state_digest(state)


def test_sites_choose_what_they_take_home_last(ended, tmp_path):
    asked = ended(final_model="selected")
    assert asked_for(asked)[2:] == [("validation", Purpose.FINISH), ("testing", Purpose.FINISH)]
    for name in ("given", "local_only", "selected"):
        assert dice(tmp_path, f"testing_{name}") == dict.fromkeys(SITES, 0.4)


def test_rows_stand_under_the_round_that_began_with_the_models_or_the_last(ended, tmp_path):
    """Of rounds 0 to 2: the final models would begin round 3; those of the best round began round 1."""
    ended(best=70, final_model="selected")
    splits = ("validation", "testing", "testing_best", "validation_selected", "testing_selected")
    assert [rounds_of(tmp_path, split) for split in splits] == [{3}, {2}, {1}, {2}, {2}]


def test_each_site_is_asked_about_its_own_final_model_and_tests_all(ended, tmp_path):
    validated, tested = ended("standalone", own=True)
    assert [float(task.models[0, 0]) for task in validated.values()] == [0.0, 10.0, 20.0]
    assert [task.models[:, 0].tolist() for task in tested.values()] == [[0.0, 10.0, 20.0]] * 3
    assert {path.stem for path in (tmp_path / "models").glob("*.pt")} == set(SITES)


@pytest.mark.parametrize(("method", "settings"), [("ditto", {}), ("cycle", {"exchange": "peer", "warmup_by": "own"})])
def test_of_models_that_stay_at_their_sites_each_tests_its_own(ended, tmp_path, method, settings):
    asked = ended(method, **settings)
    assert {task.models.shape for tasks in asked for task in tasks.values()} == {(1, 0)}
    assert dice(tmp_path, "testing") == dict.fromkeys(SITES, 0.4)
    assert rounds_of(tmp_path, "union") == set()  # nobody tested the others' models


ROUNDS = 3


@pytest.fixture
def falling(monkeypatch):
    """Sites whose every training after the first spoils the model: round 1's models are the best."""
    learn = ImageTrainer.learn

    def spoiled(self, task, received, memory, question):
        learned = learn(self, task, received, memory, question)
        if task.round:
            learned.update.mul_(0).sub_(10 * received)
        return learned

    monkeypatch.setattr(ImageTrainer, "learn", spoiled)


@pytest.fixture
def train_run(sites, tmp_path):
    plain = {"mirrored": "false", "largest": "false"}  # the final models' masks are those of the rounds
    settings = TINY | {"depth": "3", "residual_units": "2", "lr": "0.005", "epochs": "12", **plain}

    def made(method="fedavg"):
        folder = tmp_path / method
        runs.create(folder, method, sites, rounds=ROUNDS, engine="local", settings=settings)
        runs.execute(folder, lambda record: None)
        return folder

    return made


def dice_by_round(results, split):
    rows = results[(results["split"] == split) & (results["quantity"] == "dice")]
    return rows.groupby(["round", "site"])["value"].mean().groupby("round").mean()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "standalone"])
def test_where_models_get_worse_the_best_round_is_tested_too(falling, train_run, method):
    folder = train_run(method)
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


@pytest.mark.slow
def test_where_the_last_models_are_the_best_they_are_tested_once(train_run):
    folder = train_run()
    results = read_results(folder)
    validation = dice_by_round(results, "validation")
    if int(validation.idxmax()) == ROUNDS:
        assert dice_by_round(results, "testing_best").empty
        assert not (folder / "models" / "best").exists()
    else:
        pytest.fail(f"these sites were to learn to the end: {validation.to_dict()}")


class Models(ModelsInTheClear):
    """Models that are one number."""

    def __init__(self, parameters, separate=()):
        self.parameters, self.buffers, self.separate, self.sites_keep_models = parameters, (), separate, False


def test_a_separate_site_has_no_vote(tmp_path):
    """The second rates the first model 1; from then on it is separate, with a model that no other site has."""

    def replies(*dice):
        return [SimpleNamespace(overlaps=(Overlap("000", "prostate", one, 1 - one, 1 - one),)) for one in dice]

    best = BestRound(tmp_path)
    best.consider(0, replies(0.5, 1.0), Models(0))
    best.consider(1, replies(0.4, 0.9), Models(1, separate=(1,)))
    assert best.round == 0
    best.consider(2, replies(0.6, 0.0), Models(2, separate=(1,)))
    assert best.round == 2
    best.consider(3, [replies(0.7)[0], None], Models(3, separate=(1,)))  # nor does its reply matter
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
