"""The trainer and the network of a plan: the one place that knows which kind a plan needs, and loads only that."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fedmerit.contract.method import Layout
from fedmerit.errors import BadInput
from fedmerit.evidence.digests import state_digest
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.configuration.script import NAMED_TENSORS
from fedmerit.schema.configuration.settings import ARCHITECTURES, Network
from fedmerit.schema.site_folder import SiteFolder
from fedmerit.tensor_files import load_state
from fedmerit.trainers.saved_networks import read_description
from fedmerit.trainers.script import named_tensors
from fedmerit.trainers.script.named_tensors import NamedTensors
from fedmerit.trainers.trainer import Evaluator, Trainer, TrainingImages

if TYPE_CHECKING:
    from fedmerit.trainers.monai.trainer import ImageTrainer

FIRST_MODEL = "first_model.pt"  # in the run folder: the state_dict that a script's run begins with


def build_trainer(
    config: RunConfiguration, folder: SiteFolder, memory: Path, device: str = "auto", **more: Any
) -> "ImageTrainer":
    """Return the trainer of a prepared ``folder``; ``more`` are further arguments of `ImageTrainer`."""
    from fedmerit.trainers.monai.trainer import ImageTrainer  # loads MONAI, some 200 MB

    return ImageTrainer(folder, config, memory, device, **more)


def load_image_trainer() -> None:
    """Load the trainer of images, and MONAI with it, so that processes that are forked later share it."""
    import fedmerit.trainers.monai.trainer  # noqa: F401


def pool_trainers(trainers: Sequence[Trainer]) -> Sequence[Trainer]:
    """Return trainers of images that train on the training images of all sites; they share one training a round."""
    from fedmerit.trainers.monai import trainer

    return trainer.pool_trainers([one for one in trainers if isinstance(one, trainer.ImageTrainer)])


def describe_images(folder: SiteFolder, config: RunConfiguration) -> TrainingImages:
    """Return what a site's training images are for a plan."""
    from fedmerit.trainers.monai import trainer

    return trainer.describe_images(folder, config)


def measure_network(network: Network, sides: Sequence[int]) -> tuple[int, int]:
    """Return the parameters of a network of images with these sides, and the least side of its feature maps.

    Raises:
        BadInput: the network cannot be applied to such an image.
    """
    from fedmerit.trainers.monai import network_checks

    return network_checks.measure_network(network, sides)


def list_sizes(network: Network) -> list[list[int]]:
    """Return the sizes of all weights of a network of a known architecture, without further arguments or another norm.

    Of other architectures, whose code is not loaded here, and of networks that cannot be built, the description's.
    """
    described = [[network.width], [network.depth], [network.residual_units], list(network.patch)]
    if network.architecture not in ARCHITECTURES:
        return described
    from fedmerit.trainers.monai import networks

    try:
        with torch.device("meta"):
            built = networks.build_network(replace(network, arguments={}, norm="own"))
    except BadInput:
        return described
    return [list(parameter.shape) for parameter in built.parameters()]


def least_learning_rate(config: RunConfiguration) -> tuple[float, int]:
    """Return the smallest learning rate of a plan's rounds, and the first round that has it."""
    from fedmerit.trainers.monai.local_training import learning_rate

    rates = [learning_rate(config.training, round, config.rounds) for round in range(config.rounds)]
    return min(rates), rates.index(min(rates))


def build_server_images(config: RunConfiguration, folders: Sequence[SiteFolder], device: str) -> Evaluator | None:
    """Return what evaluates models on the server's own images, in ``folders``; None if these hold none.

    Raises:
        BadInput: the images do not fit the run's network.
    """
    if not any(folder.splits.values() for folder in folders):
        return None
    from fedmerit.trainers.monai.trainer import ServerImages

    images = ServerImages(folders, config, device)
    return images if images.cases else None


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


def first_network(config: RunConfiguration, run: Path) -> nn.Module:
    """Return the network that all sites of a run start from: by the seed, or the weights in a script's run folder.

    Raises:
        BadInput: layers of it drop at random, or the weights are not those that the plan names.
    """
    network = initial_network(config.network, config.seed)
    if not config.script:
        from fedmerit.trainers.monai.network_checks import require_repeatable

        require_repeatable(config.network, network)
        return network
    weights = load_state(run / FIRST_MODEL)
    if state_digest(weights) != config.script.start:
        raise BadInput(f"{run / FIRST_MODEL}: not the weights that the plan names; export the job again")
    named_tensors.load_weights(network, weights)
    return network


def read_layout(network: nn.Module, *, with_neurons: bool = False) -> Layout:
    """Return the layout of a network's trainable parameters; ``with_neurons``: a forward pass finds their owners."""
    if isinstance(network, NamedTensors):
        return named_tensors.read_layout(network)
    from fedmerit.trainers.monai import neurons

    return neurons.read_layout(network, with_neurons)


def check_training(config: RunConfiguration, image_size: tuple[int, int]) -> None:
    """Check that a network of images can be trained on images of a size, and that its training can be repeated.

    Raises:
        BadInput: it cannot; the message says which setting to change.
    """
    from fedmerit.trainers.monai.local_training import check_parts
    from fedmerit.trainers.monai.network_checks import check_image_size, require_repeatable

    check_image_size(config.network, image_size)
    require_repeatable(config.network, initial_network(config.network, config.seed))
    check_parts(config.training, (2, len(config.network.labels), *(config.network.patch or (16, 16))))


def estimate_model_memory(config: RunConfiguration, image_size: tuple[int, int]) -> tuple[int, float]:
    """Return the bytes of a model, and of the feature maps of a batch of images of a size."""
    from fedmerit.trainers.monai.network_checks import count_feature_maps, count_parameters

    return 4 * count_parameters(config), 4 * count_feature_maps(config, image_size)


def load_network(folder: Path, name: str = "global") -> nn.Module:
    """Return the saved network, on the CPU, to evaluate.

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
