"""A provisioned federation on this machine: kits of `deploy init`, processes by their own start scripts, no code."""

import json
import re
import shutil
import socket
import ssl
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from certificates import certify
from chains import verify
from federation_factory import RULES, TIMEOUT_SECONDS, federation
from kit_processes import end, start
from tiny import flags

from fedmerit.engines.nvflare.executor import ERRORS
from fedmerit.errors import BadInput
from fedmerit.evidence.ledger import Ledger
from fedmerit.files import RUN_NAME
from fedmerit.schema.results import read_results
from fedmerit.schema.run_info import read_run
from fedmerit.site.site_log import SITE_LOG
from fedmerit_deploy import session
from fedmerit_deploy.kit_files import server_address
from fedmerit_deploy.kits import prepare_server
from fedmerit_deploy.provisioning import add_sites, init, make_project

NAMES = ["site1", "site2"]  # a site is two processes, which take seconds to begin
NO_ROUND = "its first round was not complete"

pytestmark = pytest.mark.timeout(1800)  # processes start in seconds, or in minutes where much else is at work


@pytest.fixture(scope="module")
def export(fedmerit, tmp_path_factory):
    """Writes a tiny job folder by `fedmerit job export`."""

    def write(name, *options, method="fedce", rounds=2, **settings):
        out = tmp_path_factory.mktemp("job") / name
        asked = ("--method", method, "--task", "prostate", "--rounds", rounds, "--min-sites", 2)
        result = fedmerit("job", "export", "--out", out, *asked, *flags(**settings), *options)
        assert result.exit_code == 0, result.output
        return out

    return write


@pytest.fixture(scope="module")
def pair(sites, tmp_path_factory):
    """Site folders of two hospitals."""
    root = tmp_path_factory.mktemp("pair")
    for name in NAMES:
        shutil.copytree(sites / name, root / name)
    return root


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory, pair):
    """Server and sites at work. The server would take code that a job brings; the sites do not, but share models."""
    rules = RULES.model_copy(update={"share_models": True})
    with federation(tmp_path_factory.mktemp("federation") / "kits", pair, started=False, rules=rules) as made:
        prepare_server(made.kits["server"], byoc=True, runs=made.root / "runs")
        made.start()
        made.wait_for_sites()
        yield made


@pytest.fixture(scope="module")
def finished(hospitals, export):
    """The id of a FedCE job that ran."""
    job = hospitals.submit(export("fedce"))
    assert hospitals.wait(job) == session.COMPLETED, hospitals.log()
    return job


@pytest.fixture
def check_fetched(hospitals, pair, trained, fedmerit, assert_same_model, assert_same_rounds, tmp_path):
    """What `fedmerit job fetch` brings of a job of two rounds is what the local engine makes of them."""

    def check(job, method):
        run, expected = tmp_path / method, trained(method=method, sites=pair, rounds=2, guard="on")
        result = fedmerit("job", "fetch", job, "--kit", hospitals.admin, "--out", run)
        assert result.exit_code == 0, result.output
        models = sorted(path.name for path in (expected / "models").glob("*.pt"))
        assert models
        for name in models:
            assert_same_model(run / "models" / name, expected / "models" / name)
        assert verify(run / "ledger.jsonl") == 2
        assert_same_rounds(run, expected)
        for record in Ledger(run / "ledger.jsonl").records:  # each site signed how its own log ended
            assert {site: len(said.split(" ")) for site, said in record["logs"].items()} == dict.fromkeys(
                record["participants"], 2
            )

    return check


@pytest.mark.slow
def test_parallel_jobs_share_no_memory(hospitals, export, check_fetched):
    jobs = {method: hospitals.submit(export(method, method=method)) for method in ("fedce", "cgsv")}
    assert [hospitals.wait(job) for job in jobs.values()] == [session.COMPLETED] * 2, hospitals.log()
    for method, job in jobs.items():
        check_fetched(job, method)
        assert read_run(hospitals.root / "runs" / job)["method"] == method
    for name in NAMES:
        folders = [hospitals.kits[name] / "runs" / job / "sites" / name for job in jobs.values()]
        assert [sorted(path.name for path in folder.glob("round_*.pt")) for folder in folders] == [
            ["round_00000.pt", "round_00001.pt"]
        ] * 2


@pytest.mark.slow
def test_fetched_run_can_be_reported(hospitals, finished, fedmerit, tmp_path):
    run = hospitals.fetch(finished, tmp_path / "run")
    info = read_run(run)
    assert (info["method"], info["engine"], info["sites"], info["rounds"]) == ("fedce", "prod", NAMES, 2)
    assert info["command"] == f"NVFlare job {finished}"
    assert str(hospitals.root) not in (run / "run.json").read_text()
    for command in ("report", "verify"):
        result = fedmerit(command, run)
        assert result.exit_code == (0 if command == "report" else 3), result.output
    assert "site2" in (run / "report.html").read_text()


@pytest.fixture(scope="module")
def ungated(hospitals, export, scripts):
    """What NVFlare's own command says on submitting a job without FedMerit's gate; it ran.

    Meanwhile site2's own gate, which `deploy site` wrote into its privacy scope, rounded to two decimals.
    """
    job = export("ungated", rounds=1)
    path = job / "app/config/config_fed_client.json"
    config = json.loads(path.read_text())
    chains = config["task_result_filters"]
    assert {one["path"] for chain in chains for one in chain["filters"]} == {
        "fedmerit.engines.nvflare.egress.EgressFilter"
    }
    path.write_text(json.dumps(config | {"task_result_filters": []}))
    scope = hospitals.kits["site2"] / "local/privacy.json"
    whole = scope.read_text()
    policy = json.loads(whole)
    (gate,) = policy["scopes"][0]["task_result_filters"]
    gate["args"]["decimals"] = 2
    scope.write_text(json.dumps(policy))
    command = [scripts / "nvflare", "job", "submit", "-j", job, "--startup-kit", hospitals.admin]
    reported = subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT_SECONDS).stdout
    with hospitals.session() as opened:
        name = session.jobs(opened)[0]["job_id"]
    assert hospitals.wait(name) == session.COMPLETED, hospitals.log()
    scope.write_text(whole)
    return name, reported


@pytest.mark.slow
def test_nvflare_command_submits_job(hospitals, ungated):
    name, reported = ungated
    assert name in reported
    with hospitals.session() as opened:
        assert session.job(opened, name)["name"] == "ungated"


@pytest.mark.slow
def test_site_filter_applies_to_every_job(hospitals, ungated, tmp_path):
    results = read_results(hospitals.fetch(ungated[0], tmp_path / "run"))
    reported = results[results["quantity"] == "train_loss"].set_index("site")["value"]
    assert {site: reported[site] == round(reported[site], 2) for site in NAMES} == {"site1": False, "site2": True}


@pytest.mark.slow
def test_sites_exchange_models(hospitals, pair, export, trained, fedmerit, assert_same_model, tmp_path):
    """From site to site; the models stay there, and the logs of both agree on what was given."""
    settings = ("warmup=1", "R=2", "exchange=peer", "warmup_by=own")
    job = export(
        "cycle",
        "--share-models",
        *(word for setting in settings for word in ("--set", setting)),
        method="cycle",
        rounds=3,
    )
    name = hospitals.submit(job)
    assert hospitals.wait(name) == session.COMPLETED, hospitals.log()
    run = hospitals.fetch(name, tmp_path / "run")
    expected = trained(*settings, method="cycle", sites=pair, guard="on")
    logs = []
    for site in NAMES:
        own = hospitals.kits[site] / "runs" / name
        assert_same_model(own / f"models/{site}.pt", expected / f"models/{site}.pt")
        logs += ["--site-log", own / "sites" / site / SITE_LOG]
    assert [path.name for path in run.rglob("*.pt")] == ["checkpoint.pt"]
    result = fedmerit("verify", run, "--certificate", hospitals.kits["site1"] / "startup/rootCA.pem", *logs)
    assert result.exit_code == 3, result.output
    assert len(re.findall(r"site\d gave site\d a model in [12] rounds, by the logs of both$", result.stdout, re.M)) == 2


# Jobs that nobody takes, and that are stopped


def changed(job, change):
    """A job folder, after a change of what it says of the sites' executor."""
    path = job / "app/config/config_fed_client.json"
    config = json.loads(path.read_text())
    change(config["executors"][0]["executor"])
    path.write_text(json.dumps(config))
    return job


def foreign(job):
    """A job that names a class on NVFlare's own list of allowed classes, and not on ours."""
    executor = {"path": "nvflare.app_common.np.np_trainer.NPTrainer", "args": {}}
    return changed(job, lambda config: config.update(executor))


@pytest.fixture
def assert_no_run(fedmerit, tmp_path):
    """A job that is over left no run to be fetched, or at the server if no site took it; the message has the words."""

    def check(hospitals, job, *words, why="no site took it"):
        result = fedmerit("job", "fetch", job, "--kit", hospitals.admin, "--out", tmp_path / "run")
        assert result.exit_code == 2, result.output
        for word in (f"job {job}: left no run: {why}", *words):
            assert word in result.stderr
        assert not (tmp_path / "run").exists()
        folders = hospitals.root.rglob(f"runs/{job}/sites/*" if why == NO_ROUND else f"runs/{job}")
        left = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
        assert {path.name for path in left} <= {ERRORS}  # a site's own, where it says why

    return check


@pytest.fixture(scope="module")
def refused(hospitals, export):
    """Ids of jobs that the sites refuse, by what is wrong with them; both are submitted before either is waited for."""
    jobs = {"foreign": foreign(export("foreign")), "byoc": export("byoc", "--byoc")}
    names = {wrong: hospitals.submit(job) for wrong, job in jobs.items()}
    assert {hospitals.wait(name) for name in names.values()} == {"FINISHED:FAILED_TO_RUN"}
    return names


@pytest.mark.slow
def test_sites_refuse_job_with_foreign_class(hospitals, refused, assert_no_run):
    path = "Component 'nvflare.app_common.np.np_trainer.NPTrainer' at config path 'executors.0.executor'"
    reported = [f"{site}: {path} is not in allow_list" for site in NAMES]
    assert_no_run(hospitals, refused["foreign"], *reported, "fedmerit job export")


@pytest.mark.slow
def test_sites_refuse_job_with_code(hospitals, refused, assert_no_run):
    name = refused["byoc"]
    with hospitals.session() as opened:
        explained = session.explain_refusal(session.job(opened, name))
    reported = [f"{site}: BYOC not permitted" for site in NAMES]
    assert sorted(text for text in explained if "BYOC" in text) == reported
    assert_no_run(hospitals, name, *reported)


@pytest.mark.slow
def test_job_without_able_site_leaves_no_run(hospitals, export, assert_no_run):
    job = changed(export("broken"), lambda executor: executor["args"].update(plan={"method": "no such method"}))
    name = hospitals.submit(job)
    assert hospitals.wait(name).startswith("FINISHED:EXECUTION_EXCEPTION")
    assert_no_run(hospitals, name, *(f"{site}: cannot read the run's plan" for site in NAMES), why=NO_ROUND)


@pytest.mark.slow
def test_plan_beyond_rules_leaves_no_run(hospitals, export, assert_no_run):
    """Two images, one step, plain SGD: an update from which the images follow.

    The server learns the rules, but not what is broken of those about images.
    """
    settings = {"optimizer": "sgd", "steps": 1, "batch_size": 2}
    name = hospitals.submit(export("hostile", "--keep-updates", method="fedavg", **settings))
    assert hospitals.wait(name).startswith("FINISHED:EXECUTION_EXCEPTION")
    rules = "(images, optimizers, sgd_least_lr, keep_updates)"
    assert_no_run(hospitals, name, *(f"{site}: refuses the job by its rules {rules}" for site in NAMES), why=NO_ROUND)
    for site in NAMES:
        (log,) = (hospitals.kits[site] / "runs" / name).rglob(ERRORS)
        assert all(rule in log.read_text() for rule in ("least_images: ", "optimizers: ", "keep_updates: "))
    reported = [path.read_text() for path in hospitals.kits["server"].rglob("*.txt")]
    assert not any("least_images" in text for text in reported)


@pytest.mark.slow
def test_job_refused_at_start_leaves_no_run(pair, export, assert_no_run, tmp_path):
    """NVFlare's own check, of sites without ours: the server's process is at work by then."""
    with federation(tmp_path / "kits", pair, started=False) as made:
        for kit in made.kits.values():
            path = kit / "local/resources.json"
            resources = json.loads(path.read_text())
            del resources["app_validator"]
            path.write_text(json.dumps(resources))
        made.start()
        made.wait_for_sites()
        name = made.submit(foreign(export("foreign")))
        assert made.wait(name) in ("FINISHED:ABORTED", "FINISHED:ABNORMAL")  # the other, where it ended too late
        assert_no_run(made, name, "log.txt")
        reported = [path.read_text() for path in made.root.rglob(f"{name}/log.txt")]
        assert any(
            "np_trainer.NPTrainer' at config path" in text and "is not in allow_list" in text for text in reported
        )


@pytest.mark.slow
def test_abort_stops_waiting_job(hospitals, export, fedmerit, tmp_path):
    """For a third site, which there is not."""
    result = fedmerit("job", "submit", export("waiting", "--min-sites", 3), "--kit", hospitals.admin)
    assert result.exit_code == 0, result.output
    assert "connected sites: site1, site2" in result.output
    job = result.output.split()[1]
    early = fedmerit("job", "fetch", job, "--kit", hospitals.admin, "--out", tmp_path / "run")
    assert early.exit_code == 2
    assert "fetch it when it is over" in early.stderr
    result = fedmerit("job", "abort", job, "--kit", hospitals.admin)
    assert result.exit_code == 0, result.output
    assert "ABORTED" in hospitals.wait(job)
    again = fedmerit("job", "abort", job, "--kit", hospitals.admin)
    assert again.exit_code == 2
    assert "over already" in again.stderr


@pytest.mark.slow
def test_abort_stops_running_job(hospitals, export, fedmerit, tmp_path, wait_for):
    """What is done by then can be fetched."""
    job = hospitals.submit(export("long", rounds=500))

    def reported():
        return " ".join(fedmerit("job", "status", job, "--kit", hospitals.admin).output.split())

    wait_for(lambda: re.search(rf"{job}: round \d+ of 500, Dice \d+\.\d%, weights", reported()), TIMEOUT_SECONDS)
    result = fedmerit("job", "abort", job, "--kit", hospitals.admin)
    assert result.exit_code == 0, result.output
    assert "ABORTED" in hospitals.wait(job)
    assert verify(hospitals.fetch(job, tmp_path / "run") / "ledger.jsonl") > 0


@pytest.fixture
def fetched(tmp_path):
    """What `session.fetch` makes of a failed job whose run has a number of complete rounds; None: it has no run."""

    def download(job_id, folder):
        return str(shutil.copytree(tmp_path / "result", Path(folder) / job_id))

    def fetch(rounds):
        run = tmp_path / "result/workspace" / RUN_NAME
        (run if rounds is not None else run.parent).mkdir(parents=True)
        if rounds is not None:
            (run / "run.json").write_text("{}")
        for number in range(rounds or 0):
            Ledger(run / "ledger.jsonl").append({"round": number})
        description = {"job_id": "job1", "status": "FINISHED:EXECUTION_EXCEPTION"}
        opened = SimpleNamespace(
            get_job_meta=lambda job_id: description, download_job_result=download, list_jobs=lambda **_: []
        )
        return session.fetch(opened, "job1", tmp_path / "out")

    return fetch


def test_fetch_of_failed_job_with_complete_round(fetched):
    assert verify(fetched(rounds=1) / "ledger.jsonl") == 1


@pytest.mark.parametrize(("rounds", "why"), [(0, "its first round was not complete"), (None, "no site took it")])
def test_fetch_rejects_run_without_complete_round(fetched, tmp_path, rounds, why):
    with pytest.raises(BadInput, match=f"job job1: left no run: {why}; its status is FINISHED:EXEC.*; log.txt in the"):
        fetched(rounds)
    assert [path.name for path in tmp_path.iterdir()] == ["result"]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["status", "fetch", "abort", "resume"])
def test_commands_reject_unknown_job(hospitals, fedmerit, tmp_path, command):
    out = ("--out", tmp_path / "run") if command == "fetch" else ()
    result = fedmerit("job", command, "no-such-job", "--kit", hospitals.admin, *out)
    assert result.exit_code == 2
    assert "no-such-job" in result.stderr
    assert "fedmerit job status" in result.stderr


@pytest.fixture(scope="module")
def newcomers(hospitals, tmp_path_factory):
    """Sites added while the server runs: one as it should be, one with an expired certificate, one of elsewhere."""
    added = {kit.name: kit for kit in add_sites(hospitals.root, {"late": "fedmerit", "expired": "fedmerit"})}
    startup = added["expired"].path / "startup/client"
    certify(hospitals.root / "fedmerit/state/cert.json", startup, "expired", -20, -10)
    host, port = server_address(hospitals.kits["server"])
    project = make_project({"foreign": "org"}, host, "org", {"a@b.org": "lead"}, ports=(port, port))
    elsewhere = init(hospitals.root / "elsewhere", project)
    return {name: kit.path for name, kit in added.items()} | {kit.name: kit.path for kit in elsewhere}


def greeting(kit):
    """What the server says to anybody with a kit's certificate; nothing where it hangs up."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it is the server that has to look
    context.load_cert_chain(kit / "startup/client.crt", kit / "startup/client.key")
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection(server_address(kit), TIMEOUT_SECONDS) as plain,
            context.wrap_socket(plain) as secure,
        ):
            return secure.recv(100)
    except (ssl.SSLError, ConnectionResetError):  # it hangs up in one way or another
        return b""


@pytest.mark.slow
def test_server_rejects_foreign_certificates(hospitals, newcomers, wait_for):
    assert greeting(newcomers["late"])
    assert greeting(newcomers["expired"]) == greeting(newcomers["foreign"]) == b""
    log = hospitals.kits["server"] / "start.log"
    for words in ("certificate has expired", "unable to get local issuer certificate"):
        wait_for(lambda words=words: words in log.read_text(errors="replace"), TIMEOUT_SECONDS)


@pytest.mark.slow
def test_server_rejects_foreign_sites(hospitals, newcomers, wait_for):
    for name in ("expired", "foreign", "late"):
        start(newcomers[name])
    hospitals.wait_for_sites("late")
    wait_for(lambda: "re-challenge" in (newcomers["foreign"] / "start.log").read_text(), TIMEOUT_SECONDS)
    with hospitals.session() as opened:
        assert session.connected(opened) == ["late", *NAMES]
    for kit in newcomers.values():
        end(kit)
