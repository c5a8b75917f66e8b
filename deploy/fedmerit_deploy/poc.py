"""The poc engine: server and sites as processes of their own on this machine, over mutual TLS on loopback.

By the machinery of a real deployment: provisioned kits, started by their own scripts, a job submitted by an admin.
The server's and the sites' manifests name the run folder, so that results and memory lie there and need no fetching.
"""

import shutil
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from random import SystemRandom
from typing import Any

from fedmerit.ciphertexts import KEYS
from fedmerit.engines.nvflare.recipe import export_job
from fedmerit.errors import BadInput, RunFailed
from fedmerit.evidence.ledger import Ledger
from fedmerit.files import read_json
from fedmerit.schema.configuration.options import Waiting
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.configuration.specs import HE
from fedmerit.server.checkpoint import is_finished
from fedmerit.site.machine_settings import SERVER, configured_device
from fedmerit.site.policy import JobRules, SiteScript
from fedmerit_deploy import kits, session
from fedmerit_deploy.job_ends import JobEnd
from fedmerit_deploy.processes import end_processes_on_exit, start
from fedmerit_deploy.provisioning import STATE, init, make_project, organisations, provision_again, state_folder
from fedmerit_deploy.proxies import no_proxy_for
from fedmerit_deploy.site_policy import allowing

HOST, ORG, ADMIN = "localhost", "fedmerit", "admin@fedmerit.org"
TIMEOUT_SECONDS = 300.0  # seconds for server and sites to start; a machine with much to do takes minutes
PORTS = range(20000, 32000)  # below those that systems give to outgoing connections, whichever comes first
POLL = 0.3  # seconds between looks at the ledger
LOOKS = 5  # at the ledger for one at the job


def run_poc(
    config: RunConfiguration,
    sites: Mapping[str, Path | None],
    run: Path,
    devices: str,
    on_round: Callable[[Mapping[str, Any]], None],
    lock: int,
    server_sites: str | None = None,
    script: SiteScript | None = None,
) -> None:
    """Run, or resume, ``run`` on a federation of processes that is made for it and ended afterwards.

    Args:
        sites: their folders, by name; None: their ``script`` knows its data.
        run: the run folder, with run.json; the federation lies in ``run/nvflare``.
        devices: setting as `fedmerit.site.machine_settings.configured_device` reads it.
        lock: file descriptor that holds the run folder until all processes have ended.
        server_sites: folder of the server's own site folders, if it has any.

    Raises:
        RunFailed: the job ended before the run did; judged by the run folder, not by what NVFlare says.
    """
    follow = Ledger(run / "ledger.jsonl").follower(on_round)
    if not is_finished(run, config.rounds):
        workspace = run / "nvflare"
        _clear(workspace)
        own_sites = Path(server_sites) if server_sites else None
        info, job_folder = read_json(run / "run.json"), workspace / "job"
        more = {name: info.get(name) for name in ("privacy", "track", "script")}
        keys = run / KEYS if HE in more["privacy"] else None  # they outlive the kits: what is encrypted has to be read
        rules = allowing(config, len(sites))  # the sites' owner and the plan's author are one user
        admin, others = make_federation(workspace, run, sites, devices, own_sites, keys, rules, script)
        for kit in others:  # this machine is the user's own
            kits.approve(kit, None)
        export_job(config, job_folder, Waiting.of_record(info), start_sites=len(sites), **more)
        ended: list[str] = []
        try:
            with no_proxy_for(HOST), end_processes_on_exit(workspace, keep=[lock]), ExitStack() as stack:
                for kit in others:
                    start(kit)
                opened = stack.enter_context(session.session(admin, TIMEOUT_SECONDS))
                session.wait_for_sites(opened, list(sites), TIMEOUT_SECONDS)
                job = session.submit(opened, job_folder)
                # after it is closed, the sites learn how
                while not session.has_job_ended(description := session.job(opened, job)):
                    for _ in range(LOOKS):
                        follow()
                        time.sleep(POLL)
                ended = [JobEnd.of(description).error]
        except (BadInput, RunFailed) as error:  # of the session: these kits are not the user's
            if not is_finished(run, config.rounds):
                raise RunFailed(f"{error}\n{_explain_failure(workspace)}") from error
        if not is_finished(run, config.rounds):
            raise RunFailed("\n".join(filter(None, [*ended, _explain_failure(workspace)])))
    follow()


def make_federation(
    workspace: Path,
    run: Path | None,
    sites: Mapping[str, Path | None],
    devices: str = "",
    server_sites: Path | None = None,
    keys: Path | None = None,
    rules: JobRules | None = None,
    script: SiteScript | None = None,
) -> tuple[Path, list[Path]]:
    """Provision a federation on loopback and make its kits ready.

    Args:
        run: the run folder of server and sites; every job's own, in its kit, if None.
        sites: as of `run_poc`.
        devices: setting as `fedmerit.site.machine_settings.configured_device` reads it.
        keys: folder of the contexts of encrypted runs; None: the kits get none.
        rules: the sites' for jobs; None: the defaults.

    Returns:
        The admin's kit; those of the server, first, and the sites.
    """
    names, port = organisations(dict.fromkeys(sites, "")), free_port()
    encryption = None if keys is None else {"keys": str(keys.resolve())}
    project = make_project(names, HOST, ORG, {ADMIN: "project_admin"}, ports=(port, port), encryption=encryption)
    make = provision_again if state_folder(workspace, project).exists() else init
    paths = {kit.name: kit.path for kit in make(workspace, project)}
    where: dict[str, Any] = {"run": str(run.resolve())} if run else {}
    kits.prepare_server(paths[HOST], server_sites, device=configured_device(SERVER, devices), **where)
    for name, folder in sites.items():
        device = configured_device(name, devices)
        kits.prepare_site(paths[name], folder, device, jobs=rules, script=script, **where)
    return paths[ADMIN], [paths[HOST], *(paths[name] for name in sites)]


def _clear(workspace: Path) -> None:
    """Delete the federation of a process that was killed, except its keys: what they signed stays theirs."""
    for path in (*workspace.glob("*/*"), *workspace.glob("*")):
        if path.name == STATE or any(path.glob(STATE)):
            continue
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def free_port() -> int:
    """A port of this machine that nobody uses now, and that no outgoing connection is given before it is used.

    Raises:
        RunFailed: none was found.
    """
    for port in SystemRandom().sample(PORTS, 100):
        with socket.socket() as candidate, suppress(OSError):
            candidate.bind((HOST, port))
            return port
    raise RunFailed(f"no free port found between {PORTS.start} and {PORTS.stop}; end what listens there")


def _explain_failure(workspace: Path) -> str:
    lines = [
        f"{log.parent.name}: {line}"
        for log in sorted(workspace.glob("*/prod_*/*/log.txt"))
        for line in log.read_text(errors="replace").splitlines()
        if "ERROR" in line or "Error:" in line
    ]
    last = "\n".join(lines[-5:]) or "no error in its logs"
    return f"the job ended before the run did:\n{last}\nlogs: log.txt and start.log in the kits below {workspace}"
