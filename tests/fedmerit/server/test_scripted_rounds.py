"""Federations of scripts: what the record says of scores and evaluations that are missing."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from fedmerit.engines.local import carry_out
from fedmerit.engines.script_sites import ScriptSite
from fedmerit.errors import RunFailed
from fedmerit.evidence.digests import state_digest
from fedmerit.reasons import SCRIPT_RAISED
from fedmerit.schema.configuration.run import configure_script
from fedmerit.schema.configuration.script import Script
from fedmerit.server.server import Federation
from fedmerit.trainers.factory import FIRST_MODEL
from fedmerit.trainers.script.named_tensors import describe
from fedmerit.trainers.script.restarts import ScriptEnded
from fedmerit.trainers.script.trainer import Said, ScriptTrainer

SITES = ["site-1", "site-2"]
REASON = SCRIPT_RAISED.format("ValueError")


@pytest.fixture
def federate(tmp_path):
    """Return a function that carries out a run in which each site answers as ``answer`` (site, question) says."""

    def run(answer, metric="accuracy"):
        first = nn.Linear(8, 4)
        start = state_digest(first.state_dict())
        script = Script(tensors=describe(first)[0], start=start, metric=metric, evaluates=True)
        config = configure_script("fedavg", 2, script, settings={"guard": "off"})
        torch.save(first.state_dict(), tmp_path / FIRST_MODEL)
        sites, records = {}, []
        for name in SITES:
            memory = tmp_path / "sites" / name
            trainer = ScriptTrainer(name, config, memory, lambda question, name=name: answer(name, question))
            sites[name] = ScriptSite(lambda error: None, trainer, memory, lambda peer, round: None, None, SITES)
        federation = Federation(config, SITES, tmp_path, records.append)
        with ThreadPoolExecutor(1) as pool:
            carry_out(federation, lambda name, task: sites[name].answer(task), pool, lambda tasks, answers: None)
        return records

    return run


def train(question, **metrics):
    return Said({name: value + 1 for name, value in question.state.items()}, metrics=metrics)


def test_run_ends_in_round_0_if_no_script_can_evaluate(federate):
    def answer(name, question):
        if question.work == "evaluate":
            raise ScriptEnded("ValueError", REASON)
        return train(question, accuracy=0.5)

    with pytest.raises(RunFailed, match=r"round 0: no site can evaluate a model \(site-1: its script ended with Value"):
        federate(answer)


def test_record_notes_the_site_that_cannot_evaluate_and_the_run_goes_on(federate):
    def answer(name, question):
        if question.work == "train":
            return train(question, accuracy=0.5)
        if name == "site-2":
            raise ScriptEnded("ValueError", REASON)
        return Said(metrics={"accuracy": 0.5})

    first, second = federate(answer)
    assert first["notes"] == [f"site-2: its script fails to evaluate, so the final test lacks it: {REASON}"]
    assert "notes" not in second


@pytest.mark.parametrize(
    ("metric", "silent", "notes"),
    [
        ("accuracy", ["site-2"], ["site-2: no score, as accuracy is not known or NaN"]),
        ("accuracy", SITES, ["no scores in rounds: the scripts send no accuracy with what they trained, or NaN"]),
        (
            "auto",
            ["site-2"],
            [
                "scores are of accuracy, which the scripts report; no key_metric was named",
                "site-2: no score, as accuracy is not known or NaN",
            ],
        ),
    ],
)
def test_record_notes_sites_without_score(federate, metric, silent, notes):
    def answer(name, question):
        if question.work == "evaluate":
            return Said(metrics={"accuracy": 0.5})
        return train(question) if name in silent else train(question, accuracy=0.5)

    first, second = federate(answer, metric)
    assert first["notes"] == notes
    assert first["validation_dice"] == {name: None if name in silent else 0.5 for name in SITES}
    assert "notes" not in second
