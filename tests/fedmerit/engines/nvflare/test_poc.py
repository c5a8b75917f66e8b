"""The poc engine: a federation of processes over mutual TLS for one run, ended behind it."""

import subprocess

import pytest
from chains import verify
from federation_factory import TIMEOUT_SECONDS
from ledger_records import sentences
from signed_runs import measured

from fedmerit.evidence.ledger import Ledger
from fedmerit.evidence.signatures import Trust
from fedmerit.evidence.verification.run import verify_run
from fedmerit.schema.run_info import read_run
from fedmerit.site.site_log import SITE_LOG

pytestmark = pytest.mark.timeout(1800)  # processes start in seconds, or in minutes where much else is at work


@pytest.mark.slow
def test_poc_engine_gives_the_results_of_the_local_engine(trained, assert_same_run, processes_of):
    run = trained(engine="poc", rounds=2)
    assert_same_run(trained(rounds=2), run)
    assert processes_of(run) == []
    assert read_run(run)["engine"] == "poc"


@pytest.mark.slow
def test_poc_run_whose_command_is_killed_ends_all_processes_and_resumes(
    scripts, options, trained, assert_same_model, tmp_path, wait_for, processes_of
):
    run = tmp_path / "run"
    command = [str(word) for word in (scripts / "fedmerit", "run", "--out", run, *options(engine="poc", guard="off"))]
    with (tmp_path / "output.txt").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        wait_for(lambda: len(Ledger(run / "ledger.jsonl").records) > 0, TIMEOUT_SECONDS)
        process.kill()
        process.wait()
        wait_for(lambda: not processes_of(run), TIMEOUT_SECONDS)
        subprocess.run([command[0], "run", "--out", run, "--resume"], check=True, stdout=output, stderr=output)
    assert_same_model(run / "models/global.pt", trained() / "models/global.pt")
    assert verify(run / "ledger.jsonl") == 3
    names = sorted(path.name for path in (run / "sites").iterdir())
    root = run / f"nvflare/fedmerit/prod_00/{names[0]}/startup/rootCA.pem"
    found = verify_run(run, [run / "sites" / name / SITE_LOG for name in names], Trust(root))
    assert sentences(found) == ()
    assert found.answers == measured(run)
