"""What a method needs of the rest of a run: its privacy filters, its observers, and its sites' scripts."""

from collections.abc import Iterator, Mapping, Sequence

from fedmerit.ciphertexts import require_tenseal
from fedmerit.contract.capabilities import capabilities
from fedmerit.contract.method import Method
from fedmerit.contract.observers import OBSERVERS, Observer
from fedmerit.errors import BadInput
from fedmerit.schema.configuration.script import USES, Script
from fedmerit.schema.configuration.settings import Training
from fedmerit.schema.configuration.specs import FILTERS, HE, parse_filter
from fedmerit.schema.declarations import format_spec, join_spec, parse_spec, split_spec

PEER_MODELS = "its models go from site to site"
PEER_MODELS_UNFILTERED = f"{PEER_MODELS}, past the filters of what goes to the server"
BESIDE = "its sites send another vector beside the update, and the filters see only the update"
ONE_OF_THEM = "a filter acts on an update in the clear, and updates leave encrypted; take one or the other"
SINGLE = "its server half needs single updates or the model in the clear, which a server that adds ciphertexts has not"


def require_privacy(specs: Sequence[str], name: str, method: Method) -> list[str]:
    """Return the specs, complete; `BadInput` if one is invalid, or the method ``name`` cannot work with filters."""
    if HE in specs:
        if not method.needs.sums_only:
            raise BadInput(f"--privacy {HE}: not with method {name}: {SINGLE}")
        if len(specs) > 1:
            raise BadInput(f"--privacy {HE}: not with others: {ONE_OF_THEM}")
        require_tenseal(f"--privacy {HE}")
        return [HE]
    complete = [format_spec(parse_filter(spec), FILTERS) for spec in specs]
    can = capabilities(method)
    why_not = method.needs.unfiltered or (
        PEER_MODELS_UNFILTERED if can.exchanges_directly else BESIDE if can.vectors else ""
    )
    if complete and why_not:
        raise BadInput(f"--privacy {complete[0]}: not with method {name}: {why_not}")
    return complete


def require_private_training(name: str, method: Method, training: Training) -> None:
    """Raise `BadInput` if more than updates by DP-SGD would leave sites of the method ``name``, or none is possible."""
    can = capabilities(method)
    if why_not := (
        "it trains on the images of all sites at once"
        if can.pools_images
        else "its sites measure predictions of their peers on training images"
        if can.peers
        else "its sites train a second model, which takes more steps than are accounted for"
        if can.keeps_own_model
        else "its sites report losses on training images"
        if any(quantity.startswith("loss") for quantity in method.asks)
        else ""
    ):
        raise BadInput(
            f"dp_epsilon, dp_noise: not with method {name}: {why_not}; take another method, or leave them out"
        )
    for setting, needed in (("amp", False), ("organ_share", 0)):
        if getattr(training, setting) != needed:
            raise BadInput(
                f"{setting}={getattr(training, setting)}: not with dp_epsilon or dp_noise, which draw patients by "
                f"chance and compute in float32; set {setting}={str(needed).lower()}"
            )


UPDATES = "updates"  # folder of the kept ones, in the run folder
OWN_MODELS = "its sites have models of their own, and a coalition has no one model; take one with a model for all"
NEEDS_STANDALONE = "it looks at what each site trains by itself; observe a run of standalone beside this one"
ENCRYPTED = (
    "updates leave encrypted and the server adds up what it cannot read, so it can make no model of a part of the "
    "sites, as values need; leave out one or the other"
)


def parse_observer(spec: str) -> Observer:
    """Return the observer of a spec such as ``multi_round:every=2``; `BadInput` if it is none."""
    return parse_spec(spec, OBSERVERS, "--values")


def require_observers(specs: Sequence[str], keep_updates: bool, name: str, method: Method) -> tuple[str, ...]:
    """Return the specs, complete and each once.

    `BadInput` if one is invalid, or not possible with the method ``name``.
    """
    for spec in specs:
        require_observer(spec, name, method)
    if keep_updates and capabilities(method).exchanges_directly:
        raise BadInput(f"--keep-updates: not with method {name}: {PEER_MODELS}")
    kinds = [split_spec(spec)[0] for spec in specs]
    complete = tuple(join_spec(kind, parse_observer(spec)) for kind, spec in zip(kinds, specs, strict=True))
    if twice := [kind for kind in kinds if kinds.count(kind) > 1]:
        raise BadInput(f"--values {twice[0]}: given twice; name each once")
    return complete


def require_observer(spec: str, name: str, method: Method) -> None:
    """Raise `BadInput` if the observer of a spec is not possible in runs of the method ``name``."""
    if why_not := _incompatibility(parse_observer(spec), method):
        raise BadInput(f"--values {spec}: not with method {name}: {why_not}")


def can_observe(observer: Observer, method: Method) -> bool:
    """Return whether an observer is possible in runs of a method."""
    return not _incompatibility(observer, method)


def _incompatibility(observer: Observer, method: Method) -> str:
    if observer.needs_standalone:
        trains_locally = method.needs.sites == 1 and method.has_site_models  # and the server has these models
        return "" if trains_locally else NEEDS_STANDALONE
    return OWN_MODELS if gives_own_models(method) else ""


def require_observable(values: Sequence[str], keep_updates: bool, privacy: Sequence[str]) -> None:
    """Raise `BadInput` if updates are encrypted, and something is to be observed or kept."""
    if HE in privacy and (values or keep_updates):
        raise BadInput(
            f"{f'--values {values[0]}' if values else '--keep-updates'}: not with --privacy {HE}: {ENCRYPTED}"
        )


def gives_own_models(method: Method) -> bool:
    """Return whether sites get, or keep, models of their own."""
    return method.has_site_models or capabilities(method).keeps_own_model


HELPERS: Mapping[str, str] = {  # what a method's own training asks of a script: of `script.USES`
    "fedprox": "fedprox",
    "scaffold": "scaffold",
    "ditto": "own_model",
}
WITHOUT_LOSSES = "asks sites for the loss of every image; have the script send it by fedmerit.client.with_losses"
WITHOUT_EVALUATION = (
    "has the sites' scripts evaluate other models than the one to train; answer flare.is_evaluate() with a metric, and "
    "name it"
)


def require_script_support(name: str, method: Method, script: Script, observers: tuple[str, ...]) -> None:
    """Raise `BadInput` with the first of `unmet_needs`, if there is one."""
    if reason := next(unmet_needs(name, method, script, observers), None):
        raise BadInput(f"method {name}: {reason}; or prepare images and let FedMerit train (docs/running.md)")


def unmet_needs(name: str, method: Method, script: Script, observers: tuple[str, ...] = ()) -> Iterator[str]:
    """Return why ``method`` of this ``name`` cannot run with ``script``; nothing: it can."""
    can, evaluates = capabilities(method), script.evaluates and bool(script.metric)
    if can.pools_images:
        yield "needs all images in one place, and a script keeps its own"
    if can.neurons:
        yield "gives each site a part of the network's neurons, and a script trains all"
    if can.peers:
        yield "has sites learn from each other's predictions inside their training, which a script does not do"
    if can.local_training and name not in HELPERS:
        yield "changes the loss or the gradients inside a site's training, which a script does not do"
    elif can.local_training and HELPERS[name] not in script.uses:
        yield f"changes a site's training; have the script use {USES[HELPERS[name]][0]}"
    if can.leave_one_out and "fedce" not in script.uses:
        yield f"asks sites for the error of the model without them; have the script use {USES['fedce'][0]}"
    elif method.asks and not can.leave_one_out and not all(one.startswith("loss") for one in method.asks):
        yield f"asks sites for {', '.join(sorted(method.asks))}, which a script does not report"
    elif method.asks and not can.leave_one_out and "losses" not in script.uses:
        yield WITHOUT_LOSSES
    if can.leave_one_out and can.leave_one_out.needs_others and not evaluates:
        yield WITHOUT_EVALUATION
    if can.candidates and can.candidates.most_candidates(2) and not evaluates:
        yield WITHOUT_EVALUATION
    if observers and not evaluates:
        yield f"--values {observers[0]} {WITHOUT_EVALUATION}"
