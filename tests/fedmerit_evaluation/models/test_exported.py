"""The network for other programs makes the logits of the network itself."""

import json

import pytest
import torch

from fedmerit.errors import RunFailed
from fedmerit_evaluation.models import export
from fedmerit_evaluation.models.bundle import write_bundle
from fedmerit_evaluation.models.export import write_onnx, write_torchscript
from fedmerit_evaluation.models.predictor import open_predictor


def test_torchscript(predictor, tmp_path):
    assert write_torchscript(predictor, tmp_path / "model.ts") <= 1e-4
    said = json.loads((tmp_path / "model.ts.json").read_text())
    assert said["preprocessing"] == predictor.preprocessing.to_dict()
    assert said["output"]["channels"] == ["prostate"]


@pytest.mark.slow
def test_a_network_of_volumes_is_given_patches(trained, tmp_path):
    settings = ("architecture=dynunet", "depth=3", "patch=4,16,16")
    volumes = open_predictor(trained(*settings, method="fedavg", rounds=1), device="cpu")
    assert write_torchscript(volumes, tmp_path / "model.ts") <= 1e-4
    assert json.loads((tmp_path / "model.ts.json").read_text())["input"]["shape"] == ["batch", 1, 4, 16, 16]
    write_bundle(volumes, tmp_path / "bundle", "run")  # MONAI applies it to a patch
    assert "patches of 4 x 16 x 16" in (tmp_path / "bundle" / "docs" / "README.md").read_text()


def test_another_network_is_not_written(predictor, tmp_path, monkeypatch):
    """And the file of before stays."""
    (tmp_path / "model.ts").write_bytes(b"before")
    monkeypatch.setattr(torch.jit, "load", lambda path: lambda images: torch.zeros(3, 1, *images.shape[2:]) + 9)
    with pytest.raises(RunFailed, match="differ"):
        write_torchscript(predictor, tmp_path / "model.ts")
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"model.ts": b"before"}


@pytest.mark.slow
def test_onnx(predictor, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    assert write_onnx(predictor, tmp_path / "model.onnx") <= 1e-4
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.onnx", "model.onnx.json"]
    monkeypatch.setattr(export, "TOLERANCE", -1)
    with pytest.raises(RunFailed, match="differ"):
        write_onnx(predictor, tmp_path / "other.onnx")
    assert not list(tmp_path.glob("*other*"))
