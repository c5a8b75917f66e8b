"""Studies, the poc engine and helpers with a script instead of prepared sites: real processes of real scripts."""

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from fedmerit.schema.results import read_table

ROOT = Path(__file__).resolve().parents[2]
TESTED = Path("evaluation", "testing-everywhere.csv")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]  # processes start in seconds, or in minutes


@pytest.fixture
def project(tmp_path):
    return Path(shutil.copytree(ROOT / "examples" / "nvflare_project", tmp_path / "project"))


@pytest.fixture
def call(fedmerit, project):
    """A command on the project's script; what it printed."""

    def called(*arguments, clients=2, code=0):
        script = ("--script", project / "client.py", "--model", f"{project / 'model.py'}:Net", "--clients", clients)
        done = fedmerit(*arguments, *script)
        assert done.exit_code == code, done.output
        return " ".join(done.output.split())

    return called


def test_methods_are_compared_by_a_script_and_local_training_by_it_gives_gains(call, project, tmp_path):
    out = tmp_path / "cmp"
    options = ("compare", "--out", out, "--methods", "standalone,fedavg", "--rounds", 2, "--engine", "local")
    assert "Gain in Dice over local training" in call(*options)
    gains = pd.read_csv(out / "tables" / "gains.csv").set_index("Method")
    assert gains.loc["fedavg", ["site-1", "site-2"]].notna().all()
    written = {file: file.stat().st_mtime_ns for file in out.rglob("results.csv")}
    call(*options)  # nothing is left to train
    assert {file: file.stat().st_mtime_ns for file in out.rglob("results.csv")} == written
    assert "--jobs, --cluster: runs on NVFlare, or with a script" in call(*options, "--jobs", 2, code=2)
    with (project / "client.py").open("a") as file:
        file.write("# changed\n")
    assert "was started with another script: sha256" in call(*options, code=2)


def test_values_by_retraining_test_every_model_by_the_scripts_of_all_sites(call, tmp_path):
    out = tmp_path / "values"
    options, tests = ("--out", out, "--rounds", 1), out / "runs"
    assert "3 of 3 trainings to do" in call("value", "shapley", *options)
    tested = read_table(tests / "site-1_seed0" / TESTED)
    assert tested.groupby("site").size().to_dict() == {"site-1": 6, "site-2": 6}
    assert "trainings to do" not in call("value", "leave-one-out", *options)
    call("value", "unseen", *options)
    table = pd.read_csv(out / "tables" / "unseen.csv").set_index("Site")
    for site, other in (("site-1", "site-2"), ("site-2", "site-1")):
        rows = read_table(tests / f"{other}_seed0" / TESTED)
        mean = 100 * rows.loc[rows["site"] == site, "value"].mean()
        assert table.loc[site, "Unseen [%]"] == pytest.approx(mean, abs=0.06)


def test_the_poc_engine_runs_the_script_that_its_kits_name_and_signs(call, fedmerit, tmp_path):
    run = tmp_path / "run"
    call("run", "--out", run, "--method", "cgsv", "--rounds", 2, "--engine", "poc")
    records = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    assert [(record["rejected"], bool(record["signature"])) for record in records] == [({}, True)] * 2
    assert fedmerit("verify", run).exit_code == 3


@pytest.mark.parametrize(
    ("method", "settings"),
    [("fedprox", {"mu": 0.1}), ("scaffold", {}), ("ditto", {}), ("qfedavg", {}), ("fedave", {"guard": "off"})],
)
def test_methods_that_need_a_helper_run_with_it_and_sites_enrol(call, fedmerit, project, tmp_path, method, settings):
    run = tmp_path / "run"
    given = [text for name, value in settings.items() for text in ("--set", f"{name}={value}")]
    options = ("run", "--out", run, "--method", method, "--rounds", 2, "--engine", "local", *given)
    if "guard" not in settings:
        assert re.search(rf"method {method}: .*have the script (use|send)", call(*options, code=2))
    shutil.copy(ROOT / "tests" / "support" / "helped_client.py", project / "client.py")
    call(*options)
    records = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    assert [record["rejected"] for record in records] == [{}, {}]
    if "guard" not in settings:
        enrolled = records[0]["guard"]["enrolled"]
        assert {site: one["cases"]["training"] for site, one in enrolled.items()} == {"site-1": 24, "site-2": 16}
    assert fedmerit("verify", run).exit_code == 3
