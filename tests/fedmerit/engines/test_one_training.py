"""Pooled training: the ceiling, on the local engine alone."""

from dataclasses import replace

import pytest
import torch

from fedmerit.configuration.run import RunConfiguration
from fedmerit.engines import runs
from fedmerit.engines.local import RANDOM_STREAM, pool_sites
from fedmerit.errors import BadInput
from fedmerit.federation.site import Site
from fedmerit.records.results import read_results, read_run
from fedmerit.seeds import random_seed
from fedmerit.trainers.monai_trainer.data import Slices, open_sites
from fedmerit.trainers.monai_trainer.local_training import learning_rate, train
from fedmerit.trainers.monai_trainer.networks import build_network, initial_network


def test_it_is_one_training_on_all_images(trained, model, sites):
    run = trained("optimizer=sgd", method="pooled", rounds=2)  # Adam would enlarge the rounding of biases before a norm
    config = RunConfiguration.from_dict(read_run(run)["plan"])
    slices = Slices([case for site in open_sites(sites) for case in site.cases("training")])
    network = build_network(config.network, torch.device("cpu"))
    network.load_state_dict(initial_network(config.network, config.seed).state_dict())
    for round in range(config.rounds):
        rate = learning_rate(config.training, round, config.rounds)
        train(network, slices, config.training, rate, random_seed(config.seed, RANDOM_STREAM, round))
    found, expected = model(run), network.state_dict()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=1e-5, rtol=1e-4)


def test_the_steps_of_all_sites_are_taken_one_after_the_other(trained, sites, tmp_path):
    config = RunConfiguration.from_dict(read_run(trained("optimizer=sgd", method="pooled", rounds=2))["plan"])
    config = replace(config, training=replace(config.training, steps=3))
    own = [Site(folder, config, tmp_path / folder.name) for folder in open_sites(sites)]
    assert {site.config.training.steps for site in pool_sites(own)} == {3 * len(own)}
    assert own[0].config is config


def test_every_site_says_its_own_images_and_is_tested_on_its_own(trained, sites):
    results = read_results(trained("optimizer=sgd", method="pooled", rounds=2))
    said = results[results["quantity"] == "num_samples"].groupby("site")["value"].first()
    assert said.to_dict() == {site.name: len(Slices(site.cases("training"))) for site in open_sites(sites)}
    assert set(results[results["split"] == "testing"]["site"]) == set(said.index)


@pytest.mark.parametrize(
    ("options", "told"), [({"engine": "sim"}, "--engine local"), ({"attacks": {"site1": "zero"}}, "none can attack")]
)
def test_it_is_refused_where_images_are_apart(sites, tmp_path, options, told):
    with pytest.raises(BadInput, match=told):
        runs.create(tmp_path / "run", "pooled", sites, rounds=2, **{"engine": "local", **options})
    assert not (tmp_path / "run").exists()


def test_no_job_is_made_of_it(fedmerit, tmp_path):
    result = fedmerit("export", "--method", "pooled", "--task", "prostate", "--out", tmp_path / "job")
    assert result.exit_code == 2
    assert "one place" in result.output
