"""A federation whose sites only pretend: a round from task to record, faults, resuming."""

from dataclasses import replace

import pytest
import torch
from pretending import SITES, SIZE, evaluations, play, replies, tiny_plan
from stepping import Stepped as Federation

from fedmerit.errors import BadInput, RunFailed
from fedmerit.schema.messages import Failure, payload_bytes
from fedmerit.schema.records import EVALUATE, TRAIN
from fedmerit.schema.results import read_results
from fedmerit.server.checkpoint import CHECKPOINT
from fedmerit.server.requirements import require_sites


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


@pytest.mark.parametrize("method", ["cffl", "fedci"])
@pytest.mark.parametrize("exchanges", [1, 3, 5, 6])
def test_server_replaced_in_the_middle_of_candidates_starts_the_round_again(
    tmp_path, assert_same_run, method, exchanges
):
    whole, run = tmp_path / "whole/run", tmp_path / "stopped/run"
    play(Federation(tiny_plan(method), SITES, whole))
    first = Federation(tiny_plan(method), SITES, run)
    play(first, exchanges)
    again = Federation(tiny_plan(method), SITES, run)
    assert again.round == exchanges // 2
    assert again.work == (TRAIN if exchanges < 6 else EVALUATE)
    play(again)
    assert again.finished
    assert_same_run(whole, run)


@pytest.mark.parametrize("method", ["cgsv", "cffl"])
def test_what_sites_make_of_sparse_updates_is_what_the_server_has(run, method):
    """Any sites may be absent, and though every round has another server process."""
    config = tiny_plan(method, rounds=7)
    absent = {2: ("Cedar",), 4: ("Alder", "Birch")}
    held: dict[str, torch.Tensor] = {}
    sparse = []
    for round in range(7):
        federation = Federation(config, SITES, run)
        models = (
            federation.models.parameters
            if federation.models.parameters.ndim == 2
            else federation.models.parameters.repeat(3, 1)
        )
        for model, (site, task) in zip(models, federation.tasks().items(), strict=True):
            is_sparse = task.changes is not None
            held[site] = task.changes.apply(held[site]) if is_sparse else task.parameters
            assert torch.equal(held[site].view(torch.int32), model.view(torch.int32))
            if is_sparse:
                sparse.append((round, site))
                assert payload_bytes(task) < payload_bytes(replace(task, parameters=model, changes=None))
            if site in absent.get(round - 1, ()):
                assert not is_sparse
        federation.take(replies(federation, without=absent.get(round, ())))
        if federation.work == EVALUATE:
            federation.take(evaluations(federation))
    assert sparse
    assert (0, "Cedar") not in sparse


def test_site_rejected_in_the_final_test_says_nothing_of_any_model(run):
    federation = Federation(tiny_plan("cgsv", rounds=1), SITES, run)
    federation.take(replies(federation))
    assert {task.split for task in federation.tasks().values()} == {"validation"}
    federation.take(evaluations(federation))
    assert {task.split for task in federation.tasks().values()} == {"testing"}
    assert torch.equal(federation.tasks()["Alder"].models, federation.models.parameters)
    federation.take(evaluations(federation, Birch=Failure("out of memory")))
    play(federation)
    assert federation.finished
    results = read_results(run)
    testing = results.query("split == 'testing'")
    assert set(testing.query("quantity == 'dice'")["site"]) == {"Alder", "Cedar"}
    assert testing.query("site == 'Birch'")["quantity"].to_list() == ["rejected"]
    union = results.query("split == 'union'")
    assert [*zip(union["site"], union["case"], strict=True)] == [
        (site, case) for site in SITES for case in ("Alder/000", "Cedar/000")
    ]
    positives = [1 + place + 3 * model for model in range(3) for place in (0, 2)]
    assert union["value"].to_list() == pytest.approx([2 * tp / (100 + tp) for tp in positives], rel=1e-12)
    own = testing.query("quantity == 'dice'")["value"].to_list()
    assert own == pytest.approx([2 / 101, 18 / 109], rel=1e-12)  # Alder of its own model, Cedar of its own
    assert sorted(path.stem for path in (run / "models").glob("*.pt")) == list(SITES)


def test_a_site_that_never_trained_is_sent_no_final_model(run):
    federation = Federation(tiny_plan("cgsv", rounds=2), SITES, run)
    for _ in range(2):
        federation.take(replies(federation, without=("Birch",)))
    assert sorted(federation.tasks()) == ["Alder", "Cedar"]
    play(federation)
    assert federation.finished
    assert read_results(run).query("split == 'testing' and site == 'Birch'")["quantity"].to_list() == ["rejected"]


def test_final_test_that_nobody_answers_can_be_repeated(run):
    federation = Federation(tiny_plan("cgsv", rounds=1), SITES, run)
    federation.take(replies(federation))
    with pytest.raises(RunFailed, match=r"final test.*Alder: asleep"):
        federation.take(dict.fromkeys(SITES, Failure("asleep")))
    assert sorted(path.stem for path in (run / "models").glob("*.pt")) == list(SITES)
    again = Federation(tiny_plan("cgsv", rounds=1), SITES, run)
    assert again.work == EVALUATE
    play(again)
    assert again.finished


def test_a_checkpoint_of_another_version_is_reported(run):
    config = tiny_plan("cgsv")
    federation = Federation(config, SITES, run)
    federation.take(replies(federation))
    content = torch.load(run / CHECKPOINT)
    del content["state"]["server"]
    torch.save(content, run / CHECKPOINT)
    with pytest.raises(BadInput, match="begun by another version of FedMerit, whose cgsv has another state"):
        Federation(config, SITES, run)


def test_a_network_that_drops_at_random_is_refused_before_anything_is_written(tmp_path):
    """As of a job that was exported without images."""
    config = tiny_plan("fedavg", arguments={"dropout": 0.2})
    with pytest.raises(BadInput, match=r"drops 0\.2 at random"):
        Federation(config, SITES, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", ["fedavg", "cffl", "cycle"])
def test_update_of_impossible_size_is_rejected(run, method):
    federation = Federation(tiny_plan(method), SITES, run)
    answers = replies(federation)
    huge = replace(answers["Birch"], update=torch.full((SIZE,), 3e38))
    federation.take(answers | {"Birch": huge})
    if federation.work == EVALUATE:
        federation.take(evaluations(federation))
    assert federation.recorder.ledger.records[0]["rejected"] == {"Birch": "Reply.update: entries beyond 1e+06"}
    assert federation.models.parameters.isfinite().all()


@pytest.mark.parametrize("method", ["fedci", "eci"])
def test_more_than_twelve_sites_are_too_many_for_coalitions(run, method):
    names = [f"site{number:02d}" for number in range(13)]
    require_sites(tiny_plan(method), names[:12])
    for check in (lambda: require_sites(tiny_plan(method), names), lambda: Federation(tiny_plan(method), names, run)):
        with pytest.raises(BadInput, match=rf"method {method}: 13 sites.*at most 12"):
            check()
    assert not run.exists()
