"""`fedmerit value`: tiny real trainings of coalitions, estimators of synthetic runs, and sample sizes."""

import os
import re
import shutil
import signal
import subprocess
import time

import pandas as pd
import psutil
import pytest
from gate import Gate
from run_factory import make_run

from fedmerit.contract.semivalues import Sampling
from fedmerit.schema.configuration.run import make_configuration
from fedmerit.schema.results import read_table
from fedmerit.schema.run_info import read_run
from fedmerit_evaluation.ground_truth.ground_truths import coalition_utilities
from fedmerit_evaluation.ground_truth.value_tables import leave_one_out_tables, sampled_tables, shapley_tables
from fedmerit_evaluation.results.views import Results

ROUNDS = 2
LOO = ["site1+site2+site3", "site1+site2", "site1+site3", "site2+site3"]
SINGLE = ["site1", "site2", "site3"]


@pytest.fixture(scope="module")
def arguments(sites, small):
    """A command and its options for tiny trainings, one at a time; keywords replace them."""

    def build(command, out, **changes):
        chosen = {"out": out, "sites": sites, "rounds": ROUNDS, "jobs": 1} | changes
        given = [text for name, value in chosen.items() for text in (f"--{name.replace('_', '-')}", str(value))]
        return "value", command, *given, *small

    return build


@pytest.fixture(scope="module")
def whole(fedmerit, arguments, tmp_path_factory):
    """leave-one-out, then shapley in the same folder: what each printed, and the files between. Never change it."""
    out = tmp_path_factory.mktemp("values") / "out"
    first = fedmerit(*arguments("leave-one-out", out))
    assert first.exit_code == 0, first.output
    between = contents(out)
    second = fedmerit(*arguments("shapley", out))
    assert second.exit_code == 0, second.output
    return out, first.output, between, second.output


@pytest.fixture
def own(whole, tmp_path):
    """A copy of the trained folder that a test may spoil."""
    shutil.copytree(whole[0], tmp_path / "out")
    return tmp_path / "out"


def contents(out):
    """Every file below ``runs`` and its time."""
    return {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*") if path.is_file()}


def plain(text):
    """Printed text without its line ends, which a narrow terminal sets elsewhere."""
    return " ".join(text.split())


def assert_written(out, tables):
    """The CSV files hold these tables, and LaTeX stands beside them."""
    for table in tables:
        written = pd.read_csv(out / "tables" / f"{table.name}.csv")
        pd.testing.assert_frame_equal(
            written, table.frame, check_dtype=False, check_names=False, rtol=1e-12, atol=1e-12
        )
        assert r"\bottomrule" in (out / "tables" / f"{table.name}.tex").read_text()


def test_leave_one_out_prints_the_cost_then_the_tables(whole):
    out, printed, _, _ = whole
    images = ROUNDS * 15 * (3 + 2 + 2 + 2)
    cost = rf"4 of 4 trainings to do, {images} images in all"
    assert re.search(cost, plain(printed))
    reported = ("One split, 1 seed", "trainings to do", "Leave-one-out")
    assert sorted(reported, key=printed.index) == list(reported)
    assert "Drop of test Dice [points] of the site in the column" in plain(printed)
    tables = leave_one_out_tables(Results(read_table(out / "results.csv")))
    assert_written(out, tables)
    for row in range(3):
        assert tables[0].cell(row, 1) in printed


def test_shapley_trains_only_further_coalitions(whole):
    out, _, between, printed = whole
    assert "3 of 7 trainings to do" in printed
    names = sorted(f"{coalition}_seed0" for coalition in LOO + SINGLE)
    assert sorted(path.name for path in (out / "runs").iterdir()) == names
    assert sorted({path.relative_to(out / "runs").parts[0] for path in between}) == sorted(f"{c}_seed0" for c in LOO)
    after = contents(out)
    assert {path: after[path] for path in between} == between
    tables = shapley_tables(Results(read_table(out / "results.csv")))
    assert_written(out, tables)
    assert set(tables[1].frame["Coalition"]) == {*LOO, *SINGLE}
    assert "Test Dice of each coalition's model" in plain(printed)
    assert "trainings, results, figure and tables" in plain(printed)
    assert (out / "figures" / "values.png").read_bytes().startswith(b"\x89PNG")


def test_a_second_call_trains_nothing_and_prints_the_same(fedmerit, arguments, whole, own):
    before, results = contents(own), (own / "results.csv").read_text()
    for command, printed, start in (
        ("leave-one-out", whole[1], "Leave-one-out (as"),
        ("shapley", whole[3], "Values of test Dice"),
    ):
        result = fedmerit(*arguments(command, own))
        assert result.exit_code == 0, result.output
        assert "trainings to do" not in result.output
        tables = [text.partition(start)[2].rpartition("trainings, results")[0] for text in (result.output, printed)]
        assert tables[0]
        assert tables[0] == tables[1]
    assert contents(own) == before
    assert (own / "results.csv").read_text() == results


def test_sampled_values(fedmerit, arguments, own):
    """Every order of three sites is among twenty, so all coalitions are needed; they are there."""
    before = contents(own)
    sampling = {"exact_up_to": 2, "truncation": 0, "precision": 0, "most_permutations": 20}
    result = fedmerit(*arguments("shapley", own, **sampling))
    assert result.exit_code == 0, result.output
    assert "3 sites: permutations are sampled; --exact-up-to 3 trains all" in plain(result.output)
    assert "20 permutations, the most allowed" in plain(result.output)
    assert "trainings to do" not in result.output
    assert contents(own) == before
    game = coalition_utilities(Results(read_table(own / "results.csv")))[0]
    rule = Sampling(tuple(SINGLE), seed=0, truncation=0, precision=0, most=20)
    estimate = rule.estimate(game)
    assert not estimate.needed
    tables = sampled_tables(SINGLE, {0: estimate})
    assert_written(own, tables)
    assert tables[0].frame["Shapley [points]"].sum() == pytest.approx(100 * float(game[frozenset(SINGLE)]))


@pytest.mark.slow
def test_interrupted_from_the_terminal(fedmerit, arguments, scripts, whole, tmp_path):
    """Ctrl-C reaches every process of the terminal; the same command resumes to the same tables."""
    out = tmp_path / "out"
    words = [str(part) for part in (scripts / "fedmerit", *arguments("shapley", out, jobs=2))]
    process = psutil.Popen(
        words,
        env=os.environ | Gate(tmp_path / "gate", out, records=1).environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background jobs inherit that it is ignored
    )
    family = []
    try:
        deadline = time.monotonic() + 600
        while not list(out.glob("runs/*/ledger.jsonl")):
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        family = process.children(recursive=True)
        assert family
        os.killpg(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate(timeout=120)
    finally:
        for member in (process, *family):
            if member.is_running():
                member.kill()
    assert psutil.wait_procs(family, timeout=60)[1] == []
    assert process.returncode == 130
    assert "stopped; the same command resumes from what is finished" in stderr
    assert "Traceback" not in stdout + stderr
    assert "Error" not in stdout + stderr
    assert len(list(out.glob("runs/*/run.json"))) == 7
    result = fedmerit(*arguments("shapley", out))
    assert result.exit_code == 0, result.output
    for name in ("shapley.csv", "coalitions.csv"):
        assert (out / "tables" / name).read_text() == (whole[0] / "tables" / name).read_text()


def test_a_training_that_fails_is_reported(fedmerit, arguments, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "fedmerit_evaluation.ground_truth.coalitions.execute_all",
        lambda folders, *rest, **options: dict.fromkeys(folders, "round 0: no site sent a usable reply"),
    )
    result = fedmerit(*arguments("leave-one-out", tmp_path / "out"))
    assert result.exit_code == 1
    assert result.stderr.count("failed: ") == 4
    for coalition in LOO:
        assert f"{coalition}_seed0: round 0: no site sent a usable reply" in result.stderr
    assert "the same command resumes from what is finished" in result.stderr
    assert "Leave-one-out" not in result.output


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": "0,one"}, "--seeds"),
        ({"rounds": 0}, "--rounds 0: expected a whole number, 1 or more"),
        ({"method": "eu"}, "such as fedavg"),
        ({"method": "fedci"}, "--server-share"),
        ({"device": "cuda:99"}, "cuda:99"),
    ],
)
def test_bad_input_before_anything_is_trained(fedmerit, arguments, tmp_path, changes, message):
    result = fedmerit(*arguments("leave-one-out", tmp_path / "out", **changes))
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_server_set_of_its_own(server_sites_data, arguments, fedmerit, tmp_path):
    """Methods with candidates need one: the folder is recorded with every training."""
    changes = {"method": "fedci", "sites": server_sites_data, "server_sites": server_sites_data.parent / "server"}
    result = fedmerit(*arguments("leave-one-out", tmp_path / "out", rounds=1, **changes))
    assert result.exit_code == 0, result.output
    recorded = {read_run(file.parent)["server_sites"] for file in tmp_path.glob("out/runs/*/run.json")}
    assert recorded == {str(server_sites_data.parent / "server")}


@pytest.fixture
def runs(tmp_path):
    """Two synthetic runs that differ in their seeds."""
    network = {"in_channels": 1, "labels": ["prostate"]}
    plan = make_configuration("fedce", "prostate", 2, 0, network, {}).to_dict()
    return [make_run(tmp_path / f"run{seed}", seed=seed, rounds=2, plan=plan) for seed in (0, 1)]


def test_estimate_prints_and_writes_tables_and_a_figure(fedmerit, runs):
    """Synthetic sites train on 40, 50, 60 and 70 images, of 220."""
    result = fedmerit("value", "estimate", *runs, "--estimators", "data_size,contribution", "--draws", 20)
    assert result.exit_code == 0, result.output
    folder = runs[0] / "values"
    assert f"tables and figure: {folder}" in result.output.replace("\n", " ")
    table = pd.read_csv(folder / "tables" / "values-data-size.csv").set_index("Site")
    expected = {"Alder": 400 / 22, "Birch": 500 / 22, "Cedar": 600 / 22, "Dogwood": 700 / 22}
    assert table["Share [%]"].to_dict() == pytest.approx(expected)
    assert (folder / "tables" / "values-contribution.csv").exists()
    assert (folder / "figures" / "values.png").read_bytes().startswith(b"\x89PNG")
    assert fedmerit("value", "estimate", *runs, "--estimators", "data_size", "--draws", 20).exit_code == 0
    assert {file.stem for file in (folder / "tables").iterdir()} == {"values-data-size"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--estimators", "shap"), "--estimators 'shap': unknown"),
        (("--estimators", "data_size,data_size"), "name each once"),
        (("--estimators", "multi_round"), "was run without --values multi_round and kept no updates"),
    ],
)
def test_estimators_that_cannot_be_used(fedmerit, runs, tmp_path, given, message):
    result = fedmerit("value", "estimate", *runs, *given, "--out", tmp_path / "out")
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert not (tmp_path / "out").exists()


def test_power_of_stated_deviations(fedmerit, tmp_path):
    """Variance 9/S of seeds and 64/P of patients, by Student's t, and 36/(4 S), by 2.8016: .975 and .8 added."""
    stated = ("--seed-sd", 3, "--patient-sd", 8, "--round-sd", 6, "--rounds", 4)
    result = fedmerit("value", "power", *stated, "--patients", "16,5,5,4", "--seeds", "9,2,1", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    table = pd.read_csv(tmp_path / "power.csv").set_index("Test patients per site")
    explicitly = {
        (5, 2): 16.334**2 * 4.5 + 3.7611**2 * 12.8 + 2.8016**2 * 4.5,
        (16, 9): 3.2009**2 + 2.9979**2 * 4 + 2.8016**2,
    }
    for (patients, seeds), squared in explicitly.items():
        assert table.loc[patients, f"{seeds} seeds [points]"] == pytest.approx(squared**0.5, rel=1e-3)
    assert table["1 seed [points]"].isna().all()
    assert table.loc[4].isna().all()  # too few for a significant difference
    assert (table.index.to_list(), len(table.columns)) == ([4, 5, 16], 3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--patient-sd", 8), "value power: give --pilot DIR, or state --seed-sd and --patient-sd"),
        (("--seed-sd", -1, "--patient-sd", 8), "--seed-sd"),
        (("--seed-sd", 3, "--patient-sd", "nan"), "--patient-sd"),
        (("--seed-sd", 3, "--patient-sd", 8, "--round-sd", "inf"), "expected a standard deviation in points"),
        (("--seed-sd", 3, "--patient-sd", 8, "--seeds", "0"), "--seeds 0: expected whole numbers from 1 on"),
    ],
)
def test_power_without_variances_or_numbers(fedmerit, tmp_path, given, message):
    result = fedmerit("value", "power", *given, "--out", tmp_path / "out")
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert not (tmp_path / "out").exists()
