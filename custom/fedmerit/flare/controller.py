"""The server's workflow on NVFlare: send each site its model, collect replies, round by round."""

import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

from nvflare.app_common.workflows.model_controller import ModelController

from fedmerit.description import describe
from fedmerit.files import write_json
from fedmerit.flare.aggregator import MeritAggregator
from fedmerit.flare.messages import PROGRESS
from fedmerit.ledger import Ledger
from fedmerit.place import RUN_NAME, RUNS, SERVER, follow_manifest, run_folder

TASK_MONITOR = "wf_task"  # NVFlare's thread that ends tasks; under heavy load it was seen to die of a KeyError


def progress(run: Path, rounds: int) -> dict[str, Any]:
    """What an admin is told of a job at work: ``rounds`` to train, and the ``record`` of the last complete one."""
    records = Ledger(run / "ledger.jsonl").records
    return {"rounds": rounds, "record": records[-1] if records else None}


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
        follow_manifest(Path(self.engine.get_workspace().get_site_config_dir()), SERVER)
        workspace = Path(self.get_run_dir())
        run = run_folder(workspace)
        federation = aggregator.open(self.sample_clients(), run)
        if not (run / "run.json").exists():  # where no `fedmerit run` wrote it
            description = describe(run.name, federation.plan, federation.sites, "prod")
            write_json(run / "run.json", description | {"command": f"NVFlare job {workspace.name}"})
        self.engine.register_app_command(PROGRESS, lambda *_: progress(run, federation.plan.rounds))
        try:
            while work := federation.work:
                self._exchange(work, aggregator)
        finally:
            if os.environ.get(RUNS):  # NVFlare gives an admin what lies in its own folder of the job
                shutil.copytree(run, workspace / RUN_NAME, dirs_exist_ok=True)

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
