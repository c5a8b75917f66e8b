"""Which trackers may be asked for."""

import pytest

from fedmerit.configuration.tracking import KINDS, MLflow, parse, require_tracking
from fedmerit.errors import BadInput


def test_specs():
    assert parse("mlflow:uri=http://10.0.0.7:5000") == MLflow("http://10.0.0.7:5000")
    for spec in ("wandb", "tensorboard:uri=x", "mlflow:url=x"):
        with pytest.raises(BadInput, match=spec.partition(":")[0]):
            parse(spec)


def test_the_local_engine_has_no_receivers():
    with pytest.raises(BadInput, match="--engine sim"):
        require_tracking(["tensorboard"], "local")


def test_a_tracker_that_is_not_installed_is_named_with_what_installs_it(monkeypatch):
    monkeypatch.setattr("fedmerit.configuration.tracking.find_spec", lambda name: None)
    for kind in KINDS:
        with pytest.raises(BadInput, match=r"pip install 'fedmerit\[tracking\]'"):
            require_tracking([kind], "sim")


def test_a_tracker_that_is_installed_is_taken(monkeypatch):
    monkeypatch.setattr("fedmerit.configuration.tracking.find_spec", lambda name: name == "tensorboard")
    assert require_tracking(["tensorboard"], "sim") == ["tensorboard"]
