"""The figure of what observed runs say: below two seeds or five cases no two sites are told apart."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from run_factory import SITES, make_run

from evaluation.report import observed_values
from evaluation.results.ranks import Ranking, ranking
from evaluation.results.run_folders import open_runs
from fedmerit.federation.recorder import OBSERVED


@pytest.mark.parametrize("seeds", [1, 2])
def test_one_seed_tells_no_two_sites_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeds: int) -> None:
    apart = ranking(SITES, np.arange(4.0)[None, :, None] + np.random.default_rng(0).normal(0, 0.01, (1, 4, 50)))
    assert apart.tells_any
    drawn: dict[str, Ranking] = {}

    monkeypatch.setattr(observed_values, "default_estimators", lambda folders: ["own"])
    monkeypatch.setattr(observed_values, "value_runs", lambda *asked: SimpleNamespace(shown={"own": apart}))
    monkeypatch.setattr(observed_values, "units", lambda valued: {"own": "points"})
    monkeypatch.setattr(observed_values, "value_ranges", lambda rankings, of_values: drawn.update(rankings))
    folders = [make_run(tmp_path / str(seed), seed=seed, rounds=2) for seed in range(seeds)]
    for folder in folders:
        (folder / OBSERVED).touch()

    shown = observed_values.drawn_values(open_runs(folders))["values"]
    one = drawn["own"]
    assert np.array_equal(one.value, apart.value)
    assert one.tells_any == (seeds > 1)
    ranks = list(zip(one.highest_rank, one.lowest_rank, strict=True))
    assert (ranks == [(1, 4)] * 4) == (seeds == 1)
    assert ("one seed is not enough to judge, so no two sites are told apart" in shown.caption) == (seeds == 1)
