"""A site's work on NVFlare: a message in, `Site` at work, a message out."""

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fedmerit.behaviours import Misbehaving, behaving
from fedmerit.flare.messages import answer_to_model, model_to_evaluation, model_to_task
from fedmerit.messages import EVALUATE, TRAIN, Work
from fedmerit.place import behaviour_of, device_of, follow_manifest, run_folder, site_folder
from fedmerit.plan import Plan
from fedmerit.site import Site
from fedmerit.training import build_network

READERS: Mapping[str, Callable[[FLModel, torch.nn.Module], Work]] = {
    TRAIN: model_to_task,
    EVALUATE: model_to_evaluation,
}


class MeritExecutor(Executor):
    """Trains and evaluates at one site.

    Args:
        plan: `Plan.to_dict`, the same as the aggregator's.
    """

    def __init__(self, plan: dict[str, Any]):
        super().__init__()
        self.plan = plan
        self._site: Site | Misbehaving | None = None

    @cached_property
    def _network(self) -> torch.nn.Module:
        return build_network(Plan.from_dict(self.plan).network)

    def _open(self, fl_ctx: FLContext) -> Site | Misbehaving:
        """The site, opened once per process."""
        if self._site is None:
            plan, name = Plan.from_dict(self.plan), fl_ctx.get_identity_name()
            torch.set_num_threads(plan.training.cpu_threads)
            workspace = fl_ctx.get_engine().get_workspace()
            follow_manifest(Path(workspace.get_site_config_dir()), name)
            memory = run_folder(Path(workspace.get_run_dir(fl_ctx.get_job_id()))) / "sites" / name
            site = Site(site_folder(name), plan, memory, device_of(name))
            self._site = behaving(site, behaviour_of(name))
        return self._site

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """One task. What goes wrong is told in the site's own log; the server learns that it did."""
        if task_name not in READERS:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        try:
            task = READERS[task_name](FLModelUtils.from_shareable(shareable), self._network)
            return FLModelUtils.to_shareable(answer_to_model(self._open(fl_ctx).answer(task), self._network))
        except Exception as error:
            self.log_exception(fl_ctx, f"round failed at this site: {error}")
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
