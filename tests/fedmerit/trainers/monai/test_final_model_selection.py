"""What a hospital receives."""

from statistics import fmean

import pytest
import torch
from pretending import tiny_plan
from tiny import TINY

from fedmerit.contract import flat
from fedmerit.engines import runs
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.results import read_results
from fedmerit.schema.run_info import read_run
from fedmerit.schema.scores import Overlap
from fedmerit.schema.site_folder import SiteFolder, open_sites
from fedmerit.trainers.factory import build_network, initial_network, load_network
from fedmerit.trainers.monai.final_model_selection import (
    GIVEN,
    LOCAL_ONLY,
    RECALIBRATED,
    FinalModelSelector,
    clearly_better,
    dice_by_patient,
)
from fedmerit.trainers.monai.prediction import evaluate

SETTINGS = TINY
ONLY = ["site1", "site2"]


@pytest.fixture(scope="module")
def finished(sites, tmp_path_factory):
    run = tmp_path_factory.mktemp("finished") / "run"
    runs.create(
        run, "fedavg", sites, rounds=1, engine="local", settings=SETTINGS | {"final_model": "selected"}, only=ONLY
    )
    runs.execute(run, lambda record: None)
    return run


@pytest.fixture(scope="module")
def single(sites, tmp_path_factory):
    run = tmp_path_factory.mktemp("single") / "run"
    runs.create(run, "standalone", sites, rounds=1, engine="local", settings=SETTINGS, only=ONLY)
    runs.execute(run, lambda record: None)
    return run


def dice(run, split):
    rows = read_results(run).query(f"split == '{split}' and quantity == 'dice'")
    return rows.groupby("site")["value"].mean().to_dict()


@pytest.mark.slow
def test_nobody_is_worse_off_on_its_own_validation_patients(finished):
    home, given, single = (dice(finished, f"validation_{name}") for name in ("selected", "given", "local_only"))
    assert list(home) == ONLY
    assert all(home[site] >= max(given[site], single[site]) - 1e-9 for site in home)


@pytest.mark.slow
def test_what_was_given_is_the_run_s_model_and_what_was_trained_locally_is_standalone(finished, single):
    assert dice(finished, "testing_given") == pytest.approx(dice(finished, "testing"))
    assert dice(finished, "testing_local_only") == dice(single, "testing")


def test_what_is_received_lies_among_the_models_and_is_what_was_tested(finished, sites):
    for site in open_sites(sites, ONLY):
        overlaps = evaluate(
            load_network(finished / "models" / "selected", site.name), site.cases("testing"), site.labels, final=True
        )
        own = dice_by_patient(site.cases("testing"), overlaps)
        assert fmean(own.values()) == pytest.approx(dice(finished, "testing_selected")[site.name])


def test_the_choice_is_made_once(finished, sites):
    config = RunConfiguration.from_dict(read_run(finished)["plan"])
    network = build_network(config.network, torch.device("cpu"))
    selector = FinalModelSelector(config, SiteFolder(sites / "site1"), finished / "sites" / "site1", lambda: network)
    worst = initial_network(config.network, 5)
    again = selector.select((flat.get_parameters(worst), flat.get_buffers(worst)))
    rows = read_results(finished).query("quantity == 'final_model_choice' and site == 'site1'")
    assert set(rows["value"]) == {float(again.choice)}
    assert again.choice in range(GIVEN, LOCAL_ONLY + 9)


def test_a_change_counts_beyond_its_standard_error():
    before = {"a": 0.5, "b": 0.6, "c": 0.7}
    assert clearly_better(before, {"a": 0.6, "b": 0.7, "c": 0.8})
    assert not clearly_better(before, {"a": 0.9, "b": 0.5, "c": 0.6})  # mean .07, standard error .17
    assert not clearly_better(before, before)
    assert not clearly_better({"a": 0.5}, {"a": 0.9})  # one patient says nothing of its error


def test_dice_is_that_of_patients_whatever_the_number_of_their_cases():
    class Case:
        def __init__(self, patient):
            self.patient = patient

    cases = [Case("p"), Case("p"), Case("q")]
    overlaps = [Overlap(f"{place:03d}", "disc", tp, 1, 1) for place, tp in enumerate((1, 9, 3))]
    overlaps.append(Overlap("002", "cup", 0, 0, 0))  # empty in both: left out
    assert dice_by_patient(cases, overlaps) == pytest.approx({"p": (0.5 + 0.9) / 2, "q": 0.75})


@pytest.mark.parametrize(
    ("tried", "dice", "chosen"),
    [
        (RECALIBRATED, (0.6, 0.5), GIVEN),  # better by .05 on average, at an error of .05
        (RECALIBRATED, (0.6, 0.59), RECALIBRATED),
        (LOCAL_ONLY + 3, (0.6, 0.5), LOCAL_ONLY + 3),  # which cross-validation chose
        (LOCAL_ONLY + 3, (0.6, 0.3), GIVEN),
    ],
)
def test_two_patients_choose_no_statistics_not_clearly_better(sites, tmp_path, monkeypatch, tried, dice, chosen):
    config = tiny_plan("fedavg")
    selector = FinalModelSelector(config, SiteFolder(sites / "site1"), tmp_path, lambda: None)
    given, single, changed = ((torch.full((1,), float(number)), {}) for number in range(3))
    of_patients = {0: (0.5, 0.5), 1: (0.1, 0.1), 2: dice}
    monkeypatch.setattr(selector, "_train_locally", lambda: single)
    monkeypatch.setattr(selector, "_changed", lambda model: [(tried, changed)])
    monkeypatch.setattr(
        selector, "_dice", lambda model, cases: dict(zip("ab", of_patients[int(model[0])], strict=True))
    )
    assert selector.select(given).choice == chosen
