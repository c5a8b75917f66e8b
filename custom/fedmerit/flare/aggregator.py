"""NVFlare's ModelAggregator round a method: collects replies, ends the round, gives the next models."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator

from fedmerit.flare.messages import model_to_evaluated, model_to_reply, task_to_model
from fedmerit.messages import TRAIN, Evaluated, Failure, Reply
from fedmerit.place import SERVER, device_of, server_sites
from fedmerit.plan import Plan
from fedmerit.server import Federation


class MeritAggregator(ModelAggregator):
    """Any FedMerit method as an NVFlare aggregator.

    Args:
        plan: `Plan.to_dict`.
    """

    def __init__(self, plan: dict[str, Any]):
        super().__init__()
        self.plan = plan
        self._answers: dict[str, Reply | Evaluated | Failure] = {}

    def open(
        self, sites: list[str], run: Path, on_round: Callable[[Mapping[str, Any]], None] = lambda record: None
    ) -> Federation:
        """Begin the run in folder ``run``, or go on from its last complete round; ``on_round`` gets each record."""
        plan = Plan.from_dict(self.plan)
        torch.set_num_threads(plan.training.cpu_threads)  # as in the local engine: another number sums in another order
        self.federation = Federation(plan, sites, run, on_round, server_sites(), device_of(SERVER))
        return self.federation

    def models(self) -> dict[str, FLModel]:
        """What each site receives now."""
        federation = self.federation
        return {
            site: task_to_model(task, federation.network, federation.plan.rounds)
            for site, task in federation.tasks().items()
        }

    def accept_model(self, model: FLModel) -> None:
        """Keep one site's answer; what is wrong with it is found when the exchange ends."""
        read = model_to_reply if self.federation.work == TRAIN else model_to_evaluated
        self._answers[model.meta["client_name"]] = read(model, self.federation.network)

    def aggregate_model(self) -> FLModel:
        """End the exchange: aggregate after training, record test Dice after the last round."""
        self.federation.take(self._answers)
        return FLModel(params_type=ParamsType.FULL, params={}, current_round=self.federation.round)

    def reset_stats(self) -> None:
        """Forget the answers of the last exchange."""
        self._answers = {}
