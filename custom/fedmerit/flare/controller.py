"""The server's workflow on NVFlare: send each site its model, collect replies, round by round."""

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvflare.app_common.workflows.model_controller import ModelController

from fedmerit.flare.aggregator import MeritAggregator
from fedmerit.flare.tracking import track
from fedmerit.place import run_folder

TASK_MONITOR = "wf_task"  # NVFlare's thread that ends tasks; under heavy load it was seen to die of a KeyError


class MeritController(ModelController):
    """Has the sites do what there is to do, until the final models are tested.

    Args:
        aggregator_id: of the `MeritAggregator` component.
        round_timeout: seconds to wait for a site in one round; 0: as long as it takes.
        task_check_period: seconds between looks at outstanding tasks.
    """

    def __init__(self, aggregator_id: str = "aggregator", round_timeout: int = 0, task_check_period: float = 0.1):
        super().__init__(persistor_id="", ignore_result_error=True, task_check_period=task_check_period)
        self.aggregator_id = aggregator_id
        self.round_timeout = round_timeout
        self.task_check_period = task_check_period

    def run(self) -> None:
        """NVFlare's entry point; an exception in here ends the job with its message."""
        aggregator: MeritAggregator = self.get_component(self.aggregator_id)
        federation = aggregator.open(self.sample_clients(), run_folder(Path(self.get_run_dir())), self._track)
        while work := federation.work:
            self._exchange(work, aggregator)

    def _track(self, record: Mapping[str, Any]) -> None:
        """A round's scalars to whatever receivers the job has."""
        track(self.engine, record)

    def _exchange(self, task: str, aggregator: MeritAggregator) -> None:
        """One message to every site that is asked, its answer to the aggregator, and the end of the exchange."""
        aggregator.reset_stats()
        for site, model in aggregator.models().items():
            self.send_model(task, model, targets=[site], timeout=self.round_timeout, callback=aggregator.accept_model)
        while self.get_num_standing_tasks():
            if self.abort_signal.triggered:
                raise RuntimeError("the job was aborted")
            if not any(thread.name == TASK_MONITOR for thread in threading.enumerate()):
                raise RuntimeError("NVFlare's task monitor ended with an error, nothing would ever end this round")
            time.sleep(self.task_check_period)
        aggregator.aggregate_model()
