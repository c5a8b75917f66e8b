"""Tasks and replies as NVFlare carries them: FLModels of named numpy arrays.

Updates and models go by parameter name, so that NVFlare's own filters can work on them.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from torch import Tensor, nn

from fedmerit import flat
from fedmerit.server import Failure
from fedmerit.site import Reply, Task
from fedmerit.training import Overlap

Arrays = Mapping[str, NDArray[Any]]


def _arrays(tensors: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def _tensors(arrays: Arrays) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


def task_to_model(task: Task, network: nn.Module, rounds: int) -> FLModel:
    """What the server sends one site."""
    return FLModel(
        params_type=ParamsType.FULL,
        params=_arrays(flat.named(network, task.parameters)),
        current_round=task.round,
        total_rounds=rounds,
        meta={"buffers": _arrays(task.buffers), "weight": task.weight, "data_share": task.data_share},
    )


def model_to_task(model: FLModel, network: nn.Module) -> Task:
    """What the site makes of it."""
    return Task(
        round=model.current_round,
        parameters=flat.flatten(_tensors(model.params), list(flat.trainable(network))),
        buffers=_tensors(model.meta["buffers"]),
        weight=model.meta["weight"],
        data_share=model.meta["data_share"],
    )


def reply_to_model(reply: Reply, network: nn.Module) -> FLModel:
    """What a site sends back."""
    parts = ("num_samples", "values", "train_loss", "seconds")
    return FLModel(
        params_type=ParamsType.DIFF,
        params=_arrays(flat.named(network, reply.update)) if len(reply.update) else {},
        current_round=reply.round,
        meta={name: getattr(reply, name) for name in parts}
        | {"buffers": _arrays(reply.buffers), "overlaps": [asdict(overlap) for overlap in reply.overlaps]},
    )


def model_to_reply(model: FLModel, network: nn.Module) -> Reply | Failure:
    """What the server makes of it; a `Failure` where a part is missing or of another kind."""
    parts = flat.trainable(network)
    try:
        params = _tensors(model.params)
        if params and set(params) != set(parts):
            return Failure("update with other parameter names than the model's")
        for name, value in params.items():
            if value.shape != parts[name].shape:
                shapes = f"{tuple(value.shape)}, expected {tuple(parts[name].shape)}"
                return Failure(f"update of {name} has shape {shapes}")
        meta = model.meta
        return Reply(
            round=int(model.current_round),
            update=flat.flatten(params, list(parts)) if params else torch.empty(0),
            buffers=_tensors(meta["buffers"]),
            num_samples=meta["num_samples"],
            overlaps=tuple(Overlap(**overlap) for overlap in meta["overlaps"]),
            values={name: float(value) for name, value in meta["values"].items()},
            train_loss=float(meta["train_loss"]),
            seconds=float(meta["seconds"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
        return Failure(f"reply cannot be read ({type(error).__name__})")
