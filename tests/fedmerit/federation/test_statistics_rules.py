"""Which BatchNorm statistics a model is evaluated with."""

import pytest
import torch
from pretending import SITES, evaluations, replies, same, tiny_plan
from stepping import Stepped as Federation

from fedmerit import flat
from fedmerit.capabilities import Candidates, EvaluatesCandidates
from fedmerit.configuration.run import Training
from fedmerit.federation.model_evaluation import (
    RoundStatistics,
    candidate_statistics,
    candidate_statistics_rule,
    estimates_statistics,
    statistics_rule,
)
from fedmerit.methods.registry import METHODS
from fedmerit.wire.messages import TRAIN, Evaluated, Evaluation, Purpose

SENT_OUT = 100.0
ROWS = [  # shares of three sites' trained statistics: one alone, two, all by images, none
    [1.0, 0.0, 0.0],
    [0.5, 0.5, 0.0],
    [0.25, 0.5, 0.25],
    [0.0, 0.0, 0.0],
]


def statistics(mean):
    return {"running_mean": torch.tensor([mean])}


TRAINED = [statistics(1.0), statistics(3.0), statistics(9.0)]
WEIGHTS = torch.tensor([0.2, 0.6, 0.2], dtype=torch.float64)


def candidates(received=None):
    shares = torch.tensor(ROWS, dtype=torch.float64)
    return Candidates(torch.zeros(4, 5), torch.eye(4, dtype=torch.float64), shares, received=received)


def means(rule, evaluator=1, asked=None, **there):
    """(k,) of the running means that the candidates are evaluated with."""
    given = RoundStatistics(**{"trained": TRAINED, "sent_out": statistics(SENT_OUT), "weights": WEIGHTS} | there)
    sets, shares = candidate_statistics(asked or candidates(), given, rule, evaluator)
    assert shares.sum(dim=1).tolist() == pytest.approx([1.0] * len(shares))
    return [float(flat.average_buffers(sets, row)["running_mean"]) for row in shares]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("models", [1.0, 2.0, 4.0, SENT_OUT]),
        ("mean", [1.0, 2.0, 4.0, SENT_OUT]),
        ("recalibrated", [1.0, 2.0, 4.0, SENT_OUT]),  # until whoever evaluates estimates them anew
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
    assert means(rule, asked=candidates(received), held=held)[3] == 40.0
    assert means(rule, asked=candidates(received))[3] == SENT_OUT  # where all hold those


@pytest.mark.parametrize(
    ("asked", "of_outcome", "round", "rule"),
    [
        ("method", "models", 0, "models"),
        ("method", "initial", 0, "initial"),
        ("mean", "initial", 0, "initial"),
        ("own", "initial", 0, "initial"),
        ("frozen", "initial", 1, "initial"),
        ("frozen", "initial", 2, "frozen"),
        ("method", "shared", 0, "mean"),
        ("shared", "own", 0, "mean"),
        ("weights", "own", 0, "weights"),
        ("frozen", "own", 1, "mean"),
        ("frozen", "own", 2, "frozen"),
    ],
)
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
@pytest.mark.parametrize("method", CANDIDATES)
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
