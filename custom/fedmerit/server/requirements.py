"""Requirements of a run on its sites and settings, checked before it begins, and on what its method gives."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedmerit.contract.capabilities import capabilities
from fedmerit.contract.method import Layout, Method, Outcome
from fedmerit.contract.vectors import all_finite
from fedmerit.errors import BadInput, RunFailed
from fedmerit.schema.configuration.requirements import gives_own_models, require_observable
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.configuration.specs import HE
from fedmerit.schema.rules import FLOAT32_SLACK
from fedmerit.schema.site_folder import SiteFolder, images_digest


def require_sites(config: RunConfiguration, sites: Sequence[str]) -> None:
    """Raise `BadInput` if a method cannot work with so many sites."""
    method = config.build_method()
    if fault := check_sites(config.method, method, sites):
        raise BadInput(fault)


def check_sites(name: str, method: Method, sites: Sequence[str]) -> str | None:
    """Return why ``method`` of this ``name`` cannot work with so many ``sites``, or None."""
    if len(sites) < method.needs.sites:
        return (
            f"sites {', '.join(sites) or '(none)'}: {name} needs at least {method.needs.sites}; "
            "add sites, or take another method, such as --method standalone, which trains every site locally"
        )
    try:
        method.start(torch.zeros(1), len(sites), Layout.of(1))
    except ValueError as error:
        return f"method {name}: {error}"
    return None


def require_planned_images(config: RunConfiguration, folders: Sequence[SiteFolder]) -> None:
    """Raise `BadInput` if a plan names images of the server's own, and ``folders`` do not hold just these."""
    if config.server_images and (found := images_digest(folders)) != config.server_images:
        held = f"the server has SHA-256 {found}" if found else "the server has none; name them with --server-sites"
        raise BadInput(
            f"server_images: the plan names the server's own images by SHA-256 {config.server_images}; {held}"
        )


def require_decentralised(config: RunConfiguration) -> None:
    """Raise `BadInput` if the method cannot work with images that stay at their sites."""
    if capabilities(config.build_method()).pools_images:
        raise BadInput(f"method {config.method}: needs all images in one place; run it with --engine local")


def require_consistent(config: RunConfiguration, filters: Sequence[str]) -> None:
    """Raise `BadInput` if settings, privacy filters and observers contradict each other, on any engine."""
    if config.script and HE in filters:
        raise BadInput("privacy he: sites make the first model of an encrypted run themselves, and a script does not")
    require_observable(config.values, config.keep_updates, filters)
    require_visible_models(config, filters)
    require_one_model_for_all(config)


def require_visible_models(config: RunConfiguration, filters: Sequence[str]) -> None:
    """Raise `BadInput` if statistics or last models should follow a rule of the server, which does not see them."""
    if not (HE in filters or capabilities(config.build_method()).exchanges_directly):
        return
    if config.training.statistics != "method":
        raise BadInput(
            f"statistics={config.training.statistics}: the server of this run sees no model, so BatchNorm "
            "statistics follow the method; leave it out"
        )
    if config.training.last_round != "aggregated":
        raise BadInput("last_round=own: the server of this run sees no update; leave it out")


def require_one_model_for_all(config: RunConfiguration) -> None:
    """Raise `BadInput` if sites should keep separate models in the last round that are separate already, or never
    are.
    """
    if config.training.last_round == "aggregated":
        return
    method = config.build_method()
    if capabilities(method).pools_images:
        raise BadInput(f"last_round=own: {config.method} has one training, and no site one of its own; leave it out")
    if gives_own_models(method):
        raise BadInput(f"last_round=own: sites of {config.method} have models of their own anyway; leave it out")


def require_outcome(given: Any, method: Method, updates: Tensor, where: str) -> tuple[Any, Outcome]:
    """Return the state and the outcome that a method gave for the ``updates`` (n, d) of a round.

    ``where`` names round and method.

    Raises:
        RunFailed: they are none, or not as `Outcome` says: a shape, NaN or infinite entries, the sum of the weights.
    """
    if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Outcome)):
        raise RunFailed(f"{where} gave {type(given).__name__}; expected its state and an Outcome")
    state, outcome = given
    n, d = updates.shape
    rows = {"contribution": outcome.contribution, "reputation": outcome.reputation, "weights": outcome.weights}
    for name, value in (rows | {**outcome.quantities}).items():
        if not isinstance(value, Tensor) or value.shape != (n,):
            found = f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"as {type(value).__name__}"
            raise RunFailed(f"{where} gave {name} {found}; expected a tensor of shape ({n},), a number for each site")
    models = outcome.models
    if (models.ndim == 2) > method.has_site_models:
        raise RunFailed(f"{where} gave a model for each site; declare has_site_models in its class")
    if models.shape not in ((d,), (n, d)) or models.dtype != updates.dtype:
        raise RunFailed(
            f"{where} gave models of shape {tuple(models.shape)} in {models.dtype}; expected ({d},) in "
            f"{updates.dtype}, ({n}, {d}) with has_site_models"
        )
    if not (all_finite(models) and all_finite(outcome.weights)):
        raise RunFailed(f"{where} gave a model or weights with NaN or infinite entries")
    if (total := float(outcome.weights.sum())) and abs(total - 1) > FLOAT32_SLACK:
        raise RunFailed(f"{where} gave weights whose sum is {total:.6g}; expected 1")
    return state, outcome
