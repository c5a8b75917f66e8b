"""One run to its end: what comes of a failure, and what is done after."""

import pytest

from fedmerit.engines import runs
from fedmerit.errors import RunFailed
from fedmerit.files import write_json
from fedmerit_evaluation.studies.execution import execute_one


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """What `runs.execute` is called with; it does nothing."""
    heard = []
    monkeypatch.setattr(runs, "execute", lambda *arguments: heard.append(arguments))
    write_json(tmp_path / "run.json", {"sites_folder": str(tmp_path / "own")})
    return heard


def failing(monkeypatch, error):
    def execute(*arguments):
        raise error

    monkeypatch.setattr(runs, "execute", execute)


def test_execute_one_returns_failure_of_after(tmp_path, asked):
    def after(folder, sites):
        raise RunFailed("its models are gone")

    assert execute_one(tmp_path, print, after) == "its models are gone"
    assert len(asked) == 1


def test_execute_one_passes_interrupt_on(tmp_path, monkeypatch):
    failing(monkeypatch, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        execute_one(tmp_path, print)
