"""The server's edge: what no honest site sends is refused, in the ledger with the reason, and without effect."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from chains import verify
from one_in import one_in
from pretending import SITES, evaluations, over_the_wire, replies, tiny_plan

from fedmerit.engines.nvflare.aggregator import MeritAggregator
from fedmerit.engines.nvflare.translation import message_to_model, model_to_task
from fedmerit.schema.messages import Evaluated, Failure, Reply
from fedmerit.schema.records import TRAIN
from fedmerit.schema.rules import parts_of
from fedmerit.server.exchange import Exchange

LIAR = "Birch"
NAN, INF = float("nan"), float("inf")
JUNK = {
    "nothing": None, "text": "many", "bytes": b"\0", "a list": [1, 2], "a set": {1}, "infinity": INF,
    "a table": {"a": 1}
}  # fmt: skip
ARRAYS = ("float64", "float16", "int64", "bool", "object", "str")

Change = Callable[[Any], None]


def setting(name: str, value: object) -> Change:
    return lambda model: setattr(model, name, value)


def telling(name: str, value: object) -> Change:
    return lambda model: model.meta.update({name: value})


def on_array(holder: Callable[[Any], Any], name: str, change: Callable[[Any], object]) -> Change:
    """Change one array of ``holder(model)``."""

    def do(model: Any) -> None:
        arrays = dict(holder(model))
        arrays[name] = change(np.array(arrays[name]))
        holder(model).clear()
        holder(model).update(arrays)

    return do


def with_first(value: float) -> Callable[[Any], object]:
    def change(array: Any) -> object:
        array.reshape(-1)[0] = value
        return array

    return change


def params_of(model: Any) -> Any:
    return model.params


def buffers_of(model: Any) -> Any:
    return model.meta["buffers"]


def malformed() -> Iterator[tuple[str, Change]]:
    """Changes to a good reply of round 1, by what they make of it."""
    for part in (part for part in parts_of(Reply) if part.name != "update"):
        yield f"{part.name}: missing", lambda model, name=part.name: model.meta.pop(name)
        for name, value in JUNK.items():
            if not (part.optional and value is None):
                yield f"{part.name}: {name}", telling(part.name, value)
    yield "more images than at first", telling("num_samples", 11)
    for number in (0, 2, -1, 2**70):
        yield f"round {number}", telling("round", number)
    for name in ("model.0.conv.weight", "model.2.conv.bias"):
        yield f"update without {name}", lambda model, name=name: model.params.pop(name)
        for dtype in ARRAYS:
            yield (
                f"update of {dtype} in {name}",
                on_array(params_of, name, lambda array, dtype=dtype: array.astype(dtype)),
            )
        for value in (NAN, INF, -INF, 3e38, 2e6, -2e6):
            yield f"update with {value} in {name}", on_array(params_of, name, with_first(value))
        shapes = {"flat": (1, -1), "empty": (0,)}
        for shape, new in shapes.items():
            change = (lambda array: array[:0]) if shape == "empty" else (lambda array, new=new: array.reshape(new))
            yield f"update {shape} in {name}", on_array(params_of, name, change)
    yield "update with more", lambda model: model.params.update(more=np.zeros(3, np.float32))
    for name, value in {**JUNK, "an empty dict": {}}.items():
        yield f"params: {name}", setting("params", value)
    yield "a model, not an update", setting("params_type", "FULL")
    for name in ("model.0.adn.N.running_var", "model.0.adn.N.num_batches_tracked"):
        yield f"buffers without {name}", lambda model, name=name: model.meta["buffers"].pop(name)
        yield f"buffers below zero in {name}", on_array(buffers_of, name, lambda array: array - 100)
        yield f"buffers beyond all bounds in {name}", on_array(buffers_of, name, lambda array: array + 10**15)
        yield f"buffers of another shape in {name}", on_array(buffers_of, name, lambda array: array[None])
        yield f"buffers of float16 in {name}", on_array(buffers_of, name, lambda array: array.astype("float16"))
    for value in (NAN, INF, 1e30):
        yield f"buffers with {value}", on_array(buffers_of, "model.0.adn.N.running_mean", with_first(value))
    yield "no meta", setting("meta", None)
    for name, value in {
        "nobody": None,
        "Mallory": "Mallory",
        "birch": "birch",
        "a list": [LIAR],
        "2^99999": 2**99999,
        "a long name": "B" * 999,
    }.items():
        yield f"from {name}", telling("client_name", value)


MALFORMED = dict(malformed())


def play(run: Path, spoil: Change | None = None, then_honest: bool = True) -> MeritAggregator:
    """A FedCE run of two rounds; in round 1 a spoiled reply comes before the liar's honest one, or in its place."""
    aggregator = MeritAggregator(tiny_plan("fedce", rounds=2).to_dict())
    federation = aggregator.open(list(SITES), run)
    for exchange in federation.exchanges():
        aggregator.hold(exchange)
        answers = answers_to(exchange, federation)
        if federation.round == 1 and (spoil or not then_honest):
            if spoil:
                model = reported(LIAR, answers[LIAR], federation)
                spoil(model)
                aggregator.accept_model(model)
            if not then_honest:
                del answers[LIAR]
        for site, answer in answers.items():
            aggregator.accept_model(reported(site, answer, federation))
    return aggregator


def answers_to(exchange: Exchange, federation: Any) -> dict[str, Any]:
    """Honest ones."""
    seen = {name: getattr(federation, name) for name in ("round", "network", "method")}
    view: Any = SimpleNamespace(**seen, tasks=lambda: exchange.tasks)
    return dict(replies(view) if exchange.work == TRAIN else evaluations(view))


def reported(site: str, answer: Reply | Evaluated | Failure, federation: Any) -> Any:
    model = over_the_wire(message_to_model(answer, federation.network))
    model.meta["client_name"] = site
    return model


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Any]:
    """Models of a run without malformed messages: with the liar in round 1, or without."""

    @cache
    def made(with_liar: bool) -> Any:
        aggregator = play(tmp_path_factory.mktemp("good") / "run", then_honest=with_liar)
        return SimpleNamespace(models=aggregator.federation.models.parameters, records=records_of(aggregator))

    return made


def records_of(aggregator: MeritAggregator) -> list[dict[str, Any]]:
    return aggregator.federation.recorder.ledger.records


@pytest.fixture
def opened(tmp_path: Path) -> MeritAggregator:
    """One whose sites are asked to train for the first time."""
    aggregator = MeritAggregator(tiny_plan("fedce", rounds=2).to_dict())
    aggregator.hold(next(aggregator.open(list(SITES), tmp_path / "run").exchanges()))
    return aggregator


def test_every_site_gets_its_own_task(opened):
    exchange, network = opened.exchange, opened.federation.network
    models = opened.models()
    assert set(models) == set(SITES)
    for site, model in models.items():
        task = model_to_task(over_the_wire(model), network)
        assert torch.equal(task.parameters, exchange.tasks[site].parameters)
        assert (model.current_round, model.total_rounds, task.ledger) == (0, 2, exchange.tasks[site].ledger)


def test_a_run_opened_again_continues_from_its_last_complete_round(tmp_path, undisturbed):
    first = MeritAggregator(tiny_plan("fedce", rounds=2).to_dict())
    federation = first.open(list(SITES), tmp_path / "run")
    for exchange in federation.exchanges():
        if federation.round == 1:  # killed as round 1 begins
            break
        first.hold(exchange)
        for site, answer in answers_to(exchange, federation).items():
            first.accept_model(reported(site, answer, federation))
    assert MeritAggregator(first.plan).open(list(SITES), tmp_path / "run").round == 1
    again = play(tmp_path / "run")
    assert torch.equal(again.federation.models.parameters, undisturbed(True).models)
    assert [record["round"] for record in records_of(again)] == [0, 1]


@pytest.mark.parametrize("name", one_in(30, MALFORMED))
def test_malformed_message_before_the_honest_one_is_recorded_and_changes_nothing(tmp_path, undisturbed, name):
    aggregator = play(tmp_path / "run", MALFORMED[name])
    good = undisturbed(True)
    assert torch.equal(aggregator.federation.models.parameters, good.models)
    (before, record), (_, clean) = records_of(aggregator), good.records
    assert before["rejected"] == {}
    assert len(record["rejected"]) == 1
    (sender, reason), *_ = record["rejected"].items()
    assert (sender == LIAR) == (not name.startswith(("from", "no meta")))
    assert 3 < len(reason) <= 200
    assert len(sender) <= 100
    assert clean["rejected"] == {}
    for part in ("participants", "updates", "weights", "contributions", "model", "began"):
        assert record[part] == clean[part]
    assert verify(tmp_path / "run/ledger.jsonl") == 2


@pytest.mark.parametrize("name", one_in(30, MALFORMED))
def test_site_that_sends_nothing_else_is_absent(tmp_path, undisturbed, name):
    aggregator = play(tmp_path / "run", MALFORMED[name], then_honest=False)
    silent = undisturbed(False)
    assert torch.equal(aggregator.federation.models.parameters, silent.models)
    assert not torch.equal(aggregator.federation.models.parameters, undisturbed(True).models)
    record = records_of(aggregator)[1]
    assert LIAR in record["rejected"]
    assert record["participants"] == ["Alder", "Cedar"]
    assert record["weights"] == silent.records[1]["weights"]


def test_second_answer_does_not_take_the_place_of_the_first(tmp_path, undisturbed):
    aggregator = MeritAggregator(tiny_plan("fedce", rounds=2).to_dict())
    federation = aggregator.open(list(SITES), tmp_path / "run")
    for exchange in federation.exchanges():
        aggregator.hold(exchange)
        answers = answers_to(exchange, federation)
        for site, answer in answers.items():
            aggregator.accept_model(reported(site, answer, federation))
        if exchange.work == TRAIN:
            again = replace(answers[LIAR], update=-answers[LIAR].update)
            aggregator.accept_model(reported(LIAR, again, federation))
    assert torch.equal(federation.models.parameters, undisturbed(True).models)
    assert [record["rejected"] for record in records_of(aggregator)] == [{LIAR: "a second answer"}] * 2
