"""Named sets of settings: how to train where nothing else is said."""

from collections.abc import Mapping
from typing import Any

from fedmerit.errors import BadInput

ROUNDS = 60  # of a run, where its recipe does not say otherwise

_UNET = {"architecture": "unet", "schedule": "constant", "augmentation": "light"}
RECIPES: Mapping[str, Mapping[str, Any]] = {
    "default": {},  # the defaults of `Network` and `Training`: docs/training.md
    "quick": {**_UNET, "width": 8, "lr": 1e-2},  # for demonstrations: a quarter of a round's operations, few rounds
    "unet": {**_UNET, "width": 16},  # the default before; comparison, values and cycle in docs/ were measured with it
}


def with_recipe(settings: Mapping[str, Any]) -> dict[str, Any]:
    """``settings``, and beneath them those of the recipe that "recipe" names among them.

    Raises:
        BadInput: there is no recipe of that name.
    """
    rest = dict(settings)
    name = rest.pop("recipe", "default")
    if name not in RECIPES:
        raise BadInput(f"recipe {name!r}: unknown; expected one of {', '.join(RECIPES)}")
    return {**RECIPES[name], **rest}
