"""The parts of other packages that a run names: a machine must have them, a deployed one approve them."""

from collections.abc import Iterable, Mapping
from typing import Any

from fedmerit.contract.observers import OWN as OWN_OBSERVERS
from fedmerit.methods.registry import OWN
from fedmerit.schema.configuration.run import ARCHITECTURES, LOSSES, OPTIMIZERS
from fedmerit.schema.configuration.spec_syntax import split_spec

PLACES: Mapping[str, tuple[str, str, Iterable[str]]] = {  # of a plan: part of it, field, ours
    "networks": ("network", "architecture", ARCHITECTURES),
    "losses": ("training", "loss", LOSSES),
    "optimizers": ("training", "optimizer", OPTIMIZERS),
}


def find_external_parts(plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(group, name) of the parts in a plan, `RunConfiguration.to_dict`, that are not ours; loads none of them."""
    found = [("methods", str(plan.get("method")))] if plan.get("method") not in OWN else []
    for group, (part, name, ours) in PLACES.items():
        value = (plan.get(part) or {}).get(name, next(iter(ours)))
        if value not in ours:
            found.append((group, str(value)))
    observers = [split_spec(spec)[0] for spec in plan.get("values") or ()]
    return found + [("observers", name) for name in observers if name not in OWN_OBSERVERS]
