"""How a line of the preflight is said to be."""

from fedmerit.flare.deploy.check_result import CheckResult, State, fail, ok, warn


def test_every_state_has_a_function_of_its_name():
    assert [say("told") for say in (ok, warn, fail)] == [(state, "told") for state in State]
    assert [say.__name__ for say in (ok, warn, fail)] == ["ok", "warn", "fail"] == list(State)
    assert CheckResult("disk", *warn("little")) == CheckResult("disk", State.warn, "little")
