"""Which observers a run may have, by its method and privacy."""

from collections.abc import Sequence

from fedmerit.contract.capabilities import capabilities
from fedmerit.contract.method import Method
from fedmerit.contract.observers import OBSERVERS, Observer
from fedmerit.errors import BadInput
from fedmerit.schema.configuration import spec_syntax
from fedmerit.schema.configuration.filters import HE

UPDATES = "updates"  # folder of the kept ones, in the run folder
OWN_MODELS = "its sites have models of their own, and a coalition has no one model; take one with a model for all"
NEEDS_STANDALONE = "it looks at what each site trains by itself; observe a run of standalone beside this one"
ENCRYPTED = (
    "updates leave encrypted and the server adds up what it cannot read, so it can make no model of a part of the "
    "sites, as values need; leave out one or the other"
)


def parse(spec: str) -> Observer:
    """The observer of a spec such as ``multi_round:every=2``; `BadInput` if it is none."""
    return spec_syntax.parse(spec, OBSERVERS, "--values")


def require_observers(specs: Sequence[str], keep_updates: bool, name: str, method: Method) -> tuple[str, ...]:
    """The specs, complete and each once; `BadInput` if one is invalid, or not possible with the method ``name``."""
    for spec in specs:
        require_observer(spec, name, method)
    if keep_updates and gives_own_models(method):
        raise BadInput(f"--keep-updates: not with method {name}: {OWN_MODELS}")
    kinds = [spec_syntax.split_spec(spec)[0] for spec in specs]
    complete = tuple(spec_syntax.written(kind, parse(spec)) for kind, spec in zip(kinds, specs, strict=True))
    if twice := [kind for kind in kinds if kinds.count(kind) > 1]:
        raise BadInput(f"--values {twice[0]}: given twice; name each once")
    return complete


def require_observer(spec: str, name: str, method: Method) -> None:
    """`BadInput` if the observer of a spec is not possible in runs of the method ``name``."""
    if why_not := _incompatibility(parse(spec), method):
        raise BadInput(f"--values {spec}: not with method {name}: {why_not}")


def can_observe(observer: Observer, method: Method) -> bool:
    """Whether an observer is possible in runs of a method."""
    return not _incompatibility(observer, method)


def _incompatibility(observer: Observer, method: Method) -> str:
    if observer.needs_standalone:
        trains_locally = method.needs.sites == 1 and method.has_site_models  # and the server has these models
        return "" if trains_locally else NEEDS_STANDALONE
    return OWN_MODELS if gives_own_models(method) else ""


def require_observable(values: Sequence[str], keep_updates: bool, privacy: Sequence[str]) -> None:
    """`BadInput` if updates are encrypted, and something is to be observed or kept."""
    if HE in privacy and (values or keep_updates):
        raise BadInput(
            f"{f'--values {values[0]}' if values else '--keep-updates'}: not with --privacy {HE}: {ENCRYPTED}"
        )


def gives_own_models(method: Method) -> bool:
    """Whether sites get, or keep, models of their own."""
    return method.has_site_models or capabilities(method).keeps_own_model
