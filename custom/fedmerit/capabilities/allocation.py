"""Methods that give each site a part of the model's neurons."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class ImportanceRequest:
    """A model whose neurons' importance is wanted before a round, measured on the server validation set."""

    model: Tensor  # (d,)
    order: str  # "exact": the loss without each neuron; "taylor": to first order
    images: int  # at most so many of every site; 0: on none, the importance of all neurons is 0


class AllocatesNeurons:
    """The capability."""

    def importance_before(self, round: int) -> tuple[str, int] | None:
        """Order and images of the `importance_request` before a round, whatever the state; None: there is none.

        A site measures nothing else.
        """
        raise NotImplementedError

    def importance_request(self, state: Any) -> ImportanceRequest | None:
        """What has to be measured before the next round goes out; None: nothing this time."""
        raise NotImplementedError

    def allocate(self, state: Any, importance: Tensor, alone: Tensor | None = None) -> tuple[Any, Tensor, Tensor]:
        """The submodels of the next rounds, after an `importance_request`.

        Args:
            state: as that had it.
            importance: (H,) float64, what the loss rises by without each neuron, the mean over images; signed.
            alone: (n,) bool, the sites that keep model and neurons, whatever they would be given; None: nobody.

        Returns:
            The state, (n, d) models to start from, and (n, H) bool, the neurons that each site holds. What it does
            not hold is zero in its model, and stays so in training.
        """
        raise NotImplementedError
