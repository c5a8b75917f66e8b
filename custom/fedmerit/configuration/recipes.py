"""Named sets of settings: recipes, the defaults of a training, and presets, as the papers trained."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedmerit.errors import BadInput

ROUNDS = 100  # of a run, by default

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


_SGD = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "schedule": "constant"}
_CIFAR = {  # Table 4, Xu et al. 2021: "framework-independent", of CGSV and of what it is compared with
    **_SGD,
    "lr": 0.015,
    "schedule": "step",
    "decay": 0.977,
    "decay_every": 1,
    "batch_size": 128,
}
PAPER = "paper"  # the preset of the run's own method
PRESETS: Mapping[str, Preset] = {  # by method; of several data sets CIFAR-10's, the nearest to slices
    "fedce": Preset(
        "Jiang et al. 2023, Section 4.1",
        200,
        {"loss": "dice", "optimizer": "adam", "lr": 1e-3, "schedule": "constant", "batch_size": 8, "epochs": 1},
        {"combine": "times"},
    ),
    "cgsv": Preset(
        "Xu et al. 2021, Table 4 and Section 5; decay counted in rounds, local epochs not stated",
        200,
        _CIFAR,
        {"alpha": 0.95, "gamma": 0.15},
    ),
    "fedave": Preset(
        "Wang et al. 2024, Section 5.1 and Algorithm 1; rounds not stated, those of CGSV",
        200,
        {**_SGD, "lr": 0.015, "batch_size": 128, "epochs": 3},
        {
            "form": "paper",
            "clip": 1e-3,
            "tau": 0.15,
            "alpha": 0.95,
            "beta": 1.5,
            "kl_floor": 1e-9,
            "unrewarded": "nothing",
        },
    ),
    "fedsac": Preset(
        "Wang et al., KDD 2024, Section 5.1: one of the settings searched there; rounds not stated, those of CGSV",
        200,
        {**_SGD, "lr": 0.03, "batch_size": 32, "epochs": 15},
        {"beta": 5.0, "importance_interval": 10},
    ),
    "cycle": Preset(
        "Tastan et al. 2025, Section 5.1; momentum as in CaPriDe's code, not stated",
        100,
        {**_SGD, "momentum": 0.9, "lr": 0.1, "schedule": "step", "decay": 0.1, "decay_every": 25, "batch_size": 128},
        {
            "alpha": 0.5,
            "lambda0": 50.0,
            "tau_opt": 0.25,
            "tau_max": 0.75,
            "warmup": 25,
            "warmup_by": "own",
            "score": "gradients",
        },
    ),
    "eci": Preset(
        "Xu et al. 2021, Section 4.1 and Table 4, who compare with it; truncation and local epochs not stated",
        200,
        _CIFAR,
        {"unrewarded": "nothing"},
    ),
    "cffl": Preset(
        "Lyu et al. 2020, as its authors' code for CIFAR-10; training of Xu et al. 2021, Table 4, who compare with it",
        200,
        _CIFAR,
        {"alpha": 5.0, "coef": 1 / 3, "clip": 1e-3},
    ),
    "rffl": Preset(
        "Xu and Lyu 2021, as its authors' code for CIFAR-10; batch size not stated, that of CGSV",
        200,
        {**_CIFAR, "epochs": 3},
        {"alpha": 0.95, "gamma": 0.15, "coef": 1 / 3, "warmup": 10},
    ),
    "qfedavg": Preset(
        "Li et al. 2020, Algorithm 2 with L = 1/lr, lr of its authors' code; q is tuned there; batch size not stated, "
        "rounds neither, those of CGSV",
        200,
        {**_SGD, "lr": 0.01, "epochs": 1},
        {"rule": "exact", "L": 100.0},
    ),
    "dw": Preset("Xu et al. 2021, Section 4.1 and Table 4; by what n is divided not stated", 200, _CIFAR, {}),
    "eu": Preset("Xu et al. 2021, Section 4.1 and Table 4; how the sign is turned not stated", 200, _CIFAR, {}),
    "rr": Preset("Xu et al. 2021, Section 4.1 and Table 4; how turns are taken not stated", 200, _CIFAR, {}),
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

    A task's steps belong to its batch size: settings that name epochs or a batch size train in epochs.

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
    return {**beneath, **above}
