"""Collaboratively-fair federated learning for medical image segmentation.

The functions of `__all__` are loaded when they are asked for: importing the package costs nothing, and what travels to
a site needs none of them.
"""

from importlib import import_module
from typing import Any

__all__ = [
    "FedMeritRecipe",
    "__version__",
    "compare",
    "keep_updates",
    "load_run",
    "prepare",
    "register",
    "report",
    "rounds",
    "run",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("fedmerit")
    if name == "register":
        return import_module("fedmerit.plugins").register
    if name == "FedMeritRecipe":
        return import_module("fedmerit.engines.nvflare.script_recipe").FedMeritRecipe
    if name == "keep_updates":
        return import_module("fedmerit.engines.nvflare.keep_updates").keep_updates
    if name in __all__:
        return getattr(import_module("fedmerit_cli.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
