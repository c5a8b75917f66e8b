"""Mixed precision, by device."""

from contextlib import nullcontext
from typing import Any

import torch


def choose_precision(device: torch.device, amp: bool) -> torch.dtype | None:
    """What to compute in on ``device``; None: float32 throughout."""
    if not amp:
        return None
    return torch.float16 if device.type == "cuda" and not torch.cuda.is_bf16_supported() else torch.bfloat16


def autocast(device: torch.device, precision: torch.dtype | None) -> Any:
    """The context in which to compute in ``precision``, as `precision_of` gave it."""
    return nullcontext() if precision is None else torch.autocast(device.type, precision)
