"""Bells of sites: who is rung for wakes at once, across processes; who is not sleeps on."""

import multiprocessing
import time

import pytest

from fedmerit.flare import bells


@pytest.fixture
def hung(monkeypatch):
    monkeypatch.setattr(bells, "_bells", {})
    bells.hang(["Alder", "Birch"])


def seconds_of(site, longest):
    began = time.monotonic()
    bells.sleep(site, longest)
    return time.monotonic() - began


def test_a_bell_that_rang_before_wakes_once(hung):
    bells.ring(["Alder", "a site of another machine"])
    bells.ring(["Alder"])
    assert seconds_of("Alder", 60) < 30
    assert seconds_of("Alder", 0.05) >= 0.05
    assert seconds_of("Birch", 0.05) >= 0.05
    bells.ring()
    assert seconds_of("Birch", 60) < 30


def test_a_forked_process_is_woken(hung):
    process = multiprocessing.get_context("fork").Process(target=bells.sleep, args=("Birch", 60))
    process.start()
    bells.ring(["Birch"])
    process.join(30)
    assert process.exitcode == 0


def test_where_no_bells_hang_nothing_rings(monkeypatch):
    monkeypatch.setattr(bells, "_bells", {})
    bells.ring(["Alder"])
    bells.ring()
