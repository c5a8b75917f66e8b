"""NVFlare's ModelAggregator round a method: collects replies, ends the round, gives the next models."""

from pathlib import Path
from typing import Any

from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator

from fedmerit.flare.messages import model_to_reply, task_to_model
from fedmerit.plan import Plan
from fedmerit.server import Failure, Federation
from fedmerit.site import Reply


class MeritAggregator(ModelAggregator):
    """Any FedMerit method as an NVFlare aggregator.

    Args:
        plan: `Plan.to_dict`.
    """

    def __init__(self, plan: dict[str, Any]):
        super().__init__()
        self.plan = plan
        self._answers: dict[str, Reply | Failure] = {}

    def open(self, sites: list[str], run: Path) -> Federation:
        """Begin the run in folder ``run``, or go on from its last complete round."""
        self.federation = Federation(Plan.from_dict(self.plan), sites, run)
        return self.federation

    def models(self) -> dict[str, FLModel]:
        """What each site receives now."""
        federation = self.federation
        return {
            site: task_to_model(task, federation.network, federation.plan.rounds)
            for site, task in federation.tasks().items()
        }

    def accept_model(self, model: FLModel) -> None:
        """Keep one site's reply; what is wrong with it is found when the round ends."""
        self._answers[model.meta["client_name"]] = model_to_reply(model, self.federation.network)

    def aggregate_model(self) -> FLModel:
        """End the round: aggregate after training, record test Dice after the last round."""
        if self.federation.training:
            self.federation.aggregate(self._answers)
        else:
            self.federation.finish(self._answers)
        return FLModel(params_type=ParamsType.FULL, params={}, current_round=self.federation.round)

    def reset_stats(self) -> None:
        """Forget the replies of the last round."""
        self._answers = {}
