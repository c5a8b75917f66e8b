"""Run folders opened: their labels, and which may stand together."""

from pathlib import Path

import pandas as pd
import pytest
from run_factory import add_rows, make_run

from evaluation.results.run_folders import open_runs, together
from fedmerit.errors import BadInput
from fedmerit.records.results import Row


def test_runs_of_one_method_are_labelled_by_what_differs(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / f"{tau}-{seed}", seed=seed, parameters={"tau": tau, "mode": "times"})
        for tau in (0.4, 0.6)
        for seed in (0, 1)
    ]
    labels = [run.label for run in open_runs(runs)]
    assert labels == ["fedce (tau=0.4)"] * 2 + ["fedce (tau=0.6)"] * 2
    twins = [make_run(tmp_path / name) for name in ("one", "two")]
    assert [run.label for run in open_runs(twins)] == ["fedce [one]", "fedce [two]"]


def test_seeds_that_were_given_other_contributions_are_one_method(tmp_path: Path) -> None:
    """As `compare` gives FedSAC what sites reached alone with the same seed."""
    given = [{"contributions": [0.5, 0.1 * seed]} for seed in range(3)]
    runs = [make_run(tmp_path / f"{k}", method="fedsac", seed=k, parameters=one) for k, one in enumerate(given)]
    assert [run.label for run in open_runs(runs)] == ["fedsac"] * 3
    runs.append(make_run(tmp_path / "found", method="fedsac", seed=3, parameters={"contributions": []}))
    assert [run.label for run in open_runs(runs)] == ["fedsac (contributions=given)"] * 3 + [
        "fedsac (contributions=[])"
    ]


def test_rows_of_coalitions_are_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    before = together(open_runs([run])).dice.by_site
    add_rows(run, [Row("run", "fedce", 0, 11, "Alder", "dice", 0.0, "testing", "000", "prostate", coalition="Birch")])
    pd.testing.assert_frame_equal(together(open_runs([run])).dice.by_site, before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sites": ("Alder", "Birch", "Cedar")}, "sites"),
        ({"labels": ("disc", "cup")}, "labels"),
        ({"task": "fundus"}, "task"),
    ],
)
def test_runs_that_do_not_belong_together(tmp_path: Path, change: dict[str, object], message: str) -> None:
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b", **change)]  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=rf"b: its {message} .* is not"):
        open_runs(runs)


def test_what_is_missing_is_named_with_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"gone: no such run folder; make one with `fedmerit run"):
        open_runs([tmp_path / "gone"])
    with pytest.raises(BadInput, match="no run folder given"):
        open_runs([])
    empty = make_run(tmp_path / "empty", done=0)
    with pytest.raises(BadInput, match=r"empty: results.csv holds no result yet.*fedmerit run"):
        open_runs([empty])
    (empty / "results.csv").unlink()
    with pytest.raises(BadInput, match=r"empty: no results.csv"):
        open_runs([empty])
    (empty / "run.json").write_text("{}")
    with pytest.raises(BadInput, match=r"run.json: lacks run, method"):
        open_runs([empty])
    run = make_run(tmp_path / "run")
    with pytest.raises(BadInput, match="given 2 times"):
        open_runs([run, run])
