"""`fedmerit compare` with tiny real runs: what is done stays, what is missing is run, whatever interrupted it."""

import os
import shutil
import subprocess

import pandas as pd
import pytest
from gate import Gate

from fedmerit.evidence.ledger import Ledger
from fedmerit.server.checkpoint import is_finished

METHODS = "standalone,fedavg"
ROUNDS = 2
FOLDERS = [f"{method}_seed{seed}" for seed in (0, 1) for method in METHODS.split(",")]


@pytest.fixture(scope="module")
def arguments(sites, small):
    """The options of ``fedmerit compare`` for tiny runs; keywords replace them."""

    def build(out, **changes):
        chosen = {"out": out, "methods": METHODS, "seeds": "0,1", "sites": sites, "rounds": ROUNDS, "engine": "local"}
        given = [text for name, value in (chosen | {"jobs": 1} | changes).items() for text in (f"--{name}", str(value))]
        return "compare", *given, *small

    return build


@pytest.fixture(scope="module")
def whole(fedmerit, arguments, tmp_path_factory):
    """A comparison from start to end, undisturbed, and what it printed: never change it."""
    out = tmp_path_factory.mktemp("compared") / "out"
    result = fedmerit(*arguments(out))
    assert result.exit_code == 0, result.output
    return out, result.output


def times(out):
    return {path: path.stat().st_mtime_ns for run in FOLDERS for path in (out / run).rglob("*") if path.is_file()}


def test_every_run_is_an_ordinary_run(whole, small, trained, assert_same_run, fedmerit):
    out, _ = whole
    assert sorted(path.parent.name for path in out.glob("*/run.json")) == sorted(FOLDERS)
    assert_same_run(trained(*small[1::2], method="fedavg", seed=1, rounds=ROUNDS), out / "fedavg_seed1")
    assert fedmerit("verify", out / "fedavg_seed0").exit_code == 3
    assert [path.name for path in out.glob(".new*")] == []


def test_only_what_is_missing_is_run(fedmerit, arguments, whole, tmp_path, assert_same_run):
    """And the tables are the same again."""
    done, printed = whole
    out = tmp_path / "out"
    shutil.copytree(done, out)
    shutil.rmtree(out / "fedavg_seed1")
    before = times(out)
    result = fedmerit(*arguments(out))
    assert result.exit_code == 0, result.output
    after = times(out)
    assert {path: after[path] for path in before} == before
    assert_same_run(done / "fedavg_seed1", out / "fedavg_seed1")
    tables = [text.partition("Dice [%]")[2] for text in (result.output.replace(str(out), str(done)), printed)]
    assert tables[0] == tables[1]


@pytest.mark.slow
def test_a_killed_comparison_resumes_to_the_same_end(
    fedmerit, arguments, scripts, whole, tmp_path, kill, wait_for, assert_same_run
):
    out = tmp_path / "out"
    gate = Gate(tmp_path / "gate", out / FOLDERS[1], records=1)
    with (tmp_path / "output.txt").open("wb") as output:
        command = [str(part) for part in (scripts / "fedmerit", *arguments(out, jobs=1))]
        process = subprocess.Popen(command, env=os.environ | gate.environment, stdout=output, stderr=subprocess.STDOUT)

    def in_the_middle_of_the_second_run():
        assert process.poll() is None, (tmp_path / "output.txt").read_text()
        run = out / FOLDERS[1]
        return run.exists() and bool(Ledger(run / "ledger.jsonl").records)

    try:
        wait_for(in_the_middle_of_the_second_run, 300)
    finally:
        kill(out)
        process.wait(timeout=30)
    assert is_finished(out / FOLDERS[0], ROUNDS)
    assert not is_finished(out / FOLDERS[1], ROUNDS)
    before = (out / FOLDERS[0] / "results.csv").stat().st_mtime_ns

    result = fedmerit(*arguments(out))
    assert result.exit_code == 0, result.output
    assert (out / FOLDERS[0] / "results.csv").stat().st_mtime_ns == before
    for name in FOLDERS:
        assert_same_run(whole[0] / name, out / name)
    for name in ("table1.csv", "table6.csv", "union.csv"):
        assert (out / "tables" / name).read_text() == (whole[0] / "tables" / name).read_text()


@pytest.mark.slow
def test_a_run_that_fails_does_not_stop_the_others(fedmerit, arguments, tmp_path):
    out = tmp_path / "out"
    result = fedmerit(*arguments(out, methods="fedavg:lr=1e30,fedavg", seeds="0", rounds=1))
    assert result.exit_code == 1
    assert "failed: fedavg:lr=1e30, seed 0" in result.stderr
    assert str(out / "fedavg_lr-1e30_seed0") in result.stderr
    assert "no site sent a usable reply" in result.stderr
    assert is_finished(out / "fedavg_seed0", 1)
    table = pd.read_csv(out / "tables/table1.csv").set_index("Method")
    assert table["Seeds"].to_list() == ["0 of 1", "1 of 1"]
    assert table.loc["fedavg:lr=1e30"].isna().sum() == 5
    assert table.loc["fedavg"].notna().all()
    assert "fedavg:lr=1e30" in result.stdout


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"methods": "fedavg,fedprix"}, "fedprix"), ({"methods": "fedavg,fedce:combine=minus"}, "minus"),
        ({"methods": "fedavg,fedavg"}, "twice"), ({"seeds": "0,one"}, "--seeds"), ({"device": "site9=cpu"}, "site9"),
        ({"jobs": 0}, "--jobs"), ({"engine": "sim"}, "use --engine local")
    ],
)  # fmt: skip
def test_bad_input_before_anything_runs(fedmerit, arguments, tmp_path, changes, word):
    result = fedmerit(*arguments(tmp_path / "out", **changes))
    assert result.exit_code == 2
    assert word in result.stderr
    assert list(tmp_path.iterdir()) == []
