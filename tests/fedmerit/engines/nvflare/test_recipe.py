"""The job folders that stand ready, and one of them under NVFlare's own command."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from chains import verify
from tiny import flags

from fedmerit.engines.nvflare.recipe import build_site_policy
from fedmerit.evidence.ledger import Ledger

JOBS = Path(__file__).resolve().parents[4] / "jobs"
FOLDERS = sorted(path.parent.name for path in JOBS.glob("*/meta.json"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_one_job_per_method_and_task():
    assert set(FOLDERS) == {
        f"{method}_{task}"
        for method in ("cffl", "cgsv", "cycle", "fedavg", "fedce", "fedsac")
        for task in ("fundus", "prostate")
    }


@pytest.mark.parametrize("name", FOLDERS)
def test_job_folder_is_what_export_writes(fedmerit, tmp_path, name):
    method, _, task = name.partition("_")
    shares = ["--share-models"] if method in ("cffl", "cycle", "fedsac") else []
    result = fedmerit("job", "export", "--method", method, "--task", task, "--out", tmp_path / name, *shares)
    assert result.exit_code == 0, result.output
    assert contents(tmp_path / name) == contents(JOBS / name)


@pytest.mark.slow
def test_job_may_bring_its_code(fedmerit, tmp_path):
    """A site without the package could run it; what the job names is in the code that it brings."""
    for _ in range(2):
        options = ("--method", "fedce", "--task", "prostate", "--out", tmp_path / "job", "--byoc")
        assert fedmerit("job", "export", *options).exit_code == 0
    custom = tmp_path / "job/app/custom"
    assert {path.suffix for path in custom.rglob("*") if path.is_file()} == {".py", ".pyi", ".toml", ".txt", ".typed"}
    names = [name.rpartition(".") for name in build_site_policy()["class_allow_list"]]
    code = "; ".join(f"from {module} import {name}; print({name}.__module__)" for module, _, name in names)
    code += "; import fedmerit; print(*fedmerit.__path__)"
    environment = os.environ | {"PYTHONPATH": str(custom)}
    reported = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert reported.stdout.split() == [*(module for module, _, _ in names), str(custom / "fedmerit")]
    without = {name: content for name, content in contents(tmp_path / "job").items() if "/custom/" not in name}
    assert without == contents(JOBS / "fedce_prostate") | {"meta.json": without["meta.json"]}


def test_export_leaves_another_folder_only(fedmerit, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/thesis.txt").write_text("all of it")
    result = fedmerit("job", "export", "--out", tmp_path / "thesis", "--method", "fedavg", "--task", "prostate")
    assert result.exit_code == 2
    assert str(tmp_path / "thesis") in result.stderr
    assert contents(tmp_path / "thesis") == {"thesis.txt": b"all of it"}


@pytest.mark.parametrize("name", [".job", "my job", "jöb"])
def test_export_under_what_is_no_name_of_a_job(fedmerit, tmp_path, name):
    result = fedmerit("job", "export", "--out", tmp_path / name, "--method", "fedavg", "--task", "prostate")
    assert result.exit_code == 2
    assert f"{name!r} is no name of an NVFlare job" in " ".join(result.stderr.split())
    assert not list(tmp_path.iterdir())


def test_resources_allow_the_classes_that_jobs_name():
    resources = json.loads((JOBS / "resources.json").read_text())
    assert resources == build_site_policy()
    for name in FOLDERS:
        for side in ("server", "client"):
            config = json.loads((JOBS / name / f"app/config/config_fed_{side}.json").read_text())
            text = json.dumps(config)
            paths = [word for word in text.split('"') if word.startswith("fedmerit.")]
            assert paths
            assert set(paths) <= set(resources["class_allow_list"])


@pytest.fixture
def simulate(fedmerit, scripts, sites, tmp_path, kill):
    """Submit a small FedCE job to ``nvflare simulator``; gives the workspace, in which to see what came of it."""

    def run(rounds: int, allowed: bool, **environment: str) -> Path:
        job, workspace = tmp_path / "fedce_prostate", tmp_path / "workspace"
        settings = ("--rounds", rounds, *flags())
        fedmerit("job", "export", "--method", "fedce", "--task", "prostate", "--out", job, *settings)
        (workspace / "local").mkdir(parents=True)
        if allowed:
            shutil.copy(JOBS / "resources.json", workspace / "local")
        command = [scripts / "nvflare", "simulator", job, "-w", workspace, "-c", "site1,site2,site3", "-t", "3"]
        variables = os.environ | {"FEDMERIT_SITES": str(sites)} | environment
        try:
            with (tmp_path / "output.txt").open("wb") as output:
                subprocess.run(command, env=variables, stdout=output, stderr=subprocess.STDOUT, timeout=600)
        finally:
            kill(workspace)
        return workspace

    return run


@pytest.mark.slow
def test_job_on_nvflares_command_gives_what_the_local_engine_gives(simulate, trained, assert_same_model, tmp_path):
    workspace = simulate(rounds=1, allowed=True)
    found = list(workspace.rglob("models/global.pt"))
    assert len(found) == 1, (tmp_path / "output.txt").read_text()[-3000:]
    run = found[0].parents[1]
    assert_same_model(found[0], trained(rounds=1, guard="on") / "models/global.pt")
    assert verify(run / "ledger.jsonl") == 1
    reported, expected = (Ledger(one / "ledger.jsonl").records for one in (run, trained(rounds=1, guard="on")))
    salted = {"hash", "guard", "plan"}  # digests by the run's plan: that of a job says nothing of preprocessing
    assert [{name: one[name] for name in set(one) - salted} for one in reported] == [
        {name: one[name] for name in set(one) - salted} for one in expected
    ]


@pytest.mark.slow
def test_job_is_refused_where_its_classes_are_not_allowed(simulate, tmp_path):
    workspace = simulate(rounds=1, allowed=False)
    assert list(workspace.rglob("*.pt")) == []
    assert "is not in allow_list" in (tmp_path / "output.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["", "sites"], ids=["not set", "not absolute"])
def test_job_ends_where_no_site_knows_its_images(simulate, tmp_path, folder):
    workspace = simulate(rounds=1, allowed=True, FEDMERIT_SITES=folder)
    assert list(workspace.rglob("*.pt")) == []
    assert "FEDMERIT_SITES" in (tmp_path / "output.txt").read_text()
