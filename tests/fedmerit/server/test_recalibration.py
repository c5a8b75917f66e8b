"""The rules of BatchNorm statistics, for whatever method."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from tiny import TINY

from fedmerit.contract import flat
from fedmerit.engines import runs
from fedmerit.errors import BadInput
from fedmerit.evidence.verification.run import verify_run
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.messages import Evaluated, Purpose
from fedmerit.schema.results import read_results
from fedmerit.schema.run_info import read_run
from fedmerit.schema.site_folder import open_sites
from fedmerit.trainers.factory import build_network
from fedmerit.trainers.monai.evaluation import estimate_statistics
from fedmerit.trainers.monai.samples import Slices

SETTINGS = TINY


@pytest.fixture(scope="module")
def made(sites, tmp_path_factory):
    """A run with these options, made once: never change it."""

    @cache
    def build(method="fedavg", rounds=2, **settings):
        run = tmp_path_factory.mktemp("rule") / "run"
        runs.create(run, method, sites, rounds=rounds, engine="local", settings=SETTINGS | settings)
        runs.execute(run, lambda record: None)
        return run

    return build


def statistics_of(run, name="global"):
    saved = torch.load(run / "models" / f"{name}.pt", weights_only=True)
    return {key: value for key, value in saved.items() if key.endswith(("running_mean", "running_var"))}


@pytest.fixture(scope="module")
def plain(made):
    return made()


def same(one, other):
    return all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.slow
def test_statistics_are_estimated_for_the_global_model_where_each_site_keeps_its_own(made):
    estimated, given = statistics_of(made("ditto", statistics="recalibrated")), statistics_of(made("ditto"))
    assert given
    assert not same(estimated, given)


@pytest.mark.slow
def test_weights_do_not_depend_on_the_rule(made, plain):
    other = made(statistics="recalibrated")
    first, second = (torch.load(run / "models" / "global.pt", weights_only=True) for run in (plain, other))
    parameters = [name for name in first if "running" not in name and "num_batches" not in name]
    assert all(torch.equal(first[name], second[name]) for name in parameters)


def test_recalibrated_statistics_are_the_mean_of_what_sites_estimate_for_the_last_model(made, sites):
    run = made(statistics="recalibrated")
    network = build_network(RunConfiguration.from_dict(read_run(run)["plan"]).network, torch.device("cpu"))
    estimates, samples = [], []
    for site in open_sites(sites):
        network.load_state_dict(torch.load(run / "models" / "global.pt", weights_only=True))
        slices = Slices(site.cases("training"))
        estimate_statistics(network, slices)
        estimates.append(flat.get_buffers(network))
        samples.append(len(slices))
    expected = flat.average_buffers(estimates, torch.tensor(samples) / sum(samples))
    for name, value in statistics_of(run).items():
        torch.testing.assert_close(value, expected[name])


@pytest.mark.slow
def test_invented_estimates_are_bounded_by_the_guard(sites, tmp_path, made):
    """As trained ones: site3 says of the last model that every variance is 1e11."""

    def lie(tasks, answers):
        if isinstance(one := answers["site3"], Evaluated) and tasks["site3"].purpose is Purpose.ESTIMATE:
            invented = {name: value + (10**11 if name.endswith("_var") else 0) for name, value in one.buffers.items()}
            answers["site3"] = replace(one, buffers=invented)

    honest, run = made(statistics="recalibrated", guard="on"), tmp_path / "run"
    settings = SETTINGS | {"statistics": "recalibrated", "guard": "on"}
    runs.create(run, "fedavg", sites, rounds=2, engine="local", settings=settings)
    runs.execute(run, lambda record: None, on_exchange=lie)
    expected = statistics_of(honest)
    for name, value in statistics_of(run).items():
        assert float(value.abs().max()) < 10 * float(expected[name].abs().max()) + 10
    bounds = read_results(run).query("quantity == 'statistics_bound' and site == 'site3'")["value"]
    assert (bounds < 1e-6).all()
    assert same(expected, statistics_of(made(statistics="recalibrated")))  # where no bound applies, nothing changes
    assert verify_run(run).records == 2


def test_own_statistics_make_a_model_for_each_site(made):
    run = made(statistics="own")
    names = sorted(path.stem for path in (run / "models").glob("*.pt"))
    assert names == ["site1", "site2", "site3"]
    assert not same(statistics_of(run, "site1"), statistics_of(run, "site2"))


@pytest.mark.slow
def test_mean_is_what_fedavg_does_and_weights_follow_the_method(made, plain):
    assert same(statistics_of(made(statistics="mean")), statistics_of(plain))
    assert same(statistics_of(made(statistics="weights")), statistics_of(plain))  # FedAvg's weights are data shares
    by_weights, by_share = made("fedce", rounds=2, statistics="weights"), made("fedce")
    assert not same(statistics_of(by_weights), statistics_of(by_share))


@pytest.mark.parametrize(
    "rule", ["recalibrated", "weights", *(pytest.param(rule, marks=pytest.mark.slow) for rule in ("own", "frozen"))]
)
def test_fedce_evaluates_the_model_without_a_site_by_the_same_rule(made, rule):
    results = read_results(made("fedce", rounds=2, statistics=rule))
    errors = results[results["quantity"] == "minus_error"]["value"].dropna()  # of round 0 there are none
    assert len(errors) == 3
    assert errors.between(0, 1).all()


def test_a_server_that_sees_no_model_has_no_rule(sites, tmp_path):
    settings = {"exchange": "peer", "warmup_by": "own", "statistics": "own"}
    with pytest.raises(BadInput, match="sees no model"):
        runs.create(tmp_path / "run", "cycle", sites, rounds=9, engine="local", settings=settings)
