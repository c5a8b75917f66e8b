"""What is read of a run's ledger, and what is reported where there is none or it is no ledger.

Run folders opened: their labels, and which may stand together.
"""

from pathlib import Path

import pandas as pd
import pytest
from run_factory import SITES, add_rows, make_run

from fedmerit.errors import BadInput
from fedmerit.schema.results import Row
from fedmerit_evaluation.results.runs import combine_results, open_runs, read_rounds


def weights(record):
    return record["weights"].items()


@pytest.mark.parametrize("text", ["{}\n", "[]\n", '{"weights": 1}\n', "not JSON\n"])
def test_read_rounds_rejects_invalid_ledger(tmp_path, text):
    (tmp_path / "ledger.jsonl").write_text(text)
    with pytest.raises(BadInput, match=r"ledger\.jsonl: not a ledger of rounds .*; check it with `fedmerit verify"):
        read_rounds(tmp_path, weights)


def test_label_runs_names_differing_settings(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / f"{tau}-{seed}", seed=seed, parameters={"tau": tau, "mode": "times"})
        for tau in (0.4, 0.6)
        for seed in (0, 1)
    ]
    labels = [run.label for run in open_runs(runs)]
    assert labels == ["fedce (tau=0.4)"] * 2 + ["fedce (tau=0.6)"] * 2
    twins = [make_run(tmp_path / name) for name in ("one", "two")]
    assert [run.label for run in open_runs(twins)] == ["fedce [one]", "fedce [two]"]


IMAGES = {"size": [32, 32], "spacing": [3, 3], "field_of_view": 96, "crop": "whole"}


@pytest.mark.parametrize(
    ("one", "other", "labels"),
    [
        ({"plan": {"guard": {"guard": "on"}}}, {}, ["guard=on", "guard=off"]),
        ({"plan": {"guard": {"guard": "on", "on_verdict": "show"}}}, {"plan": {"guard": {"guard": "on"}}},
         ["on_verdict=show", "on_verdict=withhold"]),
        ({"privacy": ["gaussian:sigma=0.1", "top:share=0.5"]}, {"privacy": []},
         ["privacy=gaussian:sigma=0.1+top:share=0.5", "privacy=none"]),
        ({"image_size": [32, 32]}, {"image_size": [64, 64]}, ["image_size=32x32", "image_size=64x64"]),
        ({"plan": {"preprocessing": IMAGES}}, {"plan": {"preprocessing": IMAGES | {"crop": "disc"}}},
         ["crop=whole", "crop=disc"]),
        ({"server_sites": "/data/own"}, {"server_sites": None}, ["server_sites=given", "server_sites=none"]),
    ],
)  # fmt: skip
def test_label_runs_separates_runs_that_differ_in_more_than_seed(
    tmp_path: Path, one: dict[str, object], other: dict[str, object], labels: list[str]
) -> None:
    runs = [make_run(tmp_path / f"{seed}", seed=seed, **change) for seed, change in enumerate((one, other, other))]
    expected = [f"fedce ({label})" for label in (*labels, labels[1])]
    assert [run.label for run in open_runs(runs)] == expected
    assert open_runs(runs[:1])[0].label == "fedce"
    assert {run.label for run in open_runs(runs[1:])} == {"fedce"}


def test_combine_results_renames_cases_of_other_preparation(tmp_path: Path) -> None:
    """Within a seed, as far as both runs say; another seed may have another split."""
    digests = dict.fromkeys(SITES, "a" * 64)
    other = digests | {"Birch": "b" * 64}
    single, moved = (make_run(tmp_path / f"only{seed}", method="standalone", seed=seed, site_digests=one)
                    for seed, one in ((0, digests), (1, other)))  # fmt: skip
    runs = [make_run(tmp_path / f"fedce{seed}", seed=seed, site_digests=other) for seed in (0, 1)]
    silent = make_run(tmp_path / "fedavg", method="fedavg")
    far = [Row("fedce", "fedce", 0, 11, "Alder", "dice", 0.5, "union", f"{at}/000", "prostate") for at in SITES]
    add_rows(runs[0], far)
    results = combine_results(open_runs([single, moved, *runs, silent]))
    marked = {"fedce": {0}, "standalone": set(), "fedavg": set()}
    for (method, seed), at in results.dice.tested.items():
        expected = {f"00{case}@bbbbbbbb" if seed in marked[method] else f"00{case}" for case in range(5)}
        assert at["Birch"] == expected
        assert at["Alder"] == {f"00{case}" for case in range(5)}
    (union,) = (at for at in results.union.tested.values())
    assert union["Alder"] == {"Alder/000", "Birch/000@bbbbbbbb", "Cedar/000", "Dogwood/000"}
    assert set(results.rows.loc[results.rows["quantity"] == "weight", "case"]) == {""}
    assert results.dice.mismatched_seeds() == results.dice.mismatched_seeds("Birch", ["fedce", "standalone"]) == {0}
    assert not results.dice.mismatched_seeds("Alder") | results.dice.mismatched_seeds(methods=["fedavg", "standalone"])


def test_combine_results_rejects_folds_beside_one_split(tmp_path: Path) -> None:
    parts = [make_run(tmp_path / f"run{fold}", seed=fold) for fold in (0, 1)]
    table = pd.read_csv(parts[1] / "results.csv", keep_default_na=False).assign(fold=1)
    table.to_csv(parts[1] / "results.csv", index=False)
    with pytest.raises(BadInput, match=r"run1: is of a fold, .*run0 of the one split"):
        combine_results(open_runs(parts))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sites": ("Alder", "Birch", "Cedar")}, "sites"),
        ({"labels": ("disc", "cup")}, "labels"),
        ({"task": "fundus"}, "task"),
    ],
)
def test_open_runs_rejects_other_sites_or_tasks(tmp_path: Path, change: dict[str, object], message: str) -> None:
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b", **change)]  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=rf"b: its {message} .* is not"):
        open_runs(runs)


def test_open_run_names_missing_file_and_command(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"gone: no such run folder; make one with `fedmerit run"):
        open_runs([tmp_path / "gone"])
    with pytest.raises(BadInput, match="no run folder given"):
        open_runs([])
    empty = make_run(tmp_path / "empty", done=0)
    with pytest.raises(BadInput, match=r"empty: results.csv has no result yet.*fedmerit run"):
        open_runs([empty])
    (empty / "results.csv").unlink()
    with pytest.raises(BadInput, match=r"empty: no results.csv in it, no round is complete; continue with .*--resume"):
        open_runs([empty])
    (empty / "run.json").write_text("{}")
    with pytest.raises(BadInput, match=r"run.json: lacks run, method"):
        open_runs([empty])
    run = make_run(tmp_path / "run")
    with pytest.raises(BadInput, match="given 2 times"):
        open_runs([run, run])
