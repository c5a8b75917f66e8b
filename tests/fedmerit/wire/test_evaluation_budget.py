"""A curious server: how often it may have models tried on a site's images."""

import json

import pytest
import torch
from pretending import tiny_plan

from fedmerit import flat
from fedmerit.configuration.run import RunConfiguration
from fedmerit.errors import Refused
from fedmerit.federation.site import Site
from fedmerit.federation.site_log import SITE_LOG
from fedmerit.training.data import SERVER_SPLIT, open_sites
from fedmerit.training.networks import initial_network
from fedmerit.wire.egress_list import cleared
from fedmerit.wire.evaluation_budget import REPEATS, allowance, require_within
from fedmerit.wire.messages import (
    NOT_FOR_OTHERS,
    OVER_BUDGET,
    OVER_CAP,
    Evaluated,
    Evaluation,
    Failure,
    ImportanceTask,
    Purpose,
    Reply,
    Task,
)

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
        ("eci", SERVER_SPLIT, 1, 8),
        ("fedvalue", SERVER_SPLIT, 1, 8),
        ("fedavg", "validation", 0, 1),
        ("fedavg", "testing", 0, 0),
        ("fedavg", "testing", ROUNDS, 6),
        ("fedavg", "testing", ROUNDS + 1, 0),
        ("fedavg", "validation", -1, 0),
        *(("fedavg", "training", round, 0) for round in range(ROUNDS + 1)),
    ],
)
def test_what_a_method_needs(method, split, round, needed):
    assert allowance(tiny_plan(method, ROUNDS), split, round, 3) == needed


@pytest.mark.parametrize(("round", "rated"), [(0, 3), (1, 0), (2, 3), (3, 0), (4, 0)])
@pytest.mark.parametrize("error", ["absolute", "others"])
def test_models_without_each_site_are_rated_in_some_rounds_alone(round, rated, error):
    plan = tiny_plan("fedce", 5, guard="on", rate_every=2, error=error)  # round 4 is the last
    rated += error == "others" and rated > 0  # the model with all
    assert allowance(plan, SERVER_SPLIT, round, 3) == rated
    assert allowance(plan, "validation", round, 3) == 1 + rated


def test_models_without_each_site_are_rated_on_one_split_or_the_other():
    plan = tiny_plan("fedce", 5, guard="on", rate_every=2)
    done = [{"round": 0, "work": "train", "question": f"t{number}"} for number in range(REPEATS)]
    task = {split: models(plan, 3, split=split, round=0) for split in ("validation", SERVER_SPLIT)}
    for number in range(REPEATS):
        split = "validation" if number else SERVER_SPLIT
        require_within(task[split], f"new {number}", plan, 3, done)
        done.append({"round": 0, "work": "evaluate", "split": split, "models": 3, "question": f"new {number}"})
    for split in task:
        with pytest.raises(Refused):
            require_within(task[split], "one more", plan, 3, done)


@pytest.fixture
def config() -> RunConfiguration:
    return tiny_plan("fedavg", ROUNDS)


@pytest.fixture
def site(config, sites, tmp_path) -> Site:
    return Site(open_sites(sites)[0], config, tmp_path / "memory", "cpu", participants=NAMES)


def models(config: RunConfiguration, count: int, seed: int = 0, split: str = "testing", round: int = ROUNDS):
    network = initial_network(config.network, 0)
    start = flat.get_parameters(network)
    drawn = start + torch.randn(count, len(start), generator=torch.Generator().manual_seed(seed)) / 100
    one = torch.ones(count, 1, dtype=torch.float64)
    return Evaluation(round, split, drawn, torch.eye(count, dtype=torch.float64), (flat.get_buffers(network),), one)


def log_of(site: Site) -> list[dict]:
    return [json.loads(line) for line in (site.memory.path / SITE_LOG).read_text().splitlines()]


def test_sixty_models_in_one_message_are_refused_and_logged(site, config):
    answer = site.answer(models(config, 60))
    assert answer == Failure(OVER_BUDGET)
    assert cleared({}, {"failure": answer.reason})[1] == {"failure": OVER_BUDGET}  # the gate lets the server know
    (entry,) = log_of(site)
    assert (entry["work"], entry["round"]) == ("refused", ROUNDS)
    assert "60 models on the testing split in round 2, after 0; fedavg with 3 sites needs 6" in entry["reason"]


def test_one_by_one_comes_to_the_same_and_a_new_process_goes_on_counting(site, config, sites, tmp_path):
    for seed in range(REPEATS):
        assert isinstance(site.answer(models(config, 6, seed)), Evaluated)
    again = Site(open_sites(sites)[0], config, tmp_path / "memory", "cpu", participants=NAMES)
    assert again.answer(models(config, 1, seed=99)) == Failure(OVER_BUDGET)
    assert isinstance(again.answer(models(config, 6, seed=0)), Evaluated)  # it has that answer


@pytest.mark.parametrize("split", ["training", SERVER_SPLIT])
@pytest.mark.parametrize("round", [0, ROUNDS])
def test_images_that_the_run_evaluates_for_nobody(site, config, split, round):
    assert site.answer(models(config, 1, split=split, round=round)) == Failure(NOT_FOR_OTHERS)
    assert f"1 models on the {split} split in round {round}" in log_of(site)[0]["reason"]


def test_neurons_on_training_images(site, config):
    task = models(config, 1)
    asked = ImportanceTask(0, "training", task.models[0], task.buffers[0], "taylor", 9)
    assert site.answer(asked) == Failure(NOT_FOR_OTHERS)


def test_statistics_of_training_images_where_the_run_has_another_rule(site, config):
    task = models(config, 1, split="training", round=0)
    estimate = Evaluation(
        0, "training", task.models, task.mixtures, task.buffers, task.shares, purpose=Purpose.ESTIMATE
    )
    assert site.answer(estimate) == Failure(NOT_FOR_OTHERS)


def test_models_in_the_place_of_a_rounds_are_refused(site, config):
    """A server that has a round trained again and again, to see the Dice of one model after another."""
    task = models(config, REPEATS + 1)
    for number in range(REPEATS):
        assert isinstance(site.answer(Task(0, task.models[number], task.buffers[0])), Reply)
    assert site.answer(Task(0, task.models[REPEATS], task.buffers[0])) == Failure(OVER_BUDGET)
    assert isinstance(site.answer(Task(0, task.models[0], task.buffers[0])), Reply)
    assert site.answer(Task(ROUNDS, task.models[0], task.buffers[0])) == Failure(NOT_FOR_OTHERS)


def test_statistics_tell_questions_apart(config):
    """The same parameters with other BatchNorm statistics are another model."""
    done = [{"round": 0, "work": "train", "question": str(number)} for number in range(REPEATS)]
    task = models(config, 1)
    training = Task(0, task.models[0], task.buffers[0])
    require_within(training, "0", config, 3, done)
    with pytest.raises(Refused):
        require_within(training, "new", config, 3, done)


def test_peer_of_no_part_in_the_run_gets_no_model(sites, tmp_path):
    config = tiny_plan("cycle", ROUNDS, exchange="peer", warmup_by="own", warmup=1, R=2)
    site = Site(open_sites(sites)[0], config, tmp_path / "memory", "cpu", participants=NAMES)
    assert site.give_model("stranger", 0) is None
    assert not (site.memory.path / SITE_LOG).exists()
    assert any(site.give_model("site2", round) for round in (0,))


@pytest.fixture
def capped(config, sites, tmp_path):
    """A site whose operator caps evaluations."""
    return lambda caps: Site(open_sites(sites)[0], config, tmp_path / "memory", "cpu", participants=NAMES, caps=caps)


def test_an_operator_allows_fewer_models_than_the_run_needs(capped, config):
    site = capped({"testing": 2})
    assert site.answer(models(config, 3)) == Failure(OVER_CAP)
    assert "this site allows 2, fedavg with 3 sites needs 6" in log_of(site)[0]["reason"]
    assert cleared({}, {"failure": OVER_CAP})[1] == {"failure": OVER_CAP}
    two = models(config, 2, seed=1)
    assert isinstance(site.answer(two), Evaluated)
    assert site.answer(models(config, 1, seed=2)) == Failure(OVER_CAP)
    assert isinstance(site.answer(two), Evaluated)  # it has that answer


def test_a_cap_counts_the_model_that_is_trained_from(capped, config):
    site, task = capped({"validation": 1}), models(config, 2)
    assert isinstance(site.answer(Task(0, task.models[0], task.buffers[0])), Reply)
    assert site.answer(Task(0, task.models[1], task.buffers[0])) == Failure(OVER_CAP)


def test_a_high_cap_raises_nothing(capped, config):
    site = capped({"testing": 1000, "training": 1000})
    needed = allowance(config, "testing", ROUNDS, len(NAMES))
    assert site.answer(models(config, REPEATS * needed + 1)) == Failure(OVER_BUDGET)
    assert site.answer(models(config, 1, split="training")) == Failure(NOT_FOR_OTHERS)
