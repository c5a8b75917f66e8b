"""Unchanged scripts of NVFlare's Client API under FedMerit's methods: the example project on several engines."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fedmerit.records.results import read_results
from fedmerit_cli.main import app

PROJECT = Path(__file__).resolve().parents[3] / "examples" / "nvflare_project"
RUN = Path("server", "simulate_job", "fedmerit")  # in a workspace of NVFlare's simulator


def simulated(folder, *arguments, job="job.py", name="fedmerit"):
    """The job of a project in ``folder``, simulated; its run folder, and what its processes printed."""
    done = subprocess.run([sys.executable, job, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder / "ws" / name / RUN, done.stdout + done.stderr


@pytest.fixture
def project(tmp_path):
    return Path(shutil.copytree(PROJECT, tmp_path / "project"))


def called(*arguments):
    done = CliRunner().invoke(app, [str(one) for one in arguments])
    return done.exit_code, done.output


def records(run):
    return [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]


def test_an_unchanged_script_runs_once_a_site_and_leaves_a_run_folder_like_any_other(project):
    run, printed = simulated(project, "cgsv", "2", "2", "ws")
    logs = (project / "ws" / "fedmerit").glob("site-*/log.txt")
    assert [log.read_text().count("start task run()") for log in logs] == [1, 1]
    assert "Result:" in printed
    results = read_results(run)
    assert (results["quantity"] == "contribution").sum() == 4
    tested = results[(results["split"] == "testing") & (results["quantity"] == "dice")]
    assert tested.groupby("site").size().to_dict() == {"site-1": 6, "site-2": 6}
    code, output = called("verify", run)
    assert code == 0, output
    code, output = called("report", run)
    assert code == 0, output
    page = re.sub(r"<[^>]+>", " ", (run / "report.html").read_text())
    assert "sites trained by scripts of their own" in page
    assert "learning rate" not in page


@pytest.mark.parametrize("method", ["cycle", "fedave"])
def test_a_method_that_a_script_cannot_do_is_refused_before_the_job(project, method):
    done = subprocess.run(
        [sys.executable, "job.py", method, "2", "30", "ws"], cwd=project, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"method {method}: " in done.stderr
    assert not (project / "ws").exists()


def recording(project, folder, client=None):
    """Have the project's script save every model that it receives, by site and round."""
    file = project / "client.py"
    keep = f"torch.save(dict(received.params), f'{folder}/{{site}}-{{received.current_round}}.pt')"
    text, found = re.subn(r"( +)(network.load_state_dict)", rf"\1{keep}\n\1\2", (client or file).read_text())
    assert found == 1
    file.write_text(text)
    folder.mkdir()
    torch.manual_seed(3)
    sys.path.insert(0, str(project))
    try:
        sys.modules.pop("model", None)
        from model import Net
    finally:
        sys.path.remove(str(project))
    torch.save(Net().state_dict(), project / "start.pt")


OURS = """
import sys, torch
from model import Net
from nvflare.recipe import SimEnv
from fedmerit import FedMeritRecipe
model = Net()
model.load_state_dict(torch.load("start.pt"))
recipe = FedMeritRecipe(name="ours", method=sys.argv[1], model=model, train_script="client.py", min_clients=3,
                        num_rounds=3, settings=dict(one.split("=") for one in sys.argv[2:]))
recipe.execute(SimEnv(num_clients=3, workspace_root="ws"))
"""
THEIRS = """
import pathlib
from model import Net
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.app_opt.pt.recipes import FedCERecipe
from nvflare.recipe import SimEnv
here = pathlib.Path("client.py").resolve().parent
recipe = RECIPE(name="theirs", model=Net(), initial_ckpt=str(here / "start.pt"), min_clients=3, num_rounds=3,
                train_script=str(here / "client.py"), key_metric="dice")
for name in ("model.py", "data.py"):
    recipe.add_client_file(str(here / name))
recipe.add_server_file(str(here / "model.py"))
recipe.execute(SimEnv(num_clients=3, workspace_root="ws"))
"""
FEDCE_CLIENT = PROJECT.parents[1] / "tests" / "support" / "fedce_client.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "client", "options", "tolerance"),
    [
        ("FedAvgRecipe", None, ("fedavg", "guard=off"), 1e-6),
        ("FedCERecipe", FEDCE_CLIENT, ("fedce_nvflare", "guard=off", "combine=plus", "statistics=weights"), 5e-4),
    ],
)
def test_every_round_begins_with_the_model_of_nvflares_own_recipe(tmp_path, recipe, client, options, tolerance):
    received = {}
    for kind, job in (("ours", OURS), ("theirs", THEIRS.replace("RECIPE(", f"{recipe}("))):
        project = Path(shutil.copytree(PROJECT, tmp_path / kind))
        recording(project, tmp_path / f"{kind} received", client)
        (project / "job.py").write_text(job)
        simulated(project, *options if kind == "ours" else (), name=kind)
        files = sorted((tmp_path / f"{kind} received").glob("*.pt"))
        received[kind] = {file.stem: torch.load(file) for file in files}
    assert len(received["ours"]) == 9
    assert received["ours"].keys() == received["theirs"].keys()
    for name, model in received["ours"].items():
        for tensor, value in model.items():
            if value.is_floating_point():
                assert np.allclose(value, received["theirs"][name][tensor], atol=tolerance), (name, tensor)


@pytest.mark.slow
def test_a_script_that_crashes_is_absent_and_the_run_ends_on_the_local_engine_too(project):
    file = project / "client.py"
    trains, crash = "        network.train()\n", "1 / (site != 'site-2' or received.current_round != 1)\n"
    file.write_text(file.read_text().replace(trains, f"        {crash}{trains}"))
    run = project / "run"
    options = ["run", "--out", run, "--method", "cgsv", "--script", file, "--model", f"{project / 'model.py'}:Net"]
    code, output = called(*options, "--clients", 3, "--rounds", 3, "--engine", "local", "--min-sites", 2)
    assert code == 0, output
    assert [sorted(record["rejected"]) for record in records(run)] == [[], ["site-2"], ["site-2"]]
    assert "ZeroDivisionError" in (run / "sites" / "site-2" / "script.log").read_text()
    code, output = called("verify", run)
    assert code == 0, output
    assert "exists already" in called(*options)[1]
    assert "nothing is left to train" in called("run", "--resume", "--out", run)[1]
    assert "resumes as it began" in called("run", "--resume", "--out", run, "--seed", 5)[1]


@pytest.mark.slow
def test_local_engine_and_simulator_give_the_same_models(project):
    runs = []
    for engine in ("local", "sim"):
        runs.append(project / engine)
        options = ["--script", project / "client.py", "--model", f"{project / 'model.py'}:Net", "--clients", 2]
        code, output = called("run", "--out", runs[-1], "--method", "cffl", *options, "--rounds", 2, "--engine", engine)
        assert code == 0, output
    assert [one["updates"] for one in records(runs[0])] == [one["updates"] for one in records(runs[1])]
