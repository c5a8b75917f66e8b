"""The neurons that each site holds, of methods that allocate them: a part of the server."""

from collections.abc import Generator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedmerit.federation.exchange import Exchange
from fedmerit.training import neurons
from fedmerit.wire.inspection import fault_of_importance
from fedmerit.wire.messages import Importance, ImportanceTask, payload


class Submodels:
    """Which neurons each site holds, and what it took to find that out this round.

    Args:
        network: whose neurons they are.
    """

    def __init__(self, network: nn.Module):
        self.network = network
        self.held: Tensor | None = None  # (n, H) bool; None: all
        self.cost: tuple[int, dict[str, str]] = 0, {}  # bytes sent to each site for it, and who gave no answer

    def of(self, row: int) -> Tensor | None:
        """(H,) bool, those of the site at ``row``."""
        return None if self.held is None else self.held[row]

    def ask(
        self, task: ImportanceTask, sites: Sequence[str], when: str, least: int
    ) -> Generator[Exchange, None, Tensor]:
        """Have the sites measure; (H,) what they say."""
        hidden = neurons.count(self.network)
        exchange = Exchange(
            dict.fromkeys(sites, task),
            lambda site, answer: fault_of_importance(answer, task, hidden),
            "importance of neurons",
            when,
            least,
        )
        yield exchange
        answers = [answer for answer in exchange.usable().values() if isinstance(answer, Importance)]
        self.cost = payload(task), {name: f"{exchange.what}: {why}" for name, why in exchange.faults().items()}
        return mean_importance(answers)

    def nothing(self) -> Tensor:
        """(H,) zeros, where nothing is to be measured."""
        return torch.zeros(neurons.count(self.network), dtype=torch.float64)

    def spent(self) -> tuple[int, dict[str, str]]:
        """`cost`, which counts for one round."""
        cost, self.cost = self.cost, (0, {})
        return cost

    def content(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {"neurons": self.held, "weighed": self.cost}

    def restore(self, content: Mapping[str, Any]) -> None:
        """From the checkpoint; those of earlier versions have none of it."""
        self.held, self.cost = content.get("neurons"), content.get("weighed", (0, {}))


def mean_importance(answers: Sequence[Importance]) -> Tensor:
    """(H,) of all sites' images as one validation set."""
    return torch.stack([one.increases for one in answers]).sum(dim=0) / sum(one.images for one in answers)
