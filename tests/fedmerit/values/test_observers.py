"""Observers by name, also those of other packages."""

import importlib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import fedmerit.observers
from fedmerit import plugins
from fedmerit.configuration.external_parts import find_external_parts
from fedmerit.configuration.observation import parse
from fedmerit.errors import BadInput
from fedmerit.observers import OBSERVERS, OWN, MultiRoundReconstruction, Observer


def test_every_observer_that_there_is_has_its_files_name():
    found = {}
    for path in Path(fedmerit.observers.__file__).parent.glob("[a-z]*.py"):
        module = importlib.import_module(f"fedmerit.values.{path.stem}")
        for part in vars(module).values():
            if isinstance(part, type) and issubclass(part, Observer) and part.__module__ == module.__name__:
                found[path.stem] = part
    assert found.pop("observing") is Observer
    assert found == OWN
    assert all(kind().about for kind in OWN.values())


@pytest.fixture
def installed(monkeypatch):
    """An observer of another package, called mine."""
    entry = EntryPoint("mine", "fedmerit.observers:InRun", "fedmerit.observers")
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
    with pytest.raises(BadInput, match=r"'mine': fedmerit.observers:InRun .* is not installed from a wheel"):
        parse("mine")
    assert parse("others_lose:every=3").every == 3
