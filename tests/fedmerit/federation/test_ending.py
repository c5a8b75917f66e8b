"""The end of a run: what is asked of the sites, in which order, and what is written down of it."""

from types import SimpleNamespace

import pytest
import torch
from pretending import NETWORK, SITES, SIZE, tiny_plan

from fedmerit.federation.final_models import BestRound, RunClosure
from fedmerit.federation.recorder import Recorder
from fedmerit.federation.server_models import build_models
from fedmerit.records.closing_record import CLOSING
from fedmerit.records.ledger import state_digest
from fedmerit.records.results import read_results
from fedmerit.trainers.monai_trainer.overlaps import Overlap
from fedmerit.wire.messages import Evaluated, Purpose


@pytest.fixture
def ended(tmp_path):
    """Runs the end of a run; ``best`` is the Dice in percent of the best round's models, None: there is none.

    Where ``own``, each site has a model of its own, of 0, 10 and 20.
    """

    def end(method="fedavg", best=None, own=False, **parameters):
        config = tiny_plan(method, **parameters)
        models = build_models(config, config.build_method(), NETWORK, SITES, None)
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
    assert (tmp_path / "models" / "global.pt").exists()
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
