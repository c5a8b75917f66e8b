"""Replies that a site which trains would send, of a federation on a network of 165 parameters."""

import torch
from stepping import Stepped as Federation

from fedmerit.schema.configuration.run import RunConfiguration, make_configuration
from fedmerit.schema.configuration.settings import TASKS
from fedmerit.schema.messages import Reply
from fedmerit.schema.scores import Overlap
from fedmerit.seeds import random_seed

SITES = ("Alder", "Birch", "Cedar")


def tiny_plan(method: str = "fedce") -> RunConfiguration:
    return make_configuration(
        method,
        "prostate",
        3,
        0,
        TASKS["prostate"],
        {"architecture": "unet", "width": 2, "depth": 2, "residual_units": 0},
    )


def good_reply(federation: Federation, site: str) -> Reply:
    """What a site that trains would send: a small update, moved statistics, plausible claims."""
    task = federation.tasks()[site]
    random = torch.Generator().manual_seed(random_seed(federation.round, site))

    def moved(value: torch.Tensor) -> torch.Tensor:
        return value + torch.rand(value.shape, generator=random) if value.is_floating_point() else value + 4

    return Reply(
        round=task.round,
        update=0.01 * torch.randn(task.parameters.shape, generator=random),
        buffers={name: moved(value) for name, value in task.buffers.items()},
        num_samples=10 + SITES.index(site),
        overlaps=(Overlap("000", "prostate", 5, 2, 1),),
        values={"cosine": 0.25, "minus_error": 0.5} if federation.method.asks and task.weight is not None else {},
        train_loss=0.5,
        seconds=1.0,
    )
