"""A network that is known only by the names, shapes and kinds of its tensors: it is loaded and saved, never applied.

Numbers with fractions are parameters, in float32, except BatchNorm statistics; the rest are buffers, in int64. What a
site's script sends of them is checked by name, so that the server takes it.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from fedmerit.contract import flat
from fedmerit.contract.flat import Buffers
from fedmerit.contract.method import Layout
from fedmerit.errors import BadInput, suggest
from fedmerit.reasons import ScriptAnswer
from fedmerit.schema.configuration.script import NamedTensor, read_tensors
from fedmerit.schema.messages import COUNTED, LARGEST, LARGEST_STATISTIC

NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)  # the first: of batch and instance norms
BYTES, MOST_BYTES = 4, 1 << 30  # of a number in float32, and of all: 1 GiB
Model = nn.Module | Mapping[str, Any]  # or its state_dict, or NumPy's arrays by name
# numbers from which on, and share of the model's norm below which, it is judged whether a script sent a model or
# differences to it
LEAST_JUDGED, KIND_SHARE = 32, 0.1


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
        self.fedmerit_tensors, self.fedmerit_output = tensors, str(arguments.get("output", ""))
        for one in tensors:
            *path, last = one.name.split(".")
            parent: nn.Module = self
            for step in path:  # not by add_module and the like, which refuse names of attributes, such as "type"
                parent = parent._modules.setdefault(step, nn.Module())  # type: ignore[assignment]
            zeros = torch.zeros(one.shape, dtype=torch.float32 if _has_fractions(one) else torch.int64)
            if one.is_statistic:
                parent._buffers[last] = zeros
            else:
                parent._parameters[last] = nn.Parameter(zeros)

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


class SentTensors:
    """A reader of what a site's script sends as parameters.

    Args:
        site: the name of the site.
        network: the run's network, whose names, shapes and kinds of numbers count.
    """

    def __init__(self, site: str, network: nn.Module):
        self.site, self.network = site, network

    def read(
        self, params: Any, is_difference: bool, received: Tensor, buffers: Buffers, is_first: bool = False
    ) -> tuple[Tensor, Buffers]:
        """Return the trained model: what the script leaves out stays as it was received.

        Args:
            params: tensors or arrays by name.
            is_difference: whether they are what training changed.
            received: (d,) the model that the script received.
            buffers: of that model.
            is_first: whether it is judged if they are differences or a model.

        Raises:
            ScriptAnswer: they are none, or other ones than the model has; the message names site and tensor.
        """
        own: dict[str, Tensor] = {**flat.named(self.network, received), **buffers}
        if not params:
            raise ScriptAnswer(f"site {self.site}: the script sent no parameters; expected those that it trained")
        if not isinstance(params, Mapping):
            kind = type(params).__name__
            raise ScriptAnswer(f"site {self.site}: the script sent parameters as {kind}; expected tensors by name")
        sent = {}
        for name, value in params.items():
            if name not in own:
                raise ScriptAnswer(
                    f"site {self.site}: the script sent {name!r:.140}, which the model does not have"
                    f"{_explain_name(str(name), value, own)}"
                )
            sent[name] = self.tensor(name, value, own[name])
        if is_first:
            self._require_kind(is_difference, sent, own)
        trained = {name: own[name] + tensor if is_difference else tensor for name, tensor in sent.items()}
        for name, tensor in trained.items():
            self._require_usual(name, tensor, own[name], is_statistic=name in buffers)
        own |= trained
        return flat.flatten(own, list(flat.trainable(self.network))), {name: own[name].clone() for name in buffers}

    def tensor(self, name: str, value: Any, model: Tensor) -> Tensor:
        """Return what the script sent for a tensor of the ``model``, in the same kind of numbers."""
        if isinstance(value, np.ndarray) and value.dtype.kind in "fiu":  # also of another byte order, or reversed
            value = np.array(value, value.dtype.newbyteorder("="), order="C")
        try:
            tensor = torch.as_tensor(value).detach().cpu()
        except (TypeError, ValueError, RuntimeError):
            kind = "a tensor without numbers" if isinstance(value, Tensor) else type(value).__name__
            raise ScriptAnswer(
                f"site {self.site}: the script sent {name} as {kind}; expected a tensor, or an array of numbers"
            ) from None
        if tensor.shape != model.shape:
            found, expected = tuple(tensor.shape), tuple(model.shape)
            raise ScriptAnswer(f"site {self.site}: the script sent {name} of shape {found}; the model's is {expected}")
        kind = str(tensor.dtype).removeprefix("torch.")
        if tensor.is_complex() or (model.is_floating_point() and not tensor.is_floating_point()):
            raise ScriptAnswer(
                f"site {self.site}: the script sent {name} as {kind}; expected numbers with fractions, such as float32"
            )
        tensor = (tensor.to_dense() if tensor.layout is not torch.strided else tensor).to(model.dtype)
        if not tensor.isfinite().all():
            raise ScriptAnswer(
                f"site {self.site}: the script sent {name} with NaN or infinite entries; take a smaller learning rate, "
                "or clip gradients"
            )
        return tensor

    def _require_usual(self, name: str, tensor: Tensor, received: Tensor, is_statistic: bool) -> None:
        """Raise `ScriptAnswer` if a trained tensor is beyond what the server takes of an answer."""
        what, largest = ("statistics", LARGEST_STATISTIC) if is_statistic else ("changes", LARGEST)
        found = (tensor if is_statistic else tensor - received).abs().max() if tensor.numel() else 0
        if found > largest:
            raise ScriptAnswer(
                f"site {self.site}: the script sent {name} with {what} up to {found:.3g}; expected at most "
                f"{largest:g}; take a smaller learning rate, or clip gradients"
            )
        if is_statistic and name.endswith(COUNTED) and (tensor < 0).any():
            raise ScriptAnswer(
                f"site {self.site}: the script sent {name} with {tensor.min():.3g}; expected a variance or a count, 0 "
                "or more; send the state_dict unchanged, or leave it out"
            )

    def _require_kind(self, is_difference: bool, sent: Mapping[str, Tensor], model: Mapping[str, Tensor]) -> None:
        """Raise `ScriptAnswer` if a first answer looks like differences that are sent as a model, or the reverse.

        Differences are much smaller than the model, and a model is near the received one.
        """
        names = [name for name in flat.trainable(self.network) if name in sent]
        received = torch.cat([torch.zeros(0), *(model[name].flatten().float() for name in names)]).double()
        answer = torch.cat([torch.zeros(0), *(sent[name].flatten().float() for name in names)]).double()
        if len(received) < LEAST_JUDGED:
            return
        distance = (answer - received if is_difference else answer).norm()
        if distance < KIND_SHARE * received.norm():
            found, expected = ("DIFF", "FULL") if is_difference else ("FULL", "DIFF")
            what = "a model" if is_difference else "differences to the model"
            raise ScriptAnswer(
                f"site {self.site}: the script sent {what} as params_type {found}, by the size of the numbers; send "
                f"FLModel(params_type=ParamsType.{expected}, ...)"
            )


def _explain_name(name: str, value: Any, known: Mapping[str, Tensor]) -> str:
    """Return the end of a message about a name that the model does not have."""
    if isinstance(value, Mapping):
        return "; it holds names itself: send its content as params"
    if inner := next((one for one in known if name.endswith(f".{one}")), ""):
        return f"; did you mean {inner}? leave out {name.removesuffix(inner)!r}"
    return suggest(name, known)
