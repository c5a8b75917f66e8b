"""Which parts of others a run names: what a machine has to have, and a deployed one to approve."""

from collections.abc import Iterable, Mapping
from typing import Any

from fedmerit.configuration.run import ARCHITECTURES, LOSSES, OPTIMIZERS
from fedmerit.methods.registry import OWN

PLACES: Mapping[str, tuple[str, str, Iterable[str]]] = {  # of a plan: part of it, field, ours
    "networks": ("network", "architecture", ARCHITECTURES),
    "losses": ("training", "loss", LOSSES),
    "optimizers": ("training", "optimizer", OPTIMIZERS),
}


def parts_of_others(plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(group, name) of what a plan, `RunConfiguration.to_dict`, names that is not ours; nothing of it is loaded."""
    found = [("methods", str(plan.get("method")))] if plan.get("method") not in OWN else []
    for group, (part, name, ours) in PLACES.items():
        value = (plan.get(part) or {}).get(name, next(iter(ours)))
        if value not in ours:
            found.append((group, str(value)))
    return found
