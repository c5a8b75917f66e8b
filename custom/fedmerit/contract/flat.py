"""A network's state as one flat vector of trainable parameters, with the buffers kept aside.

Methods see only the vector. Buffers (BatchNorm statistics) that sites share follow one rule: floating ones are
averaged by sample share, counters take the maximum.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

Buffers = Mapping[str, Tensor]


def get_parameters(network: nn.Module) -> Tensor:
    """Return a (d,) float32 copy on the CPU of the trainable parameters, in the order of ``named_parameters``."""
    with torch.no_grad():
        return torch.cat([weight.reshape(-1) for weight in trainable(network).values()]).to("cpu", torch.float32)


def get_buffers(network: nn.Module) -> dict[str, Tensor]:
    """Return copies on the CPU of the buffers, by name."""
    return {name: buffer.detach().to("cpu", copy=True) for name, buffer in network.named_buffers()}


def load(network: nn.Module, parameters: Tensor, buffers: Buffers) -> None:
    """Copy a (d,) vector and buffers into the network."""
    with torch.no_grad():
        there = parameters.to(next(network.parameters()).device)  # at once: a GPU waits for each copy
        for weight, piece in zip(trainable(network).values(), named(network, there).values(), strict=True):
            weight.copy_(piece)
        for name, buffer in network.named_buffers():
            buffer.copy_(buffers[name])


def trainable(network: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that train, by name: the order of the vector."""
    return {name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad}


def named(network: nn.Module, vector: Tensor) -> dict[str, Tensor]:
    """Return a (d,) vector cut into the shapes of the trainable parameters, by name: views, no copies."""
    parts = trainable(network)
    pieces = torch.split(vector, [parameter.numel() for parameter in parts.values()])
    return {name: piece.view_as(like) for (name, like), piece in zip(parts.items(), pieces, strict=True)}


def flatten(parts: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    """Return (d,) the tensors of the given names, one after the other."""
    return torch.cat([parts[name].reshape(-1) for name in names])


def mix(models: Tensor, mixture: Tensor) -> Tensor:
    """Return (d,) weighted sum of ``models`` (m, d) by ``mixture`` (m,), in float64; one of weight 1 unchanged."""
    places = mixture.nonzero().flatten().tolist()
    if len(places) == 1 and mixture[places[0]] == 1:
        return models[places[0]]
    result = torch.zeros(models.shape[1], dtype=torch.float64)
    for place in places:
        result.add_(models[place], alpha=float(mixture[place]))
    return result.to(models.dtype)


def average_buffers(buffers: Sequence[Buffers], shares: Tensor) -> dict[str, Tensor]:
    """Return the mean of the sites' buffers; of counters the maximum.

    Args:
        buffers: those of n sites, in site order.
        shares: (n,) sample shares, summing to 1; sites of share 0 do not count.
    """
    counted = [(site, share) for site, share in zip(buffers, shares.double(), strict=True) if share > 0]
    result = {}
    for name, like in counted[0][0].items():
        values = [site[name] for site, _ in counted]
        if like.is_floating_point():
            mean = torch.zeros(like.shape, dtype=torch.float64)
            for value, (_, share) in zip(values, counted, strict=True):
                mean += share * value.double()
            result[name] = mean.to(like.dtype)
        else:
            result[name] = torch.stack(values).amax(dim=0)
    return result


def leave_out_buffers(mean: Buffers, own: Buffers, own_share: float) -> dict[str, Tensor]:
    """Return the average of the other sites' buffers, from the average of all and a site's own.

    Args:
        mean: what `average_buffers` gave.
        own: the site's own buffers in that average.
        own_share: its sample share in it, below 1.
    """
    result = {}
    for name, value in mean.items():
        if value.is_floating_point():
            others = (value.double() - own_share * own[name].double()) / (1 - own_share)
            if name.endswith("running_var"):  # a mean of variances: rounding can bring it below 0
                others = others.clamp(min=0)
            result[name] = others.to(value.dtype)
        else:
            result[name] = value
    return result
