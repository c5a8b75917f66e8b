"""SaFE: Shapley values of ensembles of local-only models, against masks and orders written out."""

from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
from games_reference import shapley_by_permutations
from run_factory import make_sites
from tiny import TINY
from torch import nn

from fedmerit.engines import runs
from fedmerit.errors import BadInput
from fedmerit.schema.site_folder import open_sites
from fedmerit_evaluation.valuation.estimators import parse
from fedmerit_evaluation.valuation.observed_run import ObservedRun
from fedmerit_lab.valuation import image_estimators
from fedmerit_lab.valuation.image_estimators import SaFE, ensemble_game

SITES = ("Alder", "Birch", "Cedar")
SLOPES = {"Alder": (2.0, -1.0), "Birch": (-1.0, 0.3), "Cedar": (0.5, 0.1)}  # of logits on the image, and at 0


def affine(slope, offset):
    network = nn.Conv2d(1, 1, 1)
    nn.init.constant_(network.weight, slope)
    nn.init.constant_(network.bias, offset)
    return network


@pytest.fixture
def sites(tmp_path):
    return make_sites(tmp_path / "sites", SITES, size=16)


def literal_dice(sites, names):
    """Of masks where the mean of the logits is above 0: mean over sites of the mean over their cases."""
    at_sites = []
    for site in SITES:
        cases = []
        for number in range(5):
            image, mask = (np.load(sites / site / f"validation{number}_{kind}.npy") for kind in ("image", "label"))
            logits = sum(SLOPES[name][0] * image.astype(float) + SLOPES[name][1] for name in names) / len(names)
            cases.append(2 * ((logits > 0) & (mask > 0)).sum() / ((logits > 0).sum() + (mask > 0).sum()))
        at_sites.append(np.mean(cases))
    return float(np.mean(at_sites))


def test_safe_values_of_known_logits_are_those_of_every_order(sites, monkeypatch):
    monkeypatch.setattr(image_estimators, "final_models", lambda path: lambda folder: affine(*SLOPES[folder.name]))
    run = SimpleNamespace(
        path=sites, folders=open_sites(sites), sites=list(SITES), count=2, info={"method": "standalone"}
    )
    coalitions = [names for size in range(4) for names in combinations(SITES, size)]
    game = {frozenset(names): literal_dice(sites, names) if names else 0.0 for names in coalitions}
    assert len({round(value, 6) for value in game.values()}) > 4
    values = SaFE().values(run)
    np.testing.assert_allclose(values[:, 0], list(shapley_by_permutations(game, SITES)), atol=1e-6)
    assert (values[:, 0] == values[:, 1]).all()


def test_safe_of_a_site_without_others_is_its_local_only_dice(sites, tmp_path):
    path = tmp_path / "run"
    runs.create(path, method="standalone", sites=sites, rounds=1, engine="local", threads=1, values=["local_only"],
                settings=TINY)  # fmt: skip
    runs.execute(path, lambda record: None)
    run = ObservedRun(path, draws=1)
    model_of = image_estimators.final_models(path)
    game = ensemble_game({folder.name: model_of(folder) for folder in run.folders}, run.folders)
    single = parse("local_only:copies=apart").values(run)[:, 0]
    assert [game[frozenset([site])] for site in SITES] == pytest.approx(single.tolist(), abs=1e-6)
    assert parse("safe").values(run)[:, 0].sum() == pytest.approx(game[frozenset(SITES)])


@pytest.mark.parametrize(
    ("method", "count", "message"),
    [("fedavg", 3, "safe: the run's method is fedavg"), ("standalone", 11, "at most 10")],
)
def test_safe_of_another_method_or_many_sites_is_refused(sites, method, count, message):
    run = SimpleNamespace(path=sites, sites=[str(place) for place in range(count)], info={"method": method})
    with pytest.raises(BadInput, match=message):
        SaFE().values(run)
