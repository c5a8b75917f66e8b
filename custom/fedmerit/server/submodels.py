"""The neurons that each site holds, at the server: allocation by the method, and statistics averaged by holders."""

from collections.abc import Generator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedmerit.contract import flat
from fedmerit.contract.capabilities import AllocatesNeurons, ImportanceRequest
from fedmerit.contract.flat import Buffers
from fedmerit.contract.method import Layout
from fedmerit.schema.expected import check_importance
from fedmerit.schema.messages import Importance, ImportanceTask, payload_bytes
from fedmerit.schema.scores import SERVER_SPLIT
from fedmerit.server.exchange import Exchange, Moment
from fedmerit.trainers.trainer import Evaluator


class Submodels:
    """The neurons of each site in one run, and the cost of measuring their importance in a round.

    Args:
        method: allocates the neurons; None: every site holds all.
        layout: of the parameters.
        images: the server's own, on which it measures importance; None: the sites measure it.
    """

    def __init__(self, method: AllocatesNeurons | None, layout: Layout, images: Evaluator | None = None):
        self.method, self.layout, self.images = method, layout, images
        self.held: Tensor | None = None  # (n, H) bool; None: all
        self.importance: Tensor | None = None  # (H,) of the neurons, measured before this round; None: it was not
        self._cost: tuple[int, dict[str, str]] = 0, {}  # bytes sent to each site for it; by site, why it did not count

    def allocate(
        self, state: Any, statistics: Buffers, keeping: Tensor, sites: Sequence[str], now: Moment
    ) -> Generator[Exchange, None, tuple[Any, Tensor] | None]:
        """Measure the importance of neurons if the method asks for it, and allocate them to the sites.

        Args:
            state: the method's.
            statistics: BatchNorm statistics of the common model.
            keeping: (n,) bool, the sites that keep model and neurons.
            sites: names of those that measure, unless the server has images of its own.
            now: the round.

        Returns:
            The method's state and (n, d) models to start from; None: nothing was due.
        """
        request = self.method.importance_request(state) if self.method else None
        if self.method is None or request is None:
            return None
        importance = yield from self._measure(request, statistics, sites, now)
        state, models, self.held = self.method.allocate(state, importance, keeping)
        self.importance = importance
        return state, models

    def _measure(
        self, request: ImportanceRequest, statistics: Buffers, sites: Sequence[str], now: Moment
    ) -> Generator[Exchange, None, Tensor]:
        """Return (H,) how much the loss rises without each neuron, over all images as one validation set."""
        if not request.images:
            return torch.zeros(self.layout.neurons, dtype=torch.float64)
        task = ImportanceTask(
            now.round, SERVER_SPLIT, request.model, statistics, request.order, request.images, now.ledger_head
        )
        if self.images:
            return mean_importance([self.images.measure_importance(task)])

        def check_message(site: str, answer: object) -> str | None:
            return check_importance(answer, task, self.layout.neurons)

        exchange = now.exchange(dict.fromkeys(sites, task), check_message, "importance of neurons", earlier={})
        yield exchange
        self._cost = payload_bytes(task), exchange.faults()
        return mean_importance([answer for answer in exchange.usable().values() if isinstance(answer, Importance)])

    def take_cost(self) -> tuple[int, dict[str, str]]:
        """Return the bytes and faults that count for this round."""
        cost, self._cost = self._cost, (0, {})
        return cost

    def take_importance(self) -> Tensor | None:
        """Return the importance (H,) measured for this round, once; None: it was not measured."""
        importance, self.importance = self.importance, None
        return importance

    def task_parts(self, row: int) -> dict[str, Any]:
        """Return the fields of a task from which the site at ``row`` knows which neurons it holds."""
        return {} if self.held is None else {"neurons": self.held[row]}

    def average_statistics(
        self, statistics: Sequence[Buffers], shares: Tensor, present: Tensor, before: Buffers
    ) -> dict[str, Tensor]:
        """Return one set of statistics for all sites, of every neuron by those that hold it.

        Without its filter, a neuron has no statistics.

        Args:
            statistics: of the n sites, empty ones of absent sites.
            shares: (n,) summing to 1 over the present sites.
            present: (n,) bool.
            before: what is kept of a neuron that nobody holds.
        """
        trained = [one for one, is_present in zip(statistics, present.tolist(), strict=True) if is_present]
        result, shares = flat.average_buffers(trained, shares[present]), shares[present].double()
        for name, owner in self.layout.buffer_owners.items() if self.held is not None else ():
            assert self.held is not None
            if owner.ndim == 0 or (owner < 0).any():
                continue
            weights = shares[:, None] * self.held[present][:, owner.long()]
            total = weights.sum(dim=0)
            mean = torch.zeros(owner.shape, dtype=torch.float64)
            for weight, buffers in zip(weights, trained, strict=True):
                mean += weight * buffers[name].double()
            mean /= total.where(total > 0, 1.0)
            result[name] = mean.to(result[name].dtype).where(total > 0, before[name])
        return result

    def content(self) -> dict[str, Any]:
        """Return the state for the checkpoint."""
        return {"neurons": self.held, "importance": self.importance, "importance_cost": self._cost}

    def restore(self, content: Mapping[str, Any]) -> None:
        """Take over the state in a checkpoint."""
        self.held, self.importance = content["neurons"], content["importance"]
        self._cost = content["importance_cost"]


def mean_importance(answers: Sequence[Importance]) -> Tensor:
    """Return (H,) the importance over all sites' images as one validation set."""
    return torch.stack([answer.increases for answer in answers]).sum(dim=0) / sum(answer.images for answer in answers)
