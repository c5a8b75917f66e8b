"""A federation of real processes on this machine: provisioned kits, started by their own scripts, ended for sure."""

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from gate import Gate
from kit_processes import end, end_processes_on_exit, start, wait_for_sites
from nvflare.fuel.flare_api.flare_api import Session

from fedmerit.engines.nvflare.poc import find_free_port
from fedmerit.schema.site_folder import open_sites
from fedmerit.site.machine_settings import SERVER, configured_device
from fedmerit.site.policy import JobRules
from fedmerit_deploy import kits, session
from fedmerit_deploy.processes import running_processes
from fedmerit_deploy.provisioning import init, make_project, organisations

HOST, ORG, ADMIN = "localhost", "fedmerit", "admin@fedmerit.org"
# for sites of few small images, at which many jobs train the same network
WIDE = {"least_patients": 1, "least_batch": 1, "least_bottom": 1, "parameters_per_voxel": 1e6}
RULES = JobRules(**WIDE, repeated_jobs=True, jobs_per_study=1000, secret_order=False)
TIMEOUT_SECONDS = 800.0  # seconds: what is waited for comes in some, or, on a machine with much else to do, in minutes


def make_federation(
    workspace: Path,
    run: Path | None,
    sites: Mapping[str, Path | None],
    devices: str = "",
    server_sites: Path | None = None,
    keys: Path | None = None,
    rules: JobRules | None = None,
) -> tuple[Path, list[Path]]:
    """Provision a federation on loopback and make its kits ready.

    Args:
        run: the run folder of server and sites; every job's own, in its kit, if None.
        sites: their folders, by name; None: a script, of the manifest, knows its data.
        devices: setting as `fedmerit.site.machine_settings.configured_device` reads it.
        keys: folder of the contexts of encrypted runs; None: the kits get none.
        rules: the sites' for jobs; None: `RULES`.

    Returns:
        The admin's kit; those of the server, first, and the sites.
    """
    names, port = organisations(dict.fromkeys(sites, "")), find_free_port()
    encryption = None if keys is None else {"keys": str(keys.resolve())}
    project = make_project(names, HOST, ORG, {ADMIN: "project_admin"}, ports=(port, port), encryption=encryption)
    paths = {kit.name: kit.path for kit in init(workspace, project)}
    kits.prepare_server(paths[HOST], server_sites, device=configured_device(SERVER, devices))
    for name, folder in sites.items():
        kits.prepare_site(paths[name], folder, configured_device(name, devices))
    changes: dict[str, Any] = {"run": str(run.resolve()), "runs": ""} if run else {}
    for name in (HOST, *sites):
        of_site = {"jobs": rules or RULES} if name != HOST else {}
        kits.read_manifest(paths[name]).model_copy(update=changes | of_site).write(paths[name] / "local")
    return paths[ADMIN], [paths[HOST], *(paths[name] for name in sites)]


class Federation:
    """The kits of a server and the sites of a folder.

    ``server`` and ``sites`` are started with `start`; a job's processes are NVFlare's children of theirs. While the
    ``gate`` is closed, no run in the server's kit goes further than it says.
    """

    def __init__(self, root: Path, sites: Path, run: Path | None, keys: Path | None, rules: JobRules | None):
        self.root, self.folders = root, open_sites(sites)
        self.admin, kits = make_federation(
            root, run, {folder.name: folder.path for folder in self.folders}, keys=keys, rules=rules
        )
        self.kits = dict(zip(["server", *self.names], kits, strict=True))
        self.gate = Gate(root / "gate", self.kits["server"] / "runs")

    @property
    def names(self) -> list[str]:
        """Of the sites."""
        return [folder.name for folder in self.folders]

    def start(self, *names: str) -> None:
        """Start the server ("server") and sites by their kits' scripts; all where none is named."""
        for name in names or self.kits:
            start(self.kits[name], self.gate.environment)

    def processes(self, name: str, job_only: bool = False) -> list[psutil.Process]:
        """Those at work for "server" or a site."""
        return running_processes(self.kits[name], job_only)

    def kill_job(self, name: str) -> int:
        """kill -9 of the processes that work on a job for ``name``; how many there were."""
        family = self.processes(name, job_only=True)
        for process in family:
            process.kill()
        return len(family)

    def stop(self, name: str) -> None:
        """kill -9 of everything of ``name``, the script that would restart it included."""
        end(self.kits[name], signal.SIGKILL)

    @contextmanager
    def session(self) -> Iterator[Session]:
        """The admin's."""
        with session.session(self.admin, timeout=TIMEOUT_SECONDS) as opened:
            yield opened

    def wait_for_sites(self, *names: str) -> None:
        """Until sites are connected; all where none is named."""
        with self.session() as opened:
            wait_for_sites(opened, names or self.names, seconds=TIMEOUT_SECONDS)

    def submit(self, job: Path) -> str:
        """The job's id."""
        with self.session() as opened:
            return session.submit(opened, job)

    def wait(self, job: str, seconds: float = TIMEOUT_SECONDS) -> str:
        """Until a job has ended; its last status."""
        deadline = time.monotonic() + seconds
        with self.session() as opened:
            while not session.has_job_ended(description := session.job(opened, job)):
                assert time.monotonic() < deadline, f"{description}\n{self.log()}"
                time.sleep(0.5)
        return str(description["status"])

    def fetch(self, job: str, out: Path) -> Path:
        """The run folder of a job that has ended."""
        with self.session() as opened:
            return session.fetch(opened, job, out)

    def log(self) -> str:
        """What went wrong, as the kits' logs tell."""
        logs = [log.read_text(errors="replace") for log in sorted(self.root.glob("*/prod_*/*/error_log.txt"))]
        return "\n".join(logs)[-5000:]


@contextmanager
def federation(
    root: Path,
    sites: Path,
    run: Path | None = None,
    started: bool = True,
    keys: Path | None = None,
    rules: JobRules | None = None,
) -> Iterator[Federation]:
    """A federation in the new folder ``root``; whatever happens, no process of it outlives this block.

    Args:
        root: new folder for project, kits and logs.
        sites: folder of site folders.
        run: one run folder for all jobs; every job has its own in the kits where None.
        started: whether server and sites are started, and waited for.
        keys: folder for the contexts of encrypted jobs; None: the kits get none.
        rules: of the sites for jobs; None: the defaults.
    """
    made = Federation(root, sites, run, keys, rules)
    with end_processes_on_exit(root):
        if started:
            made.start()
            made.wait_for_sites()
        yield made
