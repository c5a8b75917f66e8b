"""Bells of sites: who is rung for wakes at once, across processes; who is not sleeps on."""

import multiprocessing
import time

import pytest

from fedmerit.flare import wake_up


@pytest.fixture
def hung(monkeypatch):
    monkeypatch.setattr(wake_up, "_events", {})
    wake_up.create_wake_ups(["Alder", "Birch"])


def seconds_of(site, longest):
    began = time.monotonic()
    wake_up.wait_for_wake_up(site, longest)
    return time.monotonic() - began


def test_a_bell_that_rang_before_wakes_once(hung):
    wake_up.wake_up(["Alder", "a site of another machine"])
    wake_up.wake_up(["Alder"])
    assert seconds_of("Alder", 60) < 30
    assert seconds_of("Alder", 0.05) >= 0.05
    assert seconds_of("Birch", 0.05) >= 0.05
    wake_up.wake_up()
    assert seconds_of("Birch", 60) < 30


def test_a_forked_process_is_woken(hung):
    process = multiprocessing.get_context("fork").Process(target=wake_up.wait_for_wake_up, args=("Birch", 60))
    process.start()
    wake_up.wake_up(["Birch"])
    process.join(30)
    assert process.exitcode == 0


def test_where_no_bells_hang_nothing_rings(monkeypatch):
    monkeypatch.setattr(wake_up, "_events", {})
    wake_up.wake_up(["Alder"])
    wake_up.wake_up()
