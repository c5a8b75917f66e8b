"""The metric that a run takes from a script's first answer."""

import math

import numpy as np
import pytest

from fedmerit.errors import BadInput
from fedmerit.schema.configuration.script import Script
from fedmerit.trainers.script.trainer import choose_metric, describe_metric, read_metric, require_metric

SILENT, ANSWERING = Script(), Script(evaluates=True)


@pytest.mark.parametrize(
    ("metrics", "taken"),
    [
        ({"accuracy": 0.5, "loss": 3.0}, "accuracy"),
        ({"accuracy": 12.5, "accuracy_after_local_training": 20.0}, "accuracy %"),
        ({"dice": 0.5, "accuracy": 0.9}, "dice"),
        ({"dice": 82.0}, "dice %"),
        ({"dice_by_case": [0.2, 0.4]}, "dice"),
        ({"auc": 0.5, "note": "text"}, "auc"),
        ({"eval_loss": 3.0, "eval_runtime": 1.2, "eval_accuracy": 0.5}, "eval_accuracy"),
        ({"val_loss": 3.0, "val_acc": 12.5}, "val_acc %"),
        ({"auc": math.nan}, "auc"),
        ({"accuracy": 1.000001}, "accuracy"),
        ({"accuracy": -1e-9}, "accuracy"),
    ],
)
@pytest.mark.parametrize("script", [SILENT, ANSWERING])
def test_metric_of_a_first_answer_is_taken(script, metrics, taken):
    chosen = choose_metric(script, metrics)
    assert describe_metric(chosen) == taken
    assert read_metric(script, taken) == chosen
    assert 0 <= chosen.score(chosen.highest / 2) <= 1


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ({"weight_mean": 6.0}, "only weight_mean, which is 6"),
        ({"val_loss": 0.3}, "only val_loss, of which less is better"),
        ({"auc": 0.5, "f1": 0.4}, "auc, f1"),
        ({}, "no metrics"),
        ({"auc": "high"}, r"no metric that is a number \(auc 'high'\)"),
    ],
)
def test_metric_that_cannot_be_taken_is_refused_only_if_the_script_evaluates(metrics, words):
    assert choose_metric(SILENT, metrics).metric == ""
    with pytest.raises(BadInput, match=f"reports {words}; name another as key_metric"):
        choose_metric(ANSWERING, metrics)


@pytest.mark.parametrize("value", ["high", None, [0.5], {"mean": 0.5}, True, np.True_])
def test_accuracy_that_is_no_number_is_refused(value):
    with pytest.raises(BadInput, match=r"^accuracy is .*; expected a number, or as accuracy_by_case a list"):
        choose_metric(SILENT, {"loss": 0.3, "accuracy": value})


def test_accuracy_out_of_range_names_the_argument():
    with pytest.raises(BadInput, match=r"accuracy is 250.0; expected 0 to 1; give key_metric_range="):
        choose_metric(SILENT, {"accuracy": 250})
    named = Script(metric="auc")
    with pytest.raises(BadInput, match=r"auc is 87.0; expected 0 to 1; give key_metric_range=\(0, 100\)"):
        require_metric(named, {"auc": 87})
    with pytest.raises(BadInput, match="has no 'auc'; it has acc; name one as key_metric"):
        require_metric(named, {"acc": 0.5})
    with pytest.raises(BadInput, match="auc is None; expected a number"):
        require_metric(named, {"auc": None})
    with pytest.raises(BadInput, match="it has no metrics"):
        require_metric(named, {})
    require_metric(Script(metric="auc", evaluates=True), {})  # its answers to evaluations have it
    require_metric(named, {"auc": math.nan})
