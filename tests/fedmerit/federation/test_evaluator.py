"""Candidates that the sites evaluate: who is asked what, and what their answers make of a round."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from pretending import NETWORK, SITES, SIZE, evaluated, evaluations, replies, tiny_plan
from stepping import Stepped as Federation

from fedmerit import flat
from fedmerit.errors import RunFailed
from fedmerit.records.results import read_results
from fedmerit.training.data import SERVER_SPLIT
from fedmerit.wire.messages import EVALUATE, TRAIN, Failure, Task, payload


def same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


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


def test_dice_are_pooled_over_the_cases_of_all_sites(run):
    federation = Federation(tiny_plan(), SITES, run)
    federation.take(replies(federation))
    counts = {"Alder": 1, "Birch": 4, "Cedar": 2}
    federation.take({site: evaluated(federation, site, count) for site, count in counts.items()})
    found = quantities(run, "utility")
    for model, name in enumerate(SITES):
        positives = [1 + place + 3 * model + case for place, n in enumerate(counts.values()) for case in range(n)]
        dice = [2 * tp / (100 + tp) for tp in positives]
        assert len(dice) == 7
        assert found[0, name] == pytest.approx(sum(dice) / 7, rel=1e-12)


def test_seconds_of_a_round_count_the_candidates(run):
    federation = Federation(tiny_plan(), SITES, run)
    federation.take({site: replace(reply, seconds=2.0) for site, reply in replies(federation).items()})
    answers = {site: replace(evaluated(federation, site), seconds=0.5) for site in ("Alder", "Cedar")}
    federation.take(answers | {"Birch": Failure("asleep")})
    assert quantities(run, "seconds") == {(0, "Alder"): 2.5, (0, "Birch"): 2.0, (0, "Cedar"): 2.5}
    server = quantities(run, "server_seconds")
    assert len(set(server.values())) == 1
    assert 0 < server[0, "Alder"] < 60


def test_received_bytes_count_task_and_candidates(run):
    federation = Federation(tiny_plan(), SITES, run)
    buffers = payload(Task(0, torch.empty(0), flat.get_buffers(NETWORK)))
    federation.take(replies(federation, without=("Birch",)))
    federation.take(evaluations(federation))
    model = 4 * SIZE + buffers
    assert quantities(run, "bytes_received") == {(0, "Alder"): 3 * model, (0, "Cedar"): 3 * model}
    assert quantities(run, "bytes_sent") == {(0, "Alder"): model, (0, "Cedar"): model}


def test_update_counts_though_the_evaluation_is_rejected(run):
    federation = Federation(tiny_plan(), SITES, run)
    federation.take(replies(federation, without=("Cedar",)))
    birch = replace(evaluated(federation, "Birch"), round=7)
    federation.take(evaluations(federation, Birch=birch))
    record = federation.recorder.ledger.records[0]
    assert record["rejected"] == {"Cedar": "asleep", "Birch": "evaluation: evaluation of round 7 in round 0"}
    assert record["participants"] == ["Alder", "Birch"]
    assert record["weights"] == {"Alder": 0.5, "Birch": 0.5}
    alone = [2 * tp / (100 + tp) for tp in (1, 4)]  # what Alder said of both models
    found = quantities(run, "utility")
    assert [found[0, "Alder"], found[0, "Birch"]] == pytest.approx(alone, rel=1e-12)


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
