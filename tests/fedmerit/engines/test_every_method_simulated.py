"""Every method gives on the simulator what it gives on the local engine."""

import pytest
import torch
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


@pytest.mark.slow
@pytest.mark.parametrize(("method", "rider"), [("cgsv", "site1"), ("fedce", "site2")])
def test_a_verdict_is_the_same_on_both_engines(trained, assert_same_run, method, rider):
    """A rider is withheld from, and trains on with its own model and BatchNorm statistics (``--recipe unet``)."""
    options = {"recipe": "quick", "rounds": 5, "guard": "on", "on-verdict": "withhold", "attack": f"{rider}=zero"}
    local = trained(method=method, **options)
    run = trained(method=method, engine="sim", threads=3, **options)
    assert_same_run(local, run)  # verdicts and pay stand in results.csv
    assert by_site(run, "verdict", 4) == {name: float(name == rider) for name in NAMES}
    weights = by_site(run, "weight", 4)
    assert weights[rider] == 0
    assert sum(weights.values()) == pytest.approx(1)
    models = {path.stem: torch.load(path, weights_only=True) for path in (run / "models").glob("*.pt")}
    assert set(models) == ({rider, "global"} if method == "fedce" else set(NAMES))
    of_another = models["global" if method == "fedce" else "site2"]
    means = [name for name in of_another if name.endswith("running_mean")]
    assert means
    assert not any(torch.equal(models[rider][name], of_another[name]) for name in means)
