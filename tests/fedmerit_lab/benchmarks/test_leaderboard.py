"""The leaderboard: rows of a benchmark's scenario, the file that others extend, its page."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scenario_results import result
from tiny import TINY

from fedmerit import plugins
from fedmerit.engines import runs
from fedmerit.errors import BadInput
from fedmerit_evaluation.valuation.estimators import estimators
from fedmerit_evaluation.valuation.payout import EQUAL
from fedmerit_lab.benchmarks import leaderboard as module
from fedmerit_lab.benchmarks.leaderboard import RETRAINING, add_entries, make_entries, misallocation, render
from fedmerit_lab.benchmarks.value_benchmark import FEDERATED, run_estimators

ROOT = Path(__file__).resolve().parents[3]
TASK = {"half": "choice", "data_set": "made", "what": "Three sites.", "command": "fedmerit lab bench values --out gen"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A leaderboard of two tasks, the first of which was measured: never change it."""
    place = tmp_path_factory.mktemp("leaderboard")
    tasks = {"small": TASK, "large": TASK | {"half": "confirmation", "named_before_run": True, "remark": "Too dear."}}
    (place / "tasks.json").write_text(json.dumps(tasks))
    module.write_entries(place / "entries.csv", make_entries(result({"data_size": [1, 2, 4], "fedce": [4, 2, 1]})))
    add_entries(place, place / "entries.csv", "small")
    return place


@pytest.fixture
def folder(made, tmp_path):
    """A copy of the leaderboard, which may be changed."""
    return shutil.copytree(made, tmp_path, dirs_exist_ok=True)


def test_a_row_of_each_estimator_and_of_what_it_is_compared_with():
    found = {entry.estimator: entry for entry in make_entries(result({"data_size": [1, 2, 4], "fedce": [4, 2, 1]}))}
    assert list(found) == ["data_size", "fedce", EQUAL, RETRAINING]
    assert found["data_size"].pearson == 1
    assert found["data_size"].misallocated == pytest.approx(0)
    assert found["fedce"].misallocated == pytest.approx(3 / 7, abs=1e-6)
    assert found["fedce"].cost == 0.25
    assert found[EQUAL].misallocated == pytest.approx(4 / 7 - 1 / 3, abs=1e-6)
    assert found[EQUAL].pearson is None
    assert found["fedce"].version.startswith("fedmerit ")
    assert found["fedce"].seeds == 2


def test_the_interval_of_misallocation_is_a_jackknife_over_seeds():
    reference = result({}, seeds=3).references["Shapley"]
    by_seed = np.array([[1.0, 2, 4], [1, 2, 4], [4, 2, 1]])
    found = misallocation(by_seed, reference)
    without = np.array([misallocation(np.delete(by_seed, left, 0), result({}).references["Shapley"])["misallocated"]
                        for left in range(3)])  # fmt: skip
    reach = 4.302653 * np.sqrt(2 / 3 * ((without - without.mean()) ** 2).sum())
    assert found["misallocated_high"] == pytest.approx(min(found["misallocated"] + reach, 1), abs=1e-5)
    assert found["misallocated_low"] == pytest.approx(max(found["misallocated"] - reach, 0), abs=1e-5)


@pytest.mark.slow
def test_of_folds_these_take_the_place_of_seeds(folder):
    one = result({"data_size": [1, 2, 4]}, seeds=1)
    of_folds = np.array([[0.01, 0.02, 0.04], [0.02, 0.02, 0.03], [0.01, 0.03, 0.03]])
    reference = replace(one.references["Shapley"], folds=3, of_folds=of_folds)
    values = {"data_size": np.tile(one.values["data_size"][..., :1], (3, 1, 1)), "same": of_folds[..., None]}
    judged = replace(one, references=dict.fromkeys(one.references, reference), values=values,
                     costs=dict.fromkeys(values, 1.0))  # fmt: skip
    found = {entry.estimator: entry for entry in make_entries(judged)}
    assert (found["same"].misallocated, found["same"].misallocated_high) == (0, 0)
    assert 0 < found["data_size"].misallocated < found["data_size"].misallocated_high
    assert (found[EQUAL].seeds, found[EQUAL].folds) == (1, 3)
    assert found[RETRAINING].misallocated > 0
    module.write_entries(folder / "entries.csv", found.values())
    add_entries(folder, folder / "entries.csv", "large")
    assert "3 sites, 1 seed of 3 folds, at least" in render(folder).read_text()


def test_adding_replaces_the_same_estimator_of_the_task_only(folder):
    before = module.read_entries(folder / "results.csv")
    module.write_entries(folder / "entries.csv", make_entries(result({"data_size": [4, 2, 1], "mine": [1, 1, 1]})))
    add_entries(folder, folder / "entries.csv", "small")
    after = {entry.estimator: entry for entry in module.read_entries(folder / "results.csv")}
    assert set(after) == {"data_size", "fedce", "mine", EQUAL, RETRAINING}
    assert after["data_size"].pearson < 0
    assert after["fedce"] == next(entry for entry in before if entry.estimator == "fedce")


def test_the_page_has_every_task_the_best_estimator_first(folder):
    page = render(folder).read_text()
    assert page.index("`data_size`") < page.index("`fedce`")
    assert "0.0 [0.0, 0.0]" in page
    assert "No results yet." in page
    assert "Three sites. Half: choice.\n" in page
    assert "Three sites. Half: confirmation, named before its results. Too dear.\n" in page
    assert render(folder).read_text() == page


def test_the_command(folder, fedmerit):
    added = fedmerit("lab", "leaderboard", folder, "--add", folder / "entries.csv", "--task", "large")
    assert added.exit_code == 0
    assert "README.md" in added.output
    assert {entry.task for entry in module.read_entries(folder / "results.csv")} == {"small", "large"}
    assert "--task: missing" in fedmerit("lab", "leaderboard", folder, "--add", folder / "entries.csv").output


@pytest.fixture
def script(tmp_path, monkeypatch):
    """The Python block of docs/extending.md, named by FEDMERIT_PARTS."""
    page = (ROOT / "docs" / "extending.md").read_text()
    path = tmp_path / "mine.py"
    path.write_text(re.search(r"```python\n(.*?)```", page, flags=re.DOTALL)[1])
    monkeypatch.setattr(plugins, "_registered", {})
    monkeypatch.setattr(plugins, "_imported", set())
    monkeypatch.setattr(estimators(), "_loaded", {})
    monkeypatch.setenv(plugins.SCRIPTS, str(path))
    return path


@pytest.mark.slow
def test_an_estimator_of_a_script_gets_a_row(script, folder, sites, fedmerit, tmp_path):
    """The manual's estimator, from a run of sites of 15 images to the page; by retraining they are worth 1, 2 and 4."""
    run, spec = tmp_path / "run", "root_size"
    runs.create(run, method="fedavg", sites=sites, rounds=1, engine="local", threads=1,
                settings=TINY)  # fmt: skip
    runs.execute(run, lambda record: None)
    printed = fedmerit("value", "estimate", run, "--estimators", spec)
    assert printed.exit_code == 0, printed.output
    assert spec in printed.output
    found = run_estimators({FEDERATED: [run]}, [spec], draws=4)
    assert found.values[spec] == pytest.approx(np.full((1, 3, 5), np.sqrt(15)))
    assert found.costs[spec] == 0
    one = result({spec: [0, 0, 0]}, seeds=1)
    judged = replace(one, values=found.values, costs=found.costs)
    module.write_entries(tmp_path / "mine.csv", make_entries(judged))
    added = fedmerit("lab", "leaderboard", folder, "--add", tmp_path / "mine.csv", "--task", "large")
    assert added.exit_code == 0, added.output
    rows = {(entry.task, entry.estimator): entry for entry in module.read_entries(folder / "results.csv")}
    assert rows["large", spec].misallocated == pytest.approx(4 / 7 - 1 / 3, abs=1e-6)
    assert f"| `{spec}` | 23.8 |" in (folder / "README.md").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("small", "other"), "other: no such task"),
        (lambda text: text.replace("data_size", "a|b"), "line 2: estimator: .*found 'a|b'"),
        (lambda text: text.replace(",0.25,", ",much,", 1), "line 2: cost: .*found 'much'"),
        (lambda text: text.replace("task,", "tasks,", 1), "its columns are"),
    ],
)
def test_what_does_not_fit_the_schema_is_named(folder, change, message):
    path = folder / "results.csv"
    path.write_text(change(path.read_text()))
    with pytest.raises(BadInput, match=message):
        render(folder)


def test_an_unknown_task_is_refused(folder):
    with pytest.raises(BadInput, match=r"--task tiny: not in .* describe it there first"):
        add_entries(folder, folder / "entries.csv", "tiny")


def test_the_page_in_the_repository_is_of_its_results(tmp_path):
    source = ROOT / "benchmarks" / "contribution"
    for name in ("results.csv", "tasks.json"):
        (tmp_path / name).write_text((source / name).read_text())
    assert render(tmp_path).read_text() == (source / "README.md").read_text()


def test_differences_from_equal_shares_are_by_data_set_with_an_interval_over_them(tmp_path):
    less = {"a": ("first", 0.10, 0.06), "b": ("first", 0.10, 0.08), "c": ("second", 0.10, 0.09), "d": ("third", 0.1, 0)}
    tasks = {name: TASK | {"data_set": data_set} for name, (data_set, _, _) in less.items()}
    (tmp_path / "tasks.json").write_text(json.dumps(tasks))
    row = make_entries(result({"data_size": [1, 2, 4]}))[0]
    module.write_entries(
        tmp_path / "results.csv",
        [
            row.model_copy(update={"task": task, "estimator": estimator, "misallocated": amount})
            for task, (_, equal, own) in less.items()
            for estimator, amount in ((EQUAL, equal), ("data_size", own))
        ],
    )
    part = render(tmp_path).read_text().partition("## Over data sets")[2].partition("## a")[0]
    # 3, 1 and 10 points: mean 4.67, SD 4.73, times 4.303 / sqrt 3
    assert "| `data_size` | 4 | 3.0 (2) | 1.0 (1) | 10.0 (1) | 4.7 [-7.1, 16.4] | 0.23 |" in part
    assert "Judged on no task: " in part
    assert "`coverage`" in part
    assert "`data_size`" not in part.partition("Judged on no task")[2]


def test_a_noise_ceiling_counts_by_its_lower_end(folder):
    measured = module.read_entries(folder / "results.csv")
    for low, words in ((0.9, "0.97 [0.90, 1.00], not shown to reach 0.95."), (0.96, "0.97 [0.96, 1.00].")):
        ends = {"noise_ceiling": 0.97, "noise_ceiling_low": low, "noise_ceiling_high": 1.0}
        module.write_entries(folder / "results.csv", [entry.model_copy(update=ends) for entry in measured])
        assert f"noise ceiling {words}" in render(folder).read_text()
