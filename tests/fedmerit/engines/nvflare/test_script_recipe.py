"""Unchanged scripts of NVFlare's Client API under FedMerit's methods: the example project on several engines."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fedmerit.engines.script_sites import Launch, ScriptProcess, load_model
from fedmerit.errors import BadInput, RunFailed
from fedmerit.schema.records import EVALUATE, TRAIN
from fedmerit.schema.results import read_results
from fedmerit.trainers.script.trainer import Question
from fedmerit_cli.main import app

PROJECT = Path(__file__).resolve().parents[4] / "examples" / "nvflare_project"
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


@pytest.mark.slow
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
    assert code == 3, output
    code, output = called("report", run)
    assert code == 0, output
    page = re.sub(r"<[^>]+>", " ", (run / "report.html").read_text())
    assert "sites trained by scripts of their own" in page
    assert "learning rate" not in page


@pytest.mark.parametrize("method", ["cycle", "ditto"])
def test_a_method_that_a_script_cannot_do_is_refused_before_the_job(project, monkeypatch, method):
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(project)
    monkeypatch.delitem(sys.modules, "model", raising=False)
    monkeypatch.setattr(sys, "argv", ["job.py", method, "2", "30", "ws"])
    with pytest.raises(BadInput, match=f"method {method}: "):
        runpy.run_path("job.py", run_name="__main__")
    assert not (project / "ws").exists()


def recording(project, folder, client=None):
    """Have the project's script save every model that it receives, by site and round."""
    file = project / "client.py"
    share = "torch.tensor((received.meta or {}).get('fedce_coef', {}).get(site, 0.0))"
    file_of_round = f"f'{folder}/{{site}}-{{received.current_round}}.pt'"
    keep = f"torch.save(dict(received.params, coefficient={share}), {file_of_round})"
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
FEDCE = ("fedce_nvflare", "guard=off", "combine=plus", "statistics=weights", "averaged_by=site")
FEDCE_CLIENT = PROJECT.parents[1] / "tests" / "support" / "fedce_client.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "client", "rounds", "options", "tolerance"),
    [("FedAvgRecipe", None, 3, ("fedavg", "guard=off"), 1e-6), ("FedCERecipe", FEDCE_CLIENT, 6, FEDCE, 5e-4)],
)
def test_every_round_begins_with_what_nvflares_own_recipe_sends(tmp_path, recipe, client, rounds, options, tolerance):
    received = {}
    for kind, job in (("ours", OURS), ("theirs", THEIRS.replace("RECIPE(", f"{recipe}("))):
        project = Path(shutil.copytree(PROJECT, tmp_path / kind))
        recording(project, tmp_path / f"{kind} received", client)
        (project / "job.py").write_text(job.replace("num_rounds=3", f"num_rounds={rounds}"))
        simulated(project, *options if kind == "ours" else (), name=kind)
        files = sorted((tmp_path / f"{kind} received").glob("*.pt"))
        received[kind] = {file.stem: torch.load(file) for file in files}
    assert len(received["theirs"]) == 3 * rounds
    assert (received["theirs"][f"site-1-{rounds - 1}"]["coefficient"] > 0) == (client is not None)
    for name, model in received["theirs"].items():  # ours also has those of the final test
        for tensor, value in model.items():
            if not tensor.endswith("num_batches_tracked"):  # NVFlare averages it, too
                assert np.allclose(value, received["ours"][name][tensor], atol=tolerance), (name, tensor)


CALLING = """
import fedmerit
fedmerit.run(out="run", method="fedavg", script="client.py", model="model.py:Net", clients=2, rounds=1, engine="local")
"""


@pytest.mark.slow
def test_a_program_without_a_main_guard_trains_by_scripts_whose_processes_do_not_run_it_again(project):
    (project / "call.py").write_text(CALLING)
    done = subprocess.run([sys.executable, "call.py"], cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert [record["rejected"] for record in records(project / "run")] == [{}]


@pytest.mark.slow
def test_a_script_that_crashes_is_absent_and_the_run_ends_on_the_local_engine_too(project):
    file = project / "client.py"
    trains, crash = "        network.train()\n", "1 / (site != 'site-2' or received.current_round != 1)\n"
    file.write_text(file.read_text().replace(trains, f"        {crash}{trains}"))
    run = project / "run"
    options = ["run", "--out", run, "--method", "cgsv", "--script", file, "--model", f"{project / 'model.py'}:Net"]
    code, output = called(*options, "--clients", 3, "--rounds", 3, "--engine", "local", "--min-sites", 2)
    assert code == 0, output
    assert [sorted(record["rejected"]) for record in records(run)] == [[], ["site-2"], []]  # it is started again
    assert records(run)[1]["failed"] == ["site-2"]
    assert "ZeroDivisionError" in (run / "sites" / "site-2" / "script.log").read_text()
    assert "ZeroDivisionError" in output  # its sites are the caller's own
    code, output = called("verify", run)
    assert code == 3, output
    assert "exists already" in called(*options)[1]
    assert "nothing is left to train" in called("run", "--resume", "--out", run)[1]
    assert "resumes as it began" in called("run", "--resume", "--out", run, "--seed", 5)[1]


@pytest.mark.slow
def test_script_that_crashes_once_is_started_again_and_its_lost_memory_is_noted(project, tmp_path):
    file = project / "client.py"
    mark = tmp_path / "crashed"
    crash = (
        f"import pathlib; once = pathlib.Path({str(mark)!r}); first = site == 'site-2' and not once.exists()\n"
        "        once.touch() if site == 'site-2' and received.current_round else None\n"
        "        assert not (first and received.current_round), 'once'\n"
    )
    trains = "        network.train()\n"
    file.write_text(file.read_text().replace(trains, f"        {crash}{trains}"))
    run = project / "run"
    options = ["run", "--out", run, "--method", "cgsv", "--script", file, "--model", f"{project / 'model.py'}:Net"]
    code, output = called(*options, "--clients", 2, "--rounds", 2, "--engine", "local")
    assert code == 0, output
    assert [record["rejected"] for record in records(run)] == [{}, {}]
    assert "site-2: its script was started again, without what it held in memory" in records(run)[1]["notes"]
    assert "scores are of dice" in records(run)[0]["notes"][0]


BROKEN = {
    "raise RuntimeError('no data')": "RuntimeError: no data",
    "import sys; sys.exit(3)": r"sys.exit\(3\)",
    "received.params['absent']": "KeyError: 'absent'",
}


@pytest.mark.slow
@pytest.mark.parametrize("statement", BROKEN)
def test_recipe_raises_the_scripts_own_error_to_its_caller(project, statement):
    file, trains = project / "client.py", "        network.train()\n"
    file.write_text(file.read_text().replace(trains, f"        {statement}\n{trains}"))
    command = [sys.executable, "job.py", "cgsv", "2", "1", "ws"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr[done.stderr.rindex("fedmerit.errors.RunFailed: ") :]
    assert re.search(BROKEN[statement], last), last
    assert "site-1" in last


TWO_PROCESSES = """
import torch
import torch.distributed as dist
from model import Net
from torch.nn.parallel import DistributedDataParallel
import nvflare.client as flare

dist.init_process_group("gloo")
rank = dist.get_rank()
flare.init(rank=str(rank))
network = Net()
parallel, generator = DistributedDataParallel(network), torch.Generator().manual_seed(rank)
optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
while True:
    received = flare.receive() if rank == 0 and flare.is_running() else None
    state = [received.params if received else None]
    dist.broadcast_object_list(state, src=0)
    if state[0] is None:
        break
    network.load_state_dict(state[0])
    images = torch.randn(4, 1, 16, 16, generator=generator)
    loss = parallel(images).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0:
        metrics = {"accuracy": 1 / dist.get_world_size()}
        flare.send(flare.FLModel(params=network.state_dict(), metrics=metrics, meta={"NUM_STEPS_CURRENT_ROUND": 1}))
dist.destroy_process_group()
"""
TORCHRUN = "python3 -m torch.distributed.run --standalone --nproc_per_node=2"


@pytest.mark.slow
def test_script_of_two_processes_at_each_site_is_started_by_torchrun(project, monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    (project / "client.py").write_text(TWO_PROCESSES)
    job, more = project / "job.py", f"launch_external_process=True, command={TORCHRUN!r},"
    text = job.read_text().replace("num_rounds=rounds,", f"num_rounds=rounds, {more}")
    job.write_text(text.replace("run = recipe", "recipe.add_client_file('model.py')\n    run = recipe"))
    run, _ = simulated(project, "cgsv", "2", "2", "ws")
    assert [record["validation_dice"] for record in records(run)] == [{"site-1": 0.5, "site-2": 0.5}] * 2
    assert records(run)[0]["metric"] == "accuracy"


ADAPTED = """

class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = Net().requires_grad_(False)
        self.adapter = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, bias=False), nn.Conv2d(2, 1, 1, bias=False)).half()

    def forward(self, images):
        return self.base(images) + self.adapter.float()(images)


def adapters():
    return {name: value for name, value in Adapted().state_dict().items() if name.startswith("adapter.")}
"""


@pytest.mark.slow
def test_adapters_only_in_half_precision_are_what_a_run_sends_and_keeps(project):
    with (project / "model.py").open("a") as file:
        file.write(ADAPTED)
    client, text = project / "client.py", (project / "client.py").read_text()
    for old, new in (
        ("import Net", "import Adapted"),
        ("network = Net()", "network = Adapted()"),
        ("(received.params)", "(received.params, strict=False)"),
        (
            "params=network.state_dict()",
            "params={name: network.state_dict()[name].to(value.dtype) for name, value in received.params.items()}",
        ),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    client.write_text(text)
    run = project / "run"
    options = [
        "run", "--out", run, "--method", "cgsv", "--script", client, "--model", f"{project / 'model.py'}:adapters"
    ]  # fmt: skip
    code, output = called(*options, "--rounds", 2, "--engine", "local")
    assert code == 0, output
    kept = torch.load(next((run / "models").glob("*.pt")))
    assert {name: tuple(value.shape) for name, value in kept.items()} == {
        "adapter.0.weight": (2, 1, 3, 3),
        "adapter.1.weight": (1, 2, 1, 1),
    }
    assert [record["rejected"] for record in records(run)] == [{}, {}]
    assert (read_results(run)["quantity"] == "contribution").sum() == 4
    code, output = called("verify", run)
    assert code == 3, output


HANG = "import threading; threading.Event().wait()"  # for ever, whatever the clock says


@pytest.mark.slow
def test_scripts_that_never_answer_end_the_run_with_a_message_that_names_the_sites(project):
    file = project / "client.py"
    file.write_text(file.read_text().replace("        network.train()\n", f"        {HANG}\n"))
    options = ["run", "--out", project / "run", "--method", "cgsv", "--script", file, "--engine", "local"]
    code, output = called(*options, "--model", f"{project / 'model.py'}:Net", "--script-timeout", 0.5)
    assert code == 1
    reported = " ".join(output.split())
    for site in ("site-1", "site-2"):
        assert f"site {site}: its script gave no answer in 0.5 seconds, and was ended" in reported


@pytest.mark.slow
def test_a_script_that_trains_and_never_answers_an_evaluation_is_ended_in_time(project, tmp_path):
    file = project / "client.py"
    answer = "flare.send(flare.FLModel(metrics=metrics))"
    file.write_text(file.read_text().replace(answer, HANG))
    sys.path.insert(0, str(project))
    try:
        state = load_model(f"{project / 'model.py'}:Net").state_dict()
    finally:
        sys.path.remove(str(project))
    script = ScriptProcess("site-1", Launch(file=str(file), sha256="", clients=1), tmp_path / "script.log")
    try:
        assert script.ask(Question(TRAIN, state, 0, 1, {})).params.keys() == state.keys()
        script.timeout = 0.5
        for words in ("no answer in 0.5 seconds", r"its script ended \(exit code -9\); mend that, then --resume"):
            with pytest.raises(RunFailed, match=f"^site site-1: .*{words}"):
                script.ask(Question(EVALUATE, state, 0, 1, {}))
    finally:
        script.close()


TELLING = """        secret = "_".join(("scan", "4711"))
        print(secret, flush=True)
        logging.getLogger("script").warning(secret)
        flare.log("file", secret, AnalyticsDataType.TEXT)
        flare.log(secret, 0.5, AnalyticsDataType.SCALAR)
"""


@pytest.mark.slow
@pytest.mark.parametrize("apart", [False, True], ids=["in process", "external process"])
def test_what_a_script_logs_and_measures_besides_stays_at_its_site(project, apart):
    file, text = project / "client.py", (project / "client.py").read_text()
    for old, new in (
        ("import torch\n", "import logging, torch\nfrom nvflare.apis.analytix import AnalyticsDataType\n"),
        ("        network.load_state_dict", f"{TELLING}        network.load_state_dict"),
        ('"dice_by_case": dice}', '"dice_by_case": dice, "file": secret, secret: 0.5}'),
        ("len(batches)}\n", 'len(batches), "file": secret, secret: 1}\n'),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    file.write_text(text)
    job = project / "job.py"
    command = f"launch_external_process={apart}, command='{sys.executable} -u', settings="
    job.write_text(job.read_text().replace("settings=", command))
    simulated(project, "cgsv", "2", "2", "ws")
    workspace = project / "ws" / "fedmerit"

    def telling(name):
        files = [path for path in (workspace / name).rglob("*") if path.is_file()]
        return [path.name for path in files if b"scan_4711" in path.read_bytes()]

    assert "log.txt" in telling("site-1")
    assert (workspace / RUN / "ledger.jsonl").exists()
    assert telling("server") == []


@pytest.mark.slow
def test_what_changed_and_a_sites_own_model_come_from_a_process_of_the_scripts_own(project):
    shutil.copy(PROJECT.parents[1] / "tests" / "support" / "helped_client.py", project / "client.py")
    job, own = project / "job.py", f"launch_external_process=True, command='{sys.executable} -u', "
    job.write_text(job.read_text().replace("settings=", f"{own}params_transfer_type='DIFF', settings="))
    run, _ = simulated(project, "ditto", "2", "2", "ws")
    assert [record["rejected"] for record in records(run)] == [{}, {}]
    enrolled = records(run)[0]["guard"]["enrolled"]
    assert [one["cases"]["training"] for one in enrolled.values()] == [24, 16]
    models = [torch.load(file) for file in sorted((project / "ws").rglob("models/site-*.pt"))]
    assert len(models) == 2  # each at its site
    assert not torch.equal(*(model["last.weight"] for model in models))
    code, output = called("verify", run)
    assert code == 3, output


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "sim"])
def test_a_lightning_module_trains_answers_evaluations_and_a_displaced_hospital_stands_out(project, engine):
    pytest.importorskip("pytorch_lightning", reason="not installed: pip install -e '.[lightning]'")
    run, model = project / "run", f"{project / 'lightning_model.py'}:LitNet"
    options = ["--script", project / "lightning_client.py", "--model", model, "--clients", 4, "--set", "guard=off"]
    code, output = called("run", "--out", run, "--method", "cgsv", *options, "--rounds", 3, "--engine", engine)
    assert code == 0, output
    last = records(run)[-1]
    assert (last["round"], last["rejected"]) == (2, {})
    displaced = last["contributions"].pop("site-4")
    assert displaced < min(last["contributions"].values()) - 0.3
    tested = read_results(run).query("split == 'testing' and quantity == 'dice'")
    assert tested["site"].tolist() == ["site-1", "site-2", "site-3", "site-4"]
    assert {name.partition(".")[0] for name in torch.load(next((run / "models").glob("*.pt")))} == {"network"}


@pytest.mark.slow
def test_local_engine_and_simulator_give_the_same_models(project):
    runs = []
    for engine in ("local", "sim"):
        runs.append(project / engine)
        options = ["--script", project / "client.py", "--model", f"{project / 'model.py'}:Net", "--clients", 2]
        code, output = called("run", "--out", runs[-1], "--method", "cffl", *options, "--rounds", 2, "--engine", engine)
        assert code == 0, output
    assert [one["updates"] for one in records(runs[0])] == [one["updates"] for one in records(runs[1])]
