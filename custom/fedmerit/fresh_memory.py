"""Fresh memory for matrices of updates or models, in large pages where the system has them.

What the system hands out in pages of 4 kB has a price for each; of a matrix of six models of 31 MB that price is most
of what it takes to fill it. Where the system cannot, these are tensors like others.
"""

import math
import mmap
from contextlib import suppress

import torch
from torch import Tensor

LARGE = 1 << 23  # bytes from which on it pays


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """As `torch.zeros`, on the CPU. It goes back to the system with the last tensor that views it."""
    size = math.prod(shape) * dtype.itemsize
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if size < LARGE or advice is None:
        return torch.zeros(*shape, dtype=dtype)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # zero, as the system gives it
    with suppress(OSError):  # a system without large pages
        memory.madvise(advice)
    return torch.frombuffer(memory, dtype=dtype).view(*shape)
