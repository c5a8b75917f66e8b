"""Observers by name, also those of other packages."""

from importlib.metadata import EntryPoint

import pytest

from fedmerit import plugins
from fedmerit.configuration.external_parts import find_external_parts
from fedmerit.configuration.observation import parse
from fedmerit.errors import BadInput
from fedmerit.observers import OBSERVERS, OWN, MultiRoundReconstruction


@pytest.fixture
def installed(monkeypatch):
    """An observer of another package, called mine."""
    entry = EntryPoint("mine", "fedmerit.observers:MultiRoundReconstruction", "fedmerit.observers")
    monkeypatch.setattr(plugins, "entry_points", lambda group, **_: [entry] if group == entry.group else [])


def test_packages_bring_observers(installed):
    assert type(parse("mine:every=2")) is MultiRoundReconstruction
    assert list(OBSERVERS) == [*OWN, "mine"]
    assert find_external_parts({"method": "fedavg", "values": ["in_run:every=1", "mine:every=2"]}) == [
        ("observers", "mine")
    ]


def test_a_deployed_machine_imports_no_observer_that_is_not_approved(installed, monkeypatch):
    monkeypatch.setenv(plugins.APPROVED, "{}")
    monkeypatch.setattr(OBSERVERS, "_loaded", {})
    monkeypatch.setattr(plugins.importlib, "import_module", lambda name: pytest.fail(f"imported {name}"))
    with pytest.raises(
        BadInput, match=r"'mine': fedmerit.observers:MultiRoundReconstruction .* is not installed from a wheel"
    ):
        parse("mine")
    assert parse("others_lose:every=3").every == 3
