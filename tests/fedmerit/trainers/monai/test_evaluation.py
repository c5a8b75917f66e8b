"""Evaluation: equal models once; which BatchNorm statistics a model is evaluated with."""

from dataclasses import replace

import pytest
import torch
from one_in import one_in
from pretending import SITES, evaluations, replies, same, tiny_plan
from stepping import Stepped as Federation

from fedmerit.contract import flat
from fedmerit.contract.capabilities import Candidates, EvaluatesCandidates
from fedmerit.methods.registry import METHODS
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.configuration.settings import TASKS, Network, Training
from fedmerit.schema.messages import Evaluated, Evaluation, Purpose
from fedmerit.schema.records import TRAIN
from fedmerit.schema.scores import SERVER_SPLIT, mean_dice
from fedmerit.schema.site_folder import SiteFolder
from fedmerit.trainers.factory import initial_network
from fedmerit.trainers.monai import evaluation
from fedmerit.trainers.monai.evaluation import Evaluations, evaluate_models
from fedmerit.trainers.monai.prediction import evaluate
from fedmerit.trainers.monai.samples import build_samples
from fedmerit.trainers.monai.trainer import ServerImages
from fedmerit.trainers.statistics import (
    RoundStatistics,
    candidate_statistics,
    candidate_statistics_rule,
    estimates_statistics,
    statistics_rule,
)

NETWORK = Network(**TASKS["prostate"], architecture="unet", width=2, depth=2)  # with batch norms
CONFIG = RunConfiguration("fedavg", "prostate", rounds=1, seed=0, network=NETWORK)


@pytest.fixture(scope="module")
def cases(sites):
    return SiteFolder(sites / "site1").cases("validation")


@pytest.fixture
def passes(monkeypatch):
    """The number of slices that the network sees in a pass, one for each evaluation."""
    seen = []
    for name in ("evaluate", "evaluate_with_losses"):
        original = getattr(evaluation, name)
        monkeypatch.setattr(evaluation, name, lambda *rest, of=original: seen.append(len(rest[1])) or of(*rest))
    return seen


def task(models, mixtures, bins=0):
    buffers = flat.get_buffers(initial_network(NETWORK, 0))
    shares = torch.ones(len(mixtures), 1, dtype=torch.float64)
    return Evaluation(
        0, "validation", models, torch.tensor(mixtures, dtype=torch.float64), (buffers,), shares, bins=bins
    )


def test_equal_candidates_are_evaluated_once_with_the_numbers_of_each_only(cases, passes):
    network = initial_network(NETWORK, 0)
    first, second = (flat.get_parameters(initial_network(NETWORK, seed)) for seed in (0, 1))
    asked = task(torch.stack([first, second, first]), [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0.5, 0, 0.5]], bins=4)
    together = evaluate_models(network, cases, asked, CONFIG)
    assert len(passes) == 2
    assert together.overlaps[0] == together.overlaps[2] == together.overlaps[3] != together.overlaps[1]
    assert torch.equal(together.losses[0], together.losses[2])
    for place in range(4):
        single = replace(asked, mixtures=asked.mixtures[place][None], shares=asked.shares[:1])
        found = evaluate_models(network, cases, single, CONFIG)
        assert found.overlaps == (together.overlaps[place],)
        assert torch.equal(found.losses[0], together.losses[place])


def test_what_was_found_before_is_remembered_by_model_statistics_and_images(cases, passes):
    network, known = initial_network(NETWORK, 0), Evaluations(CONFIG)
    model, buffers = flat.get_parameters(network), flat.get_buffers(network)
    first = known.evaluate(network, model, buffers, cases)
    asked = task(model[None], [[1]])
    assert evaluate_models(network, cases, asked, CONFIG, evaluations=known).overlaps == (first.overlaps,)
    assert len(passes) == 1
    other = {name: value + 1 for name, value in buffers.items()}
    flat.load(network, model, other)
    assert known.evaluate(network, model, other, cases).overlaps == tuple(evaluate(network, cases, NETWORK.labels))
    model[0] += 1
    known.evaluate(network, model, buffers, cases)
    known.evaluate(network, model, buffers, cases[:-1])
    assert len(passes) == 4
    assert all(0 <= mean_dice(found.overlaps) <= 1 for found in known._found.values())


def test_no_more_than_the_last_are_remembered(cases, passes, monkeypatch):
    monkeypatch.setattr(evaluation, "KEPT", 2)
    network, known = initial_network(NETWORK, 0), Evaluations(CONFIG)
    buffers = flat.get_buffers(network)
    models = [flat.get_parameters(network) + step for step in range(3)]
    for place in (0, 1, 0, 2, 0, 1):  # the last: forgotten, as it was asked for before the others
        known.evaluate(network, models[place], buffers, cases)
    assert len(passes) == 4


SENT_OUT = 100.0
ROWS = [  # shares of three sites' trained statistics: one only, two, all by images, none
    [1.0, 0.0, 0.0],
    [0.5, 0.5, 0.0],
    [0.25, 0.5, 0.25],
    [0.0, 0.0, 0.0],
]


def statistics(mean):
    return {"running_mean": torch.tensor([mean])}


TRAINED = [statistics(1.0), statistics(3.0), statistics(9.0)]
WEIGHTS = torch.tensor([0.2, 0.6, 0.2], dtype=torch.float64)


def make_candidates(received=None):
    shares = torch.tensor(ROWS, dtype=torch.float64)
    return Candidates(torch.zeros(4, 5), torch.eye(4, dtype=torch.float64), shares, received=received)


def means(rule, evaluator=1, asked=None, **there):
    """(k,) of the running means that the candidates are evaluated with."""
    given = RoundStatistics(**{"trained": TRAINED, "sent_out": statistics(SENT_OUT), "weights": WEIGHTS} | there)
    sets, shares = candidate_statistics(asked or make_candidates(), given, rule, evaluator)
    assert shares.sum(dim=1).tolist() == pytest.approx([1.0] * len(shares))
    return [float(flat.average_buffers(sets, row)["running_mean"]) for row in shares]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("models", [1.0, 2.0, 4.0, SENT_OUT]),
        ("mean", [1.0, 2.0, 4.0, SENT_OUT]),
        ("recalibrated", [1.0, 2.0, 4.0, SENT_OUT]),  # until the evaluating site estimates them again
        ("weights", [1.0, 2.5, 3.8, SENT_OUT]),  # (.2 + .6 · 3) / .8; .2 + 1.8 + 1.8
        ("own", [1.0, 3.0, 3.0, 3.0]),  # at the second site
        ("frozen", [SENT_OUT] * 4),
    ],
)
def test_candidates_follow_the_rule(rule, expected):
    assert means(rule) == pytest.approx(expected)


def test_before_a_round_has_weights_and_where_members_have_none_shares_count():
    assert means("weights", weights=None) == means("mean")
    nothing = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    assert means("weights", weights=nothing) == pytest.approx([1.0, 2.0, 9.0, SENT_OUT])


def test_a_server_has_no_statistics_of_its_own():
    assert means("own", evaluator=None) == means("mean")
    assert means("own", trained=[*TRAINED[:1], {}, TRAINED[2]], asked=candidates_without_birch()) == [1.0, SENT_OUT]


def candidates_without_birch():
    shares = torch.tensor([ROWS[0], ROWS[3]], dtype=torch.float64)
    return Candidates(torch.zeros(2, 5), torch.eye(2, dtype=torch.float64), shares)


@pytest.mark.parametrize("rule", ["models", "own", "weights", "frozen"])
def test_models_that_sites_hold_come_with_what_they_hold(rule):
    received = torch.zeros(4, 3, dtype=torch.float64)
    received[3, 2] = 1.0
    held = [statistics(20.0), statistics(30.0), statistics(40.0)]
    assert means(rule, asked=make_candidates(received), held=held)[3] == 40.0
    assert means(rule, asked=make_candidates(received))[3] == SENT_OUT  # where all hold those


@pytest.mark.parametrize(
    ("asked", "of_outcome", "round", "rule"),
    [
        ("method", "models", 0, "models"), ("method", "initial", 0, "initial"), ("mean", "initial", 0, "initial"),
        ("own", "initial", 0, "initial"), ("frozen", "initial", 1, "initial"), ("frozen", "initial", 2, "frozen"),
        ("method", "shared", 0, "mean"), ("weights", "own", 0, "weights"), ("frozen", "own", 1, "mean"),
        ("frozen", "own", 2, "frozen")
    ],
)  # fmt: skip
def test_the_rule_of_a_round(asked, of_outcome, round, rule):
    training = Training(statistics=asked, frozen_from=2)
    assert statistics_rule(training, round, of_outcome) == rule
    assert not estimates_statistics(training)


def test_a_method_whose_statistics_stay_at_sites_has_candidates_with_those_of_who_evaluates():
    for method, rule in (("silobn", "own"), ("fedavg", "models")):
        config = tiny_plan(method)
        assert candidate_statistics_rule(config.training, 0, config.build_method()) == rule
    assert estimates_statistics(Training(statistics="recalibrated"))


def exchanges(tmp_path, method, **settings):
    """Of two rounds: what sites answered and what they were then asked to evaluate, and the federation."""
    federation = Federation(tiny_plan(method, **settings), SITES, tmp_path / "run")
    for _ in range(2):
        answers, began = replies(federation), federation.models.statistics
        moved = {site: place + 1 for place, site in enumerate(SITES)}
        for site, reply in answers.items():
            for name, value in reply.buffers.items():
                reply.buffers[name] = value + moved[site]
        federation.take(answers)
        yield answers, began, federation.tasks()
        federation.take(evaluations(federation))


CANDIDATES = [name for name, kind in METHODS.items() if issubclass(kind, EvaluatesCandidates)]


@pytest.mark.parametrize("statistics", ["mean", "own", "weights", "recalibrated", "frozen"])
@pytest.mark.parametrize("method", one_in(6, CANDIDATES))
def test_every_method_with_candidates_ends_by_every_rule(tmp_path, method, statistics):
    federation = Federation(tiny_plan(method, statistics=statistics, frozen_from=1), SITES, tmp_path / "run")
    while federation.work:
        asked = federation.tasks()
        if federation.work == TRAIN:
            federation.take(replies(federation))
            continue
        if any(isinstance(task, Evaluation) and task.purpose is Purpose.ESTIMATE for task in asked.values()):
            estimated = {
                site: Evaluated(task.round, (), torch.zeros(0, 0), buffers=task.buffers[0])
                for site, task in asked.items()
            }
            federation.take(estimated)
            continue
        for task in asked.values():
            if isinstance(task, Evaluation):
                assert task.shares.sum(dim=1).tolist() == pytest.approx([1.0] * len(task.mixtures))
        federation.take(evaluations(federation))
    assert federation.finished


def mixed(task, row):
    return flat.average_buffers(task.buffers, task.shares[row])


def test_coalitions_of_a_round_have_the_statistics_that_the_run_asks_for(tmp_path):
    """FedCI's candidates: nobody, then coalitions, the last of all sites."""
    for answers, _, tasks in exchanges(tmp_path / "own", "fedci", statistics="own"):
        for site, task in tasks.items():
            assert same(mixed(task, -1), answers[site].buffers)
    for number, (_, began, tasks) in enumerate(
        exchanges(tmp_path / "frozen", "fedci", statistics="frozen", frozen_from=1)
    ):
        frozen = [same(mixed(task, -1), began) for task in tasks.values()]
        assert frozen == [number == 1] * 3


def test_server_images_with_recalibration_are_evaluated_with_statistics_of_their_own(sites):
    network = initial_network(NETWORK, 0)
    spoiled = {name: torch.full_like(value, 9) for name, value in flat.get_buffers(network).items()}
    one = torch.eye(1, dtype=torch.float64)
    asked = Evaluation(0, SERVER_SPLIT, flat.get_parameters(network)[None], one, (spoiled,), one, bins=64)
    losses = {}
    for statistics in ("recalibrated", "method"):
        config = replace(CONFIG, training=replace(CONFIG.training, statistics=statistics))
        images = ServerImages([SiteFolder(sites / "site1")], config, "cpu")
        losses[statistics] = images.evaluate(asked).losses.tolist()
        mine = {"estimate_on": build_samples(images.cases, ())} if statistics == "recalibrated" else {}
        expected = evaluate_models(network, images.cases, asked, config, **mine)
        assert losses[statistics] == expected.losses.tolist()
    assert losses["recalibrated"] != losses["method"]
