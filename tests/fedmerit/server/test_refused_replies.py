"""A reply that cannot be used is refused with the reason, and the round continues as if its site had been absent.

`tests/fedmerit/schema/test_messages.py` says which replies these are.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from chains import verify
from good_replies import SITES, good_reply, tiny_plan
from measured import rows
from refusals import contents
from stepping import Stepped as Federation

from fedmerit.errors import RunFailed
from fedmerit.schema.messages import ClosingReceipt, Evaluated, Failure, Reply
from fedmerit.schema.results import read_results
from fedmerit.schema.scores import Overlap

Answer = Reply | Failure


def federate(
    run: Path, spoil: Callable[[Reply], Answer | None], rounds: tuple[int, ...], method: str = "fedce"
) -> Path:
    """Three rounds; in the ``rounds`` given Birch sends what ``spoil`` makes of its reply, or nothing for `None`."""
    federation = Federation(tiny_plan(method), SITES, run)
    while federation.training:
        answers: dict[str, Answer | None] = {site: good_reply(federation, site) for site in SITES}
        if federation.round in rounds:
            answers["Birch"] = spoil(good_reply(federation, "Birch"))
        federation.take({site: answer for site, answer in answers.items() if answer is not None})
    while federation.work:
        if federation.finished:
            federation.take({site: ClosingReceipt(federation.config.rounds) for site in SITES})
            continue
        asked = federation.tasks()
        models = len(next(iter(asked.values())).mixtures)
        overlaps = ((Overlap("000", "prostate", 5, 2, 1),),) * models
        federation.take({site: Evaluated(federation.round, overlaps, torch.zeros(models, 0)) for site in asked})
    assert federation.finished
    return run


def with_first_entry(value: float) -> Callable[[Reply], Reply]:
    def spoil(reply: Reply) -> Reply:
        update = reply.update.clone()
        update[0] = value
        return replace(reply, update=update)

    return spoil


SPOILED_REPLIES: Mapping[str, tuple[Callable[[Reply], Answer | None], str]] = {
    "NaN in the update": (with_first_entry(float("nan")), "Reply.update: NaN"),
    "num_samples 0": (lambda reply: replace(reply, num_samples=0), "Reply.num_samples: 0, expected"),
    "value not asked for": (lambda reply: replace(reply, values={"loyalty": 1.0}), "Reply.values.loyalty"),
    "reply of an earlier round": (lambda reply: replace(reply, round=0), "Reply.round: 0, expected 1"),
    "failure at the site": (lambda reply: Failure("out of memory"), "out of memory"),
    "no reply": (lambda reply: None, "no reply"),
}


@pytest.fixture(scope="module")
def sat_out(tmp_path_factory):
    """The run in which Birch took no part in round 1."""
    run = tmp_path_factory.mktemp("server") / "run"
    return federate(run, lambda reply: Failure("sat out"), rounds=(1,))


@pytest.mark.parametrize("spoiled", SPOILED_REPLIES)
def test_spoiled_reply_is_rejected_and_the_others_continue(tmp_path, sat_out, assert_same_model, spoiled):
    spoil, word = SPOILED_REPLIES[spoiled]
    run = federate(tmp_path / "run", spoil, rounds=(1,))

    records = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    assert verify(run / "ledger.jsonl") == 3
    assert [list(record["rejected"]) for record in records] == [[], ["Birch"], []]
    assert word in records[1]["rejected"]["Birch"]
    assert records[1]["participants"] == ["Alder", "Cedar"]
    results = read_results(run)
    rejected = results[results["quantity"] == "rejected"]
    assert list(zip(rejected["round"], rejected["site"], rejected["value"], strict=True)) == [(1, "Birch", 1.0)]
    birch = results[(results["round"] == 1) & (results["site"] == "Birch")]
    assert sorted(birch["quantity"]) == ["rejected", "weight"]
    assert birch.set_index("quantity")["value"]["weight"] == 0

    assert_same_model(sat_out / "models/global.pt", run / "models/global.pt")
    assert rows(sat_out) == rows(run)
    model = [json.loads(line)["model"] for line in (sat_out / "ledger.jsonl").read_text().splitlines()]
    assert [record["model"] for record in records] == model


def test_site_rejected_in_every_round_changes_nothing(tmp_path, assert_same_model):
    runs = [
        federate(tmp_path / str(number) / "run", spoil, rounds=(0, 1, 2))
        for number, spoil in enumerate([with_first_entry(float("nan")), lambda reply: None])
    ]
    assert_same_model(*(run / "models/global.pt" for run in runs))
    assert rows(runs[0]) == rows(runs[1])


def test_all_rejected_ends_the_run_with_every_reason(tmp_path):
    federation = Federation(tiny_plan(), SITES, tmp_path)
    federation.take({site: good_reply(federation, site) for site in SITES})
    before = contents(tmp_path)
    answers = {"Alder": replace(good_reply(federation, "Alder"), num_samples=0), "Birch": Failure("out of memory")}
    with pytest.raises(RunFailed, match="round 1") as caught:
        federation.take(answers)
    for word in ("Alder: Reply.num_samples: 0", "Birch: out of memory", "Cedar: no reply"):
        assert word in str(caught.value)
    assert contents(tmp_path) == before
