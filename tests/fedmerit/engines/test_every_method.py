"""Every method trains, repeats, and gives the same on the simulator."""

import pytest
import torch
from chains import verify
from finished_runs import buffer_bytes, by_site, remembered
from rounds import SETTINGS
from stopping import stop_at
from tiny import TINY

from fedmerit.contract import flat
from fedmerit.engines import runs
from fedmerit.evidence.ledger import Ledger
from fedmerit.methods.registry import METHODS
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.results import read_results
from fedmerit.schema.run_info import read_run
from fedmerit.schema.site_folder import open_sites
from fedmerit.site.site import Site
from fedmerit.trainers.factory import initial_network, load_network
from fedmerit.trainers.monai.prediction import evaluate

NAMES = ["site1", "site2", "site3"]

# In `make test` one of each kind, beside the runs of test_local.py

OF_EACH_KIND = ("cffl", "fedsac", "cycle")
EVERY = [pytest.param(name, marks=() if name in OF_EACH_KIND else pytest.mark.slow) for name in METHODS]


@pytest.mark.parametrize("method", EVERY)
def test_run_ends_with_models_that_trained(two_rounds, model, method):
    run = two_rounds(method)
    assert verify(run / "ledger.jsonl") == 2
    names = sorted(path.stem for path in (run / "models").glob("*.pt"))
    assert names in (["global"], NAMES, ["global", *NAMES])
    config = RunConfiguration.from_dict(read_run(run)["plan"])
    network = initial_network(config.network, config.seed)
    start = flat.get_parameters(network)
    moved = torch.stack([flat.get_parameters(load_network(run / "models", name)) != start for name in names])
    assert moved.any(1).all()  # a site that earned little has received little
    # a bias before a norm has no gradient
    weights = torch.cat([torch.full((one.numel(),), one.ndim > 1) for one in network.parameters()])
    assert moved.any(0)[weights].all() or method == "scaffold"  # whose plain steps round to nothing
    for name in names:
        state = model(run, name)
        assert all(value.isfinite().all() for value in state.values())
        means = [value for key, value in state.items() if key.endswith("running_mean")]
        variances = [value for key, value in state.items() if key.endswith("running_var")]
        counters = [int(value) for key, value in state.items() if key.endswith("num_batches_tracked")]
        assert means
        assert all(value.abs().max() > 0 for value in means)
        assert all((value > 0).all() and (value != 1).any() for value in variances)
        assert min(counters) == max(counters) >= 2  # of a round: FedSAC starts again after those only
    for record in Ledger(run / "ledger.jsonl").records:
        assert (record["participants"], record["rejected"]) == (NAMES, {})
        assert sum(record["weights"].values()) == pytest.approx(1, abs=1e-12)
        assert min(record["weights"].values()) >= 0


@pytest.mark.parametrize("method", [one for one in EVERY if one.values != ("ditto",)])  # whose models stay at the sites
def test_every_final_model_is_tested_on_every_case(two_rounds, server_sites_data, method):
    run, sites = two_rounds(method), open_sites(server_sites_data)
    results = read_results(run)
    union, testing = (results.query(f"split == '{split}' and quantity == 'dice'") for split in ("union", "testing"))
    expected = [f"{site.name}/{case:03d}" for site in sites for case in range(len(site.cases("testing")))]
    assert set(union["round"]) == {1}
    assert set(union["label"]) == {"prostate"}
    single = (run / "models/global.pt").exists()
    config = RunConfiguration.from_dict(read_run(run)["plan"])
    for name in NAMES:
        found = dict(zip(*(union[union["site"] == name][column] for column in ("case", "value")), strict=True))
        assert list(found) == expected
        own = testing[testing["site"] == name]
        assert {f"{name}/{case}": value for case, value in zip(own["case"], own["value"], strict=True)} == {
            case: value for case, value in found.items() if case.startswith(f"{name}/")
        }
        network = load_network(run / "models", "global" if single else name).to(memory_format=torch.channels_last)
        overlaps = [
            o for site in sites for o in evaluate(network, site.cases("testing"), config.network.labels, final=True)
        ]
        assert list(found.values()) == [overlap.dice for overlap in overlaps]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedce", "standalone", "fedave", "cgsv", "cffl", "fedci"])
def test_run_repeats_bit_for_bit(two_rounds, assert_same_run, method):
    assert_same_run(two_rounds(method), two_rounds(method, again=1, threads=1))


SIMULATED = [name for name in METHODS if name != "pooled"]  # which has no simulator


@pytest.mark.slow
@pytest.mark.parametrize("method", SIMULATED)
def test_methods_are_the_same_on_the_simulator(two_rounds, assert_same_run, processes_of, method):
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
@pytest.mark.parametrize(("method", "free_rider"), [("cgsv", "site1"), ("fedce", "site2")])
def test_a_verdict_is_the_same_on_both_engines(trained, assert_same_run, method, free_rider):
    """A free rider is withheld from, and trains on with its own model and BatchNorm statistics (``--recipe quick``)."""
    options = {"recipe": "quick", "rounds": 5, "guard": "on", "attack": f"{free_rider}=zero"}
    local = trained("on_verdict=withhold", method=method, **options)
    run = trained("on_verdict=withhold", method=method, engine="sim", threads=3, **options)
    assert_same_run(local, run)  # verdicts and pay are in results.csv
    assert by_site(run, "verdict", 4) == {name: float(name == free_rider) for name in NAMES}
    weights = by_site(run, "weight", 4)
    assert weights[free_rider] == 0
    assert sum(weights.values()) == pytest.approx(1)
    models = {path.stem: torch.load(path, weights_only=True) for path in (run / "models").glob("*.pt")}
    assert set(models) == ({free_rider, "global"} if method == "fedce" else set(NAMES))
    of_another = models["global" if method == "fedce" else "site2"]
    means = [name for name in of_another if name.endswith("running_mean")]
    assert means
    assert not any(torch.equal(models[free_rider][name], of_another[name]) for name in means)


OWN_WAYS = ["fedbn", "silobn", "fedprox", "scaffold", "ditto"]


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=() if name == "scaffold" else pytest.mark.slow) for name in OWN_WAYS]
)
def test_run_stopped_in_its_middle_ends_the_same(two_rounds, server_sites_data, tmp_path, assert_same_run, method):
    run, settings = tmp_path / "run", TINY | SETTINGS.get(method, {})
    runs.create(run, method, server_sites_data, rounds=2, engine="local", threads=3, settings=settings)
    stop_at(run, Site, "train", 5)
    runs.execute(run, lambda record: None)
    assert_same_run(two_rounds(method), run)


def models_of(run):
    return {path.stem: torch.load(path, weights_only=True) for path in sorted((run / "models").glob("*.pt"))}


@pytest.mark.slow
def test_sites_with_statistics_of_their_own_keep_them(two_rounds):
    models = models_of(two_rounds("silobn"))
    assert sorted(models) == NAMES
    one, other = models["site1"], models["site2"]
    own = [name for name in one if "running" in name]
    assert own
    assert not any(torch.equal(one[name], other[name]) for name in own)
    assert all(torch.equal(one[name], other[name]) for name in one if name.endswith(("weight", "bias")))


@pytest.mark.slow
def test_norms_that_stay_at_the_sites_differ_and_nothing_else_does(two_rounds):
    models = models_of(two_rounds("fedbn"))
    assert sorted(models) == NAMES
    one, other = models["site1"], models["site2"]
    differ = {name for name in one if not torch.equal(one[name], other[name])}
    norms = {name for name in one if ".N." in name and "num_batches" not in name}
    assert differ == norms
