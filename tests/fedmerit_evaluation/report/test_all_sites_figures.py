"""The figure of the values of observed runs: without two seeds and five cases no difference is significant."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from run_factory import SITES, make_run

from fedmerit.federation.recorder import OBSERVED
from fedmerit_evaluation.figures import dots_and_bars
from fedmerit_evaluation.report import all_sites_figures
from fedmerit_evaluation.results.run_folders import combine_results, open_runs
from fedmerit_evaluation.statistics.ranks import Ranking, ranking


@pytest.mark.parametrize("seeds", [1, 2])
def test_one_seed_shows_no_significant_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeds: int) -> None:
    apart = ranking(SITES, np.arange(4.0)[None, :, None] + np.random.default_rng(0).normal(0, 0.01, (1, 4, 50)))
    assert apart.has_significant_pairs
    drawn: dict[str, Ranking] = {}

    monkeypatch.setattr(all_sites_figures, "default_estimators", lambda folders: ["own"])
    monkeypatch.setattr(all_sites_figures, "value_runs", lambda *asked: SimpleNamespace(shown={"own": apart}))
    monkeypatch.setattr(all_sites_figures, "units", lambda valued: {"own": "points"})
    monkeypatch.setattr(dots_and_bars, "value_ranges", lambda rankings, of_values: drawn.update(rankings))
    folders = [make_run(tmp_path / str(seed), seed=seed, rounds=2) for seed in range(seeds)]
    for folder in folders:
        (folder / OBSERVED).touch()

    runs = open_runs(folders)
    shown = all_sites_figures.draw_values(runs, combine_results(runs))["values"]
    one = drawn["own"]
    assert np.array_equal(one.value, apart.value)
    assert one.has_significant_pairs == (seeds > 1)
    ranks = list(zip(one.highest_rank, one.lowest_rank, strict=True))
    assert (ranks == [(1, 4)] * 4) == (seeds == 1)
    assert ("only one seed, so no difference is called significant" in shown.caption) == (seeds == 1)
