"""A method of FedMerit as NVFlare's own workflows take an aggregator: FedAvg and ScatterAndGather.

For methods with one model for all sites. The server's half of a run works inside it, on what the sites changed: guard,
results.csv and ledger lie in the folder ``fedmerit`` of the job at the server; models are NVFlare's to keep.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from torch import Tensor

from fedmerit.contract import flat
from fedmerit.contract.capabilities import capabilities
from fedmerit.errors import BadInput, RunFailed
from fedmerit.evidence.digests import state_digest
from fedmerit.files import RUN_NAME, write_json
from fedmerit.schema.configuration.run import RunConfiguration, configure_script, describe
from fedmerit.schema.configuration.script import NamedTensor, Script
from fedmerit.schema.configuration.settings import guarded
from fedmerit.schema.messages import Failure, Reply
from fedmerit.server.exchange import Exchange
from fedmerit.server.server import Federation
from fedmerit.trainers.factory import FIRST_MODEL
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
        require_one_model(self._configure(Script()))
        self._models: dict[str, FLModel] = {}
        self._federation: Federation | None = None
        self._exchanges: Iterator[Exchange] = iter(())
        self._exchange: Exchange | None = None  # of this round

    def _configure(self, script: Script) -> RunConfiguration:
        shows = {} if self.settings.get("guard") == "off" else {"on_verdict": "show"}
        return configure_script(self.method, UNKNOWN, script, settings=guarded({**shows, **self.settings}))

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
        federation = self._federation or self._begin()
        before = federation.models.parameters
        assert self._exchange
        for site in self._exchange.tasks:
            self._exchange.take(site, self._read(site))
        self._exchange = next(self._exchanges)
        record = federation.recorder.ledger.last or {}
        added = flat.named(federation.network, federation.models.parameters - before)
        there = {site: one for site, one in self._models.items() if site in record["participants"]}
        shares = [federation.num_samples[site] for site in there]
        params = {name: value.numpy() for name, value in (added | _statistics(there, shares)).items()}
        return FLModel(params=params, params_type=ParamsType.DIFF, meta={"weights": record["weights"]})

    def _begin(self) -> Federation:
        """Begin the server's half with the tensors that the sites sent first; the model counts from zeros."""
        usable = {site: model for site, model in sorted(self._models.items()) if model.params}
        if not usable:
            raise RunFailed("no site sent parameters")
        first = {name: torch.as_tensor(value) for name, value in next(iter(usable.values())).params.items()}
        trained = tuple(one for name, value in first.items() if not (one := _tensor(name, value)).is_statistic)
        zeros = {one.name: torch.zeros(one.shape) for one in trained}
        last = [one.name for one in trained if one.name.endswith(".weight") and len(one.shape) > 1][-1:]
        output = last[0].removesuffix(".weight") if last else ""  # of a state_dict in the order of its modules
        config = self._configure(Script(tensors=trained, start=state_digest(zeros), output=output))
        run = self._folder()
        run.mkdir(parents=True, exist_ok=True)
        torch.save(zeros, run / FIRST_MODEL)
        assert self.fl_ctx
        joined = [client.name for client in self.fl_ctx.get_engine().get_clients() or ()]
        sites = sorted({*joined, *usable})  # also those that were late for the first round
        write_json(run / "run.json", describe(run.name, config, sites, "sim") | {"privacy": []})
        self._federation = Federation(config, sites, run)
        self._exchanges = self._federation.exchanges()
        self._exchange = next(self._exchanges)
        return self._federation

    def _folder(self) -> Path:
        """Return the run folder, which lies in NVFlare's folder of the job."""
        if self.fl_ctx is None:
            raise RunFailed("NVFlare began no job with this aggregator; add it to the job as a component")
        workspace = self.fl_ctx.get_engine().get_workspace()
        return Path(workspace.get_run_dir(self.fl_ctx.get_job_id())) / RUN_NAME

    def _read(self, site: str) -> Reply | Failure:
        """Return a site's answer as the server's half takes it."""
        model, federation = self._models.get(site), self._federation
        assert federation
        if model is None or not model.params:
            return Failure("no reply")
        if model.params_type != ParamsType.DIFF:
            return Failure("a model instead of what changed in it; set params_transfer_type=TransferType.DIFF")
        like = flat.trainable(federation.network)
        params = {name: torch.as_tensor(value) for name, value in model.params.items()}
        if wrong := [name for name in like if name not in params or params[name].shape != like[name].shape]:
            return Failure(f"lacks {wrong[0]}, or has it of another shape")
        steps = (model.meta or {}).get(STEPS, 1)
        update = flat.flatten({name: value.float() for name, value in params.items()}, list(like))
        count = federation.num_samples.get(site, steps)  # as of the first round
        return Reply(federation.round, update, {}, count, (), train_loss=math.nan)


def _statistics(models: Mapping[str, FLModel], counts: Sequence[int]) -> dict[str, Tensor]:
    """Return what sites add to BatchNorm statistics, the mean by ``counts`` of images, and counters, the maximum."""
    of_sites = [{name: torch.as_tensor(value) for name, value in one.params.items()} for one in models.values()]
    kept = [{name: value for name, value in one.items() if _tensor(name, value).is_statistic} for one in of_sites]
    shares = torch.tensor(counts, dtype=torch.float64)
    return flat.average_buffers(kept, shares / shares.sum())


def _tensor(name: str, value: Tensor) -> NamedTensor:
    return NamedTensor(name, tuple(value.shape), str(value.dtype).removeprefix("torch."))


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
