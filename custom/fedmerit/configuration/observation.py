"""What is observed of a run to tell values: what may be asked of which run."""

from collections.abc import Sequence

from fedmerit.capabilities import capabilities
from fedmerit.configuration import spec_syntax
from fedmerit.configuration.filters import HE
from fedmerit.core import Method
from fedmerit.errors import BadInput
from fedmerit.observers import OBSERVERS, Observer

OWN_MODELS = "its sites have models of their own, and a coalition has no one model; take one with a model for all"
NOT_ALONE = "it looks at what each site trains by itself; observe a run of standalone beside this one"
ENCRYPTED = (
    "updates leave encrypted and the server adds up what it cannot read, so that it can make no model of a part of the "
    "sites: values would take single updates; leave out one or the other"
)


def parse(spec: str) -> Observer:
    """The observer of a spec such as ``in_run:every=2``; `BadInput` where it is none."""
    observer: Observer = spec_syntax.parse(spec, OBSERVERS, "--values")
    return observer


def require_observers(specs: Sequence[str], keep_updates: bool, name: str, method: Method) -> tuple[str, ...]:
    """The specs, complete and each once; `BadInput` where one is none, or the method called ``name`` bears none."""
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
    """`BadInput` where runs of the method called ``name`` do not bear the observer of a spec."""
    if why_not := _incompatibility(parse(spec), method):
        raise BadInput(f"--values {spec}: not with method {name}: {why_not}")


def can_observe(observer: Observer, method: Method) -> bool:
    """Whether runs of a method bear an observer."""
    return not _incompatibility(observer, method)


def _incompatibility(observer: Observer, method: Method) -> str:
    if observer.needs_standalone:
        return "" if trains_locally(method) else NOT_ALONE
    return OWN_MODELS if gives_own_models(method) else ""


def require_observable(values: Sequence[str], keep_updates: bool, privacy: Sequence[str]) -> None:
    """`BadInput` where updates are encrypted, and something was to be made of them."""
    if HE in privacy and (values or keep_updates):
        raise BadInput(
            f"{f'--values {values[0]}' if values else '--keep-updates'}: not with --privacy {HE}: {ENCRYPTED}"
        )


def gives_own_models(method: Method) -> bool:
    """Whether sites get, or keep, models of their own."""
    return method.has_site_models or capabilities(method).keeps_own_model


def trains_locally(method: Method) -> bool:
    """Whether each site trains a model by itself, and the server has it."""
    return method.needs.sites == 1 and method.has_site_models
