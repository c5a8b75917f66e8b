"""run.json: what was run, and with which versions."""

import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedmerit.errors import BadInput
from fedmerit.methods.registry import undefined_quantities
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.run_info import read_run
from fedmerit.version import code_commit, installed_versions, package_version


def describe(name: str, config: RunConfiguration, sites: Sequence[str], engine: str) -> dict[str, Any]:
    """What every run.json says, of `fedmerit run` and of the server of a deployment."""
    return {
        "run": name,
        **run_plan(config),
        "sites": list(sites),
        "engine": engine,
        "fedmerit_version": package_version(),
        "commit": code_commit(),
        "packages": installed_versions(),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def run_plan(config: RunConfiguration) -> dict[str, Any]:
    """The part of run.json that follows from the configuration."""
    return {
        "method": config.method,
        "parameters": dict(config.parameters),
        "seed": config.seed,
        "fold": config.fold,
        "task": config.task,
        "labels": list(config.network.labels),
        "undefined": undefined_quantities(config.method),
        "rounds": config.rounds,
        "training": {} if config.script else vars(config.training),  # a script's settings are its own
        "plan": config.to_dict(),
    }


def read_plan(run: Path) -> RunConfiguration:
    """The configuration that run.json of a run folder holds; `BadInput` naming the file if it holds none."""
    info = read_run(run)
    plan = info["plan"]
    try:
        return RunConfiguration.from_dict(plan)
    except BadInput as error:
        raise BadInput(f"{info.file}: {error}") from None
