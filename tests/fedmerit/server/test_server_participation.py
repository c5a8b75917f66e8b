"""A site that stays away for a round, whatever the method: weights, memory, models, and its coming back."""

import math
from dataclasses import replace

import pytest
import torch
from one_in import one_in
from pretending import SITES, evaluated, evaluations, replies, tiny_plan
from stepping import Stepped as Federation
from tiny import TINY

from fedmerit.engines import runs
from fedmerit.errors import RunFailed
from fedmerit.methods.registry import METHODS
from fedmerit.schema.messages import Failure
from fedmerit.schema.records import TRAIN
from fedmerit.schema.results import read_results
from fedmerit.server.checkpoint import is_finished
from fedmerit.site.site import Site

AWAY = "Birch"
ROW = SITES.index(AWAY)
OF_LAST_ROUND = {
    ("fedce", "cosine"),
    ("fedce_nvflare", "cosine"),
}  # what a method says of the last round's updates, not what it remembers

OF_SERVER = {  # a site's part of what continues without it: of the server's model, of the sum of values of all
    ("fedsac", "models"),
    ("fedbn", "models"),
    ("innovation", "reputation"),
}


def one_round(federation: Federation, without: tuple[str, ...] = ()) -> None:
    """One round, and what a method asks before the next."""
    number = federation.round
    while federation.round == number or (federation.training and federation.work != TRAIN):
        federation.take(replies(federation, without) if federation.work == TRAIN else evaluations(federation))


def remembered(federation: Federation, row: int) -> dict[str, torch.Tensor]:
    """What the method's state holds of one site."""
    tensors = {name: value for name, value in vars(federation.state).items() if isinstance(value, torch.Tensor)}
    return {name: value[row].clone() for name, value in tensors.items() if value.ndim and len(value) == len(SITES)}


@pytest.mark.parametrize("method", one_in(6, METHODS))
def test_site_absent_in_one_round_keeps_its_memory_and_comes_back(tmp_path, method):
    federation = Federation(tiny_plan(method, rounds=4), SITES, tmp_path / "run")
    one_round(federation)
    before, buffers = remembered(federation, ROW), federation.models.buffers[ROW]
    one_round(federation, without=(AWAY,))

    record = federation.recorder.ledger.records[1]
    assert record["rejected"] == {AWAY: "asleep"}
    assert list(record["weights"]) == ["Alder", "Cedar"]
    assert math.fsum(record["weights"].values()) == pytest.approx(1, abs=1e-12)
    rows = read_results(tmp_path / "run").query(f"round == 1 and site == '{AWAY}'")
    assert dict(zip(rows["quantity"], rows["value"], strict=True)) == {"rejected": 1.0, "weight": 0.0}
    for name, value in remembered(federation, ROW).items():
        if (method, name) in OF_LAST_ROUND:
            assert value.isnan()
        elif (method, name) not in OF_SERVER:
            assert torch.equal(value.nan_to_num(-1), before[name].nan_to_num(-1)), name
    if federation.models.buffers[0] is not federation.models.buffers[ROW]:  # each has its own
        assert federation.models.buffers[ROW] is buffers

    task = federation.tasks()[AWAY]
    assert task.changes is None  # whatever the site has
    assert torch.equal(
        task.parameters,
        federation.models.parameters if federation.models.parameters.ndim == 1 else federation.models.parameters[ROW],
    )
    assert (task.weight, task.data_share) == (None, None)  # no part of it is in what it gets
    one_round(federation)
    record = federation.recorder.ledger.records[2]
    assert record["participants"] == list(SITES)
    assert math.fsum(record["weights"].values()) == pytest.approx(1, abs=1e-12)
    one_round(federation)
    assert federation.recorder.ledger.records[3]["weights"].keys() == set(SITES)


@pytest.mark.parametrize("method", METHODS)
def test_site_that_comes_for_the_first_time_after_others_takes_part(tmp_path, method):
    federation = Federation(tiny_plan(method), SITES, tmp_path / "run")
    one_round(federation, without=(AWAY,))
    one_round(federation)
    record = federation.recorder.ledger.records[1]
    assert record["participants"] == list(SITES)
    assert all(0 <= weight <= 1 for weight in record["weights"].values())
    assert federation.models.parameters.isfinite().all()


@pytest.mark.parametrize("method", one_in(6, METHODS))
def test_run_continues_without_a_site_that_its_job_does_not_have(tmp_path, method):
    """As where the server starts again and one site does not come back: the others' weights, its memory."""
    config, run, whole = tiny_plan(method), tmp_path / "run", tmp_path / "whole"
    expected = Federation(config, SITES, whole)
    one_round(expected)
    one_round(expected, without=(AWAY,))
    one_round(Federation(config, SITES, run))
    federation = Federation(config, ["Alder", "Cedar"], run)
    assert federation.sites == list(SITES)
    one_round(federation, without=(AWAY,))
    assert torch.equal(federation.models.parameters, expected.models.parameters)
    again = Federation(config, SITES, run)
    assert set(again.tasks()) == set(SITES)


@pytest.mark.parametrize("method", ["fedavg", "cffl"])
def test_too_few_usable_answers_do_not_end_a_round(tmp_path, method):
    federation = Federation(tiny_plan(method), SITES, tmp_path / "run", min_sites=3)
    assert federation.exchange.least == 3
    before = {path.name: path.read_bytes() for path in federation.run.iterdir()}
    with pytest.raises(RunFailed, match=r"round 0: 2 of 3 sites needed sent a usable reply \(Birch: asleep\)"):
        federation.take(replies(federation, without=(AWAY,)))
    assert {path.name: path.read_bytes() for path in federation.run.iterdir()} == before
    federation = Federation(tiny_plan(method), SITES, tmp_path / "run", min_sites=3)
    one_round(federation)  # once more, when all are there
    assert federation.recorder.ledger.records[0]["participants"] == list(SITES)


def test_the_local_engine_ends_a_run_of_too_few_usable_answers(tmp_path, sites, monkeypatch):
    run, original = tmp_path / "run", Site.answer

    def forgetful(site, task):
        return Failure("asleep") if site.name == "site2" and task.round == 1 else original(site, task)

    settings = TINY
    runs.create(run, "fedavg", sites, rounds=2, engine="local", threads=1, settings=settings, min_sites=3)
    with monkeypatch.context() as patch:
        patch.setattr(Site, "answer", forgetful)
        with pytest.raises(RunFailed, match=r"round 1: 2 of 3 sites needed sent a usable reply \(site2: asleep\)"):
            runs.execute(run, lambda record: None)
    runs.execute(run, lambda record: None)  # it is back
    assert is_finished(run, 2)


def test_evaluations_are_needed_of_the_sites_that_trained(tmp_path):
    federation = Federation(tiny_plan("cffl"), SITES, tmp_path / "run", min_sites=2)
    federation.take(replies(federation, without=(AWAY,)))
    single = {"Alder": evaluated(federation, "Alder"), "Cedar": Failure("out of memory")}
    with pytest.raises(RunFailed, match=r"1 of 2 sites needed sent a usable evaluation"):
        federation.take(single)
    federation = Federation(tiny_plan("cffl"), SITES, tmp_path / "run", min_sites=2)
    federation.take(replies(federation, without=(AWAY,)))
    federation.take(single | {"Cedar": evaluated(federation, "Cedar")})
    assert federation.round == 1


def test_number_of_images_may_shrink_a_little_and_not_change_otherwise(tmp_path):
    config, run = tiny_plan("fedavg", rounds=6), tmp_path / "run"
    federation = Federation(config, SITES, run)
    one_round(federation)
    for number, count in enumerate((1000, 11, 8, 9, 10), start=1):
        federation = Federation(config, SITES, run)  # another process of the server knows it too
        answers = replies(federation)
        federation.take(answers | {AWAY: replace(answers[AWAY], num_samples=count)})
        record = federation.recorder.ledger.records[number]
        expected = {} if count in (9, 10) else {AWAY: f"num_samples {count}, at first it was 10"}
        assert record["rejected"] == expected


def test_number_of_images_counts_from_the_first_reply_that_is_taken(tmp_path):
    federation = Federation(tiny_plan("fedavg"), SITES, tmp_path / "run")
    answers = replies(federation)
    broken = replace(answers[AWAY], num_samples=7, update=answers[AWAY].update * math.nan)
    federation.take(answers | {AWAY: broken})
    one_round(federation)
    assert federation.recorder.ledger.records[1]["rejected"] == {}
    assert federation.num_samples == {"Alder": 10, "Birch": 10, "Cedar": 2}
