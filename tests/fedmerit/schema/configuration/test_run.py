"""What a run is: from options and from JSON."""

import json
import re
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


def test_text_becomes_the_type_of_its_field():
    made = config(combine="plus", lr="1e-3", augmentation="light", amp="false", batch_size="4", width="8", norm="group")
    assert made.parameters == {"combine": "plus", "error": "absolute"}
    assert made.training == Training(lr=1e-3, augmentation="light", amp=False, batch_size=4)
    assert (made.network.width, made.network.norm) == (8, "group")
    assert type(made.training.batch_size) is int
    assert made.build_method().combine == "plus"
    assert made == config(
        combine="plus", lr=0.001, augmentation="light", amp=False, batch_size=4, width=8, norm="group"
    )


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("combine", "product", "method fedce: combine='product': expected one of times, plus"),
        ("loss", "focal", "training: loss='focal': expected one of dice_ce, dice"),
        ("lr", "fast", "training: lr='fast': expected a number above 0"),
        ("width", "99999999999", "network: width=99999999999: expected a whole number from 1 to 512"),
        ("false_alarms", "1", "guard: false_alarms=1.0: expected a number above 0, below 1"),
    ],
)
def test_value_of_another_type_or_range_is_named_with_its_group(name, value, message):
    with pytest.raises(BadInput, match=re.escape(message)):
        config(**{name: value})


@pytest.mark.parametrize("settings", [{}, {"standalone_rounds": "2"}])
def test_fewer_rounds_than_the_method_needs_are_named(settings):
    least = int(settings.get("standalone_rounds", 10)) + 1
    with pytest.raises(
        BadInput, match=f"rounds={least - 1}: method fedsac needs {least} or more: with standalone_rounds"
    ):
        config("fedsac", least - 1, **settings)
    assert config("fedsac", least, **settings).rounds == least
    assert config("fedsac", 1, contributions="0.5,0.25").rounds == 1


def test_a_list_of_numbers_in_a_text():
    made = config("fedsac", contributions="0.5,0.25,1")
    assert made.parameters["contributions"] == (0.5, 0.25, 1.0)
    assert RunConfiguration.from_dict(json.loads(json.dumps(made.to_dict()))) == made
    assert config("fedsac", 30, contributions="").parameters["contributions"] == ()
    with pytest.raises(BadInput, match=r"contributions\.1='high': expected a number from 0 to 1"):
        config("fedsac", contributions="0.5,high")


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


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        ("method", "fedec", "method 'fedec': unknown"),
        ("rounds", 0, "rounds=0"),
        ("network", None, "network=None: expected a table"),
        ("engine", "sim", "unknown name engine"),
        ("parameters", {"mode": "plus"}, "method fedce: unknown name mode"),
        ("parameters", {"combine": "product"}, "expected one of times, plus"),
        ("training", {"nesterov": True}, r"unknown name training\.nesterov"),
        ("training", {"lr": -1}, "expected a number above 0"),
        ("network", {"labels": ["disc"]}, r"network\.in_channels"),
        ("network", {"in_channels": 3, "labels": ["disc"], "kernel": 3}, r"unknown name network\.kernel"),
    ],
)
def test_a_stored_configuration_is_checked_likewise(where, value, message):
    with pytest.raises(BadInput, match=message):
        RunConfiguration.from_dict(config().to_dict() | {where: value})


def test_a_stored_configuration_without_parameters_takes_the_defaults():
    stored = config().to_dict() | {"parameters": {}, "training": {}}
    assert RunConfiguration.from_dict(stored) == config(batch_size=8)


@pytest.mark.parametrize("name", ["momentum", "clip_norm"])
def test_a_method_that_needs_plain_steps_takes_no_others(name):
    settings = {"optimizer": "sgd", name: "0.9"}
    with pytest.raises(BadInput, match=rf"{name}=0\.9: method scaffold"):
        make_configuration("scaffold", "fundus", 4, 0, NETWORK, settings)
    assert getattr(make_configuration("fedavg", "fundus", 4, 0, NETWORK, settings).training, name) == 0.9
