"""Benchmarks whose figures are made and never drawn."""

import pytest

PNG = b"\x89PNG\r\n"


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes most of the time of a benchmark of nothing much."""
    monkeypatch.setattr("fedmerit_lab.benchmarks.benchmark.png", lambda figure: PNG)
