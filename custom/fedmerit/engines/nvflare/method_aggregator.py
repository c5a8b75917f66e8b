"""A method of FedMerit as NVFlare's own workflows take an aggregator: FedAvg and ScatterAndGather.

For methods with one model for all sites. The server's half of a run works inside it, on what the sites changed: guard,
results.csv and ledger lie in the folder ``fedmerit`` of the job at the server; models are NVFlare's to keep.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from torch import Tensor

from fedmerit.contract import flat
from fedmerit.contract.capabilities import capabilities
from fedmerit.errors import BadInput, RunFailed
from fedmerit.files import RUN_NAME
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.configuration.script import Script
from fedmerit.schema.messages import Failure
from fedmerit.server.recorded_updates import SiteUpdate, UpdateFederation, configure_updates, name_tensor
from fedmerit.trainers.script.trainer import STEPS

UNKNOWN = 1_000_000  # rounds: the workflow counts them


class MethodAggregator(ModelAggregator):
    """A method with one model for all sites, which send what they changed (``params_transfer_type=DIFF``).

    Args:
        settings: of the method and the guard, which is on by default and shows its findings: NVFlare's workflow
            cannot withhold anything from one site.

    Raises:
        BadInput: the method needs more than such a workflow gives, with the reason.
    """

    def __init__(self, method: str, settings: dict[str, Any] | None = None):
        super().__init__()
        self.method, self.settings = method, dict(settings or {})
        require_one_model(self._configure(Script(metric="")))
        self._models: dict[str, FLModel] = {}
        self._updates: UpdateFederation | None = None

    def _configure(self, script: Script) -> RunConfiguration:
        return configure_updates(self.method, UNKNOWN, script, self.settings)

    def accept_model(self, model: FLModel) -> None:
        """Keep one site's answer of this round."""
        peer = self.fl_ctx.get_peer_context() if self.fl_ctx else None
        name = (model.meta or {}).get("client_name") or (peer and peer.get_identity_name())
        self._models[str(name)] = model

    def reset_stats(self) -> None:
        """Begin a round."""
        self._models = {}

    def aggregate_model(self) -> FLModel:
        """Return what the round adds to the model, in float32, and to its statistics.

        Raises:
            RunFailed: no site sent what can be used.
        """
        updates = self._updates or self._begin()
        federation = updates.federation
        before = federation.models.parameters
        record = updates.take({site: _read(model) for site, model in self._models.items()})
        added = flat.named(federation.network, federation.models.parameters - before)
        there = {site: one for site, one in self._models.items() if site in record["participants"]}
        shares = [federation.num_samples[site] for site in there]
        params = {name: value.numpy() for name, value in (added | _statistics(there, shares)).items()}
        return FLModel(params=params, params_type=ParamsType.DIFF, meta={"weights": record["weights"]})

    def _begin(self) -> UpdateFederation:
        """Begin the server's half with the tensors that the sites sent first; the model counts from zeros."""
        usable = {site: model for site, model in sorted(self._models.items()) if model.params}
        if not usable:
            raise RunFailed("no site sent parameters")
        first = {name: torch.as_tensor(value) for name, value in next(iter(usable.values())).params.items()}
        assert self.fl_ctx
        joined = [client.name for client in self.fl_ctx.get_engine().get_clients() or ()]
        sites = sorted({*joined, *usable})  # also those that were late for the first round
        self._updates = UpdateFederation(self.method, UNKNOWN, first, sites, self._folder(), self.settings)
        return self._updates

    def _folder(self) -> Path:
        """Return the run folder, which lies in NVFlare's folder of the job."""
        if self.fl_ctx is None:
            raise RunFailed("NVFlare began no job with this aggregator; add it to the job as a component")
        workspace = self.fl_ctx.get_engine().get_workspace()
        return Path(workspace.get_run_dir(self.fl_ctx.get_job_id())) / RUN_NAME


def _read(model: FLModel) -> SiteUpdate | Failure:
    """Return a site's answer as the server's half takes it."""
    if not model.params:
        return Failure("no reply")
    if model.params_type != ParamsType.DIFF:
        return Failure("a model instead of what changed in it; set params_transfer_type=TransferType.DIFF")
    tensors = {name: torch.as_tensor(value) for name, value in model.params.items()}
    return SiteUpdate(tensors, (model.meta or {}).get(STEPS, 1))


def _statistics(models: Mapping[str, FLModel], counts: Sequence[int]) -> dict[str, Tensor]:
    """Return what sites add to BatchNorm statistics, the mean by ``counts`` of images, and counters, the maximum."""
    of_sites = [{name: torch.as_tensor(value) for name, value in one.params.items()} for one in models.values()]
    kept = [{name: value for name, value in one.items() if name_tensor(name, value).is_statistic} for one in of_sites]
    shares = torch.tensor(counts, dtype=torch.float64)
    return flat.average_buffers(kept, shares / shares.sum())


def require_one_model(config: RunConfiguration) -> None:
    """Check that NVFlare's workflows, which send one model to all sites and get updates, can do a method.

    Raises:
        BadInput: the method needs more.
    """
    method, what = config.build_method(), f"method {config.method}: "
    if method.has_site_models or method.own_statistics:
        raise BadInput(
            f"{what}gives each site a model of its own; take FedMeritRecipe, or reward=global if it has that"
        )
    if capabilities(method).local_training:
        raise BadInput(
            f"{what}changes how sites train; take FedMeritRecipe, or NVFlare's recipe of it with fedavg here"
        )
    if method.asks:
        raise BadInput(f"{what}asks sites for {', '.join(method.asks)}; take FedMeritRecipe")
    if config.guard.guard == "on" and config.guard.on_verdict != "show":
        raise BadInput(f"on_verdict={config.guard.on_verdict}: all sites get one model here; expected show")
