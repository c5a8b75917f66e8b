"""The tensors that a site's script sends: checked by name against the model, so that the server takes them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedmerit.contract import flat
from fedmerit.contract.flat import Buffers
from fedmerit.errors import suggest
from fedmerit.reasons import ScriptAnswer
from fedmerit.schema.messages import COUNTED, LARGEST, LARGEST_STATISTIC
from fedmerit.trainers.trainer import Model

# numbers from which on, and share of the model's norm below which, it is judged whether a script sent a model or
# differences to it
LEAST_JUDGED, KIND_SHARE = 32, 0.1


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
    ) -> Model:
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
