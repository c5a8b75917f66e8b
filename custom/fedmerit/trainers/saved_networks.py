"""How a network is saved: its weights, and beside them what rebuilds it."""

from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn

from fedmerit.errors import Untrusted
from fedmerit.files import read_object, require_inside, write_atomically, write_json
from fedmerit.schema.configuration.data import Preprocessing
from fedmerit.schema.configuration.settings import Network

PREPROCESSING = "preprocessing"  # in model.json


def save_network(
    folder: Path, name: str, network: nn.Module, description: Network, preprocessing: Preprocessing | None = None
) -> None:
    """Write ``name``.pt, a plain state_dict, and model.json: what rebuilds the network, and what it is to be fed."""
    said = {PREPROCESSING: preprocessing.to_dict()} if preprocessing else {}
    write_json(folder / "model.json", asdict(description) | said)
    write_atomically(folder / f"{name}.pt", lambda file: torch.save(network.state_dict(), file))


def read_description(folder: Path) -> tuple[Network, Preprocessing | None]:
    """Return what model.json says: the network, and what it is to be fed, if known.

    Raises:
        BadInput: it is missing; `Untrusted` if it is not what `save_network` writes.
    """
    require_inside(folder)
    values = read_object(folder / "model.json")
    try:
        said = values.pop(PREPROCESSING, None)
        return Network.from_dict(values), Preprocessing.from_dict(said) if said else None
    except (KeyError, TypeError, ValueError) as error:
        raise Untrusted(
            f"{folder / 'model.json'}: not what a run writes ({error}); take it from the run again"
        ) from error
