"""run.json: what was run, and with which versions."""

import platform
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fedmerit.configuration.run import Plan

PACKAGES = ("fedmerit", "nvflare", "monai", "torch", "numpy")


def describe(name: str, plan: Plan, sites: Sequence[str], engine: str) -> dict[str, Any]:
    """What every run.json says, whoever writes it: `fedmerit run`, or the server of a deployment."""
    return {
        "run": name,
        "method": plan.method,
        "parameters": dict(plan.parameters),
        "seed": plan.seed,
        "sites": list(sites),
        "task": plan.task,
        "labels": list(plan.network.labels),
        "rounds": plan.rounds,
        "engine": engine,
        "training": vars(plan.training),
        "plan": plan.to_dict(),
        "fedmerit_version": _version("fedmerit"),
        "packages": {name: _version(name) for name in PACKAGES} | {"python": platform.python_version()},
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # a job that brings its code
        return "not installed"
