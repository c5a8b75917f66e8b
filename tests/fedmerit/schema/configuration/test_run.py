"""What a run is: from options and from JSON."""

import json
from dataclasses import fields

import pytest

from fedmerit.errors import BadInput
from fedmerit.methods.registry import METHODS
from fedmerit.schema.configuration.run import RunConfiguration, make_configuration
from fedmerit.schema.configuration.settings import TASKS, Network, Training

NETWORK = TASKS["fundus"]


def config(method="fedce", rounds=3, **settings):
    return make_configuration(method, "fundus", rounds, 0, NETWORK, settings)


def test_an_unknown_method_is_answered_with_a_near_one_or_all():
    with pytest.raises(BadInput, match="method 'fedavgg': unknown; did you mean fedavg"):
        config("fedavgg")
    with pytest.raises(BadInput, match="method 'zzz': unknown; expected one of") as error:
        config("zzz")
    assert all(name in str(error.value) for name in METHODS)


@pytest.mark.parametrize(
    ("name", "answer"),
    [("combin", "did you mean combine"), ("learning_rate", "did you mean lr"), ("zzz", "expected one of combine")],
)
def test_an_unknown_parameter_is_answered_with_a_near_one_or_all(name, answer):
    with pytest.raises(BadInput, match=f"parameter '{name}': unknown with method fedce; {answer}") as error:
        config("fedce", **{name: "1"})
    if name == "zzz":
        known = [part.name for kind in (METHODS["fedce"], Training, Network) for part in fields(kind)]
        assert all(one in str(error.value) for one in known if one not in ("labels", "in_channels"))


def test_no_name_stands_for_two_things():
    for kind in METHODS.values():
        names = [part.name for one in (kind, Training, Network) for part in fields(one)]
        assert len(names) == len(set(names))


@pytest.mark.parametrize("settings", [{}, {"standalone_rounds": "2"}])
def test_fewer_rounds_than_the_method_needs_are_named(settings):
    least = int(settings.get("standalone_rounds", 10)) + 1
    with pytest.raises(
        BadInput, match=f"rounds={least - 1}: method fedsac needs {least} or more: with standalone_rounds"
    ):
        config("fedsac", least - 1, **settings)
    assert config("fedsac", least, **settings).rounds == least
    assert config("fedsac", 1, contributions="0.5,0.25").rounds == 1


@pytest.mark.parametrize("method", METHODS)
def test_a_configuration_survives_json(method):
    for task in TASKS:
        settings = {"width": "4", "lr": "0.1", "loss": "dice", "optimizer": "sgd"}  # which all methods can do with
        made = make_configuration(method, task, 30, 3, TASKS[task], settings)
        again = RunConfiguration.from_dict(json.loads(json.dumps(made.to_dict())))
        assert again == made
        assert again.to_dict() == made.to_dict()
        assert again.network.labels == tuple(TASKS[task]["labels"])
        assert type(again.build_method()) is METHODS[method]


def test_a_stored_configuration_without_parameters_takes_the_defaults():
    stored = config().to_dict() | {"parameters": {}, "training": {}}
    assert RunConfiguration.from_dict(stored) == config(batch_size=8)


@pytest.mark.parametrize("name", ["momentum", "clip_norm"])
def test_a_method_that_needs_plain_steps_takes_no_others(name):
    settings = {"optimizer": "sgd", name: "0.9"}
    with pytest.raises(BadInput, match=rf"{name}=0\.9: method scaffold"):
        make_configuration("scaffold", "fundus", 4, 0, NETWORK, settings)
    assert getattr(make_configuration("fedavg", "fundus", 4, 0, NETWORK, settings).training, name) == 0.9
