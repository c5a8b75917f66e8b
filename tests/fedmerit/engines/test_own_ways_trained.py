"""Methods that train in ways of their own, or leave more than updates at the sites: whole, stopped, on NVFlare."""

import pytest
import torch
from stopping import stop_at

from fedmerit.engines import runs
from fedmerit.federation.checkpoint import is_finished
from fedmerit.federation.site import Site

METHODS = ["fedbn", "silobn", "fedprox", "scaffold", "ditto"]
NAMES = ["site1", "site2", "site3"]
ROUNDS = 2
SETTINGS = {"architecture": "unet", "width": "4", "depth": "3", "augment": "false"}


def create(run, sites, method, engine="local"):
    own = {"optimizer": "sgd", "lr": "0.05"} if method == "scaffold" else {}
    runs.create(
        run, method, sites, rounds=ROUNDS, engine=engine, threads=1 if engine == "sim" else 3, settings=SETTINGS | own
    )
    return run


@pytest.fixture(scope="module")
def whole(tmp_path_factory, sites):
    """A whole local run of each, made at first use."""
    made = {}

    def build(method):
        if method not in made:
            made[method] = create(tmp_path_factory.mktemp(method) / "run", sites, method)
            runs.execute(made[method], lambda record: None)
        return made[method]

    return build


def models_of(run):
    return {path.stem: torch.load(path, weights_only=True) for path in sorted((run / "models").glob("*.pt"))}


@pytest.mark.parametrize(
    "method",
    [pytest.param(name, marks=() if name == "scaffold" else pytest.mark.slow) for name in METHODS],
)
def test_run_stopped_in_its_middle_ends_the_same(tmp_path, sites, whole, assert_same_run, method):
    run = create(tmp_path / "run", sites, method)
    stop_at(run, Site, "train", 5)
    runs.execute(run, lambda record: None)
    assert_same_run(whole(method), run)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_simulator_gives_what_the_local_engine_gives(tmp_path, sites, whole, assert_same_run, method):
    run = create(tmp_path / "run", sites, method, "sim")
    runs.execute(run, lambda record: None)
    assert is_finished(run, ROUNDS)
    assert_same_run(whole(method), run)


def test_sites_with_statistics_of_their_own_keep_them(whole):
    models = models_of(whole("silobn"))
    assert sorted(models) == NAMES
    one, other = models["site1"], models["site2"]
    own = [name for name in one if "running" in name]
    assert own
    assert not any(torch.equal(one[name], other[name]) for name in own)
    assert all(torch.equal(one[name], other[name]) for name in one if name.endswith(("weight", "bias")))


def test_norms_that_stay_at_the_sites_differ_and_nothing_else_does(whole):
    models = models_of(whole("fedbn"))
    assert sorted(models) == NAMES
    one, other = models["site1"], models["site2"]
    differ = {name for name in one if not torch.equal(one[name], other[name])}
    norms = {name for name in one if ".N." in name and "num_batches" not in name}
    assert differ == norms


def test_own_models_stay_at_the_sites_and_are_what_they_test(whole, sites):
    """Ditto's: drawn to the global model, and none of them is it."""
    models = models_of(whole("ditto"))
    assert sorted(models) == ["global", *NAMES]
    first = next(iter(models["global"]))
    values = [models[name][first] for name in models]
    assert all(not torch.equal(one, other) for place, one in enumerate(values) for other in values[:place])


@pytest.mark.slow
def test_penalty_and_control_change_what_is_trained(whole, trained):
    plain = torch.load(whole("fedprox") / "models" / "global.pt", weights_only=True)
    fedavg = models_of(trained("augment=false", method="fedavg", rounds=ROUNDS))["global"]
    first = next(name for name in plain if name.endswith("weight"))
    assert not torch.equal(plain[first], fedavg[first])
    assert torch.allclose(plain[first], fedavg[first], atol=0.05)  # mu is 0.001
    scaffold = torch.load(whole("scaffold") / "checkpoint.pt", weights_only=True)
    assert scaffold["state"]["controls"].abs().max() > 0


def test_scaffold_with_adam_is_refused(tmp_path, sites):
    with pytest.raises(Exception, match=r"optimizer=adam: method scaffold needs sgd; add --set optimizer=sgd"):
        runs.create(tmp_path / "run", "scaffold", sites, engine="local", settings=SETTINGS)
