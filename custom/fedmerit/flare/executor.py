"""A site's work on NVFlare: a message in, `Site` at work, a message out."""

import threading
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fedmerit.behaviours import Misbehaving, behaving
from fedmerit.flare.messages import (
    answer_to_model,
    model_to_evaluation,
    model_to_task,
    peer_to_shareable,
    shareable_to_peer,
)
from fedmerit.messages import EVALUATE, TRAIN, Failure, PeerModel, Work
from fedmerit.place import behaviour_of, device_of, follow_manifest, run_folder, site_folder
from fedmerit.plan import Plan
from fedmerit.site import Site
from fedmerit.training import build_network

READERS: Mapping[str, Callable[[FLModel, torch.nn.Module], Work]] = {
    TRAIN: model_to_task,
    EVALUATE: model_to_evaluation,
}


PEER_MODEL = "fedmerit.peer_model"  # topic on which sites ask each other
PEER_TIMEOUT = 60.0  # seconds to wait for a peer's answer; then it is not available this round


class MeritExecutor(Executor):
    """Trains and evaluates at one site; gives its model to other sites, of methods whose models stay at the sites.

    Args:
        plan: `Plan.to_dict`, the same as the aggregator's.
    """

    def __init__(self, plan: dict[str, Any]):
        super().__init__()
        self.plan = plan
        self._site: Site | Misbehaving | None = None
        self._opening = threading.Lock()  # a peer may ask while the site is being opened

    @cached_property
    def _network(self) -> torch.nn.Module:
        return build_network(Plan.from_dict(self.plan).network)

    def _open(self, fl_ctx: FLContext) -> Site | Misbehaving:
        """The site, opened once per process."""
        with self._opening:
            if self._site is None:
                self._site = self._opened(fl_ctx)
            return self._site

    def _opened(self, fl_ctx: FLContext) -> Site | Misbehaving:
        plan, name = Plan.from_dict(self.plan), fl_ctx.get_identity_name()
        torch.set_num_threads(plan.training.cpu_threads)
        engine = fl_ctx.get_engine()
        workspace = engine.get_workspace()
        follow_manifest(Path(workspace.get_site_config_dir()), name)
        memory = run_folder(Path(workspace.get_run_dir(fl_ctx.get_job_id()))) / "sites" / name

        def ask_peer(peer: str, round: int) -> PeerModel | None:
            with engine.new_context() as context:
                request = Shareable({"round": round})
                replies = engine.send_aux_request([peer], PEER_MODEL, request, PEER_TIMEOUT, context)
            return shareable_to_peer(replies[peer], self._network)

        site = Site(site_folder(name), plan, memory, device_of(name), ask_peer)
        return behaving(site, behaviour_of(name))

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """From the start of a run whose models stay at the sites, answer those who ask for this one's."""
        if event_type == EventType.START_RUN and Plan.from_dict(self.plan).build_method().models_stay:
            fl_ctx.get_engine().register_aux_message_handler(PEER_MODEL, self._lend)

    def _lend(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        receiver = fl_ctx.get_peer_context().get_identity_name()
        return peer_to_shareable(self._open(fl_ctx).lend(receiver, int(request["round"])), self._network)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """One task. What goes wrong is told in the site's own log; the server learns that it did."""
        if task_name not in READERS:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        try:
            task = READERS[task_name](FLModelUtils.from_shareable(shareable), self._network)
            return FLModelUtils.to_shareable(answer_to_model(self._open(fl_ctx).answer(task), self._network))
        except Exception as error:
            self.log_exception(fl_ctx, f"round failed at this site: {error}")
            failure = Failure(f"failed with {type(error).__name__}; the site's own log says more")
            return FLModelUtils.to_shareable(answer_to_model(failure, self._network))
