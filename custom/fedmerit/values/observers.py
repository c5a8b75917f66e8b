"""What can be observed of a run, by name; packages add to it by the entry point group `GROUP`."""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import TypeVar

from fedmerit.errors import BadInput
from fedmerit.values.carried import Carried
from fedmerit.values.in_run import InRun
from fedmerit.values.observing import Observer
from fedmerit.values.others_lose import OthersLose

T = TypeVar("T")
GROUP = "fedmerit.values"  # of classes: an `Observer`, or an estimator of `evaluation.values`
OURS: Mapping[str, type[Observer]] = {"in_run": InRun, "carried": Carried, "others_lose": OthersLose}


@cache
def observers() -> Mapping[str, type[Observer]]:
    """By name, ours and those that installed packages bring; `BadInput` where one of theirs takes a name of ours."""
    return {**OURS, **extensions(Observer, OURS)}


def extensions(kind: type[T], known: Mapping[str, object]) -> dict[str, type[T]]:
    """The classes of a ``kind`` that the entry points bring; `BadInput` where a name is ``known`` already."""
    found: dict[str, type[T]] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        loaded = entry.load()
        if not (isinstance(loaded, type) and issubclass(loaded, kind)):
            continue
        if entry.name in known:
            raise BadInput(f"entry point {entry.name} of {GROUP}: FedMerit has one of that name; rename it")
        found[entry.name] = loaded
    return found
