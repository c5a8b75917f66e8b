"""A network that is known only by the names, shapes and kinds of its tensors: it is loaded and saved, never applied.

Numbers with fractions are parameters, in float32, except BatchNorm statistics; the rest are buffers, in int64.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from fedmerit.contract import flat
from fedmerit.contract.method import Layout
from fedmerit.errors import BadInput
from fedmerit.schema.configuration.script import NamedTensor, read_tensors

NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)  # the first: of batch and instance norms
BYTES, MOST_BYTES = 4, 1 << 30  # of a number in float32, and of all: 1 GiB
Model = nn.Module | Mapping[str, Any]  # or its state_dict, or NumPy's arrays by name


class NamedTensors(nn.Module):
    """A network of zeros by the names in the arguments of a script's network.

    Raises:
        BadInput: its tensors take more than `MOST_BYTES`: a description may be by others.
    """

    def __init__(self, arguments: Mapping[str, Any]):
        super().__init__()
        tensors = read_tensors(arguments)
        if (size := sum(BYTES * math.prod(tensor.shape) for tensor in tensors)) > MOST_BYTES:
            raise BadInput(f"the network takes {size / 1e6:.0f} MB; expected at most {MOST_BYTES / 1e6:.0f}")
        for one in tensors:
            *path, last = one.name.split(".")
            parent: nn.Module = self
            for step in path:
                if step not in parent._modules:
                    parent.add_module(step, nn.Module())
                parent = parent._modules[step]  # type: ignore[assignment]
            zeros = torch.zeros(one.shape, dtype=torch.float32 if _has_fractions(one) else torch.int64)
            if one.is_statistic:
                parent.register_buffer(last, zeros)
            else:
                parent.register_parameter(last, nn.Parameter(zeros))
        self.fedmerit_tensors, self.fedmerit_output = tensors, str(arguments.get("output", ""))

    def forward(self, *_: Any) -> Tensor:
        """Raise `BadInput`: only the script's own module makes anything of its tensors."""
        raise BadInput("a model of a script is applied by its own module: load its .pt file there as a state_dict")

    def to_script(self) -> dict[str, Tensor]:
        """Return copies of all tensors, in the kinds that the script's own have."""
        kinds = {one.name: getattr(torch, one.kind) for one in self.fedmerit_tensors}
        return {name: value.detach().to(kinds[name], copy=True) for name, value in self.state_dict().items()}


def _has_fractions(one: NamedTensor) -> bool:
    return one.kind.startswith(("float", "bfloat"))


def to_state(model: Model) -> dict[str, Any]:
    """Return the state_dict of a model; NumPy's numbers as tensors."""
    state = model.state_dict() if isinstance(model, nn.Module) else model
    return {
        name: torch.tensor(value) if isinstance(value, np.ndarray) and value.dtype.kind in "fiub" else value
        for name, value in state.items()
    }


def describe(model: Model) -> tuple[tuple[NamedTensor, ...], str]:
    """Return the tensors of a model and the name of the output layer, "" if it is not known.

    Raises:
        BadInput: there is none, or one of a kind or name that cannot be sent.
    """
    modules = dict(model.named_modules()) if isinstance(model, nn.Module) else {}
    found = []
    for name, value in to_state(model).items():
        if not isinstance(value, Tensor):
            raise BadInput(f"model: {name} is {type(value).__name__}; expected tensors, or NumPy's arrays of numbers")
        if value.layout is not torch.strided:
            raise BadInput(f"model: {name} is sparse; expected a dense tensor, such as {name}.to_dense()")
        kind = str(value.dtype).removeprefix("torch.")
        norm = isinstance(modules.get(name.rpartition(".")[0]), NORMS)
        try:
            found.append(NamedTensor(name, tuple(value.shape), kind, norm))
        except ValueError as error:
            raise BadInput(f"model: {error}") from None
        if not value.isfinite().all():
            raise BadInput(
                f"model: {name} has NaN or infinite entries; mend it, or register a buffer with persistent=False"
            )
    if all(one.is_statistic for one in found):
        raise BadInput("model: has no parameters; expected a torch.nn.Module, or its state_dict")
    last = [name for name, module in modules.items() if isinstance(module, _ConvNd | nn.Linear)][-1:]
    transposed = last and getattr(modules[last[0]], "transposed", False)
    return tuple(found), last[0] if last and not transposed else ""


def load_weights(network: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load a state_dict whose numbers may be of other kinds; `BadInput` if names or shapes differ."""
    own = network.state_dict()
    if {name: value.shape for name, value in weights.items()} != {name: value.shape for name, value in own.items()}:
        raise BadInput("model: its weights have other names or shapes than the run's plan; export the job again")
    network.load_state_dict(dict(weights))


def read_layout(network: NamedTensors) -> Layout:
    """Return the layout of the vector of trainable parameters; a script's network has no neurons."""
    places = flat.named(network, torch.arange(sum(part.numel() for part in flat.trainable(network).values())))
    names, sizes = tuple(places), tuple(part.numel() for part in places.values())
    norms = {one.name: one.norm for one in network.fedmerit_tensors}
    weight, bias = (places.get(f"{network.fedmerit_output}.{part}") for part in ("weight", "bias"))
    outputs = torch.empty(0, 0, dtype=torch.long)
    if weight is not None:
        outputs = torch.cat([weight.flatten(1)] + ([] if bias is None else [bias[:, None]]), dim=1)
    no_owners = torch.full((sum(sizes),), -1, dtype=torch.int32)
    return Layout(sizes, no_owners, names, tuple(norms[name] for name in names), outputs)
