"""The figure of the values of observed runs: without two seeds and five patients no difference is significant."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from run_factory import SITES, make_run

from fedmerit.evidence.closing_record import OBSERVED
from fedmerit_evaluation.figures import dots_and_bars
from fedmerit_evaluation.report import all_sites_figures
from fedmerit_evaluation.results.runs import open_runs
from fedmerit_evaluation.statistics.inference import SampleSize
from fedmerit_evaluation.statistics.ranks import Ranking, ranking


@pytest.mark.parametrize(("patients", "why"), [(5, ""), (4, "too few validation patients (4; at least 5 are needed)")])
def test_the_caption_says_why_no_difference_is_significant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patients: int, why: str
) -> None:
    values = np.arange(4.0)[None, :, None] + np.random.default_rng(0).normal(0, 0.01, (2, 4, 50))
    apart = ranking(SITES, values, sample=SampleSize(patients, 2, "validation patients"))
    drawn: dict[str, Ranking] = {}
    monkeypatch.setattr(all_sites_figures, "default_estimators", lambda folders: ["own"])
    monkeypatch.setattr(all_sites_figures, "value_runs", lambda *asked: SimpleNamespace(shown={"own": apart}))
    monkeypatch.setattr(all_sites_figures, "units", lambda valued: {"own": "points"})
    monkeypatch.setattr(dots_and_bars, "value_ranges", lambda rankings, of_values: drawn.update(rankings))
    folder = make_run(tmp_path / "run", rounds=2)
    (folder / OBSERVED).touch()

    shown = all_sites_figures.draw_values(open_runs([folder]))["values"]
    assert drawn["own"].has_significant_pairs == (not why)
    assert ("no difference is called significant" in shown.caption) == bool(why)
    assert why in shown.caption
