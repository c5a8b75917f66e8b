"""A FedMerit method as NVFlare's ModelAggregator: collects replies, ends the round, gives the next models."""

from pathlib import Path
from typing import Any

import torch
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator

from fedmerit.engines.nvflare.translation import message_to_model, model_to_answer
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.server.exchange import Exchange
from fedmerit.server.server import Federation
from fedmerit.site.machine_settings import SERVER, configured_device, server_sites


class MeritAggregator(ModelAggregator):
    """A FedMerit method as an NVFlare aggregator.

    Args:
        plan: `RunConfiguration.to_dict`.
        encrypted: whether updates come as ciphertexts.
    """

    def __init__(self, plan: dict[str, Any], encrypted: bool = False):
        super().__init__()
        self.plan, self.encrypted = plan, encrypted

    def open(self, sites: list[str], run: Path, **options: Any) -> Federation:
        """Begin the run in folder ``run``, or resume it after its last complete round; ``options``: of `Federation`."""
        plan = RunConfiguration.from_dict(self.plan)
        torch.set_num_threads(1)  # as in the local engine: another number sums in another order
        options |= {"server_sites": server_sites(), "device": configured_device(SERVER)}
        self.federation = Federation(plan, sites, run, **options)
        return self.federation

    def hold(self, exchange: Exchange) -> None:
        """Take answers as those of ``exchange`` from here on."""
        self.exchange = exchange

    def models(self) -> dict[str, FLModel]:
        """Return what each site receives."""
        network, rounds = self.federation.network, self.federation.config.rounds
        return {site: message_to_model(task, network, rounds) for site, task in self.exchange.tasks.items()}

    def accept_model(self, model: FLModel) -> None:
        """Pass a site's answer to the exchange."""
        named = model.meta.get("client_name") if isinstance(model.meta, dict) else None
        site = named if isinstance(named, str) else f"({type(named).__name__} for a name)"
        self.exchange.take(site, model_to_answer(model, self.federation.network))

    def aggregate_model(self) -> FLModel:
        """Return an empty model: the federation's exchanges continue the round."""
        return FLModel(params_type=ParamsType.FULL, params={}, current_round=self.federation.round)

    def reset_stats(self) -> None:
        """Keep everything: every exchange has answers of its own."""
