"""Whether sites may be sent models that are made of single other sites' updates: the plan's ``share_models``.

With the global model, a model without one site gives that site's update as well as the site's own model does. So it is
not the form of a message that counts, but whether an update of one site follows from it.
"""

from dataclasses import replace

from fedmerit.contract.capabilities import capabilities
from fedmerit.errors import BadInput
from fedmerit.schema.configuration.run import RunConfiguration

WAYS_OUT = "add --share-models if all sites agree"
OR_IMAGES = f"give the server images of its own with --server-sites, or {WAYS_OUT}"


def why_shared(config: RunConfiguration, has_server_images: bool) -> str:
    """What of a run cannot do without sharing, with a way out; empty if it can."""
    method = config.build_guarded_method()
    can = capabilities(method)
    if can.peers:
        return f"method {config.method}: its sites learn from each other's models; {WAYS_OUT}"
    if method.reveals_updates:
        return f"method {config.method}: it sends sites what another site trained; {WAYS_OUT}"
    if config.values:
        return f"--values {config.values[0]}: sites evaluate models of a part of the sites; {WAYS_OUT}"
    if has_server_images:
        return ""
    if can.candidates and can.candidates.most_candidates(2):
        return f"method {config.method}: models of single sites are evaluated; {OR_IMAGES}"
    if can.leave_one_out and can.leave_one_out.needs_others:
        return f"error=others: the models without each site are evaluated; {OR_IMAGES}"
    return ""


def require_sharing(config: RunConfiguration, has_server_images: bool) -> None:
    """`BadInput` if a run needs ``share_models`` and its plan does not have it."""
    if not config.share_models and (why := why_shared(config, has_server_images)):
        raise BadInput(why)


def with_sharing(
    config: RunConfiguration, asked: bool | None, on_one_machine: bool, has_server_images: bool
) -> RunConfiguration:
    """The plan with ``share_models`` as ``asked``; None: only on one machine, and if the run uses it.

    FedCE's sites rate the models without each other only if that is asked for, whatever else of the run needs sharing.

    Raises:
        BadInput: the run needs it.
    """
    if asked is None and on_one_machine:
        asked = bool(why_shared(config, has_server_images)) or ends_with_private_models(config)
        measures = capabilities(config.build_method()).leave_one_out
        rated = measures and not measures.needs_others and config.guard.guard == "on"
        if asked and rated and not has_server_images:
            config = replace(config, guard=replace(config.guard, rate_every=0))
    config = replace(config, share_models=bool(asked))
    require_sharing(config, has_server_images)
    return config


def ends_with_private_models(config: RunConfiguration) -> bool:
    """Whether final models hold parts of what a single site trained."""
    return config.build_method().has_private_models or config.training.last_round == "own"


def tests_all_models(config: RunConfiguration) -> bool:
    """Whether every site may test every final model, if no verdict stands: else each tests only its own."""
    return config.share_models or not ends_with_private_models(config)
