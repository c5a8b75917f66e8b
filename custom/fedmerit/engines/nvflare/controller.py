"""The server's workflow on NVFlare: send each site its model, collect replies, round by round."""

import csv
import os
import shutil
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from cryptography.x509 import Certificate
from nvflare.apis.controller_spec import ClientTask
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.workflows.model_controller import ModelController

from fedmerit.engines.nvflare import shared_machine
from fedmerit.engines.nvflare.operations import NO_SITE, NOTE, PROGRESS, JobEvents, absences, job_events, read_repeats
from fedmerit.engines.nvflare.scalars import track
from fedmerit.engines.nvflare.translation import message_to_model, model_to_answer
from fedmerit.engines.site_errors import ERRORS
from fedmerit.errors import BadInput
from fedmerit.evidence.ledger import Ledger
from fedmerit.evidence.signatures import Signer, read_certificate
from fedmerit.files import RUN_NAME, lock_folder, read_object, write_json
from fedmerit.machine import give_back_memory
from fedmerit.methods.registry import undefined_quantities
from fedmerit.schema.configuration.run import RunConfiguration, describe
from fedmerit.schema.configuration.specs import HE
from fedmerit.schema.messages import payload_bytes
from fedmerit.server.exchange import Exchange
from fedmerit.server.server import Federation
from fedmerit.site.machine_settings import RUNS, SERVER, configured_device, follow_manifest, run_folder, server_sites
from fedmerit.trainers.factory import FIRST_MODEL

TASK_MONITOR = "wf_task"  # NVFlare's thread that ends tasks
CLOSING_TIMEOUT = 120.0  # seconds to wait for sites to note how a run was closed, if there is no round timeout
FIRST_TIMEOUT = 86400.0  # seconds, as long as nothing is known of the sites' work
LEAST_TIMEOUT, SLACK = 1800.0, 3.0  # later: seconds, and how many times as long as all sites took before
SLOWEST_LINE = 125_000.0  # bytes a second, 1 Mbit/s
IDLE_PERIOD = 0.25  # seconds between looks at tasks while no answer comes: a look costs CPU time
RETRY_SECONDS = 5.0  # seconds after which the server asks sites again that NVFlare gave up
SERVER_LOCK = ".server.lock"
KEY, CERTIFICATE, ROOT = "server.key", "server.crt", "rootCA.pem"  # in the startup kit of a provisioned server


class SentTasks(dict[str, Any]):
    """A dictionary of NVFlare's tasks by id, from which a task can be taken out twice, as over a slow line.

    With a plain dictionary that ends its task monitor, and with it the job.
    """

    def pop(self, key: str, default: Any = None) -> Any:
        """Take a task out; the default if it is out already."""
        return super().pop(key, default)


def allow_repeated_pop(communicator: Any) -> None:
    """Let NVFlare's ``communicator`` take a task out twice."""
    communicator._client_task_map = SentTasks(communicator._client_task_map)


def default_timeout(size: int, took: float | None) -> float:
    """Return the seconds to wait for sites if nobody said how many.

    Args:
        size: bytes of the largest message, which goes both ways.
        took: seconds until all sites had answered such a message, at most so far; None: it is the first.
    """
    work = FIRST_TIMEOUT if took is None else LEAST_TIMEOUT + SLACK * took
    return work + 2 * size / SLOWEST_LINE


RECENT = 200  # rounds whose course an admin's page shows


def progress(
    run: Path, config: RunConfiguration, silent: Collection[str] = (), at_work: Collection[str] = ()
) -> dict[str, Any]:
    """Return what an admin learns of a running job: ``method``, ``rounds`` to train, ``record`` of the last one.

    ``undefined`` are the quantities that the method leaves so. Also ``absent``, as of `absences`, the sites that did
    not answer yet when they were last asked, ``silent``, those of them that took the task at hand, ``at_work``, and
    ``recent``, as of `recent_rounds`.
    """
    records = Ledger(run / "ledger.jsonl").records
    last, lacking = records[-1] if records else None, absences(records)
    named = {"method": config.method, "undefined": undefined_quantities(config.method), "rounds": config.rounds}
    state = {"record": last, "absent": lacking, "silent": sorted(silent), "at_work": sorted(at_work)}
    return named | state | {"recent": recent_rounds(run, records)}


def recent_rounds(run: Path, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the course of the last `RECENT` rounds, by site: validation Dice and seconds, null where it was absent.

    ``first`` is the number of the first of these rounds; ``dice`` and ``seconds`` have a list by site.
    """
    shown = records[-RECENT:]
    sites = sorted({site for record in shown for site in record["participants"]})
    took = dict[tuple[str, int], float]()
    if shown and (results := run / "results.csv").exists():
        with results.open(newline="") as file:
            heading = next(csv.reader(file), [])
            lines = (line for line in file if ",seconds," in line)
            for row in csv.DictReader(lines, heading):
                if row["quantity"] == "seconds" and not row["split"]:
                    took[row["site"], int(row["round"])] = float(row["value"])
    return {
        "first": shown[0]["round"] if shown else 0,
        "dice": {site: [one["validation_dice"].get(site) for one in shown] for site in sites},
        "seconds": {site: [took.get((site, one["round"])) for one in shown] for site in sites},
    }


class MeritController(ModelController):
    """A workflow that has the sites train and evaluate until the final models are tested.

    An exchange ends when every site has answered, or after ``round_timeout`` seconds once ``min_sites`` have sent what
    can be used. A site that is late, or gone, is absent in that round. From then on it is asked beside the others: they
    wait for it again as soon as it takes a task.

    Args:
        plan: `RunConfiguration.to_dict`, the same as the executor's.
        encrypted: whether updates come as ciphertexts.
        round_timeout: seconds to wait for a site in one round; 0: as `default_timeout` has it, in a simulation as long
            as it takes.
        min_sites: usable answers without which no exchange ends, however long it takes.
        task_check_period: seconds between looks at tasks whose answers have come, and at whether to begin.
    """

    def __init__(
        self,
        plan: dict[str, Any],
        encrypted: bool = False,
        round_timeout: float = 0,
        min_sites: int = 1,
        task_check_period: float = 0.02,
    ):
        super().__init__(persistor_id="", ignore_result_error=True, task_check_period=task_check_period)
        self.plan, self.encrypted = plan, encrypted
        self.round_timeout = round_timeout
        self.min_sites = min_sites
        self.task_check_period = task_check_period
        self.taken = False  # whether a site has asked for work
        self.finished = False  # whether the run has come to its end
        self.silent: set[str] = set()  # sites that did not answer when they were last asked
        self.at_work: set[str] = set()  # sites that took the task at hand
        self.awaited: set[str] = set()  # sites that did not answer it yet
        self.arrived = threading.Event()  # whether an answer came since the last look at tasks
        self.took: dict[str, float] = {}  # by kind of answer, seconds until all were in, at most

    @cached_property
    def events(self) -> JobEvents | None:
        """The events of the server's kit; None in a simulation, which has no kit."""
        return job_events(Path(self.engine.get_workspace().get_root_dir())) if self._signer() else None

    def _shut_out(self, site: str) -> str:
        """Return why the operator shuts a site out; "" if it may take part."""
        return self.events.shut_out(site) if self.events else ""

    def run(self) -> None:
        """Run the workflow; NVFlare calls it, and an exception in here ends the job with its message."""
        allow_repeated_pop(self.communicator)
        follow_manifest(Path(self.engine.get_workspace().get_site_config_dir()), SERVER)
        workspace = Path(self.get_run_dir())
        run = run_folder(workspace)
        ended: Exception | str = ""
        try:
            self._begin(run, workspace)
        except Exception as error:
            ended = self._why_stopped() if self.abort_signal.triggered else error
            raise
        finally:
            self._note_end(run, ended)

    def _begin(self, run: Path, workspace: Path) -> None:
        """Wait until a site asks for work, then work."""
        # a job that no site takes leaves no run folder; the process of one that asks for work has built all its parts
        while not (run.exists() or self.taken):
            self._pause(self.task_check_period)
        run.mkdir(parents=True, exist_ok=True)
        with lock_folder(run, SERVER_LOCK):  # the server's process of an earlier job may still be at work
            self._work(run, workspace)

    def open(self, sites: Sequence[str], run: Path, **options: Any) -> Federation:
        """Begin the run in folder ``run``, or resume it after its last complete round; ``options``: of `Federation`."""
        plan = RunConfiguration.from_dict(self.plan)
        torch.set_num_threads(1)  # as in the local engine: another number sums in another order
        options |= {"server_sites": server_sites(), "device": configured_device(SERVER)}
        self.federation = Federation(plan, sites, run, **options)
        return self.federation

    def models(self) -> dict[str, FLModel]:
        """Return what each site receives in the exchange at hand."""
        network, rounds = self.federation.network, self.federation.config.rounds
        return {site: message_to_model(task, network, rounds) for site, task in self.exchange.tasks.items()}

    def _why_stopped(self) -> Exception | str:
        """Return why the job is over before its end, if nothing failed here; "" if an admin or a site stopped it."""
        if not self.taken:
            return BadInput(f"{NO_SITE}; {ERRORS}, or log.txt, in the kit of each site says why")
        lost = [client.name for client in self.engine.get_clients() if self.get_client_disconnect_time(client.name)]
        return f"fewer than {self.min_sites} sites were left, without {', '.join(sorted(lost))}" if lost else ""

    def _note_end(self, run: Path, ended: Exception | str) -> None:
        """Tell the operator of the server how the job ended."""
        if self.events:
            records = Ledger(run / "ledger.jsonl").records
            self.events.ended(Path(self.get_run_dir()).name, records, ended, self.finished)

    def _work(self, run: Path, workspace: Path) -> None:
        """Carry out what is left of a run; ``workspace`` is NVFlare's folder of the job."""
        sites, context = self.sample_clients(), self._context(run)
        self._take_first_model(run)
        federation = self.open(
            sites,
            run,
            on_round=self._show_round,
            min_sites=self.min_sites,
            signer=self._signer(),
            context=context,
            root=self._root(),
        )
        if (repeats := read_repeats(workspace)) and not federation.round:
            federation.take_note(repeats)
        if not (run / "run.json").exists():  # `fedmerit run` did not write it
            engine = "prod" if self._signer() else "sim"  # whose server has no key
            description = describe(run.name, federation.config, federation.sites, engine)
            encrypted = {"privacy": [HE]} if context else {}
            write_json(run / "run.json", description | encrypted | {"command": f"NVFlare job {workspace.name}"})
        elif (known := read_object(run / "run.json"))["sites"] != federation.sites:  # others have joined
            write_json(run / "run.json", known | {"sites": federation.sites})
        self.engine.register_app_command(PROGRESS, lambda *_: self._progress(run))
        self.engine.register_app_command(NOTE, lambda _, given, *__: federation.take_note(str(given["text"])))
        try:
            for exchange in federation.exchanges():
                self._exchange_messages(exchange)
                give_back_memory()
            self.finished = federation.finished
        finally:
            if os.environ.get(RUNS):  # NVFlare gives an admin what lies in its own folder of the job
                shutil.copytree(run, workspace / RUN_NAME, dirs_exist_ok=True)

    def _show_round(self, record: Mapping[str, Any]) -> None:
        """Pass a round to NVFlare's trackers, and its notes and absent sites to the server's log."""
        track(self.engine, record)
        for text in record.get("notes", ()):
            self.info(f"round {record['round']}: {text}")
        for site, reason in record["rejected"].items():
            self.warning(f"round {record['round']}: {site} rejected: {reason}")

    def _progress(self, run: Path) -> dict[str, Any]:
        waiting = self.at_work & self.awaited
        return progress(run, self.federation.config, self.silent | self.awaited, waiting)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Note that a site asks for work, and whose answer NVFlare did not let through, such as news of an error."""
        super().handle_event(event_type, fl_ctx)
        if event_type == EventType.ABOUT_TO_END_RUN:
            shared_machine.wake_up()
        if event_type == EventType.BEFORE_PROCESS_TASK_REQUEST:
            self.taken = True
        if event_type == AppEventType.AFTER_CONTRIBUTION_ACCEPT:
            if not fl_ctx.get_prop(AppConstants.AGGREGATION_ACCEPTED):
                self._refuse(
                    fl_ctx.get_peer_context().get_identity_name(), fl_ctx.get_prop(AppConstants.TRAINING_RESULT)
                )
            self.arrived.set()

    def _refuse(self, site: str, result: Shareable | None) -> None:
        """Note what came instead of an answer."""
        if not self.exchange.has_reply(site):
            code = result and result.get_return_code()
            self.exchange.refuse(site, f"an error in place of an answer ({code})", failed=True)

    def _exchange_messages(self, exchange: Exchange) -> None:
        """Send every site its message, and hand its answer to the exchange, until that may end."""
        self.exchange, federation = exchange, self.federation
        models, started = self.models(), time.monotonic()
        shut_out = {site: why for site in federation.sites if (why := self._shut_out(site))}
        federation.gone = frozenset(shut_out)
        for site in federation.gone & set(models):
            exchange.refuse(site, shut_out[site])
        self.at_work.clear()
        timeout = self._timeout(exchange)
        while True:
            there = self.sample_clients()
            for site in federation.largest_first(models):
                if site in there and not exchange.has_reply(site):
                    self.send_model(exchange.work, models[site], targets=[site], callback=partial(self._accept, site))
                    shared_machine.wake_up([site])
            while self.get_num_standing_tasks():
                self.arrived.clear()
                self._require_running()
                self.communicator.check_tasks()  # NVFlare's monitor only does it every fifth of a second
                late = timeout and time.monotonic() - started > timeout
                missing = self.awaited = {site for site in models if not exchange.has_reply(site)}
                only_silent = bool(missing) and missing <= self.silent - self.at_work
                if exchange.is_complete() and (late or only_silent):
                    self.cancel_all_tasks()
                self.arrived.wait(IDLE_PERIOD if missing else self.task_check_period)
            missing = {site for site in models if not exchange.has_reply(site)}
            if exchange.is_complete() or not missing:
                break
            self.warning(f"waiting for sites: {', '.join(sorted(missing))}")
            self._pause(RETRY_SECONDS)
        if not missing:
            self.took[exchange.what] = max(self.took.get(exchange.what, 0.0), time.monotonic() - started)
        if lost := missing - self.silent:
            self.warning(f"without an answer, asked beside the others from now on: {', '.join(sorted(lost))}")
        self.silent = (self.silent - set(models)) | missing

    def _timeout(self, exchange: Exchange) -> float:
        """Return the seconds to wait for sites in an exchange; 0: no limit."""
        if self.round_timeout or self.federation.finished:
            return self.round_timeout or CLOSING_TIMEOUT
        if not self._signer():
            return 0.0
        size, took = max(map(payload_bytes, exchange.tasks.values())), self.took.get(exchange.what)
        seconds = default_timeout(size, took)
        before = "none before" if took is None else f"{took:.0f} s at most before"
        self.info(f"{exchange.what}: waits {seconds:.0f} s at most (message of {size / 1e6:.1f} MB, {before})")
        return seconds

    def _accept(self, site: str, model: FLModel) -> None:
        """Take an answer, unless the operator shut the site out meanwhile."""
        if reason := self._shut_out(site):
            self.exchange.refuse(site, reason)
        else:
            self.exchange.take(site, model_to_answer(model, self.federation.network))

    def _prepare_task_data(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        """Note that a site takes its task; NVFlare calls it."""
        super()._prepare_task_data(client_task, fl_ctx)
        self.at_work.add(client_task.client.name)

    def _require_running(self) -> None:
        if self.abort_signal.triggered:
            raise RuntimeError("the job was aborted")
        if not any(thread.name == TASK_MONITOR for thread in threading.enumerate()):
            raise RuntimeError("NVFlare's task monitor ended with an error, nothing would ever end this round")

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._require_running()
            time.sleep(self.task_check_period)

    def _take_first_model(self, run: Path) -> None:
        """Copy the first model of a run by scripts from the job, or the kit's local folder; the plan has its digest."""
        workspace = self.engine.get_workspace()
        custom = workspace.get_app_custom_dir(self.fl_ctx.get_job_id())
        places = (Path(place) / FIRST_MODEL for place in (custom, workspace.get_site_config_dir()))
        found = next((file for file in places if file.exists()), None)
        if found and not (run / FIRST_MODEL).exists():
            shutil.copy(found, run / FIRST_MODEL)

    def _context(self, run: Path) -> bytes | None:
        """Return the context in which ciphertexts are added up; None if updates come in the clear."""
        if not self.encrypted:
            return None
        from fedmerit.engines.nvflare.encryption import SERVER_CONTEXT, find_context

        return find_context(SERVER_CONTEXT, self.fl_ctx, run)

    def _root(self) -> Certificate | None:
        """Return the root certificate of the federation; None in the simulator, which has none."""
        root = Path(self.engine.get_workspace().get_startup_kit_dir()) / ROOT
        return read_certificate(root) if root.exists() else None

    def _signer(self) -> Signer | None:
        """Return the signer of the server's certificate; None in the simulator, which has none."""
        kit = Path(self.engine.get_workspace().get_startup_kit_dir())
        return Signer(kit / KEY, kit / CERTIFICATE) if (kit / KEY).exists() else None
