"""What a method needs of a site's script, held against what the script can do: before round 0, with the reason."""

from collections.abc import Iterator, Mapping

from fedmerit.contract.capabilities import capabilities
from fedmerit.contract.method import Method
from fedmerit.errors import BadInput
from fedmerit.schema.configuration.script import USES, Script

HELPERS: Mapping[str, str] = {  # what a method's own training asks of a script: of `script.USES`
    "fedprox": "fedprox",
    "scaffold": "scaffold",
    "ditto": "own_model",
}
LOSSES = "asks sites for the loss of every image; have the script send it by fedmerit.client.with_losses"
EVALUATING = (
    "has the sites' scripts evaluate other models than the one to train; answer flare.is_evaluate() with a metric, and "
    "name it"
)


def require_script_support(name: str, method: Method, script: Script, observers: tuple[str, ...]) -> None:
    """`BadInput` with the first of `unmet_needs`, if there is one."""
    if reason := next(unmet_needs(name, method, script, observers), None):
        raise BadInput(f"method {name}: {reason}; or prepare images and let FedMerit train (docs/running.md)")


def unmet_needs(name: str, method: Method, script: Script, observers: tuple[str, ...] = ()) -> Iterator[str]:
    """Why ``method`` of this ``name`` cannot run with ``script``; nothing: it can."""
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
        yield LOSSES
    if can.leave_one_out and can.leave_one_out.needs_others and not evaluates:
        yield EVALUATING
    if can.candidates and can.candidates.most_candidates(2) and not evaluates:
        yield EVALUATING
    if observers and not evaluates:
        yield f"--values {observers[0]} {EVALUATING}"
