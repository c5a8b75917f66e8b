"""What hospitals and their coordinator do with a federation at work, over mutual TLS on loopback."""

import json
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from federation_factory import TIMEOUT_SECONDS, Federation, federation
from tiny import flags

from fedmerit.evidence.ledger import Ledger
from fedmerit.evidence.verification.run import verify_run
from fedmerit_deploy import session
from fedmerit_deploy.facts import LISTED
from fedmerit_deploy.membership import ask_membership
from fedmerit_deploy.provisioning import renew
from fedmerit_deploy.status import SILENCE, read_federation

ROUNDS = 3

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # whole federations of processes


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory, sites: Path) -> Iterator[Federation]:
    root = tmp_path_factory.mktemp("hospitals")
    own = shutil.copytree(sites, root / "sites")  # a test spoils them
    with federation(root / "kits", own, started=False) as made:
        manifest = made.kits["site2"] / "local/fedmerit.json"
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"hidden": ["gpu", "last_error"]}))
        made.start()
        made.wait_for_sites()
        yield made


def test_status_shows_facts_and_silence_of_sites(hospitals, wait_for, fedmerit):
    shown = json.loads(fedmerit("job", "status", "--kit", hospitals.admin, "--json").stdout)["sites"]
    assert set(LISTED) - set(shown["site1"]["facts"]) == {"batch"}  # none is at work
    assert set(LISTED) - set(shown["site2"]["facts"]) == {"batch", "gpu", "last_error"}
    assert [one["flags"] for one in shown.values()] == [[]] * len(shown)
    stopped = hospitals.processes("site1")
    for process in stopped:
        process.send_signal(signal.SIGSTOP)
    try:
        wait_for(lambda: read_federation(hospitals.admin).sites["site1"].flags, SILENCE + 60)
        state = read_federation(hospitals.admin).sites
        assert state["site1"].flags == [state["site1"].connection]
        assert state["site1"].connection.startswith("silent for ")
        assert state["site2"].flags == []
    finally:
        for process in stopped:
            process.send_signal(signal.SIGCONT)


def test_rehearsal_names_site_that_would_fail(hospitals, fedmerit, tmp_path):
    asked = ("--method", "fedce", "--task", "prostate", "--rounds", 30, "--set", "width=4", "--set", "depth=3")
    assert fedmerit("job", "export", "--out", tmp_path / "job", *asked).exit_code == 0
    command = ("deploy", "check", "--job", tmp_path / "job", "--kit", hospitals.admin, "--out")
    result = fedmerit(*command, tmp_path / "fine")
    assert result.exit_code == 0, result.output
    assert result.output.count("received") == len(hospitals.names)
    assert "1 round verified, signed by" in result.output
    images = hospitals.folders[0].path / "datalist.json"
    moved = images.rename(images.with_name("gone.json"))
    try:
        result = fedmerit(*command, tmp_path / "spoilt", "--wait", 60)
    finally:
        moved.rename(images)
    assert result.exit_code == 1
    assert result.output.count("received") == len(hospitals.names) - 1
    reported = " ".join(result.output.split())
    assert "refuses the job; the site's own log says why; errors.log in its kit" in reported
    assert "not ready: 1 problem" in reported


def test_server_refuses_revoked_and_accepts_renewed_kit(hospitals, fedmerit, wait_for):
    kit, out = hospitals.kits["site2"], hospitals.root
    fine = ask_membership(kit)  # beside the running site
    assert (fine.is_revoked, fine.is_disabled, fine.is_newest) == (False, False, True)
    (renewed,) = [one.path for one in renew(out, ["site2"])]
    shutil.copy(out / "fedmerit/state/revoked.pem", hospitals.kits["server"] / "local")
    began = time.monotonic()
    wait_for(lambda: read_federation(hospitals.admin).sites["site2"].silent is None, 60)
    took = time.monotonic() - began
    hospitals.stop("site2")
    assert ask_membership(kit).is_revoked
    assert read_federation(hospitals.admin).sites["site2"].silent is None
    hospitals.start("site2")
    wait_for(lambda: "Login failed" in (kit / "log.txt").read_text() + (kit / "start.log").read_text(), 120)
    hospitals.stop("site2")
    assert read_federation(hospitals.admin).sites["site2"].silent is None
    shutil.rmtree(kit / "startup")
    shutil.copytree(renewed / "startup", kit / "startup")
    hospitals.start("site2")
    hospitals.wait_for_sites("site2")
    assert took < 60


def test_removed_site_leaves_run_and_federation(
    hospitals, fedmerit, trained, assert_same_model, assert_same_rounds, wait_for, tmp_path
):
    """The training is the leave-one-out run, bit for bit; the kit is refused within a minute."""
    tiny = ("--rounds", ROUNDS, *flags())
    fedmerit("job", "export", "--method", "fedce", "--task", "prostate", "--out", tmp_path / "job", *tiny)
    hospitals.gate.close(1)
    first = hospitals.submit(tmp_path / "job")
    ledger = hospitals.kits["server"] / "runs" / first / "ledger.jsonl"
    wait_for(lambda: ledger.exists() and ledger.read_text().endswith("\n"), TIMEOUT_SECONDS)
    result = fedmerit("job", "remove", first, "site3", "--kit", hospitals.admin)
    hospitals.gate.open()
    assert result.exit_code == 0, result.output
    new = result.output.split("job:")[1].split()[0]
    assert hospitals.wait(new) == session.COMPLETED, hospitals.log()
    run = hospitals.fetch(new, tmp_path / "run")
    assert Ledger(run / "ledger.jsonl").records[0]["notes"] == [f"repeats the run of job {first} without site3"]
    assert Ledger(ledger).records[0]["participants"] == hospitals.names  # it stays, with what the site contributed
    pair = shutil.copytree(hospitals.folders[0].path.parent, tmp_path / "sites")
    shutil.rmtree(pair / "site3")
    undisturbed = trained(sites=pair, rounds=ROUNDS, guard="on")
    assert_same_model(run / "models/global.pt", undisturbed / "models/global.pt")
    assert_same_rounds(run, undisturbed)
    verify_run(run)

    server = ("--server-kit", hospitals.kits["server"])
    assert fedmerit("deploy", "revoke", "--out", hospitals.root, "--names", "site3", *server).exit_code == 0
    began = time.monotonic()
    wait_for(lambda: read_federation(hospitals.admin).sites["site3"].silent is None, 90)
    assert time.monotonic() - began < 60
