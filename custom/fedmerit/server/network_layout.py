"""The layout of a network's parameter vector, and at the server the neurons that each site holds."""

from collections.abc import Generator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from fedmerit.contract import flat
from fedmerit.contract.method import Layout
from fedmerit.schema.expected import check_importance
from fedmerit.schema.messages import Importance, ImportanceTask, payload_bytes
from fedmerit.server.exchange import Exchange, Moment
from fedmerit.trainers.monai import neurons
from fedmerit.trainers.monai.networks import output_modules
from fedmerit.trainers.script.named_tensors import NORMS, NamedTensors


def read_layout(network: nn.Module, *, with_neurons: bool = False) -> Layout:
    """Of the network's trainable parameters; ``with_neurons``: one forward pass finds the owners of parameters.

    A norm is any layer that normalises: batch, instance, group or layer norm. Without parameters, as MONAI's instance
    norm has it by default, it leaves nothing in the vector.
    """
    parts = flat.trainable(network)
    sizes = tuple(parameter.numel() for parameter in parts.values())
    if isinstance(network, NamedTensors):
        norms_of = {one.name: one.norm for one in network.fedmerit_tensors}
        no_owners, places = torch.full((sum(sizes),), -1, dtype=torch.int32), _named_outputs(network)
        return Layout(sizes, no_owners, tuple(parts), tuple(norms_of[name] for name in parts), places)
    modules = dict(network.named_modules())
    norms = tuple(isinstance(modules[name.rpartition(".")[0]], NORMS) for name in parts)
    owners = neurons.owners(network) if with_neurons else torch.full((sum(sizes),), -1, dtype=torch.int32)
    return Layout(sizes, owners, tuple(parts), norms, _outputs(network))


def _named_outputs(network: NamedTensors) -> Tensor:
    """As `_outputs`, of the layer whose name is known."""
    places = _places(network)
    weight, bias = (places.get(f"{network.fedmerit_output}.{part}") for part in ("weight", "bias"))
    if weight is None:
        return torch.empty(0, 0, dtype=torch.long)
    return torch.cat([weight.flatten(1)] + ([] if bias is None else [bias[:, None]]), dim=1)


def _places(network: nn.Module) -> dict[str, Tensor]:
    """By parameter, in its shape, the places of its entries in the vector."""
    return flat.named(network, torch.arange(sum(part.numel() for part in flat.trainable(network).values())))


def _outputs(network: nn.Module) -> Tensor:
    """(labels, m) places in the vector of the weights and bias of the last convolution, by its output channels.

    The heads of deep supervision, which only training has, do not count.
    """
    names = {module: name for name, module in network.named_modules()}
    blocks = (output_modules(network)[0].modules(), network.modules())
    found = ([module for module in block if isinstance(module, _ConvNd)] for block in blocks)
    candidates = next(filter(None, found), None)
    if not candidates:  # a plug-in network may have none
        return torch.empty(0, 0, dtype=torch.long)
    last = candidates[-1]
    name = names[last]
    places = _places(network)
    weight = places[f"{name}.weight"]
    rows = [(weight.transpose(0, 1) if last.transposed else weight).reshape(last.out_channels, -1)]
    if last.bias is not None:
        rows.append(places[f"{name}.bias"][:, None])
    return torch.cat(rows, dim=1)


class Submodels:
    """Which neurons each site holds, and the cost of measuring their importance in this round."""

    def __init__(self, network: nn.Module):
        self.network = network
        self.held: Tensor | None = None  # (n, H) bool; None: all
        self.importance: Tensor | None = None  # (H,) of the neurons, measured before this round; None: it was not
        self._cost: tuple[int, dict[str, str]] = 0, {}  # bytes sent to each site for it; by site, why it did not count

    def ask(self, task: ImportanceTask, sites: Sequence[str], now: Moment) -> Generator[Exchange, None, Tensor]:
        """Have the sites measure; (H,) mean importance."""
        hidden = neurons.count(self.network)

        def check_message(site: str, answer: object) -> str | None:
            return check_importance(answer, task, hidden)

        exchange = now.exchange(dict.fromkeys(sites, task), check_message, "importance of neurons", earlier={})
        yield exchange
        answers = [answer for answer in exchange.usable().values() if isinstance(answer, Importance)]
        self._cost = payload_bytes(task), exchange.faults()
        return mean_importance(answers)

    def take_cost(self) -> tuple[int, dict[str, str]]:
        """Bytes and faults as in `RoundReplies.collect`, which count for one round."""
        cost, self._cost = self._cost, (0, {})
        return cost

    def content(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {"neurons": self.held, "importance": self.importance, "importance_cost": self._cost}

    def restore(self, content: Mapping[str, Any]) -> None:
        """From the checkpoint."""
        self.held, self.importance = content["neurons"], content["importance"]
        self._cost = content["importance_cost"]


def mean_importance(answers: Sequence[Importance]) -> Tensor:
    """(H,) over all sites' images as one validation set."""
    return torch.stack([one.increases for one in answers]).sum(dim=0) / sum(one.images for one in answers)
