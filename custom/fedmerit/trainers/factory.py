"""The trainer and the network of a plan: the one place that knows which kind a plan needs, and loads only that."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from fedmerit.errors import BadInput
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.configuration.script import NAMED_TENSORS
from fedmerit.schema.configuration.settings import Network
from fedmerit.schema.site_folder import SiteFolder
from fedmerit.tensor_files import load_state
from fedmerit.trainers.saved_networks import read_description
from fedmerit.trainers.script.named_tensors import NamedTensors

if TYPE_CHECKING:
    from fedmerit.trainers.monai.trainer import ImageTrainer


def build_trainer(config: RunConfiguration, folder: SiteFolder, memory: Path, device: str = "auto") -> "ImageTrainer":
    """Return the trainer of a prepared folder; ``memory``: the site's folder of memories."""
    from fedmerit.trainers.monai.trainer import ImageTrainer  # loads MONAI, some 200 MB

    return ImageTrainer(folder, config, memory, device)


def build_network(network: Network, device: torch.device | None = None) -> nn.Module:
    """Return a network by its description, ready to work on ``device``.

    Raises:
        BadInput: there is no such network, or it refuses the arguments.
    """
    if network.architecture == NAMED_TENSORS:
        return NamedTensors(network.arguments)
    from fedmerit.trainers.monai import networks

    return networks.build_network(network, device)


def initial_network(network: Network, seed: int) -> nn.Module:
    """Return the network that every run with this seed starts from."""
    if network.architecture == NAMED_TENSORS:
        return NamedTensors(network.arguments)
    from fedmerit.trainers.monai import networks

    return networks.initial_network(network, seed)


def load_network(folder: Path, name: str = "global") -> nn.Module:
    """Return the network that `save_network` wrote, on the CPU, to evaluate.

    Raises:
        BadInput: a file is missing or spoiled; the message names it.
    """
    return load_weights(folder / f"{name}.pt", read_description(folder)[0])


def load_weights(path: Path, description: Network) -> nn.Module:
    """Return the network of a description with the state_dict in ``path``, on the CPU, to evaluate.

    Raises:
        BadInput: the file is missing or spoiled; the message names it.
    """
    if not path.exists():
        raise BadInput(f"{path}: file not found; expected the model of a finished run")
    state, network = load_state(path), build_network(description)
    try:
        network.load_state_dict(state)
    except (RuntimeError, TypeError, ValueError) as error:
        raise BadInput(f"{path}: not a model that model.json describes ({type(error).__name__})") from error
    return network.eval()
