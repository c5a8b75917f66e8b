"""The privacy filters of `configuration/specs.py` as NVFlare's, and what they make of an answer outside NVFlare."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from torch import nn

from fedmerit.contract.method import DECIMALS
from fedmerit.engines.nvflare.components import class_path
from fedmerit.engines.nvflare.egress import EgressFilter
from fedmerit.engines.nvflare.translation import message_to_model, model_to_answer
from fedmerit.files import read_object
from fedmerit.schema.configuration.specs import Gaussian, Percentile, parse_filter
from fedmerit.schema.messages import Answer, Reply


class GaussianPrivacy(DXOFilter):
    """A filter that cuts an update to a Euclidean norm and adds Gaussian noise to every entry.

    The noise is the operating system's: a seed that the server knows would take it away again. NVFlare 2.9 has no such
    filter of updates.

    Args:
        clip: the largest norm.
        noise: standard deviation of the noise, as a multiple of ``clip``.
    """

    def __init__(self, clip: float = 1.0, noise: float = 0.01):
        super().__init__([DataKind.WEIGHT_DIFF], [DataKind.WEIGHT_DIFF])
        self.clip, self.noise = clip, noise

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO:
        """Return the update, cut and noisy."""
        random = np.random.default_rng()
        norm = float(np.sqrt(sum(np.square(array, dtype=np.float64).sum() for array in dxo.data.values())))
        factor = min(1.0, self.clip / norm) if norm > 0 else 1.0
        dxo.data = {
            name: (array * factor + random.normal(0.0, self.noise * self.clip, array.shape)).astype(array.dtype)
            for name, array in dxo.data.items()
        }
        return dxo


FILTERS: Mapping[type[Any], type[DXOFilter]] = {Percentile: PercentilePrivacy, Gaussian: GaussianPrivacy}


def privacy_filter(spec: str) -> DXOFilter:
    """Return NVFlare's result filter of a spec."""
    chosen = parse_filter(spec)
    return FILTERS[type(chosen)](**vars(chosen))


def build_answer_filter(specs: Sequence[str], network: nn.Module) -> Callable[[Answer], Answer]:
    """Return a function that filters a site's answer as if it left by NVFlare, for the local engine."""
    filters = [privacy_filter(spec) for spec in specs]

    def filtered(answer: Answer) -> Answer:
        if not isinstance(answer, Reply):
            return answer
        shareable = FLModelUtils.to_shareable(message_to_model(answer, network))
        for filter in filters:
            shareable = filter.process(shareable, FLContext())
        return model_to_answer(FLModelUtils.from_shareable(shareable), network)

    return filtered


def find_own_filters(local: Path) -> list[str]:
    """Return the classes of the filters that ``privacy.json`` in a kit's ``local`` has results go through.

    They are those of all its scopes, each once; the gate is none.
    """
    found = (str(one["path"]) for one in _result_filters(local))
    names = dict.fromkeys(path.rpartition(".")[2] for path in found if path != class_path(EgressFilter))
    return list(names)


def find_own_decimals(local: Path) -> int:
    """Return the decimals of the numbers that the gates in a kit's ``local`` let pass; `DECIMALS` if it has none."""
    gates = (one.get("args", {}) for one in _result_filters(local) if one["path"] == class_path(EgressFilter))
    return min((int(gate.get("decimals", DECIMALS)) for gate in gates), default=DECIMALS)


def _result_filters(local: Path) -> list[dict[str, Any]]:
    path = local / "privacy.json"
    scopes = read_object(path).get("scopes", ()) if path.exists() else ()
    return [one for scope in scopes for one in scope.get("task_result_filters", ())]
