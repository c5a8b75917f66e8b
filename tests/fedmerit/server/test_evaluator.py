"""Candidates that the sites evaluate: who is asked what, and what their answers make of a round."""

from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from pretending import NETWORK, SITES, SIZE, evaluated, evaluations, replies, same, tiny_plan
from stepping import Stepped as Federation

from fedmerit.contract import flat
from fedmerit.contract.capabilities import Candidates, ImportanceRequest, capabilities
from fedmerit.contract.method import Layout, Reports
from fedmerit.errors import RunFailed
from fedmerit.guard.admission import Admission
from fedmerit.schema.messages import Evaluated, Failure, Importance, Reply, payload_bytes
from fedmerit.schema.records import EVALUATE, TRAIN
from fedmerit.schema.results import read_results
from fedmerit.schema.scores import SERVER_SPLIT, Overlap
from fedmerit.server.evaluator import Evaluator
from fedmerit.server.exchange import Moment
from fedmerit.server.models import ModelsInTheClear
from fedmerit.server.round_inputs import SERVER
from fedmerit.server.round_updates import RoundReplies
from fedmerit.server.submodels import Submodels


def quantities(run, name: str) -> dict[tuple[int, str], float]:
    rows = read_results(run).query(f"quantity == '{name}' and split == ''")
    return dict(zip(zip(rows["round"], rows["site"], strict=True), rows["value"], strict=True))


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


def test_present_sites_are_asked_to_evaluate_what_they_trained(run):
    federation = Federation(tiny_plan(), SITES, run)
    assert federation.work == TRAIN
    assert set(federation.tasks()) == set(SITES)
    start, answers = federation.models.parameters, replies(federation, without=("Birch",))
    federation.take(answers)
    assert (federation.work, federation.round, federation.training) == (EVALUATE, 0, True)
    assert set(federation.tasks()) == {"Alder", "Cedar"}
    for task in federation.tasks().values():
        assert (task.round, task.split, task.bins) == (0, SERVER_SPLIT, 0)
        assert torch.equal(task.mixtures, torch.eye(2, dtype=torch.float64))
        for model, shares, site in zip(task.models, task.shares, ("Alder", "Cedar"), strict=True):
            assert torch.equal(model, start + answers[site].update)
            assert same(flat.average_buffers(task.buffers, shares), answers[site].buffers)
    assert federation.recorder.ledger.records == []
    federation.take(evaluations(federation))
    assert (federation.work, federation.round) == (TRAIN, 1)
    assert federation.recorder.ledger.records[0]["rejected"] == {"Birch": "asleep"}


def test_models_received_are_evaluated_with_the_statistics_sent_out(run):
    federation = Federation(tiny_plan("fedci"), SITES, run)
    federation.take(replies(federation))
    federation.take(evaluations(federation))
    sent = federation.tasks()["Alder"]
    federation.take(replies(federation, without=("Cedar",)))
    candidates = federation.tasks()["Alder"]
    assert torch.equal(flat.mix(candidates.models, candidates.mixtures[0]), sent.parameters)
    assert same(flat.average_buffers(candidates.buffers, candidates.shares[0]), sent.buffers)
    assert candidates.shares.sum(dim=1).tolist() == pytest.approx([1.0] * 4)


def test_update_counts_though_the_evaluation_is_rejected(run):
    federation = Federation(tiny_plan(), SITES, run)
    federation.take(replies(federation, without=("Cedar",)))
    birch = replace(evaluated(federation, "Birch"), round=7)
    federation.take(evaluations(federation, Birch=birch))
    record = federation.recorder.ledger.records[0]
    assert record["rejected"] == {"Cedar": "asleep", "Birch": "evaluation: Evaluated.round: 7, expected 0"}
    assert record["participants"] == ["Alder", "Birch"]
    assert record["weights"] == {"Alder": 0.5, "Birch": 0.5}
    single = [2 * tp / (100 + tp) for tp in (1, 4)]  # what Alder said of both models
    found = quantities(run, "utility")
    assert [found[0, "Alder"], found[0, "Birch"]] == pytest.approx(single, rel=1e-12)


@pytest.mark.parametrize("cases", [0, 2])
def test_site_without_cases_says_nothing_of_the_dice(run, cases):
    federation = Federation(tiny_plan(), SITES, run)
    federation.take(replies(federation))
    federation.take({site: evaluated(federation, site, cases if site == "Alder" else 0) for site in SITES})
    expected = [sum(2 * tp / (100 + tp) for tp in (1 + 3 * m, 2 + 3 * m)) / 2 if cases else 0.0 for m in range(3)]
    found = quantities(run, "utility")
    assert [found[0, site] for site in SITES] == pytest.approx(expected, rel=1e-12)


def test_no_evaluation_at_all_ends_the_run_with_every_reason(run):
    federation = Federation(tiny_plan(), SITES, run)
    federation.take(replies(federation, without=("Cedar",)))
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    with pytest.raises(RunFailed, match="round 0: no site sent a usable evaluation") as caught:
        federation.take({"Alder": Failure("out of memory")})
    for words in ("Alder: evaluation: out of memory", "Birch: evaluation: no reply", "Cedar: asleep"):
        assert words in str(caught.value)
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


# Called directly


ASKED = Candidates(torch.zeros(2, SIZE), torch.eye(2, dtype=torch.float64), torch.zeros(2, 3, dtype=torch.float64), 2)

EQUAL = torch.full((3,), 1 / 3, dtype=torch.float64)


def said(*positives, losses=((0, 0), (0, 0)), seconds=0.0):
    """Of two models, Dice of ``positives`` percent, on one case of 100 voxels."""
    overlaps = tuple((Overlap("000", "prostate", one, 100 - one, 100 - one),) for one in positives)
    return Evaluated(1, overlaps, torch.tensor(losses, dtype=torch.float32), seconds)


def admitted(*seconds):
    replies = [None if one is None else Reply(1, torch.zeros(SIZE), {}, 10, (), seconds=one) for one in seconds]
    return RoundReplies(replies, {"Birch": "asleep"}, [100, 100, 100])


@pytest.fixture
def calls():
    """What the guard and the clock were reported."""
    return []


@pytest.fixture
def build(calls):
    """Return a function that makes an evaluator in round 1; images of the server's own give Dice of 40 and 60 %."""

    def evaluate(task):
        calls.append(("here", task.split))
        return said(40, 60, losses=((1, 2), (3, 4)))

    def make(own=False, on=False, fault=None, **settings):
        config = tiny_plan("fedavg", **settings)
        run_guard = SimpleNamespace(
            on=on,
            split="validation",
            check_cases=lambda site, split, overlaps: fault if site == "Alder" else None,
            judge_candidates=lambda admission, candidates, usable: ("judged", list(usable)),
            leave_one_out_models=lambda round, outcome, admission, received: outcome.models,
            take_leave_one_out=lambda admission, rated: calls.append(("measured", list(rated))),
        )
        models = ModelsInTheClear(config, NETWORK, SITES, capabilities(config.build_method()))
        moment = Moment(1, "round 1", "head", 1)
        images = SimpleNamespace(evaluate=evaluate) if own else None
        return Evaluator(config, SITES, models, run_guard, images, lambda: moment, calls.append)

    return make


def clock(calls):
    @contextmanager
    def paused():
        calls.append("pause")
        yield
        calls.append("on")

    return SimpleNamespace(paused=paused)


def run_through(steps, answers, calls=None):
    """What a generator returns whose exchanges get these ``answers``, and the exchanges."""
    exchanges = []
    while True:
        try:
            exchange = next(steps)
        except StopIteration as stop:
            return stop.value, exchanges
        exchanges.append(exchange)
        for site, answer in answers.items():
            exchange.take(site, answer)
        if calls is not None:
            calls.append("answers")


def admission_of(there):
    present = torch.tensor([reply is not None for reply in there.replies])
    admission = Admission.unguarded(torch.empty(len(present), 0), Reports(present.double(), present))
    return replace(admission, statistics=[reply.buffers if reply else {} for reply in there.replies])


METHOD = SimpleNamespace(candidates=lambda state, updates, reports: ASKED)


def leave_one_out(evaluates, there, calls, asked=ASKED, weights=EQUAL):
    """``asked`` are the models that the guard wants to have evaluated."""
    given = SimpleNamespace(models=asked, weights=weights)
    return evaluates.leave_one_out(given, torch.empty(0), admission_of(there), there, clock(calls))


def ask_candidates(evaluates, there, calls):
    return evaluates.candidates(METHOD, None, admission_of(there), there, clock(calls))


def test_what_sites_say_is_pooled_as_one_set_and_waiting_for_them_does_not_count(build, calls):
    """Alder has Dice 10 and 30 percent, Cedar 20 and 60: the means are 15 and 45."""
    there = admitted(2.0, None, 3.0)
    answers = {
        "Alder": said(10, 30, losses=((1, 1), (0, 2)), seconds=0.5),
        "Cedar": said(20, 60, losses=((0, 3), (2, 1))),
    }
    steps = ask_candidates(build(), there, calls)
    (reports, counted), (exchange,) = run_through(steps, answers, calls)
    results = reports.candidates
    assert results.dice.tolist() == pytest.approx([0.15, 0.45])
    assert results.losses.tolist() == [[1.0, 4.0], [2.0, 3.0]]
    assert calls == ["pause", "answers", "on"]
    task = exchange.tasks["Alder"]
    assert (list(exchange.tasks), task.split, task.round, task.ledger) == (["Alder", "Cedar"], SERVER_SPLIT, 1, "head")
    assert [reply and reply.seconds for reply in counted.replies] == [2.5, None, 3.0]
    assert counted.received == [100 + payload_bytes(task)] * 3
    assert counted.rejected == {"Birch": "asleep"}


def test_on_its_own_images_a_server_asks_nobody(build, calls):
    there = admitted(2.0, None, 3.0)
    steps = ask_candidates(build(own=True), there, calls)
    (reports, counted), exchanges = run_through(steps, {})
    results = reports.candidates
    assert exchanges == []
    assert results.dice.tolist() == pytest.approx([0.4, 0.6])
    assert results.losses.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert (counted.received, list(counted.ratings["candidates"])) == (there.received, [SERVER])
    assert calls == [("here", SERVER_SPLIT)]


def test_what_counts_of_several_evaluations_in_a_round_is_kept(build, calls):
    there, one, other = admitted(2.0, None, 3.0), said(10, 30), said(20, 60)
    steps = ask_candidates(build(on=True), there, calls)
    (_, there), _ = run_through(steps, {"Alder": one, "Cedar": other})
    steps = leave_one_out(build(on=True), there, calls)
    counted, _ = run_through(steps, {"Alder": other})
    assert counted.evaluated == {"Alder": (one, other), "Cedar": (other,)}


def test_what_is_observed_is_on_validation_patients_of_those_that_replied_in_site_order(build):
    steps = build().observation(ASKED, admission_of(admitted(2.0, None, 3.0)), EQUAL)
    cedar = said(20, 60)
    (found, tasks), (exchange,) = run_through(steps, {"Cedar": cedar})
    assert found == [None, None, cedar]
    assert tasks == exchange.tasks
    assert {site: task.split for site, task in exchange.tasks.items()} == dict.fromkeys(
        ("Alder", "Cedar"), "validation"
    )


def test_where_sites_hold_statistics_of_their_own_a_candidate_may_have_the_mean_of_those_received(build):
    """Received are statistics of 1, 2 and 3; the one model has 1/4, 1/4 and 1/2 of them: 9/4."""
    evaluates, third = build(), torch.tensor([[0.25, 0.25, 0.5]], dtype=torch.float64)
    buffers = evaluates.models.buffers[0]
    evaluates.models.buffers = [{name: torch.full_like(v, k) for name, v in buffers.items()} for k in (1, 2, 3)]
    asked = Candidates(torch.zeros(1, SIZE), torch.eye(1, dtype=torch.float64), 0 * third, received=third)
    steps = evaluates.observation(asked, admission_of(admitted(2.0, 1.0, 3.0)), EQUAL)
    task = next(steps).tasks["Alder"]
    mixed = flat.average_buffers(task.buffers, task.shares[0])
    assert all(value.unique().tolist() == [2.25] for name, value in mixed.items() if name.endswith("running_mean"))


@pytest.mark.parametrize("asked", ["observation", "leave-one-out"])
def test_by_the_methods_weights_are_the_statistics_of_models_made_after_a_round(build, calls, asked):
    """Sites trained statistics of 1, 2 and 3; by weights .1, .3 and .6, and not by images, of all the mean is 2.5."""
    evaluates, third = build(on=True, statistics="weights"), torch.full((1, 3), 1 / 3, dtype=torch.float64)
    trained = evaluates.models.buffers[0]
    there = admitted(2.0, 1.0, 3.0)
    for place, reply in enumerate(there.replies):
        there.replies[place] = replace(reply, buffers={n: torch.full_like(v, place + 1) for n, v in trained.items()})
    candidates = Candidates(torch.zeros(1, SIZE), torch.eye(1, dtype=torch.float64), third)
    weights = torch.tensor([0.1, 0.3, 0.6], dtype=torch.float64)
    if asked == "observation":
        steps = evaluates.observation(candidates, admission_of(there), weights)
    else:
        steps = leave_one_out(evaluates, there, calls, candidates, weights)
    for task in next(steps).tasks.values():
        mixed = flat.average_buffers(task.buffers, task.shares[0])
        means = [value for name, value in mixed.items() if name.endswith("running_mean")]
        assert torch.cat(means).unique().tolist() == pytest.approx([2.5])


def test_importance_on_images_of_server_is_mean_over_them():
    def measure(task):
        return Importance(task.round, torch.tensor([2.0, -4.0], dtype=torch.float64), 4)

    request = ImportanceRequest(torch.zeros(SIZE), "exact", 4)
    method = SimpleNamespace(
        importance_request=lambda state: request,
        allocate=lambda state, importance, keeping: (state, importance, torch.ones(3, 2, dtype=torch.bool)),
    )
    submodels = Submodels(method, Layout.of(1), SimpleNamespace(measure_importance=measure))
    moment, keeping = Moment(1, "round 1", "head", 1), torch.zeros(3, dtype=torch.bool)
    (_, importance), exchanges = run_through(submodels.allocate("state", {}, keeping, SITES, moment), {})
    assert (importance.tolist(), exchanges) == ([0.5, -1.0], [])
