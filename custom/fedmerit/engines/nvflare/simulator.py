"""NVFlare's simulator as one program: server and sites are forked from a process that has imported everything, once.

NVFlare's own begins a program for every site, which imports PyTorch and MONAI by itself and sleeps for two seconds
after every task. What server and sites do, and send each other, is NVFlare's either way.

``python -m fedmerit.engines.nvflare.simulator RUN WORKSPACE THREADS SITE...`` is that process; its environment says
where images and the run are.
"""

import copy
import gc
import multiprocessing
import os
import shutil
import sys
import traceback
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import torch._dynamo  # noqa: F401  # the first step of an optimiser imports it, 90 MB: here once for all sites
from nvflare.apis.fl_constant import ConfigVarName, FLContextKey, SystemConfigs, WorkspaceConstants
from nvflare.apis.workspace import Workspace
from nvflare.app_common.widgets.component_path_authorizer import CLASS_ALLOW_LIST
from nvflare.fuel.hci.server.authz import AuthorizationService
from nvflare.fuel.sec.audit import AuditService
from nvflare.fuel.utils import log_utils
from nvflare.fuel.utils.config_service import ConfigService
from nvflare.private.fed.app.simulator.simulator_runner import SimulatorRunner
from nvflare.private.fed.app.simulator.simulator_worker import ClientTaskWorker
from nvflare.private.fed.app.utils import init_security_content_service
from nvflare.private.fed.simulator.simulator_audit import SimulatorAuditor
from nvflare.private.fed.simulator.simulator_const import SimulatorConstants
from nvflare.private.fed.utils.fed_utils import fobs_initialize, register_ext_decomposers
from nvflare.recipe.sim_env import SimEnv
from nvflare.security.security import EmptyAuthorizer

from fedmerit.engines.nvflare import shared_machine
from fedmerit.engines.nvflare.executor import MeritExecutor
from fedmerit.engines.nvflare.program import end_with_parent_command
from fedmerit.engines.nvflare.recipe import MeritRecipe, build_site_policy
from fedmerit.engines.nvflare.shared_machine import concurrency_slot
from fedmerit.files import read_object, write_json
from fedmerit.reasons import KILLED
from fedmerit.schema.configuration.options import Waiting
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.trainers.factory import load_image_trainer
from fedmerit.workers import end_with_parent

load_image_trainer()  # here, so that the processes of the sites share what it loads

EXPORTED = "exported"  # folder of the job in the simulator's workspace
LONGEST = 1.0  # seconds that an idle site sleeps without a wake-up: an abort may come
SiteProcess = tuple[ForkProcess, Connection]  # the connection sends it its arguments


class ForkedSites(SimulatorRunner):
    """A simulator of a job, its sites in forked processes that each live as long as the run.

    Args:
        sites: by name what `fork_sites` returned.
        has_timeout: whether rounds end without a site that is gone; else the run ends.
    """

    def __init__(self, job: Path, workspace: Path, sites: Mapping[str, SiteProcess], has_timeout: bool):
        log_config = os.environ.get(log_utils.FL_LOG_LEVEL, log_utils.LogMode.CONCISE)
        super().__init__(str(job), str(workspace), clients=",".join(sites), threads=len(sites), log_config=log_config)
        self.sites, self.has_timeout = sites, has_timeout

    def client_run(self, server_custom_folder: str, clients: Sequence[Any], gpu: str | None) -> None:
        """Start the sites; NVFlare calls it once the server is there, and ends the server after it."""
        for client in clients:
            self.sites[client.client_name][1].send(self._site_arguments(client))
        processes = {site: process for site, (process, _) in self.sites.items()}
        for death in watch_processes(processes):
            self.logger.error(death)
            if not self.has_timeout:  # its round would never end; the log ends with the reason
                self.logger.error("a run without --round-timeout ends with a site; give that to go on without it")
                os._exit(1)

    def _site_arguments(self, client: Any) -> tuple[Namespace, Any, dict[str, Any]]:
        """Return what a site's process needs to know, as NVFlare's simulator passes it to its own."""
        workspace = Path(self.args.workspace)
        log_config = workspace / "local" / WorkspaceConstants.LOGGING_CONFIG
        args = Namespace(
            workspace=str(workspace / client.client_name),
            logging_config=self.args.log_config or str(log_config),
            client=client.client_name,
            token=client.token,
            simulator_root=self.simulator_root,
            root_url=str(client.cell.get_root_url_for_child()),
            parent_url=str(client.cell.get_internal_listener_url()),
            decomposer_module=ConfigService.get_str_var(ConfigVarName.DECOMPOSER_MODULE, SystemConfigs.RESOURCES_CONF),
        )
        deploy = copy.deepcopy(self.deploy_args)
        deploy.workspace = args.workspace
        return args, deploy, self.build_ctx | {"client_name": client.client_name}


def fork_sites(sites: Sequence[str]) -> dict[str, SiteProcess]:
    """Start a process for every site, which waits for its arguments; by name the process and its connection.

    To be called before this process has threads or has computed anything: neither survives a fork.
    """
    gc.collect()
    gc.freeze()  # no collection writes to what the processes share
    context, processes = multiprocessing.get_context("fork"), {}
    shared_machine.create_wake_ups(sites)
    for site in sites:
        ours, its = context.Pipe()
        processes[site] = context.Process(target=_site, args=(its,)), ours
        processes[site][0].start()
    return processes


def watch_processes(processes: Mapping[str, ForkProcess]) -> Iterator[str]:
    """Yield which site's process died, and how, as it happens, until all processes have ended."""
    running: dict[object, tuple[str, ForkProcess]] = {one.sentinel: (site, one) for site, one in processes.items()}
    while running:
        for sentinel in wait([process.sentinel for _, process in running.values()]):
            site, process = running.pop(sentinel)
            process.join()
            if process.exitcode:
                killed = ", killed as if out of memory" if process.exitcode == KILLED else ""
                yield f"the process of site {site} ended with exit code {process.exitcode}{killed}"


def _site(connection: Connection) -> None:
    """Serve as a site until the server ends the run, then end the process."""
    end_with_parent()
    status = 1
    try:
        _serve(*connection.recv())
        status = 0
    except Exception:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # whatever threads NVFlare left


def _serve(args: Namespace, deploy: Any, build: Mapping[str, Any]) -> None:
    """Do what NVFlare's program of a simulated site does; an idle site sleeps until the server wakes it."""
    workspace = Workspace(args.workspace, site_name=args.client)
    os.chdir(args.workspace)
    for folder in (WorkspaceConstants.STARTUP_FOLDER_NAME, WorkspaceConstants.SITE_FOLDER_NAME):
        Path(folder).mkdir(parents=True, exist_ok=True)
    log_utils.dynamic_log_config(args.logging_config, args.workspace, workspace.get_log_config_file_path())
    fobs_initialize(workspace, job_id=SimulatorConstants.JOB_NAME)
    register_ext_decomposers(args.decomposer_module)
    AuthorizationService.initialize(EmptyAuthorizer())
    AuditService.the_auditor = SimulatorAuditor()
    init_security_content_service(args.workspace)
    worker = ClientTaskWorker()
    client = worker._create_client(args, build, deploy)
    worker.create_client_engine(client, deploy)
    worker.create_client_runner(client)
    with client.run_manager.new_context() as fl_ctx:
        runner = fl_ctx.get_prop(FLContextKey.RUNNER)
    while not runner.run_abort_signal.triggered:
        with (
            concurrency_slot(),
            client.run_manager.new_context() as fl_ctx,
        ):  # also to fetch the task: in the order of the wake-ups
            _, worked = runner.fetch_and_run_one_task(fl_ctx)
        if not worked:
            shared_machine.wait_for_wake_up(args.client, LONGEST)
    runner.end_run_events_sequence()
    client.cell.stop()


def main(run: str, workspace: str, threads: str, *names: str, executor: type[MeritExecutor] = MeritExecutor) -> None:
    """Simulate the run: its sites in forked processes, or NVFlare's way if there are fewer ``threads`` than sites.

    That is a new program for every site and task, which needs the memory of no more than ``threads``.
    """
    can_fork = sys.platform == "linux"  # elsewhere not what has been imported
    sites = fork_sites(names) if can_fork and int(threads) == len(names) else None
    end_with_parent_command()  # by a thread, which would not survive the fork
    info, root = read_object(Path(run) / "run.json"), Path(workspace).resolve()
    waiting, privacy, track = Waiting.of_record(info), info["privacy"], info["track"]
    plan, script = RunConfiguration.from_dict(info["plan"]), info.get("script")
    recipe = MeritRecipe(plan, "job", waiting, len(names), privacy, track, script, executor)
    policy = build_site_policy(track=bool(track))
    policy[CLASS_ALLOW_LIST] += [f"{executor.__module__}.{executor.__name__}"] * (executor is not MeritExecutor)
    write_json(root / recipe.name / "local" / "resources.json", policy)
    if sites is None:
        recipe.execute(SimEnv(clients=list(names), num_threads=int(threads), workspace_root=str(root)))
        return
    exported = root / EXPORTED  # not a temporary folder: this process may end without clearing up
    shutil.rmtree(exported, ignore_errors=True)
    recipe.export(str(exported))
    simulator = ForkedSites(exported / recipe.name, root / recipe.name, sites, has_timeout=waiting[1] > 0)
    status = simulator.simulator_run_main()
    sys.stdout.flush()
    os._exit(status)  # whatever threads NVFlare left: server and sites have ended, and all is written


def run_program(*arguments: str, executor: type[MeritExecutor] = MeritExecutor) -> None:
    """Run `main` as a program, which ends with its process whatever fails."""
    try:
        main(*arguments, executor=executor)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # an ordinary end would wait for the sites, which wait for their arguments


if __name__ == "__main__":
    run_program(*sys.argv[1:])
