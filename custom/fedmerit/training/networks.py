"""Networks: MONAI's, by their description; how they are saved."""

from dataclasses import asdict
from pathlib import Path

import torch
from monai.networks.nets import UNet
from torch import nn

from fedmerit.configuration.run import Network
from fedmerit.errors import BadInput
from fedmerit.files import read_json, write_atomically, write_json
from fedmerit.seeds import random_seed


def build_network(network: Network, device: torch.device | None = None) -> nn.Module:
    """MONAI's 2D U-Net: (batch, in_channels, h, w) to logits (batch, labels, h, w).

    On a ``device`` to work on, its weights lie channels last: an epoch on a CPU takes 3/4 of its time.
    """
    unet: nn.Module = UNet(
        spatial_dims=2,
        in_channels=network.in_channels,
        out_channels=len(network.labels),
        channels=[network.width * 2**level for level in range(network.depth)],
        strides=[2] * (network.depth - 1),
        num_res_units=network.residual_units,
        norm=("group", {"num_groups": 1}) if network.norm == "group" else network.norm,
    )
    return unet if device is None else unet.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]


def initial_network(network: Network, seed: int) -> nn.Module:
    """The network every run with this seed starts from; leaves the global random state as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(random_seed(seed, "initial model"))
        return build_network(network)


def check_image_size(network: Network, image_size: tuple[int, int]) -> None:
    """`BadInput` where the U-Net cannot halve an image ``depth - 1`` times."""
    step = 2 ** (network.depth - 1)
    if any(side % step or side < 2 * step for side in image_size):
        raise BadInput(
            f"image size {image_size[0]}x{image_size[1]}: a U-Net of depth {network.depth} needs multiples of {step}, "
            f"at least {2 * step}; prepare with another --size or run with --set depth=..."
        )


def save_network(folder: Path, name: str, network: nn.Module, description: Network) -> None:
    """``name``.pt, a plain state_dict, and model.json, which rebuilds the network."""
    write_json(folder / "model.json", asdict(description))
    write_atomically(folder / f"{name}.pt", lambda file: torch.save(network.state_dict(), file))


def load_network(folder: Path, name: str = "global") -> nn.Module:
    """The network that `save_network` wrote, on the CPU, to evaluate; `BadInput` naming a missing or spoiled file."""
    description = read_json(folder / "model.json")
    network = build_network(Network(**description | {"labels": tuple(description["labels"])}))
    path = folder / f"{name}.pt"
    if not path.exists():
        raise BadInput(f"{path}: file not found; expected the model of a finished run")
    try:
        network.load_state_dict(torch.load(path, weights_only=True, map_location="cpu"))
    except Exception as error:  # of whatever kind torch's unpickler meets in a spoiled file
        raise BadInput(f"{path}: not a model that model.json describes ({type(error).__name__})") from error
    return network.eval()
