"""Building a network of a description by others: bounded in memory, whatever widths and depths that names."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedmerit.errors import BadInput

MOST_BYTES = 1 << 30  # of a network's tensors: 1 GiB
MOST_TENSORS = 5_000


class BoundedBuilding(TorchFunctionMode):
    """Context in which new tensors may have so many bytes together.

    Raises:
        BadInput: at the first tensor beyond them, before anything is written to it.
    """

    def __init__(self, most: int = MOST_BYTES):
        super().__init__()
        self.most, self.bytes, self.tensors = most, 0, 0

    def __torch_function__(
        self, function: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Carry out one function of torch; those of tensors make none that counts."""
        made = function(*args, **(kwargs or {}))
        if isinstance(made, Tensor) and not any(isinstance(one, Tensor) for one in args):
            self.bytes += made.numel() * made.element_size()
            self.tensors += 1
            if self.bytes > self.most or self.tensors > MOST_TENSORS:
                raise BadInput(
                    f"the network takes more than {self.most / 1e6:.0f} MB or {MOST_TENSORS} tensors; "
                    "expected a smaller one, or weights of this size"
                )
        return made
