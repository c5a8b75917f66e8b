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

from fedmerit.engines.nvflare.controller import MeritController
from fedmerit.engines.nvflare.translation import message_to_model
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


MALFORMED = dict(malformed())


Answers = dict[str, Any]
Deliver = Callable[[str, Any], None]  # from a site, the model that carries its answer


def play(run: Path, deliver: Callable[[Deliver, Exchange, Any, Answers], None]) -> list[dict[str, Any]]:
    """Run FedCE for two rounds; ``deliver`` brings the server the honest answers of an exchange, or others.

    Returns:
        The records of the ledger, with the models of the end.
    """
    controller = MeritController(tiny_plan("fedce", rounds=2).to_dict())
    controller.events = None  # nobody is shut out
    federation = controller.open(list(SITES), run)
    for exchange in federation.exchanges():
        controller.exchange = exchange
        deliver(controller._accept, exchange, federation, answers_to(exchange, federation))
    return [*federation.recorder.ledger.records, {"models": federation.models.parameters}]


def spoiling(change: Change | None, then_honest: bool) -> Callable[[Deliver, Exchange, Any, Answers], None]:
    """In round 1 a spoiled answer comes before the liar's honest one, or in its place."""

    def deliver(accept: Deliver, exchange: Exchange, federation: Any, answers: Answers) -> None:
        if federation.round == 1:
            if change:
                model = carried(answers[LIAR], federation)
                change(model)
                accept(LIAR, model)
            if not then_honest:
                del answers[LIAR]
        for site, answer in answers.items():
            accept(site, carried(answer, federation))

    return deliver


def answers_to(exchange: Exchange, federation: Any) -> dict[str, Any]:
    """Honest ones."""
    seen = {name: getattr(federation, name) for name in ("round", "network", "method")}
    view: Any = SimpleNamespace(**seen, tasks=lambda: exchange.tasks)
    return dict(replies(view) if exchange.work == TRAIN else evaluations(view))


def carried(answer: Reply | Evaluated | Failure, federation: Any) -> Any:
    return over_the_wire(message_to_model(answer, federation.network))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Any]:
    """Records of a run without malformed answers: with the liar in round 1, or without."""
    return cache(lambda with_liar: play(tmp_path_factory.mktemp("good") / "run", spoiling(None, with_liar)))


@pytest.mark.parametrize("name", one_in(30, MALFORMED))
def test_malformed_answer_before_the_honest_one_is_recorded_and_changes_nothing(tmp_path, undisturbed, name):
    before, record, end = play(tmp_path / "run", spoiling(MALFORMED[name], True))
    _, clean, good = undisturbed(True)
    assert torch.equal(end["models"], good["models"])
    assert before["rejected"] == clean["rejected"] == {}
    assert list(record["rejected"]) == [LIAR]
    assert 3 < len(record["rejected"][LIAR]) <= 200
    for part in ("participants", "updates", "weights", "contributions", "model", "began"):
        assert record[part] == clean[part]
    assert verify(tmp_path / "run/ledger.jsonl") == 2


@pytest.mark.parametrize("name", one_in(30, MALFORMED))
def test_site_that_sends_nothing_else_is_absent(tmp_path, undisturbed, name):
    _, record, end = play(tmp_path / "run", spoiling(MALFORMED[name], False))
    _, silent, without = undisturbed(False)
    assert torch.equal(end["models"], without["models"])
    assert not torch.equal(end["models"], undisturbed(True)[-1]["models"])
    assert LIAR in record["rejected"]
    assert record["participants"] == ["Alder", "Cedar"]
    assert record["weights"] == silent["weights"]


def test_second_answer_does_not_take_the_place_of_the_first(tmp_path, undisturbed):
    def deliver(accept: Deliver, exchange: Exchange, federation: Any, answers: Answers) -> None:
        for site, answer in answers.items():
            accept(site, carried(answer, federation))
        if exchange.work == TRAIN:
            accept(LIAR, carried(replace(answers[LIAR], update=-answers[LIAR].update), federation))

    *records, end = play(tmp_path / "run", deliver)
    assert torch.equal(end["models"], undisturbed(True)[-1]["models"])
    assert [record["rejected"] for record in records] == [{LIAR: "a second answer"}] * 2
