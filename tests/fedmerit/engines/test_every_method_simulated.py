"""Every method gives on the simulator what it gives on the local engine."""

import pytest
from finished_runs import buffer_bytes, by_site, remembered

from fedmerit.methods.registry import METHODS

NAMES = ["site1", "site2", "site3"]
ELSEWHERE = ("standalone", "fedavg", "fedce", "fedbn", "silobn", "fedprox", "scaffold", "ditto", "cycle", "vpdl")
SIMULATED = [name for name in METHODS if name not in (*ELSEWHERE, "pooled")]  # pooled has no simulator


@pytest.mark.slow
@pytest.mark.parametrize("method", SIMULATED)
def test_simulator_gives_what_the_local_engine_gives(two_rounds, assert_same_run, processes_of, method):
    run = two_rounds(method, engine="sim", threads=1)
    assert_same_run(two_rounds(method), run)
    assert processes_of(run) == []


@pytest.mark.slow
def test_sparse_updates_find_their_memory_in_whatever_process_a_site_works(two_rounds, assert_same_run, contrary_sites):
    options = {"sites": contrary_sites, "rounds": 3}
    run = two_rounds("cgsv", engine="sim", threads=2, **options)
    assert_same_run(two_rounds("cgsv", **options), run)
    received = by_site(run, "bytes_received", 2)
    assert received["site3"] < received["site1"]


@pytest.mark.slow
def test_server_on_the_simulator_evaluates_its_own_images(two_rounds, own_server, assert_same_run):
    run = two_rounds("fedave", engine="sim", threads=3, **{"server-sites": own_server})
    assert_same_run(two_rounds("fedave", **{"server-sites": own_server}), run)
    model = 4 * len(remembered(run, "site1", 1)["received"]) + buffer_bytes(run)
    assert by_site(run, "bytes_received", 0) == dict.fromkeys(NAMES, model)
