"""Networks on disk: what was saved comes back, and what was spoiled is named."""

import pytest
import torch

from fedmerit.configuration.run import Network
from fedmerit.errors import BadInput
from fedmerit.trainers.monai_trainer.networks import initial_network
from fedmerit.trainers.monai_trainer.saved_networks import load_network, load_weights, read_description, save_network

NETWORK = Network(1, ("disc", "cup"), "dynunet", 4, 3)


@pytest.fixture
def folder(tmp_path):
    save_network(tmp_path, "global", initial_network(NETWORK, 0), NETWORK)
    return tmp_path


def test_a_network_comes_back_with_its_description(folder):
    assert read_description(folder) == (NETWORK, None)
    loaded, saved = load_network(folder), initial_network(NETWORK, 0)
    assert not loaded.training
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in saved.state_dict().items())


def test_what_is_missing_or_spoiled_is_named(folder):
    with pytest.raises(BadInput, match=r"Birch.pt: file not found; expected the model of a finished run"):
        load_network(folder, "Birch")
    (folder / "Birch.pt").write_bytes(b"no model")
    with pytest.raises(BadInput, match=r"Birch.pt: not a model that model.json describes \(\w+\)"):
        load_network(folder, "Birch")
    with pytest.raises(BadInput, match=r"global.pt: not a model that model.json describes \(RuntimeError\)"):
        load_weights(folder / "global.pt", Network(1, ("disc",), "dynunet", 4, 3))
    (folder / "model.json").write_text('{"in_channels": 1}\n')
    with pytest.raises(BadInput, match=r"model.json: not what a run writes"):
        read_description(folder)
