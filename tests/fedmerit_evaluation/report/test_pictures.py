"""The pictures and figures of a report, from its model: which are drawn, of which methods, and what captions say."""

from math import isnan
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from made_results import made_dice, made_rounds, made_runs
from run_factory import SITES, make_run

from fedmerit.evidence.closing_record import OBSERVED
from fedmerit_evaluation.report import assembly
from fedmerit_evaluation.report.assembly import align_local_only, build_model, model_of_results
from fedmerit_evaluation.report.model import ReportModel
from fedmerit_evaluation.report.pictures import FIGURES, GainPicture, draw_figures, draw_pictures
from fedmerit_evaluation.report.redaction import redact
from fedmerit_evaluation.results.runs import open_runs
from fedmerit_evaluation.statistics.inference import SampleSize
from fedmerit_evaluation.statistics.ranks import ranking


def _gains(*folders: Path) -> GainPicture:
    gains = draw_pictures(build_model(open_runs(folders)), {}).gains
    assert gains is not None
    return gains


def test_mean_dice_of_all_hospitals_is_drawn_with_the_mean_gain(tmp_path: Path) -> None:
    local, run = (make_run(tmp_path / name, method=name, rounds=2) for name in ("standalone", "fedce"))
    mean = _gains(local, run).rows[-1]
    assert mean.dice["fedce"] - mean.local == pytest.approx(mean.gain["fedce"].mean, abs=0.11)


def test_mean_dice_of_some_hospitals_is_not_drawn(tmp_path: Path) -> None:
    local, run = (make_run(tmp_path / name, method=name, rounds=2) for name in ("standalone", "fedce"))
    results = local / "results.csv"
    lines = results.read_text().splitlines(keepends=True)
    results.write_text("".join(line for line in lines if not ("testing" in line and SITES[0] in line)))
    mean = _gains(local, run).rows[-1]
    assert isnan(mean.local)
    assert not isnan(mean.gain["fedce"].mean)


LEVELS = {"standalone": (0.60, 0.61, 0.60, 0.60), "fedce": (0.62, 0.71, 0.83, 0.90)}


def _of_runs(*folders: Path) -> ReportModel:
    return build_model(align_local_only(open_runs(folders)))


def test_values_are_drawn_without_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the page are one family, which these values are not of."""
    values = np.arange(4.0)[None, :, None] + np.random.default_rng(0).normal(0, 0.01, (2, 4, 50))
    apart = ranking(SITES, values, sample=SampleSize(5, 2, "validation patients"))
    monkeypatch.setattr(assembly, "observed_estimators", lambda folders: ["observed"])
    monkeypatch.setattr(assembly, "value_runs", lambda *options: SimpleNamespace(shown={"observed": apart}))
    monkeypatch.setattr(assembly, "units", lambda valued: {"observed": "points"})
    folder = make_run(tmp_path / "run", rounds=2)
    (folder / OBSERVED).touch()
    model = _of_runs(folder)
    assert model.observed.rankings["observed"].has_significant_pairs
    drawn = draw_figures(model)["values"]
    assert "significant" not in drawn.caption
    (panel,) = drawn.figure.axes
    assert not panel.patches
    assert not panel.texts


def test_every_figure_has_a_known_name_and_says_numbers(tmp_path: Path) -> None:
    drawn = draw_figures(_of_runs(*(make_run(tmp_path / name, method=name) for name in ("standalone", "fedce"))))
    assert {"dice", "gains", "convergence", "shares", "weights", "contributions"} <= drawn.keys() <= {*FIGURES}
    assert all(any(letter.isdigit() for letter in one.seen) for one in drawn.values())
    assert all(site in drawn[name].seen for name in ("dice", "gains", "shares") for site in SITES[:1])


def test_quantity_that_never_changes_is_not_drawn() -> None:
    rounds = made_rounds("weight", {"fedce": [(0.2,), (0.3,), (0.4,), (0.1,)]}, SITES)
    results = made_dice(LEVELS, sites=SITES, seeds=1, rounds=rounds)
    assert "weights" not in draw_figures(model_of_results(made_runs(results, Path("x")), results, results))


def test_figures_for_one_hospital_have_only_its_line(tmp_path: Path) -> None:
    model = redact(_of_runs(*(make_run(tmp_path / name, method=name) for name in ("standalone", "fedce"))), "Birch")
    drawn = draw_figures(model)
    assert drawn.keys() == {"dice", "gains", "convergence", "weights"}
    assert not any(site in one.seen + one.caption for site in SITES if site != "Birch" for one in drawn.values())
    assert not any("each" in one.caption for one in drawn.values())
    for panel in drawn["weights"].figure.axes:
        assert [text.get_text() for text in panel.texts] == ["Birch"]
    (panel,) = drawn["dice"].figure.axes
    assert [label.get_text() for label in panel.get_yticklabels()] == ["Birch"]


def test_local_training_with_other_settings_does_not_hide_that_with_the_methods(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / name, method=name.split("-")[0], rounds=rounds)
               for name, rounds in (("fedce", 2), ("standalone", 2), ("standalone-1r", 1))]  # fmt: skip
    model = _of_runs(*folders)
    assert not model.is_ambiguous
    assert "gains" in draw_figures(model)
    info = folders[1] / "run.json"
    info.write_text(info.read_text().replace('"lr": 0.001', '"lr": 0.01'))
    model = _of_runs(*folders)
    assert model.is_ambiguous
    assert {one.lacking for one in model.hospitals} == {"ambiguous"}
    assert "gains" not in draw_figures(model)


@pytest.mark.slow
def test_of_more_methods_than_colours_the_reports_is_drawn(tmp_path: Path) -> None:
    methods = ["standalone", "fedavg", "fedce", "cgsv", "cffl", "rffl", "dw", "eu", "rr", "qfedavg"]
    folders = [make_run(tmp_path / method, method=method, rounds=1) for method in methods]
    drawn = draw_figures(_of_runs(*folders))
    assert sum("The other methods are in the tables." in one.caption for one in drawn.values()) == 2
    assert "Mean test Dice: standalone from" in drawn["dice"].seen
    assert "Gains: fedce from" in drawn["gains"].seen  # the first that estimates contributions
    few = draw_figures(_of_runs(*folders[:6]))  # five above local training
    assert not any("The other methods are in the tables." in one.caption for one in few.values())
