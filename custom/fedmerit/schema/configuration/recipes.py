"""Named sets of settings: recipes, the defaults of a training, and presets, as the papers trained."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmerit.errors import BadInput

ROUNDS = 100  # of a run, by default
AUTO = "auto"  # for amp: float32 unless the machine of the run measures that mixed precision is faster

# beneath every recipe: an organ is in one piece; a site of few images takes few steps a round, unless small ones; if
# sites differ in size, as sources of photographs do, an epoch each would count images twice: in steps and in weights
TASK_RECIPES: Mapping[str, Mapping[str, Any]] = {
    "prostate": {"largest": True, "batch_size": 2},
    "fundus": {"largest": True, "batch_size": 2, "steps": 30},
    "fundus-disc": {"largest": True, "batch_size": 2},
}
RECIPES: Mapping[str, Mapping[str, Any]] = {
    "default": {},  # the defaults of `Network` and `Training`: docs/training.md
    "quick": {  # for demonstrations: a quarter of a round's operations, few rounds
        "architecture": "unet",
        "width": 8,
        "lr": 1e-2,
        "schedule": "constant",
        "augmentation": "light",
        "batch_size": 8,
        "mirrored": False,
        "largest": False,
    },
}


@dataclass(frozen=True)
class Preset:
    """A paper's own settings, as far as it states them."""

    source: str  # the place in the paper, and what is not stated there
    rounds: int  # of a run
    training: Mapping[str, Any]  # of any method
    parameters: Mapping[str, Any]  # of its own


PAPER = "paper"  # the preset of the run's own method
PRESETS: Mapping[str, Preset] = {  # by method
    name: Preset(**stated)
    for name, stated in tomllib.loads(Path(__file__).with_name("presets.toml").read_text("utf-8")).items()
}


def guarded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a new run, whose guard is on by default."""
    return {"guard": "on", **settings}


def with_preset(settings: Mapping[str, Any], method: str) -> dict[str, Any]:
    """``settings``, and beneath them those of the paper that "preset" names among them: `PAPER`, or a method's.

    Raises:
        BadInput: there is no preset of that name, or the method has none of its own.
    """
    rest = dict(settings)
    name = rest.pop("preset", None)
    if name is None:
        return rest
    chosen = PRESETS.get(method if name == PAPER else name)
    if chosen is None:
        own = f"method {method} has none of its own; " if name == PAPER else "unknown; "
        raise BadInput(
            f"preset {name!r}: {own}there are {', '.join(PRESETS)}, of which each is how to train any method"
        )
    parameters = chosen.parameters if chosen is PRESETS.get(method) else {}
    return {**chosen.training, **parameters, **rest}


def with_recipe(settings: Mapping[str, Any], task: str = "") -> dict[str, Any]:
    """``settings``, and beneath them those of the recipe that "recipe" names among them, and of the task.

    A task's steps belong to its batch size: settings that name epochs or a batch size train in epochs. `AUTO` is
    false: who knows a machine measures (`engines.runs.create`).

    Raises:
        BadInput: there is no recipe of that name.
    """
    rest = dict(settings)
    name = rest.pop("recipe", "default")
    if name not in RECIPES:
        raise BadInput(f"recipe {name!r}: unknown; expected one of {', '.join(RECIPES)}")
    above, beneath = {**RECIPES[name], **rest}, dict(TASK_RECIPES.get(task, {}))
    if above.keys() & {"epochs", "batch_size"}:
        beneath.pop("steps", None)
    measured = {"amp": False} if above.get("amp") == AUTO else {}
    return {**beneath, **above, **measured}
