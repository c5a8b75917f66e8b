"""What sites and settings have to be for a run: checked before it begins."""

import math
from collections.abc import Sequence

import torch

from fedmerit.capabilities import capabilities
from fedmerit.configuration.filters import HE
from fedmerit.configuration.observation import gives_own_models, require_observable
from fedmerit.configuration.run import RunConfiguration
from fedmerit.core import Layout, Method
from fedmerit.errors import BadInput
from fedmerit.trainers.monai_trainer.data import SiteFolder
from fedmerit.trainers.monai_trainer.network_checks import check_image_size
from fedmerit.wire.egress_list import NAME


def require_sites(config: RunConfiguration, sites: Sequence[str]) -> None:
    """`BadInput` where a method cannot work with so many sites, or sites have names that it cannot use."""
    method = config.build_method()
    if fault := check_sites(config.method, method, sites):
        raise BadInput(fault)
    if capabilities(method).peers:
        for site in sites:
            if not NAME.fullmatch(site):
                raise BadInput(
                    f"site {site}: sites of {config.method} name each other, and the names that leave a site are of "
                    "letters, digits, _ . and -; rename it"
                )
    if config.values and (joined := [name for name in sites if "+" in name]):
        raise BadInput(f"site {joined[0]}: --values names coalitions by their sites with a + between; rename the site")


def check_sites(name: str, method: Method, sites: Sequence[str]) -> str | None:
    """Why ``method`` of this ``name`` cannot work with so many ``sites``, or None."""
    if len(sites) < method.needs.sites:
        return (
            f"sites {', '.join(sites) or '(none)'}: {name} needs at least {method.needs.sites}; "
            "add sites, or take another method, such as --method standalone, by which a site trains alone"
        )
    try:
        method.start(torch.zeros(1), len(sites), Layout.of(1))
    except ValueError as error:
        return f"method {name}: {error}"
    return None


def require_timeouts(min_sites: int, round_timeout: float, num_sites: int | None = None) -> None:
    """`BadInput` where a server cannot wait so long, or for so many of its sites."""
    if not 1 <= min_sites <= (num_sites or min_sites):
        raise BadInput(f"min_sites={min_sites}: expected 1 to the number of sites")
    if not 0 <= round_timeout < math.inf:
        raise BadInput(f"round_timeout={round_timeout:g}: expected a number of seconds, or 0 for no limit")


def require_compatible_images(config: RunConfiguration, folder: SiteFolder) -> None:
    """`BadInput` where the images of ``folder`` do not fit the run's network."""
    expected = (config.task, config.network.in_channels, config.network.labels)
    if (folder.task, folder.channels, folder.labels) != expected:
        raise BadInput(
            f"site {folder.name}: task, channels and labels are {(folder.task, folder.channels, folder.labels)}, "
            f"the run expects {expected}"
        )
    check_image_size(config.network, folder.image_size)


def require_decentralised(config: RunConfiguration) -> None:
    """`BadInput` where the method cannot work with images that stay at their sites."""
    if capabilities(config.build_method()).pools_images:
        raise BadInput(f"method {config.method}: needs all images in one place; run it with --engine local")


def require_consistent(config: RunConfiguration, filters: Sequence[str]) -> None:
    """`BadInput` where settings, privacy filters and what is observed contradict each other, wherever it is run."""
    require_observable(config.values, config.keep_updates, filters)
    require_visible_models(config, filters)
    require_one_model_for_all(config)


def require_visible_models(config: RunConfiguration, filters: Sequence[str]) -> None:
    """`BadInput` where statistics or last models were to follow a rule of the server's, which sees none of them."""
    if not (HE in filters or capabilities(config.build_method()).exchanges_directly):
        return
    if config.training.statistics != "method":
        raise BadInput(
            f"statistics={config.training.statistics}: the server of this run sees no model, so that BatchNorm "
            "statistics go as the method has them; leave it out"
        )
    if config.training.last_round != "aggregated":
        raise BadInput("last_round=own: the server of this run sees no update to keep apart; leave it out")


def require_one_model_for_all(config: RunConfiguration) -> None:
    """`BadInput` where sites were to keep models apart in the last round that are apart already, or never are."""
    if config.training.last_round == "aggregated":
        return
    method = config.build_method()
    if capabilities(method).pools_images:
        raise BadInput(f"last_round=own: {config.method} has one training, and no site one of its own; leave it out")
    if gives_own_models(method):
        raise BadInput(f"last_round=own: sites of {config.method} have models of their own anyway; leave it out")
