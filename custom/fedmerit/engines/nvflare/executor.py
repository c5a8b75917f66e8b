"""A site's work on NVFlare: a message in, `Site` at work, a message out.

NVFlare may stream a site's logs to the server, and tracebacks name files. So errors are described in the site's own
`ERRORS` and on its standard error; NVFlare's log only notes that there was one.
"""

import sys
import threading
import time
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fedmerit.ciphertexts import SiteKey
from fedmerit.contract.capabilities import capabilities
from fedmerit.engines.nvflare.client_script import ClientScript, ask_script, brought_script, materialized, start_script
from fedmerit.engines.nvflare.operations import SitePolicy, site_policy
from fedmerit.engines.nvflare.privacy import find_own_decimals, find_own_filters
from fedmerit.engines.nvflare.shared_machine import concurrency_slot
from fedmerit.engines.nvflare.translation import (
    message_to_model,
    model_to_answer,
    model_to_task,
    peer_to_shareable,
    shareable_to_peer,
)
from fedmerit.engines.site_errors import ERRORS, keep_error
from fedmerit.errors import BadInput, printable
from fedmerit.evidence.signatures import KIT_CERTIFICATE, KIT_KEY, Signer, days_left
from fedmerit.machine import give_back_memory
from fedmerit.reasons import REFUSED, OtherVersion
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.messages import Failure, PeerModel, Reply, Task, describe_failure
from fedmerit.schema.records import EVALUATE, TRAIN
from fedmerit.site.job_ledger import JOB_LEDGER, JobLedger
from fedmerit.site.machine_settings import configured_device, first_job, follow_manifest, run_folder, site_folder
from fedmerit.site.order_secret import make_secret, name_job, secret_arguments
from fedmerit.site.policy import MANIFEST, Manifest
from fedmerit.site.site import Site
from fedmerit.trainers.factory import build_network, build_trainer
from fedmerit.trainers.script.restarts import RestartedScript
from fedmerit.trainers.script.trainer import Question, Said, ScriptTrainer
from fedmerit.trainers.trainer import Trainer

SCRIPT_EVENTS = (EventType.ABORT_TASK, EventType.END_RUN)  # after START_RUN, with which a script is started, once
PEER_MODEL = "fedmerit.peer_model"  # topic on which sites ask each other
DAY, WARNING_DAYS = 86400.0, 30  # seconds between warnings; days before a certificate ends
PEER_TIMEOUT = 60.0  # seconds to wait for a peer's answer; then it is not available this round


class MeritExecutor(Executor):
    """An executor that trains and evaluates at a site, and gives its model to peers if the method needs that.

    Args:
        plan: `RunConfiguration.to_dict`, the same as the controller's.
        encrypted: whether updates leave, and models come, as ciphertexts.
        script: of a plan with a script, how to start it, as `fedmerit.engines.nvflare.client_script.start_script` has
            it; a hospital's own manifest replaces it.
        filters: classes of the job's privacy filters; None: it has none.
    """

    def __init__(
        self,
        plan: dict[str, Any],
        encrypted: bool = False,
        script: dict[str, Any] | None = None,
        filters: list[str] | None = None,
    ):
        super().__init__()
        self.plan, self.encrypted, self.script, self.filters = plan, encrypted, script, filters
        self._client_script: ClientScript | None = None
        self._at_work: tuple[FLContext, Signal] | None = None  # of the task at hand
        self._accepted: RunConfiguration | None = None  # the plan, once the site's rules allow it
        self._refused: Exception | None = None  # why the site does not take the job; this stays here
        self._site: Site | None = None
        self._trained: tuple[Task, Reply] | None = None  # the task at hand and the answer to it
        self._next_warning = 0.0  # of the certificate, by the monotonic clock
        self._opening = threading.Lock()  # a peer may ask while the site is being opened

    @cached_property
    def _network(self) -> torch.nn.Module:
        assert self._accepted, "the job was refused here, or has not begun"
        return build_network(self._accepted.network)

    def _open(self, fl_ctx: FLContext) -> Site:
        """Return the site, opened once per process."""
        with self._opening:
            if self._site is None:
                self._site = self.open_site(fl_ctx)
            return self._site

    def _follow_manifest(self, fl_ctx: FLContext) -> Manifest | None:
        return follow_manifest(self._local(fl_ctx), fl_ctx.get_identity_name())

    @staticmethod
    def _local(fl_ctx: FLContext) -> Path:
        return Path(fl_ctx.get_engine().get_workspace().get_site_config_dir())

    @staticmethod
    def _custom(fl_ctx: FLContext) -> Path:
        """Return the folder of the code that the job brings."""
        return Path(fl_ctx.get_engine().get_workspace().get_app_custom_dir(fl_ctx.get_job_id()))

    def _accept(self, fl_ctx: FLContext) -> tuple[RunConfiguration, Manifest | None]:
        """Return the plan, and the manifest that allows it; raise if it cannot run here, or the site refuses it."""
        manifest = self._follow_manifest(fl_ctx)  # first: it says what is imported
        try:
            plan = RunConfiguration.from_dict(self.plan)
        except BadInput as error:
            raise OtherVersion(f"{error}; is FedMerit here of another version than where the job was made?") from error
        if manifest and plan.script and not (self._local(fl_ctx) / MANIFEST).exists():
            # NVFlare's own policy let the job bring its code to this site, which FedMerit has not prepared
            brought = brought_script(self.script or {}, self._custom(fl_ctx))
            manifest = manifest.model_copy(update={"script": brought})
        if manifest:
            policy = self._policy(manifest, fl_ctx)
            policy.check(plan, len(fl_ctx.get_engine().get_clients() or ()), self._name_job(fl_ctx))
        if manifest and manifest.script:  # the job has no say in what runs here
            self.script = (self.script or {}) | manifest.script.model_dump(include={"file", "args", "command"})
        self._accepted = plan
        return plan, manifest

    def _policy(self, manifest: Manifest, fl_ctx: FLContext, signer: Signer | None = None) -> SitePolicy:
        """Return the rules of this machine, with its ledger of jobs."""
        return site_policy(manifest, JobLedger(self._local(fl_ctx).parent / JOB_LEDGER, signer))

    @staticmethod
    def _name_job(fl_ctx: FLContext) -> str:
        """Return the `name_job` of the job, or of the first job of a run that was resumed."""
        job = first_job(Path(fl_ctx.get_engine().get_workspace().get_run_dir(fl_ctx.get_job_id())))
        return name_job(job, _site_workspace(fl_ctx))

    def open_site(self, fl_ctx: FLContext) -> Site:
        """Return the site of this process, as the plan and the site's rules have it."""
        (plan, manifest), name = self._accept(fl_ctx), fl_ctx.get_identity_name()
        if not plan.script:  # which has as many threads as it takes
            torch.set_num_threads(1)
        engine = fl_ctx.get_engine()

        def ask_peer(peer: str, round: int) -> PeerModel | None:
            with engine.new_context() as context:
                request = Shareable({"round": round})
                replies = engine.send_aux_request([peer], PEER_MODEL, request, PEER_TIMEOUT, context)
            return shareable_to_peer(replies[peer], self._network)

        own, key = _site_workspace(fl_ctx), None
        if self.encrypted:
            from fedmerit.engines.nvflare.encryption import SITES_CONTEXT, find_context

            key = SiteKey(find_context(SITES_CONTEXT, fl_ctx, own.parents[1]))
        participants = [client.name for client in engine.get_clients() or ()]
        kit = Path(engine.get_workspace().get_startup_kit_dir())
        private_key, certificate = kit / KIT_KEY, kit / KIT_CERTIFICATE  # the simulator has none
        signer = Signer(private_key, certificate) if private_key.exists() else None
        pem = certificate.read_text() if certificate.exists() else ""
        more: dict[str, Any] = {"caps": manifest.jobs.caps} if manifest else {}
        if plan.script:
            script = RestartedScript(self._ask_script, self._start_script)
            trainer: Trainer = ScriptTrainer(str(name), plan, own, script, self._report_evaluation)
        else:
            folder, kept = site_folder(name), {}
            if manifest:
                if manifest.jobs.secret_order or plan.privacy:  # noise that the server knew would be none
                    make_secret(own)
                kept = secret_arguments(own, folder)
            trainer = build_trainer(plan, folder, own, configured_device(name), **kept)
        if manifest:  # once the secret is drawn
            policy = self._policy(manifest, fl_ctx, signer)
            more["note_training"] = partial(policy.note_training, plan, self._name_job(fl_ctx))
        more["filters"] = [*(self.filters or ()), *find_own_filters(self._local(fl_ctx))]
        more["decimals"] = find_own_decimals(self._local(fl_ctx))
        return Site(trainer, plan, own, ask_peer, key, participants, signer, pem, **more)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Refuse a job that cannot run here, task by task; remember what filters left of an update."""
        super().handle_event(event_type, fl_ctx)
        if event_type == EventType.START_RUN:
            self._begin(fl_ctx)
        if self._client_script and event_type in SCRIPT_EVENTS:
            self._client_script.handle_event(event_type, fl_ctx)
        if event_type == EventType.AFTER_TASK_RESULT_FILTER and self._trained and self._site:
            (task, trained), result = self._trained, fl_ctx.get_prop(FLContextKey.TASK_RESULT)
            left = model_to_answer(FLModelUtils.from_shareable(result), self._network)
            if isinstance(left, Reply) and not torch.equal(left.update, trained.update):
                self._site.sent(task, left.update)

    def _begin(self, fl_ctx: FLContext) -> None:
        """Take the job, or refuse it; offer the model to peers if models stay at the sites."""
        try:
            plan = self._accept(fl_ctx)[0]
            method = plan.build_method()
            if plan.script:
                self._client_script = start_script(self.script or {}, self._custom(fl_ctx))
                self._client_script.handle_event(EventType.START_RUN, fl_ctx)
        except Exception as error:
            if repr(error) != repr(self._refused):  # said once
                report_error(self, error, "job refused", fl_ctx)
            self._accepted, self._refused = None, error
            return
        if capabilities(method).exchanges_directly:
            fl_ctx.get_engine().register_aux_message_handler(PEER_MODEL, self._give_model)

    def _ask_script(self, question: Question) -> Said:
        assert self._client_script
        assert self._at_work
        return ask_script(self._client_script, question, *self._at_work)

    def _start_script(self) -> None:
        assert self._client_script
        assert self._at_work
        self._client_script.start_again(self._at_work[0])

    def _report_evaluation(self, error: Exception) -> None:
        assert self._at_work
        report_error(self, error, "evaluation failed", self._at_work[0])

    def _warn_of_certificate(self, fl_ctx: FLContext) -> None:
        """Warn once a day, where the site's operator reads it, that the certificate of its kit ends soon."""
        if (now := time.monotonic()) < self._next_warning:
            return
        self._next_warning = now + DAY
        certificate = Path(fl_ctx.get_engine().get_workspace().get_startup_kit_dir()) / KIT_CERTIFICATE
        if certificate.exists() and (left := days_left(certificate)) < WARNING_DAYS:
            name, when = fl_ctx.get_identity_name(), f"ends in {left} days" if left > 0 else "has ended"
            text = f"the certificate of {name} {when}; ask the coordinator to renew it (`fedmerit deploy renew`)"
            print(f"WARNING: {text}", file=sys.stderr, flush=True)
            self.log_warning(fl_ctx, text)

    def requires_materialized_task_result(self, task_name: str) -> bool:
        """Return True: the site works with the tensors of a script, so they have to be here."""
        return True

    def _give_model(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """Answer a peer, which learns of an error only that there was one."""
        try:
            receiver = fl_ctx.get_peer_context().get_identity_name()
            return peer_to_shareable(self._open(fl_ctx).give_model(receiver, int(request["round"])), self._network)
        except Exception as error:
            report_error(self, error, "no model given", fl_ctx)
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Carry out a task; the server learns of an error only that there was one."""
        self._trained = None
        if task_name not in (TRAIN, EVALUATE):
            return make_reply(ReturnCode.TASK_UNKNOWN)
        if self._accepted is None:  # the hospital may have mended why
            self._begin(fl_ctx)
        if self._accepted is None:
            reason = getattr(self._refused, "reason", REFUSED)
            return FLModelUtils.to_shareable(message_to_model(Failure(reason), torch.nn.Identity()))
        self._at_work = fl_ctx, abort_signal
        try:
            self._warn_of_certificate(fl_ctx)
            if self._client_script:
                shareable = materialized(shareable, fl_ctx, abort_signal)
            task = model_to_task(FLModelUtils.from_shareable(shareable), self._network)
            with concurrency_slot():
                answer = self._open(fl_ctx).answer(task)
                give_back_memory()  # the site now waits for the others
            if isinstance(task, Task) and isinstance(answer, Reply):
                self._trained = task, answer
            return FLModelUtils.to_shareable(message_to_model(answer, self._network))
        except Exception as error:
            report_error(self, error, "round failed", fl_ctx)
            return FLModelUtils.to_shareable(message_to_model(describe_failure(error), self._network))


def report_error(executor: Executor, error: Exception, what: str, fl_ctx: FLContext) -> None:
    """Write why where only the site reads it, and to NVFlare's log that something went wrong."""
    message = f"ERROR: {what} at {fl_ctx.get_identity_name()}: {error}"
    print(printable(message, "\n\t"), file=sys.stderr, flush=True)  # the server may have chosen some of the words
    keep_error(_site_workspace(fl_ctx) / ERRORS, error)
    executor.log_error(fl_ctx, f"{what} at this site ({type(error).__name__}); its own {ERRORS} says why")


def _site_workspace(fl_ctx: FLContext) -> Path:
    """Return the folder in which the site keeps its part of the run."""
    workspace = Path(fl_ctx.get_engine().get_workspace().get_run_dir(fl_ctx.get_job_id()))
    return run_folder(workspace) / "sites" / str(fl_ctx.get_identity_name())
