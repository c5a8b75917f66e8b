"""Sites and the server of a provisioned federation killed with SIGKILL: the run continues and ends undisturbed."""

import json
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from federation_factory import HOST, TIMEOUT_SECONDS, Federation, federation
from ledger_records import sentences
from tiny import flags

from fedmerit.evidence.signatures import CERTIFICATE, Trust
from fedmerit.evidence.verification.run import verify_run
from fedmerit.site.site_log import SITE_LOG
from fedmerit_deploy import session
from fedmerit_deploy.provisioning import renew

ROUNDS = 4

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # whole federations of processes, minutes each


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory, sites: Path) -> Iterator[Federation]:
    """A server and three sites at work."""
    with federation(tmp_path_factory.mktemp("federation") / "kits", sites) as running:
        yield running


@pytest.fixture
def job(fedmerit: Callable[..., object], tmp_path: Path) -> Callable[..., Path]:
    """A tiny FedCE job as `fedmerit job export` writes it."""

    def export(rounds: int = ROUNDS, *options: object) -> Path:
        tiny = ("--rounds", rounds, *flags())
        fedmerit("job", "export", "--method", "fedce", "--task", "prostate", "--out", tmp_path / "job", *tiny, *options)
        return tmp_path / "job"

    return export


class Run:
    """A run on a federation, over all the jobs that it takes."""

    def __init__(self, hospitals: Federation, folder: Path):
        self.hospitals = hospitals
        self.first = self.job = hospitals.submit(folder)

    def records(self) -> list[dict]:
        """Of the server's ledger, as it stands."""
        path = self.hospitals.kits["server"] / "runs" / self.first / "ledger.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for(self, condition: Callable[[list[dict]], bool], seconds: float = TIMEOUT_SECONDS) -> list[dict]:
        """Until the ledger's records are such; these records."""
        deadline = time.monotonic() + seconds
        while not condition(records := self.records()):
            assert time.monotonic() < deadline, self.hospitals.log()
            time.sleep(0.1)
        return records

    def resume(self) -> None:
        """Go on in a new job."""
        with self.hospitals.session() as opened:
            self.job = session.resume(opened, self.job)

    def log_of(self, site: str) -> Path:
        return self.hospitals.kits[site] / "runs" / self.first / "sites" / site / SITE_LOG

    def fetch(self, out: Path) -> Path:
        """The run folder, once the last job has come to its end; ledger and sites' logs checked."""
        assert self.hospitals.wait(self.job) == session.COMPLETED, self.hospitals.log()
        run = self.hospitals.fetch(self.job, out)
        for site in self.hospitals.names:
            found = verify_run(run, [self.log_of(site)], Trust(self.hospitals.kits[site] / "startup/rootCA.pem"))
            assert list(found.updates) == [site]
            assert found.signer
            assert not any("signed" in sentence for sentence in sentences(found))
        return run


def kill(run: Run, victim: str, how: str) -> None:
    """The job's processes of ``victim``, or all that it has at work, which then starts again."""
    if how == "job":
        run.hospitals.kill_job(victim)
    else:
        run.hospitals.stop(victim)
        run.hospitals.start(victim)
        run.hospitals.wait_for_sites()


@pytest.fixture
def check_killed(fedmerit, hospitals, job, trained, assert_same_model, assert_same_rounds, tmp_path):
    def check(kills: list[tuple[str, str]], rounds: int, seed: int) -> None:
        draws = random.Random(seed)
        hospitals.gate.close(rounds - 1)
        run = Run(hospitals, job(rounds, "--min-sites", 3))
        for number, (victim, how) in enumerate(kills):
            due = number * rounds // len(kills)
            run.wait_for(lambda records, due=due: len(records) >= due)
            time.sleep(draws.uniform(0, 3))
            kill(run, victim, how)
            if number == len(kills) - 1:
                hospitals.gate.open()
            run.resume()
        folder = run.fetch(tmp_path / "run")
        whole = trained(rounds=rounds, guard="on")
        assert_same_model(folder / "models/global.pt", whole / "models/global.pt")
        assert [record["participants"] for record in run.records()] == [hospitals.names] * rounds
        assert_same_rounds(folder, whole)
        again = fedmerit("job", "resume", run.job, "--kit", hospitals.admin)
        assert again.exit_code == 2
        assert "came to its end; fetch it" in again.stderr

    return check


def test_run_survives_death_of_job_process_and_server(check_killed):
    check_killed([("site2", "job"), ("server", "all")], ROUNDS, seed=0)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_run_survives_ten_deaths_at_random_moments(check_killed):
    draws = random.Random(1)
    victims = [("server", "job"), ("server", "all"), *((f"site{n}", how) for n in (1, 2, 3) for how in ("job", "all"))]
    check_killed([draws.choice(victims) for _ in range(10)], rounds=10, seed=1)


def test_absent_site_rejoins_run(hospitals, job, wait_for, tmp_path):
    """Its machine stops; the others continue after the time stated; resumed, it takes part again."""

    def last(*participants: str) -> Callable[[list[dict]], bool]:
        return lambda records: bool(records) and records[-1]["participants"] == list(participants)

    hospitals.gate.close(11)
    run = Run(hospitals, job(13, "--min-sites", 2, "--round-timeout", 30))  # two rounds to come back in
    run.wait_for(last(*hospitals.names))
    hospitals.stop("site1")
    single = run.wait_for(last("site2", "site3"))[-1]
    assert single["rejected"] == {"site1": "no reply"}
    assert sum(single["weights"].values()) == pytest.approx(1)
    run.wait_for(lambda records: len(records) >= 11)  # the site costs one timeout, not one each round
    log = (hospitals.kits["server"] / run.first / "log.txt").read_text()
    assert log.count("asked beside the others from now on: site1") == 1
    server = hospitals.kits["server"] / "log.txt"
    logins = server.read_text().count("New client site1@")
    hospitals.start("site1")
    wait_for(lambda: server.read_text().count("New client site1@") > logins, TIMEOUT_SECONDS)  # until then the old one
    run.resume()
    hospitals.gate.open()
    run.fetch(tmp_path / "run")
    assert run.records()[-1]["participants"] == hospitals.names
    assert all(weight > 0 for weight in run.records()[-1]["weights"].values())


def test_killed_process_of_site_ends_no_job(hospitals, job, tmp_path):
    """It is started again by the site, and has its part in every round: no command, no other job."""
    hospitals.gate.close(2)
    run = Run(hospitals, job(ROUNDS, "--min-sites", 2, "--round-timeout", 600))
    run.wait_for(lambda records: len(records) >= 2)
    assert hospitals.kill_job("site3") >= 1
    hospitals.gate.open()
    run.fetch(tmp_path / "run")
    assert run.job == run.first
    assert [record["participants"] for record in run.records()] == [hospitals.names] * ROUNDS


def test_watched_run_resumes_by_itself(hospitals, job, fedmerit, scripts, tmp_path):
    """The server's machine, then a site's, stops and starts again: nobody types a command."""
    hospitals.gate.close(2)
    run, log = Run(hospitals, job(ROUNDS, "--min-sites", 3)), tmp_path / "watch.log"
    run.wait_for(lambda records: len(records) >= 2)
    command = [scripts / "fedmerit", "job", "watch", run.first, "--kit", hospitals.admin, "--log", log]
    with subprocess.Popen(command) as watching:
        try:
            hospitals.stop("server")
            hospitals.start("server")
            hospitals.wait_for_sites()
            reported = " ".join(fedmerit("job", "status", run.first, "--kit", hospitals.admin).output.split())
            assert f"{run.first}: ended, the server was started again while it ran" in reported
            again = fedmerit("job", "abort", run.first, "--kit", hospitals.admin)
            assert (again.exit_code, "is over already" in again.stderr) == (2, True)
            hospitals.gate.close(3)
            run.wait_for(lambda records: len(records) >= 3)
            hospitals.stop("site1")
            hospitals.start("site1")
            hospitals.gate.open()
            assert watching.wait(TIMEOUT_SECONDS) == 0
        finally:
            watching.kill()
    lines = [line.split(" ", 3) for line in log.read_text().splitlines()]
    reasons = [reason for _, _, action, reason in lines if action == "resume:"]
    first, second = reasons
    assert "the server was started again" in first
    assert "site1: connected, without a part" in second
    run.job = lines[-1][1]
    run.fetch(tmp_path / "run")
    records = run.records()
    assert any("the server was started again" in note for record in records for note in record.get("notes", ()))
    assert [record["participants"] for record in records] == [hospitals.names] * ROUNDS


def test_run_continues_with_renewed_keys(hospitals, job, tmp_path):
    hospitals.gate.close(2)
    run = Run(hospitals, job(ROUNDS, "--min-sites", 3))
    run.wait_for(lambda records: len(records) >= 2)
    renewed = dict(zip(("server", "site2"), renew(hospitals.root, [HOST, "site2"]), strict=True))
    for name in hospitals.kits:
        hospitals.stop(name)  # all: NVFlare's server signed what lets them in with the key that it had
    for name, kit in renewed.items():
        shutil.rmtree(hospitals.kits[name] / "startup")
        shutil.copytree(kit.path / "startup", hospitals.kits[name] / "startup")
    hospitals.start()
    hospitals.wait_for_sites()
    hospitals.gate.open()
    run.resume()
    folder = run.fetch(tmp_path / "run")
    assert [record["participants"] for record in run.records()] == [hospitals.names] * ROUNDS
    message = {"server": folder, **{name: run.log_of(name).parent for name in hospitals.names}}
    keys = {name: (place / CERTIFICATE).read_text().count("BEGIN CERTIFICATE") for name, place in message.items()}
    assert keys == {"server": 2, "site1": 1, "site2": 2, "site3": 1}
