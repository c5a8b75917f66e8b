"""A filter that keeps what the sites of any NVFlare job train, whatever aggregates it, for `fedmerit value replay`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from nvflare.apis.dxo import DataKind, from_shareable
from nvflare.apis.filter import Filter, FilterChainType, FilterContextKey
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.app_constant import AppConstants
from nvflare.recipe.spec import Recipe
from torch import Tensor

from fedmerit.files import write_atomically
from fedmerit.tensor_files import FIRST_MODEL, KEPT_UPDATES
from fedmerit.trainers.script.trainer import STEPS

TRAIN = AppConstants.TASK_TRAIN


class KeepUpdates(Filter):
    """A filter of the server for tasks and results: it writes each site's update of each round, and changes nothing.

    `keep_updates` adds it to both. The folder `KEPT_UPDATES` of the job at the server then has a file a round and site.
    """

    _received: ClassVar[dict[str, tuple[int, Mapping[str, Any]]]] = {}  # by site, the round and model of its task

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Note the model that a site receives, or keep the update that it sends; return the message unchanged."""
        if shareable.get_return_code(ReturnCode.OK) != ReturnCode.OK:
            return shareable
        site, dxo = fl_ctx.get_peer_context().get_identity_name(), from_shareable(shareable)
        folder = Path(fl_ctx.get_engine().get_workspace().get_run_dir(fl_ctx.get_job_id())) / KEPT_UPDATES
        if self.get_prop(FilterContextKey.CHAIN_TYPE) == FilterChainType.TASK_DATA_CHAIN:
            self._received[site] = int(shareable.get_header(AppConstants.CURRENT_ROUND, 0)), dict(dxo.data)
            if not (folder / FIRST_MODEL).exists():
                _save(folder / FIRST_MODEL, {"model": _tensors(dxo.data)})
        elif site in self._received:
            number, before = self._received.pop(site)
            update, received = _tensors(dxo.data), _tensors(before)
            if dxo.data_kind != DataKind.WEIGHT_DIFF:
                update = {name: value - received[name] for name, value in update.items() if name in received}
            samples = int(dxo.get_meta_prop(STEPS, 0) or shareable.get_header(STEPS, 0) or 1)
            _save(folder / f"round-{number:05d}-{site}.pt", {"update": update, "samples": samples})
        return shareable


def keep_updates(recipe: Recipe) -> None:
    """Have a job of any recipe of NVFlare's keep the updates of its sites at the server, for training tasks."""
    recipe.add_server_output_filter(KeepUpdates(), tasks=[TRAIN])
    recipe.add_server_input_filter(KeepUpdates(), tasks=[TRAIN])
    recipe._job.set_app_packages(["fedmerit"])  # which is installed; NVFlare would copy a part of it into the job


def _tensors(data: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return numbers by name as tensors; wide ones in float32 and int64, as updates are."""
    found = {name: torch.as_tensor(value) for name, value in data.items()}
    return {name: value.float() if value.is_floating_point() else value.long() for name, value in found.items()}


def _save(file: Path, content: Mapping[str, Any]) -> None:
    write_atomically(file, lambda stream: torch.save(dict(content), stream))
