"""A plan as an NVFlare recipe: the job of controller, aggregator and executor."""

import shutil
from pathlib import Path
from typing import Any

from nvflare.app_common.widgets.component_path_authorizer import CLASS_ALLOW_LIST
from nvflare.job_config.api import FedJob
from nvflare.recipe.spec import Recipe

import fedmerit
from fedmerit.errors import BadInput
from fedmerit.flare.aggregator import MeritAggregator
from fedmerit.flare.controller import MeritController
from fedmerit.flare.executor import MeritExecutor
from fedmerit.messages import EVALUATE, TRAIN
from fedmerit.plan import Plan
from fedmerit.server import require_patience


class MeritRecipe(Recipe):
    """Any FedMerit method as an NVFlare recipe, for SimEnv, PocEnv and ProdEnv, or to export.

    The job names classes of the installed fedmerit package and carries no code.

    Args:
        plan: the run.
        name: of the job.
        min_sites: sites that have to be there for the job to start, and whose answers end a round.
        round_timeout: seconds to wait for further sites in a round; 0: as long as it takes.
        start_sites: sites that have to be there for the job to start, where others than ``min_sites``.
    """

    def __init__(
        self, plan: Plan, name: str, min_sites: int = 2, round_timeout: float = 0, start_sites: int | None = None
    ):
        job = FedJob(name=name, min_clients=start_sites or min_sites)
        job.set_app_packages(["fedmerit"])
        job.to_server(MeritController(round_timeout=round_timeout, min_sites=min_sites))
        job.to_server(MeritAggregator(plan.to_dict()), id="aggregator")
        job.to_clients(MeritExecutor(plan.to_dict()), tasks=[TRAIN, EVALUATE])
        super().__init__(job)


def site_policy() -> dict[str, Any]:
    """What ``local/resources.json`` of an NVFlare workspace has to hold for these jobs: the classes they may name."""
    classes = (MeritController, MeritAggregator, MeritExecutor)
    return {"format_version": 2, CLASS_ALLOW_LIST: [f"{kind.__module__}.{kind.__name__}" for kind in classes]}


def export_job(
    plan: Plan,
    out: Path,
    min_sites: int = 2,
    byoc: bool = False,
    round_timeout: float = 0,
    start_sites: int | None = None,
) -> None:
    """Write the plan's job folder to ``out``, replacing an earlier export of the same job.

    Args:
        plan: the run.
        out: the job folder.
        min_sites: sites that have to be there for the job to start, and whose answers end a round.
        byoc: the job brings this package's code, for machines that allow it and do not have the package.
        round_timeout: seconds to wait for further sites in a round; 0: as long as it takes.
        start_sites: sites that have to be there for the job to start, where others than ``min_sites``.

    Raises:
        BadInput: ``out`` exists and is no such job folder.
    """
    require_patience(min_sites, round_timeout)
    try:
        MeritRecipe(plan, out.name, min_sites, round_timeout, start_sites).export(str(out.parent))
        if byoc:
            code = Path(fedmerit.__path__[0])
            shutil.copytree(code, out / "app" / "custom" / code.name, ignore=shutil.ignore_patterns("__pycache__"))
    except (RuntimeError, OSError) as error:
        raise BadInput(f"{out}: cannot be written ({error})") from error
