"""A run that is observed: it stays the same run, what is written down is what the models do, and it continues."""

import pytest
import torch
from measured import rows
from run_factory import make_sites
from stopping import stop_at
from tiny import TINY

from fedmerit.contract import flat
from fedmerit.engines import resumption, runs
from fedmerit.errors import BadInput
from fedmerit.evidence.closing_record import OBSERVED
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.results import read_table
from fedmerit.schema.run_info import read_run
from fedmerit.schema.site_folder import open_sites
from fedmerit.server.observation import read_kept_rounds
from fedmerit.server.recorder import Recorder
from fedmerit.trainers.factory import build_network
from fedmerit.trainers.monai.prediction import evaluate

SITES = ("Alder", "Birch", "Cedar")
OBSERVERS = ("multi_round", "one_round:every=1", "leave_one_out_loss")


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    return make_sites(tmp_path_factory.mktemp("observed") / "sites", SITES, size=16)


def create(run, sites, method="fedavg", **options):
    settings = TINY | options.pop("settings", {})
    runs.create(run, method=method, sites=sites, rounds=2, engine="local", threads=1, settings=settings, **options)
    return run


@pytest.fixture(scope="module")
def observed(sites, tmp_path_factory):
    """A whole run with all observers that kept its updates: never change it."""
    run = create(tmp_path_factory.mktemp("observed") / "run", sites, values=OBSERVERS, keep_updates=True)
    runs.execute(run, lambda record: None)
    return run


def dice_of(table, run=None):
    """By round, observer, who tested, coalition and case."""
    rows = table[table["quantity"] == "dice"]
    return rows.set_index(["round", "split", "site", "coalition", "case", "label"])["value"].sort_index()


def test_the_run_is_the_one_that_nobody_observes(observed, sites, tmp_path, assert_same_model):
    plain = create(tmp_path / "run", sites)
    runs.execute(plain, lambda record: None)
    assert_same_model(plain / "models/global.pt", observed / "models/global.pt")
    assert rows(plain) == rows(observed)
    assert not (plain / OBSERVED).exists()
    assert not (plain / "updates").exists()
    assert {"values", "keep_updates"}.isdisjoint(read_run(plain)["plan"])


def test_what_is_written_is_the_dice_of_the_coalitions_models(observed, sites):
    """Made here of the kept updates, one parameter vector and one mean of statistics at a time."""
    config = RunConfiguration.from_dict(read_run(observed)["plan"])
    found = dice_of(read_table(observed / OBSERVED))
    cases = {site.name: site.cases("validation") for site in open_sites(sites)}
    network = build_network(config.network, torch.device("cpu"))
    for kept in read_kept_rounds(observed, config):
        view, members = kept.view, [0, 2]
        shares = view.reports.num_samples[members] / view.reports.num_samples[members].sum()
        model = view.began.double() + shares @ view.updates[members].double()
        flat.load(network, model.float(), flat.average_buffers([kept.buffers[row] for row in members], shares))
        for tester in SITES:
            expected = [one.dice for one in evaluate(network, cases[tester], ("prostate",))]
            written = found[view.round, "multi_round", tester, "Alder+Cedar"]
            assert written.tolist() == pytest.approx(expected, abs=0.02)  # a pixel may lie on the edge


def test_in_round_0_carried_models_are_the_mixtures(observed):
    found = dice_of(read_table(observed / OBSERVED))
    for coalition in ("Alder", "Alder+Birch", "Alder+Birch+Cedar"):
        of = [found[0, name, "Birch", coalition].tolist() for name in ("multi_round", "one_round")]
        assert of[0] == pytest.approx(of[1], abs=0.02)


@pytest.mark.slow
def test_an_interrupted_run_observes_the_same(observed, sites, tmp_path, assert_same_run):
    run = create(tmp_path / "run", sites, values=OBSERVERS, keep_updates=True)
    stop_at(run, Recorder, "observed", 5)  # the second observer of round 1: the first is written
    runs.execute(run, lambda record: None)
    assert_same_run(observed, run)
    expected, found = (dice_of(read_table(one / OBSERVED)) for one in (observed, run))
    assert found.to_dict() == expected.to_dict()


@pytest.mark.slow
def test_the_simulator_observes_the_same(observed, sites, tmp_path):
    run = tmp_path / "run"
    runs.create(run, method="fedavg", sites=sites, rounds=2, engine="sim", settings=TINY, values=OBSERVERS)
    runs.execute(run, lambda record: None)
    expected, found = (dice_of(read_table(one / OBSERVED)) for one in (observed, run))
    assert found.to_dict() == expected.to_dict()


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"values": ["multi_round:every=-1"]}, "every=-1: expected a whole number, 0 or more"),
        ({"values": ["multi_round"], "method": "ditto"}, "models of their own"),
        ({"values": ["multi_round"], "privacy": ["he"]}, "not with --privacy he: updates leave encrypted"),
    ],
)
def test_what_cannot_be_observed_is_refused(sites, tmp_path, options, reported):
    with pytest.raises(BadInput) as error:
        create(tmp_path / "run", sites, **options)
    assert reported in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_run_continues_with_what_it_was_begun_with(observed):
    resumption.require_same(observed, {"values": OBSERVERS, "keep_updates": True})
    with pytest.raises(BadInput, match="was started with values"):
        resumption.require_same(observed, {"values": ["multi_round"]})
