"""The figure of what observed runs say: below two seeds or five cases no two sites are told apart."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from run_factory import SITES, make_run

from fedmerit.federation.recorder import OBSERVED
from fedmerit_evaluation.report import value_figure
from fedmerit_evaluation.results.run_folders import open_runs
from fedmerit_evaluation.statistics.ranks import Ranking, ranking


@pytest.mark.parametrize("seeds", [1, 2])
def test_one_seed_tells_no_two_sites_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeds: int) -> None:
    apart = ranking(SITES, np.arange(4.0)[None, :, None] + np.random.default_rng(0).normal(0, 0.01, (1, 4, 50)))
    assert apart.has_significant_pairs
    drawn: dict[str, Ranking] = {}

    monkeypatch.setattr(value_figure, "default_estimators", lambda folders: ["own"])
    monkeypatch.setattr(value_figure, "value_runs", lambda *asked: SimpleNamespace(shown={"own": apart}))
    monkeypatch.setattr(value_figure, "units", lambda valued: {"own": "points"})
    monkeypatch.setattr(value_figure, "value_ranges", lambda rankings, of_values: drawn.update(rankings))
    folders = [make_run(tmp_path / str(seed), seed=seed, rounds=2) for seed in range(seeds)]
    for folder in folders:
        (folder / OBSERVED).touch()

    shown = value_figure.value_figure(open_runs(folders))["values"]
    one = drawn["own"]
    assert np.array_equal(one.value, apart.value)
    assert one.has_significant_pairs == (seeds > 1)
    ranks = list(zip(one.highest_rank, one.lowest_rank, strict=True))
    assert (ranks == [(1, 4)] * 4) == (seeds == 1)
    assert ("only one seed, so no two sites are told apart" in shown.caption) == (seeds == 1)
