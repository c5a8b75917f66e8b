"""A curious server: how often it may have models tried on a site's images."""

import json
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from pretending import tiny_plan

from fedmerit.contract import flat
from fedmerit.errors import Refused
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.messages import (
    NOT_FOR_OTHERS,
    NOT_NEEDED,
    NOT_SHARED,
    OTHER_NUMBERS,
    OUT_OF_ORDER,
    OVER_BUDGET,
    OVER_CAP,
    REASONS,
    Evaluated,
    Evaluation,
    Failure,
    Importance,
    ImportanceTask,
    PeerModel,
    Purpose,
    Reply,
    Task,
)
from fedmerit.schema.scores import SERVER_SPLIT
from fedmerit.schema.site_folder import open_sites
from fedmerit.site.evaluation_budget import (
    REPEATS,
    allowance,
    question_digest,
    require_round_order,
    require_within_budget,
)
from fedmerit.site.site import Site, image_site
from fedmerit.site.site_log import SITE_LOG
from fedmerit.trainers.factory import initial_network

NAMES = ("site1", "site2", "site3")
ROUNDS = 2


@pytest.mark.parametrize(
    ("method", "split", "round", "needed"),
    [
        ("fedavg", SERVER_SPLIT, 0, 0),
        ("cffl", SERVER_SPLIT, 0, 3),
        ("cffl", SERVER_SPLIT, ROUNDS, 0),
        ("fedave", SERVER_SPLIT, 1, 6),
        ("fedci", SERVER_SPLIT, 1, 8),
        ("fedavg", "validation", 0, 1),
        ("fedavg", "testing", 0, 0),
        ("fedavg", "testing", ROUNDS, 6),
        ("cycle", "validation", 0, 3),  # its own, and those of its peers
        ("cycle", "validation", ROUNDS, 2),
        *(("fedavg", "training", round, 0) for round in range(ROUNDS + 1)),
    ],
)
def test_what_a_method_needs(method, split, round, needed):
    assert allowance(tiny_plan(method, ROUNDS), split, round, 3) == needed


@pytest.mark.parametrize(("round", "rated"), [(0, 3), (1, 0), (2, 3), (3, 0), (4, 0)])
@pytest.mark.parametrize("error", ["absolute", "others"])
def test_models_without_each_site_are_rated_in_some_rounds_only(round, rated, error):
    plan = tiny_plan("fedce", 5, share=True, guard="on", rate_every=2, error=error)  # round 4 is the last
    rated += error == "others" and rated > 0  # the model with all
    assert allowance(plan, SERVER_SPLIT, round, 3) == rated
    assert allowance(plan, "validation", round, 3) == 1 + rated


def test_models_without_each_site_are_rated_on_one_split_or_the_other():
    plan = tiny_plan("fedce", 5, share=True, guard="on", rate_every=2)
    done = [{"round": 0, "work": "train", "question": f"t{number}"} for number in range(REPEATS)]
    task = {split: models(plan, 3, split=split, round=0) for split in ("validation", SERVER_SPLIT)}
    for number in range(REPEATS):
        split = "validation" if number else SERVER_SPLIT
        require_within_budget(task[split], f"new {number}", plan, 3, done)
        done.append({"round": 0, "work": "evaluate", "split": split, "models": 3, "question": f"new {number}"})
    for split in task:
        with pytest.raises(Refused):
            require_within_budget(task[split], "one more", plan, 3, done)


@pytest.fixture
def config() -> RunConfiguration:
    return tiny_plan("fedavg", ROUNDS, share=True)


@pytest.fixture
def site(config, sites, tmp_path) -> Site:
    return image_site(open_sites(sites)[0], config, tmp_path / "memory", "cpu", participants=NAMES)


def begun(site: Site) -> Site:
    """It trained in round 0."""
    task = models(site.config, 1)
    assert isinstance(site.answer(Task(0, task.models[0], task.buffers[0])), Reply)
    return site


def models(config: RunConfiguration, count: int, seed: int = 0, split: str = "testing", round: int = ROUNDS):
    network = initial_network(config.network, 0)
    start = flat.get_parameters(network)
    drawn = start + torch.randn(count, len(start), generator=torch.Generator().manual_seed(seed)) / 100
    one = torch.ones(count, 1, dtype=torch.float64)
    return Evaluation(round, split, drawn, torch.eye(count, dtype=torch.float64), (flat.get_buffers(network),), one)


def log_of(site: Site) -> list[dict]:
    return [json.loads(line) for line in (site.memory.path / SITE_LOG).read_text().splitlines()]


def assert_refused(site: Site, task, reason: str, words: str) -> None:
    """The server learns the reason, which the gate lets pass; the site's own log says what was asked for."""
    assert site.answer(task) == Failure(reason)
    assert reason in REASONS
    assert log_of(site)[-1]["work"] == "refused"
    assert words in log_of(site)[-1]["reason"]


def test_sixty_models_in_one_message_are_refused_and_logged(site, config):
    words = "60 models on the testing split in round 2, after 0; fedavg with 3 sites needs 6"
    assert_refused(site, models(config, 60), OVER_BUDGET, words)


def test_one_by_one_comes_to_the_same_and_a_new_process_continues_counting(site, config, sites, tmp_path):
    begun(site)
    for seed in range(REPEATS):
        assert isinstance(site.answer(models(config, 6, seed)), Evaluated)
    again = image_site(open_sites(sites)[0], config, tmp_path / "memory", "cpu", participants=NAMES)
    assert again.answer(models(config, 1, seed=99)) == Failure(OVER_BUDGET)
    assert isinstance(again.answer(models(config, 6, seed=0)), Evaluated)  # it has that answer


@pytest.mark.parametrize("split", ["training", SERVER_SPLIT])
@pytest.mark.parametrize("round", [0, ROUNDS])
def test_images_that_the_run_evaluates_for_nobody(site, config, split, round):
    words = f"1 models on the {split} split in round {round}"
    assert_refused(site, models(config, 1, split=split, round=round), NOT_FOR_OTHERS, words)


def neurons(config, split=SERVER_SPLIT, order="taylor", images=16, round=1, seed=0) -> ImportanceTask:
    task = models(config, 1, seed)
    return ImportanceTask(round, split, task.models[0], task.buffers[0], order, images)


@pytest.mark.parametrize(
    ("split", "round"), [("training", 0), ("validation", 0), (SERVER_SPLIT, 0), ("testing", ROUNDS)]
)
def test_what_the_loss_rises_by_without_a_neuron_is_for_methods_that_allocate_them(site, config, split, round):
    begun(site)
    words = f"exact importance of neurons on 1000 images of the {split} split"
    assert_refused(site, neurons(config, split, "exact", 1000, round), NOT_NEEDED, words)


@pytest.fixture
def allocated(sites, tmp_path):
    """A site of FedSAC, in whose round 1 importance to first order is due."""
    plan = tiny_plan("fedsac", 4, importance="taylor", importance_interval=2)
    return image_site(open_sites(sites)[0], plan, tmp_path / "memory", "cpu", participants=NAMES)


@pytest.mark.parametrize(
    "other",
    [{"split": "validation"}, {"split": "testing"}, {"order": "exact"}, {"images": 5}, {"round": 0}, {"round": 2}],
)
def test_importance_is_of_the_kind_that_the_runs_settings_say(allocated, monkeypatch, other):
    folder = allocated.trainer.folder
    monkeypatch.setitem(folder.splits, SERVER_SPLIT, folder.cases("validation"))
    assert_refused(allocated, neurons(allocated.config, **other), NOT_NEEDED, "; fedsac needs ")
    assert isinstance(allocated.answer(neurons(allocated.config)), Importance)


def test_a_task_in_which_the_site_has_another_part_is_another_question(config):
    """FedCE tells the error without the site's part, which the weight says."""
    task = models(config, 2)
    one = Task(1, task.models[0], task.buffers[0], weight=0.3, data_share=0.2)
    peer = PeerModel(task.models[0], task.buffers[0], 0.5)
    others = [
        one, replace(one, weight=0.4), replace(one, weight=None), replace(one, data_share=0.3),
        replace(one, neurons=torch.tensor([True, False])), replace(one, neurons=torch.tensor([False, True])),
        replace(one, vectors={"c": task.models[0]}), replace(one, vectors={"c": task.models[1]}),
        replace(one, others={"B": 0.5}), replace(one, others={"B": 0.6}), replace(one, peers={"B": peer}),
        replace(one, peers={"B": replace(peer, weight=0.6)}),
        replace(one, peers={"B": replace(peer, parameters=task.models[1])})
    ]  # fmt: skip
    assert len({question_digest(other, one.parameters) for other in others}) == len(others)
    assert question_digest(replace(one, ledger="reported again"), one.parameters) == question_digest(
        one, one.parameters
    )


def test_statistics_are_of_training_images_by_no_other_name():
    plan = tiny_plan("fedavg", ROUNDS, statistics="recalibrated")
    task = replace(models(plan, 1, split="training", round=0), purpose=Purpose.ESTIMATE)
    require_within_budget(task, "new", plan, 3, [])
    for split in ("validation", "nothing"):
        with pytest.raises(Refused, match=f"on the {split} split, expected training"):
            require_within_budget(replace(task, split=split), "new", plan, 3, [])


def test_what_a_site_receives_is_asked_of_runs_that_have_it_chosen(config):
    task = replace(models(config, 1), purpose=Purpose.FINISH)
    with pytest.raises(Refused, match="final_model=selected is not set"):
        require_within_budget(task, "new", config, 3, [])
    require_within_budget(task, "new", tiny_plan("fedavg", ROUNDS, final_model="selected"), 3, [])


def test_second_training_in_a_round_is_refused(site, config):
    """A server that has a round trained again and again, to see the Dice of one model after another."""
    task = models(config, 2)
    first = site.answer(Task(0, task.models[0], task.buffers[0]))
    assert isinstance(first, Reply)
    assert_refused(site, Task(0, task.models[1], task.buffers[0]), OVER_BUDGET, "a second training in round 0")
    again = site.answer(Task(0, task.models[0], task.buffers[0]))
    assert torch.equal(again.update, first.update)
    assert site.answer(Task(ROUNDS, task.models[0], task.buffers[0])) == Failure(NOT_FOR_OTHERS)


def test_models_of_one_digest_are_one_model(site, config):
    """In float64 the difference of two, times 1e9, is whatever the server likes, and their digests stay as they are."""
    begun(site)
    want = models(config, 2).models.double()
    mixture, one = torch.tensor([[1e9, -1e9]], dtype=torch.float64), models(config, 1)
    asked = [replace(one, models=torch.stack([1 + 1e-9 * of, torch.ones_like(of)]), mixtures=mixture) for of in want]
    for task in asked:
        assert_refused(site, task, OTHER_NUMBERS, f"torch.float64 in round {ROUNDS}")
    assert site.answer(Task(1, want[0], one.buffers[0])) == Failure(OTHER_NUMBERS)


def test_models_in_the_place_of_peers_are_counted(sites, tmp_path):
    """A site of CYCle says of every model of a peer how well it segments the site's validation images."""
    plan = tiny_plan("cycle", ROUNDS, warmup_by="own", warmup=0, R=1)
    site, task = (
        image_site(open_sites(sites)[0], plan, tmp_path / "memory", "cpu", participants=NAMES),
        models(plan, 60),
    )

    def reported(*places: int) -> Task:
        peers = {f"peer{place}": PeerModel(task.models[place], task.buffers[0], float("nan")) for place in places}
        return Task(0, task.models[0], task.buffers[0], peers=peers)

    words = "61 models on the validation split in round 0, after 0; cycle with 3 sites"
    assert_refused(site, reported(*range(60)), OVER_BUDGET, words)
    assert isinstance(site.answer(reported(0, 1)), Reply)
    assert site.answer(reported(58, 59)) == Failure(OVER_BUDGET)
    assert isinstance(site.answer(reported(0, 1)), Reply)  # it has that answer


@pytest.mark.parametrize("part", ["neurons", "vectors", "peers", "others"])
def test_training_task_with_what_the_method_does_not_use_is_refused(site, config, part):
    task = models(config, 2)
    brought = {
        "neurons": torch.ones(3, dtype=torch.bool),
        "vectors": {"control": task.models[1]},
        "peers": {"site2": PeerModel(task.models[1], task.buffers[0], 0.5)},
        "others": {"site2": 0.5},
    }
    plain = Task(0, task.models[0], task.buffers[0])
    words = "in a training task of round 0; fedavg uses none"
    assert_refused(site, replace(plain, **{part: brought[part]}), NOT_NEEDED, words)
    assert isinstance(site.answer(plain), Reply)


def test_training_that_a_crash_of_the_site_cut_short_is_done_again(site, config, monkeypatch):
    task = models(config, 2)
    with monkeypatch.context() as patch:
        patch.setattr(site.trainer, "learn", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            site.answer(Task(0, task.models[0], task.buffers[0]))
    assert isinstance(site.answer(Task(0, task.models[1], task.buffers[0])), Reply)


FINAL = {"purpose": Purpose.FINAL, "round": ROUNDS}


@pytest.mark.parametrize(
    ("method", "count", "change"),
    [
        ("fedavg", 1, {"round": 0, "split": "validation"}),  # FedCE's models without each site, or a coalition's
        ("fedce", 3, {"round": 0, "split": SERVER_SPLIT}),
        ("cffl", 3, {"round": 0, "split": SERVER_SPLIT}),
        ("standalone", 3, {**FINAL, "split": "testing"}),
        ("fedavg", 2, {**FINAL, "split": "validation"}),
    ],
)
def test_models_of_others_are_refused_if_the_plan_does_not_share_them(method, count, change, sites, tmp_path):
    plan = replace(tiny_plan(method, ROUNDS, guard="on"), share_models=False)
    site = begun(image_site(open_sites(sites)[0], plan, tmp_path / "memory", "cpu", participants=NAMES))
    task = replace(models(plan, count), **change)
    words = f"{count} models made of {count}, on the {task.split} split in round {task.round}"
    assert_refused(site, task, NOT_SHARED, words)


def test_peers_are_refused_if_the_plan_does_not_share_models():
    plan = tiny_plan("cycle", ROUNDS, warmup_by="own", warmup=0, R=1)
    one, unshared = models(plan, 1), replace(plan, share_models=False)
    task = Task(0, one.models[0], one.buffers[0])
    require_within_budget(task, "new", unshared, 3, [])
    with_peer = {"peers": {"B": PeerModel(task.parameters, task.buffers, float("nan"))}}, {"others": {"B": 0.5}}
    for more in with_peer:
        require_within_budget(replace(task, **more), "new", plan, 3, [])
        with pytest.raises(Refused, match="1 models of peers in round 0; share_models is not set"):
            require_within_budget(replace(task, **more), "new", unshared, 3, [])


@pytest.mark.parametrize(("method", "tested"), [("fedavg", 6), ("cgsv", 6), ("standalone", 2), ("fedbn", 2)])
def test_without_sharing_final_models_are_tested_by_others_if_they_are_aggregates(method, tested):
    plan = replace(tiny_plan(method, ROUNDS), share_models=False)
    assert allowance(plan, "testing", ROUNDS, 3) == tested


@pytest.fixture
def capped(config, sites, tmp_path):
    """A site whose operator caps evaluations."""
    return lambda caps: image_site(
        open_sites(sites)[0], config, tmp_path / "memory", "cpu", participants=NAMES, caps=caps
    )


def test_an_operator_allows_fewer_models_than_the_run_needs(capped, config):
    site = begun(capped({"testing": 2}))
    assert_refused(site, models(config, 3), OVER_CAP, "this site allows 2, fedavg with 3 sites needs 6")
    two = models(config, 2, seed=1)
    assert isinstance(site.answer(two), Evaluated)
    assert site.answer(models(config, 1, seed=2)) == Failure(OVER_CAP)
    assert isinstance(site.answer(two), Evaluated)  # it has that answer


# Order of rounds


LAST, EACH = 5, torch.eye(1, dtype=torch.float64)
NO_MODEL = torch.zeros(3)


def evaluation(round, split="validation", purpose=Purpose.ROUND):
    return Evaluation(round, split, NO_MODEL[None], EACH, ({},), EACH, purpose=purpose)


def importance(round):
    return ImportanceTask(round, "server_validation", NO_MODEL, {}, "exact", 4)


@pytest.mark.parametrize("make", [lambda round: Task(round, NO_MODEL, {}), importance, evaluation])
@pytest.mark.parametrize(("round", "given"), [(1, False), (2, False), (3, True)])
def test_a_round_is_repeated_and_none_before_it(make, round, given):
    with nullcontext() if given else pytest.raises(Refused, match=f"round {round}, after answers in round 3"):
        require_round_order(make(round), LAST, latest=3, trained={0, 1, 2, 3})


@pytest.mark.parametrize("round", [0, 3, 4])
def test_who_was_away_or_comes_late_trains_in_whatever_round_it_is(round):
    for task in (Task(round, NO_MODEL, {}), importance(round), evaluation(round, "training", Purpose.ESTIMATE)):
        require_round_order(task, LAST, latest=-1, trained=())
        require_round_order(task, LAST, latest=0, trained={0})


def test_models_of_a_round_are_judged_after_its_training():
    with pytest.raises(Refused, match="on the validation split in round 1, before its training") as refused:
        require_round_order(evaluation(1), LAST, latest=0, trained={0})
    assert refused.value.reason == OUT_OF_ORDER
    require_round_order(evaluation(1), LAST, latest=1, trained={0, 1})


@pytest.mark.parametrize("split", ["validation", "testing"])
@pytest.mark.parametrize("purpose", [Purpose.FINAL, Purpose.FINISH])
def test_the_final_test_comes_last(split, purpose):
    final = evaluation(LAST, split, purpose)
    with pytest.raises(Refused, match=f"the final test on the {split} split, before any training"):
        require_round_order(final, LAST, latest=-1, trained=())
    require_round_order(final, LAST, latest=2, trained={2})  # absent from the last rounds
    with pytest.raises(Refused, match="the final test in round 4, expected after round 4"):
        require_round_order(replace(final, round=4), LAST, latest=4, trained={4})
