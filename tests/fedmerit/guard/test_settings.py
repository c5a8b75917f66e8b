"""What a run may say of its guard."""

import pytest

from fedmerit.configuration.run import TASKS, RunConfiguration, make_configuration
from fedmerit.errors import BadInput
from fedmerit.guard.settings import GuardSettings


def config(**settings):
    return make_configuration("fedavg", "prostate", 2, 0, TASKS["prostate"], settings)


def test_the_guard_is_off_unless_a_run_asks_for_it():
    assert config().guard == GuardSettings("off", "withhold", 5)
    assert config(guard="on", rate_every="2").guard == GuardSettings("on", "withhold", 2)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("guard", "maybe", "one of on, off"),
        ("on_verdict", "punish", "one of show, withhold, exclude"),
        ("rate_every", 0, "1 or more"),
    ],
)
def test_what_it_cannot_do_is_named_with_what_was_expected(name, value, expected):
    with pytest.raises(ValueError, match=f"^{name}={value!r}: expected {expected}$"):
        GuardSettings(**{name: value})
    with pytest.raises(BadInput, match=f"{name}=.*: expected {expected}"):
        config(**{name: str(value)})


@pytest.mark.parametrize("settings", [{"on_verdict": "exclude"}, {"guard": "off", "rate_every": "2"}])
def test_without_a_guard_nothing_is_to_be_set_of_it(settings):
    with pytest.raises(BadInput, match=f"^{list(settings)[-1]}: has no effect with the guard off; leave it out$"):
        config(**settings)
    assert config(guard="off", on_verdict="withhold").guard == GuardSettings()


def test_a_stored_guard_has_no_setting_of_another_name():
    with pytest.raises(BadInput, match=r"guard\.severity"):
        RunConfiguration.from_dict(config().to_dict() | {"guard": {"guard": "on", "severity": 2}})
