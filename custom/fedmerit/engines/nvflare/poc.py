"""The poc engine: NVFlare's PocEnv for one run, server and sites as processes over mutual TLS on this machine.

``python -m fedmerit.engines.nvflare.poc RUN WORKSPACE SITE...`` is the program; its environment says where images are.
"""

import os
import shutil
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from random import SystemRandom
from typing import Any

import yaml
from nvflare.lighter.spec import Builder, Project, ProvisionContext
from nvflare.recipe.poc_env import PocEnv

from fedmerit.ciphertexts import KEYS
from fedmerit.engines.nvflare.components import CONTEXT_BUILDER, class_path
from fedmerit.engines.nvflare.program import end_with_parent_command
from fedmerit.engines.nvflare.recipe import MeritRecipe, build_site_policy
from fedmerit.engines.nvflare.start_scripts import SafeStartBuilder
from fedmerit.errors import RunFailed
from fedmerit.files import read_object, write_json
from fedmerit.schema.configuration.options import Waiting
from fedmerit.schema.configuration.run import RunConfiguration, read_plan
from fedmerit.schema.configuration.specs import HE
from fedmerit.schema.run_info import read_run
from fedmerit.schema.scores import EVALUATED
from fedmerit.server.checkpoint import is_finished
from fedmerit.site.evaluation_budget import most_evaluations
from fedmerit.site.machine_settings import RUN, SERVER, SERVER_SITES, SITES, configured_device
from fedmerit.site.policy import ALL_PARTS, JobRules, Manifest, SiteScript

NAME, STATE = "fedmerit", "state"  # of NVFlare's project; its folder of keys
HOST = "localhost"
TIMEOUT_SECONDS = 300.0  # seconds for server and sites to start; a machine with much to do takes minutes
PORTS = range(20000, 32000)  # below those that systems give to outgoing connections, whichever comes first
TINY, MANY, MOST_JOBS = 1e-300, 1e6, 1_000_000  # rules that refuse nothing
SCHEDULING = {"min_schedule_interval": 2.0, "max_schedule_interval": 30.0, "max_schedule_count": 100}


class RunKits(Builder):
    """An NVFlare provisioning step: lets every kit take part in one run, whose owner is also this machine's.

    Args:
        run: the run folder; both sites and server keep their parts of the run there.
    """

    def __init__(self, run: str):
        self.run = Path(run)

    def build(self, project: Project, ctx: ProvisionContext) -> None:
        """Write what classes a job may name, and the manifest, into the kits of server and sites."""
        config, script = read_plan(self.run), read_run(self.run).get("script")
        sites, server = project.get_clients(), project.get_server()
        rules = allow_plan(config, len(sites))
        of_script = {name: script[name] for name in ("file", "sha256", "args")} if script else {}
        for participant in (server, *sites):
            local, is_server = Path(ctx.get_local_dir(participant)), participant is server
            resources = read_object(local / "resources.json.default")
            for part in resources["components"]:
                if part["id"] == "job_scheduler":  # a job that waits for a site is looked at again soon
                    part["args"] |= SCHEDULING
            write_json(local / "resources.json.default", resources | build_site_policy(track=is_server))
            name = SERVER if is_server else participant.name
            settings: dict[str, Any] = {"device": configured_device(name), "run": os.environ[RUN], "parts": ALL_PARTS}
            if is_server:
                settings |= {"server_sites": os.environ[SERVER_SITES]}
            elif script:
                settings |= {"script": SiteScript(**of_script), "jobs": rules}
            else:
                settings |= {"site_folder": str(Path(os.environ[SITES]) / name), "jobs": rules}
            Manifest(site=name, **settings).write(local)


def allow_plan(config: RunConfiguration, sites: int) -> JobRules:
    """Return the default rules and what a plan asks for beyond them: the sites are its author's own."""
    rules, network, training = JobRules(), config.network, config.training
    wanted = {split: most_evaluations(config, split, sites) for split in EVALUATED}
    return JobRules(
        architectures=tuple({*rules.architectures, network.architecture}),
        arguments=tuple({*rules.arguments, *network.arguments}),
        optimizers=tuple({*rules.optimizers, training.optimizer}),
        least_images=0,
        least_patients=0,
        least_batch=0,
        least_lr=TINY,
        sgd_least_lr=TINY,
        least_bottom=0,
        parameters_per_voxel=MANY,
        repeated_jobs=True,
        jobs_per_study=MOST_JOBS,
        largest_lr=max(rules.largest_lr, training.lr),
        largest_weight_decay=max(rules.largest_weight_decay, training.weight_decay),
        keep_updates=config.keep_updates,
        share_models=config.share_models,
        secret_order=False,
        evaluations={split: max(rules.caps[split], wanted[split]) for split in EVALUATED},
    )


def write_project(run: Path, workspace: Path, sites: Sequence[str], is_encrypted: bool) -> Path:
    """Write the project file of a federation on this machine: NVFlare's example with the run's sites; its path."""
    content = yaml.safe_load((files("nvflare.lighter") / "dummy_project.yml").read_text())
    roles = {one["type"]: one for one in content["participants"] if one.get("role", "project_admin") == "project_admin"}
    port = find_free_port()
    clients = [{"name": name, "type": "client", "org": f"site{row}"} for row, name in enumerate(sites)]
    server = roles["server"] | {"name": SERVER, "fed_learn_port": port, "admin_port": port}
    keys = {"path": CONTEXT_BUILDER, "args": {"keys": str((run / KEYS).resolve())}}  # they outlive the kits
    kits = {"path": class_path(RunKits), "args": {"run": str(run.resolve())}}
    content |= {"name": NAME, "participants": [server, *clients, roles["admin"]]}
    start = {"path": class_path(SafeStartBuilder)}
    content["builders"][-1:-1] = [*[keys] * is_encrypted, start, kits]
    workspace.mkdir(parents=True, exist_ok=True)
    (workspace / "poc.yml").write_text(yaml.safe_dump(content))
    return workspace / "poc.yml"


def clear(workspace: Path) -> None:
    """Delete the federation of a process that was killed, except its keys: what they signed stays theirs."""
    for path in (*workspace.glob("*/*"), *workspace.glob("*")):
        if path.name == STATE or any(path.glob(STATE)):
            continue
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def find_free_port() -> int:
    """Return a port of this machine that nobody uses now, and that no outgoing connection is given before it is used.

    Raises:
        RunFailed: none was found.
    """
    for port in SystemRandom().sample(PORTS, 100):
        with socket.socket() as candidate, suppress(OSError):
            candidate.bind((HOST, port))
            return port
    raise RunFailed(f"no free port found between {PORTS.start} and {PORTS.stop}; end what listens there")


def find_errors(workspace: Path) -> str:
    """Return the last errors in the logs of the kits, and of the job in them."""
    kits = f"{NAME}/prod_*/*"
    lines = [
        f"{log.relative_to(workspace).parts[2]}: {line}"
        for log in sorted([*workspace.glob(f"{kits}/log.txt"), *workspace.glob(f"{kits}/*/log.txt")])
        for line in log.read_text(errors="replace").splitlines()
        if "ERROR" in line or "Error:" in line
    ]
    return "\n".join(lines[-5:])


def main(run: str, workspace: str, *sites: str) -> None:
    """Provision a federation, start it, have it do the run's job, and wait for the end of the job."""
    end_with_parent_command()
    info, root = read_run(Path(run)), Path(workspace).resolve()
    os.environ["NVFLARE_POC_WORKSPACE"] = str(root)
    clear(root)
    project = write_project(Path(run), root, sites, HE in info["privacy"])
    waiting, parts = Waiting.of_record(info), (info["privacy"], info["track"], info.get("script"))
    recipe = MeritRecipe(read_plan(Path(run)), "job", waiting, len(sites), *parts)
    env = PocEnv(num_clients=len(sites), project_conf_path=str(project), extra={"login_timeout": TIMEOUT_SECONDS})
    env.get_job_result(
        recipe.execute(env).get_job_id()
    )  # waits; `Run.get_result` would stop NVFlare afterwards, which the other end does faster
    if not is_finished(Path(run), info["rounds"]):
        print(find_errors(root))


if __name__ == "__main__":
    main(*sys.argv[1:])
