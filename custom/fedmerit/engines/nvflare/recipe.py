"""A configuration as an NVFlare recipe: the job of controller and executor."""

import re
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nvflare.app_common.logging.constants import ALLOW_LOG_STREAMING_VAR
from nvflare.app_common.widgets.component_path_authorizer import CLASS_ALLOW_LIST
from nvflare.job_config.api import FedJob
from nvflare.job_config.defs import FilterType
from nvflare.recipe.run import Run
from nvflare.recipe.secrets import PotentialSecretWarning
from nvflare.recipe.spec import ExecEnv, Recipe

import fedmerit
from fedmerit.engines.nvflare.components import class_path
from fedmerit.engines.nvflare.controller import MeritController
from fedmerit.engines.nvflare.egress import EgressFilter
from fedmerit.engines.nvflare.executor import MeritExecutor
from fedmerit.engines.nvflare.privacy import FILTERS, privacy_filter
from fedmerit.engines.nvflare.scalars import RECEIVERS, receiver
from fedmerit.errors import BadInput
from fedmerit.schema.configuration.options import JOB_WAITING, Waiting
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.configuration.specs import HE, filter_names
from fedmerit.schema.records import EVALUATE, TRAIN
from fedmerit.server.requirements import require_decentralised

DIGEST = r"Potential secret value in exported job file .*: high-entropy hex string '\*\*\*' \(64 chars\)"
JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # as NVFlare has it


class MeritRecipe(Recipe):
    """A FedMerit method as an NVFlare recipe, for SimEnv, PocEnv and ProdEnv, or to export.

    The job names classes of the installed fedmerit package and carries no code.

    Args:
        waiting: for how many sites, and how long; so many have to be there for the job to start.
        start_sites: sites that have to be there for the job to start, if it is another number.
        privacy: specs of `fedmerit.schema.configuration.specs`, applied at every site to what it sends, in order.
        track: specs of `fedmerit.schema.configuration.specs`.
        script: how sites start theirs, if the plan has one.
        executor: of the sites; a provisioned site allows only the default.

    Raises:
        BadInput: the method needs all images in one place.
    """

    def __init__(
        self,
        config: RunConfiguration,
        name: str,
        waiting: Waiting = JOB_WAITING,
        start_sites: int | None = None,
        privacy: Sequence[str] = (),
        track: Sequence[str] = (),
        script: dict[str, Any] | None = None,
        executor: type[MeritExecutor] = MeritExecutor,
    ):
        require_decentralised(config)
        job = FedJob(name=name, min_clients=start_sites or waiting.min_sites)
        job.set_app_packages(sorted({"fedmerit", executor.__module__.partition(".")[0]}))
        encrypted = HE in privacy
        job.to_server(MeritController(config.to_dict(), encrypted, **waiting._asdict()))
        declared = filter_names(privacy) or None
        job.to_clients(executor(config.to_dict(), encrypted, script, declared), tasks=[TRAIN, EVALUATE])
        asked_for = [privacy_filter(spec) for spec in privacy if spec != HE]
        chains = {TRAIN: [*asked_for, EgressFilter()], EVALUATE: [EgressFilter()]}
        for task, filters in chains.items():
            for filter in filters:
                job.to_clients(filter, filter_type=FilterType.TASK_RESULT, tasks=[task])
        for spec in track:
            job.to_server(receiver(spec))
        super().__init__(job)

    def export(self, *args: Any, **more: Any) -> None:
        """Export the job as NVFlare does."""
        with _digests_are_no_secrets():
            super().export(*args, **more)

    def run(self, env: ExecEnv, *args: Any, **more: Any) -> Run:
        """Run the job as NVFlare does."""
        with _digests_are_no_secrets():
            return super().run(env, *args, **more)


@contextmanager
def _digests_are_no_secrets() -> Iterator[None]:
    """Leave out NVFlare's warnings of a plan's SHA-256 of weights and images, which its scan takes for secrets."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", DIGEST, PotentialSecretWarning)
        yield


def build_site_policy(track: bool = False) -> dict[str, Any]:
    """Return what ``local/resources.json`` of an NVFlare workspace has to hold for these jobs.

    The classes they may name, NVFlare's trackers among them at a server that is to ``track``; and that a site's log,
    which may name files, is not streamed to the server.
    """
    ours = (MeritController, MeritExecutor, EgressFilter, *FILTERS.values())
    classes = [class_path(kind) for kind in ours]
    return {"format_version": 2, CLASS_ALLOW_LIST: classes + list(RECEIVERS) * track, ALLOW_LOG_STREAMING_VAR: False}


def export_job(
    config: RunConfiguration, out: Path, waiting: Waiting = JOB_WAITING, byoc: bool = False, **more: Any
) -> None:
    """Write the plan's job folder to ``out``, replacing an earlier export of the same job.

    Args:
        byoc: the job brings this package's code, for machines that allow it and do not have the package.
        **more: of `MeritRecipe`.

    Raises:
        BadInput: ``out`` exists and is no such job folder, or its name is none of a job.
    """
    job = out.resolve()  # of ., which has no name, the folder's
    if not JOB_NAME.fullmatch(job.name):
        raise BadInput(
            f"{out}: {job.name!r} is no name of an NVFlare job; expected a folder whose name begins with a letter or "
            "digit and holds only these, ., _ and -"
        )
    try:
        MeritRecipe(config, job.name, waiting, **more).export(str(job.parent))
        if byoc:
            code = Path(fedmerit.__path__[0])
            shutil.copytree(code, job / "app" / "custom" / code.name, ignore=shutil.ignore_patterns("__pycache__"))
    except (RuntimeError, OSError) as error:
        raise BadInput(f"{out}: cannot be written ({error})") from error
