"""The forms in which people give a script's model."""

import numpy as np
import pytest
import torch
from torch import nn

from fedmerit.errors import BadInput
from fedmerit.trainers.script.model_forms import load_checkpoint, to_model


def make_network():
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))


@pytest.mark.slow
def test_to_model_unwraps_compiled_and_parallel_modules():
    network = make_network()
    for wrapped in (torch.compile(network), nn.DataParallel(network), nn.DataParallel(torch.compile(network))):
        assert to_model(wrapped) is network
    assert to_model(torch.compile(network).state_dict()).keys() == network.state_dict().keys()


def test_to_model_takes_nvflares_forms():
    built = to_model({"class_path": "torch.nn.Linear", "args": {"in_features": 2, "out_features": 1}})
    assert built.weight.shape == (1, 2)
    array = to_model([[1, 2], [3, 4]])["numpy_key"]
    assert (array.dtype, array.tolist()) == (np.float32, [[1, 2], [3, 4]])
    assert (
        to_model({"state_dict": make_network().state_dict(), "epoch": 3}).keys() == make_network().state_dict().keys()
    )


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Linear, r"is the class Linear; expected an instance, Linear\(\.\.\.\)"),
        (None, "is None; expected a torch.nn.Module"),
        ("model.pt", "is str"),
        (lambda: None, "which makes one"),
        (nn.LazyLinear(3), "weight has no shape yet"),
        (nn.Linear(2, 2, device="meta"), "meta device"),
        ({"class_path": "torch.nn.Absent", "args": {}}, "torch.nn.Absent cannot be made"),
        ({"layer": {"kernel": np.ones(2)}}, "layer holds names itself; join them with dots"),
        ([[1], [1, 2]], "is list"),
        (nn.Sequential(nn.DataParallel(nn.Linear(1, 1))), "its part 0 is wrapped"),
    ],
)
def test_to_model_refuses_other_forms_by_name(model, words):
    with pytest.raises(BadInput, match=f"^model: .*{words}"):
        to_model(model)


def test_to_model_refuses_a_class_derived_from_one_of_keras():
    base = type("Sequential", (), {"__module__": "keras.src.models.sequential"})
    with pytest.raises(BadInput, match=r"is Net of Keras, .*give NumPy's arrays by name"):
        to_model(type("Net", (base,), {})())


def test_load_checkpoint_of_numpy_is_the_model_if_no_other_is_given(tmp_path):
    np.save(tmp_path / "one.npy", np.arange(3.0))
    np.savez(tmp_path / "named.npz", weight=np.ones((1, 2)), bias=np.zeros(1))
    assert load_checkpoint(None, tmp_path / "one.npy")["numpy_key"].tolist() == [0, 1, 2]
    assert load_checkpoint({"numpy_key": np.zeros(3)}, tmp_path / "one.npy")["numpy_key"].tolist() == [0, 1, 2]
    assert load_checkpoint(nn.Linear(2, 1), tmp_path / "named.npz").weight.tolist() == [[1, 1]]
    (tmp_path / "text.npy").write_text("x")
    with pytest.raises(BadInput, match=r"^initial_ckpt .*text.npy: cannot be read .*expected what torch.save wrote"):
        load_checkpoint(None, tmp_path / "text.npy")


def test_load_checkpoint_loads_the_models_tensors_only(tmp_path):
    network, other = make_network(), make_network()
    torch.save({"model_state_dict": other.state_dict(), "epoch": 3}, tmp_path / "ckpt.pt")
    assert torch.equal(load_checkpoint(network, tmp_path / "ckpt.pt")[0].weight, other[0].weight)
    with pytest.raises(BadInput, match=r"^initial_ckpt .*9 tensors are not the model's, such as 0.bias"):
        load_checkpoint(nn.Linear(2, 2), tmp_path / "ckpt.pt")
    with pytest.raises(BadInput, match="file not found"):
        load_checkpoint(network, tmp_path / "absent.pt")
