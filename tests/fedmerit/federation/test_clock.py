"""Seconds of the server's own work."""

import pytest

from fedmerit.federation import exchange


def test_waiting_for_sites_does_not_count(monkeypatch):
    times = iter([100.0, 103.0, 110.0, 112.5, 120.0, 121.0])
    monkeypatch.setattr(exchange.time, "perf_counter", lambda: next(times))
    work = exchange.Clock()  # at 100
    with work.paused():  # from 103 to 110
        pass
    assert work.seconds == pytest.approx(5.5)  # at 112.5
    with work.paused():  # from 120 to 121
        pass
    times = iter([123.0])
    assert work.seconds == pytest.approx(15.0)
