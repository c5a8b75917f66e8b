"""Every method trains, and its final models are tested on every case."""

import pytest
import torch

from fedmerit import flat
from fedmerit.configuration.run import RunConfiguration
from fedmerit.methods.registry import METHODS
from fedmerit.records.ledger import Ledger, verify
from fedmerit.records.results import read_results, read_run
from fedmerit.trainers.monai_trainer.data import open_sites
from fedmerit.trainers.monai_trainer.networks import initial_network
from fedmerit.trainers.monai_trainer.prediction import evaluate
from fedmerit.trainers.monai_trainer.saved_networks import load_network

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
    start = flat.get_parameters(initial_network(config.network, config.seed))
    moved = [int((flat.get_parameters(load_network(run / "models", name)) != start).sum()) for name in names]
    assert min(moved) > 0  # a site that earned little has received little
    assert max(moved) == len(start) or method == "scaffold"  # a bias before a norm has no gradient: Adam alone moves it
    for name in names:
        state = model(run, name)
        assert all(value.isfinite().all() for value in state.values())
        means = [value for key, value in state.items() if key.endswith("running_mean")]
        variances = [value for key, value in state.items() if key.endswith("running_var")]
        counters = [int(value) for key, value in state.items() if key.endswith("num_batches_tracked")]
        assert means
        assert all(value.abs().max() > 0 for value in means)
        assert all((value > 0).all() and (value != 1).any() for value in variances)
        assert min(counters) == max(counters) >= 2  # of a round: FedSAC starts anew after those alone
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
@pytest.mark.parametrize("method", ["fedave", "cgsv", "cffl", "fedci"])
def test_run_repeats_bit_for_bit(two_rounds, assert_same_run, method):
    assert_same_run(two_rounds(method), two_rounds(method, again=1, threads=1))
