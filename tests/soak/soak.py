"""``make soak``: a federation of real processes, faults drawn from a seed, nobody at a keyboard.

Provisioned kits on loopback, each site behind a line that can be cut; `fedmerit job watch` is all that resumes. A site
joins, another leaves. In the end every round is complete, the records verify, and the final model is, bit for bit, that
of an undisturbed run with the same attendance.

It needs Debian's package faketime, 0.9 GB of memory for each kit and for the server (8 GB by default), and, by default,
an hour on two cores: a fault costs half a minute to 7 minutes (docs/studies/soak.md).
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).parent))
import kit_processes
from faults import draw_faults, strike_all, write_table
from proxy import Proxy

from fedmerit.engines.engine import Laboratory, OpenRun
from fedmerit.engines.image_sites import ImageSites
from fedmerit.engines.local import run_local
from fedmerit.engines.nvflare.poc import HOST, find_free_port
from fedmerit.evidence.signatures import Trust
from fedmerit.evidence.verification.run import verify_run
from fedmerit.schema.configuration.run import read_plan
from fedmerit.schema.messages import Failure, Task
from fedmerit.schema.site_folder import open_sites
from fedmerit.site.site import Site
from fedmerit.site.site_log import SITE_LOG
from fedmerit_data.preparation import Preparation
from fedmerit_data.prepare import prepare
from fedmerit_data.synthetic import prostate
from fedmerit_deploy import kits, session
from fedmerit_deploy.processes import running_processes
from fedmerit_deploy.provisioning import init, make_project, organisations, revoke
from fedmerit_deploy.revocation import REVOKED

GONE = "gone"  # a site that never comes, whose certificate is revoked
ORG, ADMIN = "fedmerit", "admin@fedmerit.org"
STARTING = 900.0  # seconds for server and sites to start
PATIENTS = 6  # of a site: 8 sites then train on the 8 images or more that sites ask for in a job
TRAINED = 34  # patients of a site from which on it trains without one image that cannot be read
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)  # of Debian's package faketime
AHEAD = {"LD_PRELOAD": str(FAKETIME), "FAKETIME": "+3600", "DONT_FAKE_MONOTONIC": "1"}
MACHINE = """\
import errno, os, select, time
flush = os.fsync
def fsync(file):
    time.sleep({pace!r})
    if os.path.exists({flag!r}):
        raise OSError(errno.ENOSPC, "No space left on device")
    try:
        os.unlink({memory!r})
    except FileNotFoundError:
        pass
    else:
        raise MemoryError
    flush(file)
os.fsync = fsync
if "FAKETIME" in os.environ:  # faketime 0.9.10 and Python's own sleep: Invalid argument
    time.sleep = lambda seconds: select.select([], [], [], seconds) and None
"""
# for few small images: the run has to be the same bits as on one machine
RULES = ("least_patients=1", "least_batch=1", "least_bottom=1", "parameters_per_voxel=1e6", "secret_order=false")
SET = ("--set", "architecture=unet", "--set", "width=4", "--set", "depth=3", "--set", "batch_size=2")


class Hospitals:
    """The kits of a server and of generated sites, each of which reaches the server through a `Proxy`."""

    def __init__(self, root: Path, count: int, patients: int, pace: float):
        scanners = list(prostate.SITES.values())
        prostate.SITES = {f"site{i + 1}": replace(scanners[i % len(scanners)], thickness=7.0) for i in range(count)}
        prostate.SLICES = 5
        prepare(Preparation("synthetic-prostate", size=32, patients=patients), root / "sites")
        self.folders = open_sites(root / "sites")
        self.names, port = [folder.name for folder in self.folders], find_free_port()
        self.lines = {name: Proxy(port) for name in self.names}
        project = make_project(
            organisations(dict.fromkeys([*self.names, GONE], "")),
            HOST,
            ORG,
            {ADMIN: "project_admin"},
            ports=(port, port),
        )
        for one in project["participants"]:
            if one["name"] in self.lines:
                one["connect_to"] = {"host": HOST, "port": self.lines[one["name"]].port}
        self.kits = {kit.name: kit.path for kit in init(root / "federation", project)}
        self.kits["server"] = self.kits.pop(HOST)
        kits.prepare_server(self.kits["server"])
        for folder in self.folders:
            kits.prepare_site(self.kits[folder.name], folder.path)
            kits.set_rules(self.kits[folder.name], RULES, accept=True)
        self.disks = {name: root / "disks" / name for name in ("server", *self.names)}
        for name, disk in self.disks.items():
            disk.mkdir(parents=True)
            flags = {name: str(disk.resolve() / name) for name in ("full", "memory")}
            machine = MACHINE.format(flag=flags["full"], memory=flags["memory"], pace=pace if name != "server" else 0.0)
            (disk / "sitecustomize.py").write_text(machine)
        revoke(root / "federation", [GONE])
        shutil.copy(root / "federation" / "fedmerit" / "state" / REVOKED, self.kits["server"] / "local")
        if patients >= TRAINED:
            spoilt = self.folders[0].splits["training"][0]
            print(f"{self.folders[0].name}: {spoilt.name} cannot be read", flush=True)
            spoilt.image_file.write_bytes(b"")

    def processes(self, name: str, job_only: bool = False) -> list[psutil.Process]:
        """As of `faults.Machines`, like the next three."""
        return running_processes(self.kits[name], job_only)

    def stop(self, name: str) -> None:
        """Of everything, the script that would start it again included."""
        kit_processes.end(self.kits[name], signal.SIGKILL)

    def boot(self, name: str, ahead: bool = False) -> None:
        """As a service that starts with the machine."""
        path = [str(self.disks[name])]
        variables = {"PYTHONPATH": os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")])}
        kit_processes.start(self.kits[name], variables | (AHEAD if ahead else {}))

    def fill(self, name: str, full: bool) -> None:
        """Where files are flushed: a fixture, as a quota needs rights on the machine."""
        flag = self.disks[name] / "full"
        flag.touch() if full else flag.unlink(missing_ok=True)

    def exhaust(self, name: str) -> None:
        """Once."""
        (self.disks[name] / "memory").touch()

    def damage(self, name: str, damaged: bool) -> None:
        """By cutting a file in half; its content is kept beside it."""
        kit = self.kits[name]
        file = kit / "local" / REVOKED if name == "server" else kit / "startup" / "client.crt"
        kept = file.with_suffix(".kept")
        if damaged:
            shutil.copy(file, kept)
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        else:
            os.replace(kept, file)

    def cut(self, name: str, cut: bool) -> None:
        """Or mend."""
        (self.lines[name].cut if cut else self.lines[name].mend)()


def records_of(hospitals: Hospitals, job: str) -> list[Mapping[str, Any]]:
    """Of the server's ledger, as it stands."""
    path = hospitals.kits["server"] / "runs" / job / "ledger.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def undisturbed(run: Path, hospitals: Hospitals, records: list[Mapping[str, Any]], out: Path) -> None:
    """Train in one process what ``run`` trained, each round by those that took part in it."""
    present = [set(record["participants"]) for record in records]
    joined = {record["round"]: set(record["joined"]) for record in records if "joined" in record}

    def attend(site: Site) -> Site:
        answer = site.answer
        site.answer = lambda task: (  # type: ignore[method-assign]
            Failure("absent") if isinstance(task, Task) and site.name not in present[task.round] else answer(task)
        )
        return site

    class Next(Exception):
        """Others join now."""

    def stop_before_joins(record: Mapping[str, Any]) -> None:
        if record["round"] + 1 in joined and record["round"] + 1 not in done:
            done.add(record["round"] + 1)
            raise Next

    later, done = set().union(*joined.values()), set[int]()
    there = set(hospitals.names) - later
    while True:
        try:
            sites = ImageSites(run, [folder for folder in hospitals.folders if folder.name in there])
            run_local(OpenRun(out, read_plan(run), sites, 0, stop_before_joins, laboratory=Laboratory(attend)))
            return
        except Next:
            there |= joined[max(done)]


def main() -> int:
    """One soak run; 0 if nothing was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=8, help="one of them joins, and one leaves")
    parser.add_argument(
        "--patients", type=int, default=PATIENTS, help=f"of a site; from {TRAINED} on one is unreadable"
    )
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument(
        "--pace",
        type=float,
        default=4.0,
        help="seconds in which a site's disk flushes a file: rounds last longer than some faults",
    )
    parser.add_argument("--faults", type=int, default=18)
    parser.add_argument("--kinds", default="", help="only faults with one of these words, joined by commas")
    parser.add_argument("--longest", type=float, default=120.0, help="seconds of a stop, a cut or an absence")
    parser.add_argument(
        "--timeout",
        type=int,
        default=300,
        help="seconds for a site, in a round and as a job resumes; slow machines need more",
    )
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--join", type=int, help="round before which a site joins; default: a quarter; 0: none")
    parser.add_argument("--leave", type=int, help="round after which a site leaves; default: half; 0: none")
    parser.add_argument("--out", type=Path, required=True, help="new folder for all that the run leaves")
    asked = parser.parse_args()
    if FAKETIME is None:
        parser.error("a fault sets clocks: apt-get install faketime")
    asked.out.mkdir(parents=True)
    join = asked.rounds // 4 if asked.join is None else asked.join
    leave = asked.rounds // 2 if asked.leave is None else asked.leave
    hospitals = Hospitals(asked.out, asked.sites, asked.patients, asked.pace)
    late, leaving = hospitals.names[-1], hospitals.names[-2]
    first = hospitals.names[:-1] if join else hospitals.names
    admin, fedmerit = hospitals.kits[ADMIN], str(shutil.which("fedmerit"))
    least = len(first) - bool(leave)
    job_folder = ["--out", str(asked.out / "job"), "--rounds", str(asked.rounds), *SET, "--task", "prostate"]
    waiting = ["--min-sites", str(least), "--round-timeout", str(asked.timeout)]
    subprocess.run([fedmerit, "job", "export", "--method", asked.method, *job_folder, *waiting], check=True)
    with kit_processes.end_processes_on_exit(asked.out / "federation"):
        for name in ("server", *first):
            hospitals.boot(name)
        with session.session(admin, STARTING) as opened:
            kit_processes.wait_for_sites(opened, first, STARTING)
            job = session.submit(opened, asked.out / "job")
        began = time.monotonic()
        watching = subprocess.Popen(
            [
                fedmerit,
                "job",
                "watch",
                job,
                "--kit",
                str(admin),
                "--log",
                str(asked.out / "watch.log"),
                "--site-timeout",
                str(asked.timeout),
            ],
            stdout=subprocess.DEVNULL,
        )

        def complete() -> int:
            done = len(records_of(hospitals, job))
            if join and done >= join and not hospitals.processes(late):
                hospitals.boot(late)
            if leave and done >= leave and hospitals.processes(leaving):
                hospitals.stop(leaving)
            return done

        struck = [name for name in first if not leave or name != leaving]
        words = [word for word in asked.kinds.split(",") if word]
        faults = draw_faults(asked.seed, asked.faults, asked.rounds, struck, asked.longest, words)
        costs = strike_all(faults, hospitals, complete, lambda: watching.poll() is not None)
        while watching.poll() is None:
            complete()
            time.sleep(1)
        write_table(costs, asked.out / "faults.md")
        took, records = time.monotonic() - began, records_of(hospitals, job)
        print(
            f"{len(records)} of {asked.rounds} rounds complete in {took:.0f} s; watch exited with {watching.returncode}"
        )
        run = hospitals.kits["server"] / "runs" / job
        logs = [hospitals.kits[name] / "runs" / job / "sites" / name / SITE_LOG for name in hospitals.names]
        trust = Trust(hospitals.kits["server"] / "startup" / "rootCA.pem")
        found = verify_run(run, [log for log in logs if log.exists()], trust)
        print(f"verified: {found.records} records, logs of {', '.join(found.updates)}")
        undisturbed(run, hospitals, records, asked.out / "undisturbed")
        one, other = (torch.load(path / "models" / "global.pt") for path in (run, asked.out / "undisturbed"))
        same = one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
        print(f"final model: {'the same bits as undisturbed' if same else 'DIFFERS from the undisturbed run'}")
        lost = asked.rounds - len(records)
        for record in records:
            if lacking := set(first) - set(record["participants"]):
                print(f"round {record['round']}: without {', '.join(sorted(lacking))}")
    return int(not same or lost or watching.returncode != 0)


if __name__ == "__main__":
    sys.exit(main())
