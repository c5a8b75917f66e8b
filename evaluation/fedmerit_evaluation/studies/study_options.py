"""What a study is asked for on the command line: methods with settings of their own, and seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedmerit.capabilities import capabilities
from fedmerit.configuration.run import Training
from fedmerit.errors import BadInput
from fedmerit.federation.requirements import check_sites
from fedmerit.methods.registry import METHODS
from fedmerit_evaluation.figures.tables import file_name


@dataclass(frozen=True)
class MethodSpec:
    """What is compared: a method with settings of its own. ``label`` is how it was asked for."""

    label: str
    method: str
    settings: Mapping[str, str]


def parse_methods(text: str, sites: Sequence[str] | None = None, attacked: bool = False) -> list[MethodSpec]:
    """The items of ``fedavg,fedce:combine=plus``; ``all`` is every method that takes the default optimizer.

    Given the names of the ``sites``, it leaves out what cannot work with so many: Krum with two, FedCI with 13; where
    sites are to be ``attacked``, also what trains on all images as one, in which no site can attack.

    Raises:
        BadInput: an item is empty, not of this form, of an unknown method, or there twice.
    """
    items: list[MethodSpec] = []
    for label in text.split(","):
        items += _all(sites, attacked) if label.strip() == "all" else [_item(label.strip())]
    for number, item in enumerate(items):
        for earlier in items[:number]:
            if (earlier.method, earlier.settings) == (item.method, item.settings):
                raise BadInput(f"--methods: {item.label} is given twice; name each once")
            if file_name(earlier.label) == file_name(item.label):
                raise BadInput(f"--methods: {earlier.label} and {item.label} need the same run folder; compare apart")
    return items


def _all(sites: Sequence[str] | None, attacked: bool) -> list[MethodSpec]:
    """At their defaults; a method that trains by another optimizer than the others has to be named."""
    by_name = {name: capabilities(kind()) for name, kind in METHODS.items()}
    others = {
        name
        for name, can in by_name.items()
        if (can.optimizers and Training().optimizer not in can.optimizers) or (attacked and can.pools_images)
    }
    fit = [name for name in METHODS if sites is None or check_sites(name, METHODS[name](), sites) is None]
    return [MethodSpec(name, name, {}) for name in fit if name not in others]


def _item(label: str) -> MethodSpec:
    method, *parts = label.split(":")
    if method not in METHODS:
        raise BadInput(f"--methods: method {method!r}: unknown; expected all, or some of {', '.join(METHODS)}")
    settings: dict[str, str] = {}
    for part in parts:
        name, equals, value = part.partition("=")
        if not name or not equals:
            raise BadInput(f"--methods {label}: {part!r}: expected METHOD:NAME=VALUE")
        if name in settings:
            raise BadInput(f"--methods {label}: {name} is given twice")
        settings[name] = value
    return MethodSpec(label, method, settings)


def parse_seeds(text: str) -> list[int]:
    """The seeds of ``0,1,2``; `BadInput` where one is no whole number from 0, or there twice."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise BadInput(f"--seeds {text}: expected whole numbers such as 0,1,2")
    seeds = [int(part) for part in parts]
    if len(set(seeds)) < len(seeds):
        raise BadInput(f"--seeds {text}: one is given twice")
    return seeds
