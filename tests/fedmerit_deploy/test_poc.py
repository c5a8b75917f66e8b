"""The poc engine: a federation of processes over mutual TLS for one run, ended behind it."""

import subprocess
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from chains import verify
from federation_factory import TIMEOUT_SECONDS
from ledger_records import sentences
from signed_runs import measured

from fedmerit.errors import BadInput, RunFailed
from fedmerit.evidence.ledger import Ledger
from fedmerit.evidence.signatures import Trust
from fedmerit.evidence.verification.run import verify_run
from fedmerit.files import write_json
from fedmerit.schema.configuration.options import RunOptions
from fedmerit.schema.run_info import read_run
from fedmerit.site.site_log import SITE_LOG
from fedmerit_deploy import poc
from fedmerit_deploy.processes import running_processes

pytestmark = pytest.mark.timeout(1800)  # processes start in seconds, or in minutes where much else is at work


@pytest.mark.slow
def test_poc_engine_gives_what_the_local_engine_gives(trained, assert_same_run, processes_of):
    run = trained(engine="poc", rounds=2)
    assert_same_run(trained(rounds=2), run)
    assert running_processes(run) == processes_of(run) == []
    assert read_run(run)["engine"] == "poc"


@pytest.mark.slow
def test_poc_run_ends_with_its_command_and_goes_on(scripts, options, trained, assert_same_model, tmp_path, wait_for):
    run = tmp_path / "run"
    command = [str(word) for word in (scripts / "fedmerit", "run", "--out", run, *options(engine="poc", guard="off"))]
    with (tmp_path / "output.txt").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        wait_for(lambda: len(Ledger(run / "ledger.jsonl").records) > 0, TIMEOUT_SECONDS)
        process.kill()
        process.wait()
        wait_for(lambda: not running_processes(run), TIMEOUT_SECONDS)
        subprocess.run([command[0], "run", "--out", run, "--resume"], check=True, stdout=output, stderr=output)
    assert_same_model(run / "models/global.pt", trained() / "models/global.pt")
    assert verify(run / "ledger.jsonl") == 3
    names = sorted(path.name for path in (run / "sites").iterdir())
    root = run / f"nvflare/fedmerit/prod_00/{names[0]}/startup/rootCA.pem"
    found = verify_run(run, [run / "sites" / name / SITE_LOG for name in names], Trust(root))
    assert sentences(found) == ()
    assert found.answers == measured(run)


@pytest.mark.parametrize("error", [BadInput, RunFailed])
def test_a_run_that_is_whole_is_none_that_failed_whatever_its_session_says(tmp_path, monkeypatch, error):
    def end(*_):
        raise error("server localhost:1: hung up")

    write_json(tmp_path / "run" / "run.json", RunOptions().recorded())
    monkeypatch.setattr(poc, "make_federation", lambda *_: (tmp_path / "admin", []))
    monkeypatch.setattr(poc, "allowing", lambda *_: None)
    monkeypatch.setattr(poc, "export_job", lambda *_, **__: None)
    monkeypatch.setattr(poc, "end_processes_on_exit", lambda *_, **__: nullcontext())
    monkeypatch.setattr(poc.session, "session", end)
    config, finished = SimpleNamespace(rounds=1), [False, True, True]
    monkeypatch.setattr(poc, "is_finished", lambda run, rounds: finished.pop(0))
    poc.run_poc(config, {}, tmp_path / "run", "", lambda record: None, 0)
    finished += [False, False]
    with pytest.raises(RunFailed, match=r"hung up\nthe job ended before the run did"):
        poc.run_poc(config, {}, tmp_path / "run", "", lambda record: None, 0)
