"""Scripts at hospitals: over mutual TLS in processes of their own, and only those that a kit's manifest names."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from chains import verify
from federation_factory import federation
from ledger_records import sentences

from fedmerit.engines.nvflare.executor import ERRORS
from fedmerit.evidence.ledger import Ledger
from fedmerit.evidence.signatures import Trust
from fedmerit.evidence.verification.run import verify_run
from fedmerit.files import read_json, write_json
from fedmerit.site.policy import MANIFEST
from fedmerit_deploy import session
from fedmerit_deploy.kits import prepare_server

PROJECT = Path(__file__).resolve().parents[2] / "examples" / "nvflare_project"
NAMES = ["site1", "site2"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # processes start in seconds, or in minutes

POC = """
import sys
from model import Net
from nvflare.recipe import PocEnv
from fedmerit import FedMeritRecipe
recipe = FedMeritRecipe(method="cgsv", model=Net(), train_script="client.py", min_clients=2, num_rounds=2,
                        launch_external_process=True, command=sys.executable + " -u")
env = PocEnv(num_clients=2)
try:
    run = recipe.execute(env)
    run.get_result(clean_up=False)
    print("Status:", run.get_status())
finally:
    env.stop(clean_up=False)
"""
EXPORT = """
from pathlib import Path
from model import Net
from fedmerit import FedMeritRecipe
recipe = FedMeritRecipe(method="cgsv", model=Net(), train_script="client.py", min_clients=2, num_rounds=2,
                        bring_code=False)
recipe.export("jobs")
recipe.save_first_model(Path("."))
"""


@pytest.fixture
def project(tmp_path):
    return Path(shutil.copytree(PROJECT, tmp_path / "project"))


def execute(project, text, **more):
    (project / "job.py").write_text(text)
    command = [sys.executable, "job.py"]
    done = subprocess.run(
        command, cwd=project, env=os.environ | more, capture_output=True, text=True, check=False, timeout=1500
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_script_runs_in_own_process_with_signed_ledger(project, tmp_path):
    workspace = tmp_path / "poc"
    assert "Status: FINISHED:COMPLETED" in execute(project, POC, NVFLARE_POC_WORKSPACE=str(workspace))
    run = next(workspace.rglob("transfer/*/workspace/fedmerit"))
    assert verify(run / "ledger.jsonl") == 2
    assert all(record["signature"] for record in Ledger(run / "ledger.jsonl").records)
    found = verify_run(run, trust=Trust(next(workspace.rglob("site-1/startup/rootCA.pem"))))
    assert not [one for one in sentences(found) if "certificate" in one]


@pytest.fixture
def hospitals(sites, tmp_path):
    """Server and two sites at work, whose manifests name no script yet."""
    root = tmp_path / "pair"
    for name in NAMES:
        shutil.copytree(sites / name, root / name)
    with federation(tmp_path / "kits", root, started=False) as made:
        prepare_server(made.kits["server"], runs=made.root / "runs")
        made.start()
        made.wait_for_sites()
        yield made


def test_kit_runs_only_unchanged_approved_script(hospitals, project):
    execute(project, EXPORT)
    job = project / "jobs" / "fedmerit"
    assert not list(job.rglob("*.py")) + list(job.rglob("*.pt"))  # it brings nothing
    shutil.copy(project / "first_model.pt", hospitals.kits["server"] / "local")
    script = project / "client.py"
    script.write_text(script.read_text().replace("get_site_name()", "get_site_name().replace('site', 'site-')"))

    def reasons():
        files = [file for name in NAMES for file in hospitals.kits[name].rglob(ERRORS)]
        return "\n".join(file.read_text() for file in files)

    assert hospitals.wait(hospitals.submit(job)) != session.COMPLETED
    assert "the manifest names none" in reasons()
    for name in NAMES:
        manifest = hospitals.kits[name] / "local" / MANIFEST
        own = {"file": str(script), "sha256": hashlib.sha256(script.read_bytes()).hexdigest()}
        write_json(manifest, read_json(manifest) | {"script": own})
    done = hospitals.submit(job)
    assert hospitals.wait(done) == session.COMPLETED, hospitals.log() + reasons()
    assert verify(hospitals.root / "runs" / done / "ledger.jsonl") == 2
    script.write_text(script.read_text() + "\n")
    assert hospitals.wait(hospitals.submit(job)) != session.COMPLETED
    assert "approved was" in reasons()
