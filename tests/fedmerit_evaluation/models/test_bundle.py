"""A model as a MONAI bundle: MONAI runs it, and what it says of itself is true."""

from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser

from fedmerit.errors import BadInput
from fedmerit.files import read_json
from fedmerit.schema.configuration.data import NORMALISATIONS, Preprocessing
from fedmerit.schema.configuration.settings import Network
from fedmerit.schema.site_folder import open_sites
from fedmerit.trainers.factory import initial_network
from fedmerit_evaluation.models import bundle
from fedmerit_evaluation.models.bundle import METADATA, MODALITIES, predict_by_bundle, write_bundle
from fedmerit_evaluation.models.export import example_batch
from fedmerit_evaluation.models.predictor import Predictor, predict_files


def test_a_bundle_that_monai_runs(predictor, sites, tmp_path, monkeypatch):
    """MONAI's own check applies the network unchanged written; its `run` gives the masks of `predict`."""
    write_bundle(predictor, tmp_path / "bundle", "run")
    parser = ConfigParser()
    parser.read_config(tmp_path / "bundle" / "configs" / "inference.json")
    network = parser.get_parsed_content("network_def").eval()
    network.load_state_dict(torch.load(tmp_path / "bundle" / "models" / "model.pt", weights_only=True))
    with torch.inference_mode():
        images = example_batch(predictor, 2)
        torch.testing.assert_close(network(images), predictor.network(images))
    site = open_sites(sites)[0]
    (raw,) = (sites.with_name("sites-raw") / site.name).rglob(f"{site.cases('testing')[0].name}.nii.gz")
    parser["bundle_root"], parser["images"], parser["output_dir"] = (
        str(tmp_path / "bundle"),
        [str(raw)],
        str(tmp_path / "out"),
    )
    parser.get_parsed_content("run")
    (expected,) = predict_files(predictor, [raw], tmp_path / "expected")
    assert (tmp_path / "out" / expected.name).read_bytes() == expected.read_bytes()
    with pytest.raises(BadInput, match="is not empty"):
        write_bundle(predictor, tmp_path / "bundle", "run")


def test_every_normalisation_has_a_modality():
    assert set(MODALITIES) == set(NORMALISATIONS)


def test_what_goes_in_and_comes_out_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(bundle, "verify_net_in_out", lambda **given: None)  # that MONAI applies it is tested above
    network = Network(in_channels=3, labels=("disc", "cup"), architecture="unet", width=2, depth=2, mirrored=True)
    fed = Preprocessing((32, 48), crop="disc", normalisation="photo", threshold=0.4)
    photographs = Predictor(tmp_path, initial_network(network, 0), network, fed)
    write_bundle(photographs, tmp_path / "photographs", "study/run")
    reported = read_json(tmp_path / "photographs" / METADATA)
    image, masks = (reported["network_data_format"][way] for way in ("inputs", "outputs"))
    image, masks = image["image"], masks["pred"]
    assert (image["modality"], image["format"], image["num_channels"]) == ("n/a", "RGB", 3)
    assert (masks["num_channels"], masks["channel_def"]) == (2, {"0": "disc", "1": "cup"})
    assert image["spatial_shape"] == masks["spatial_shape"] == [32, 48]
    assert not image["is_patch_data"]
    assert reported["task"] == "2D segmentation of disc, cup"
    readme = (tmp_path / "photographs" / "docs" / "README.md").read_text()
    for words in (
        "From the run study/run.",
        "photographs of 32 x 48 pixels, 3 channel(s), of squares about the disc; intensities `photo`",
        "one channel each for disc, cup; a pixel belongs to a label where the sigmoid is above 0.4.",
        "and of its mirror image.",
    ):
        assert words in readme
    assert "largest connected part" not in readme
    scans = replace(photographs, preprocessing=Preprocessing((32, 32), 120.0, normalisation="ct_lung"))
    write_bundle(scans, tmp_path / "scans", "run")
    image = read_json(tmp_path / "scans" / METADATA)["network_data_format"]["inputs"]["image"]
    assert (image["modality"], image["format"]) == ("CT", "hounsfield")
    assert "of the central 120 mm; intensities `ct_lung`" in (tmp_path / "scans" / "docs" / "README.md").read_text()


def test_what_is_noted_of_an_image_is_reported(predictor, tmp_path, monkeypatch):
    write_bundle(predictor, tmp_path / "bundle", "run")
    black = nib.Nifti1Image(np.zeros((48, 48, 4), np.float32), np.diag([-2.0, -2.0, 3.0, 1.0]))
    nib.save(black, tmp_path / "black.nii.gz")
    reported = []
    monkeypatch.setattr(bundle.log, "warning", reported.append)
    predict_by_bundle(str(tmp_path / "bundle"), str(tmp_path / "black.nii.gz"), str(tmp_path / "out"))
    assert reported == [f"{tmp_path / 'black.nii.gz'}: no content in its image: all of one value"]


def test_a_bundle_works_on_the_device_that_it_is_reported(predictor, tmp_path, monkeypatch):
    write_bundle(predictor, tmp_path / "bundle", "run")
    opened = []
    monkeypatch.setattr(bundle, "open_bundle", lambda root, device: opened.append((root, device)))
    monkeypatch.setattr(bundle, "predict_files", lambda *_, **__: [])
    parser = ConfigParser()
    parser.read_config(tmp_path / "bundle" / "configs" / "inference.json")
    parser["device"] = "$torch.device('cuda:1')"
    parser.get_parsed_content("run")
    assert opened == [(Path("."), "cuda:1")]


def test_nothing_is_left_of_a_bundle_that_monai_cannot_apply(predictor, tmp_path, monkeypatch):
    def refuse(**_):
        raise ValueError("output size")

    monkeypatch.setattr(bundle, "verify_net_in_out", refuse)
    with pytest.raises(ValueError, match="output size"):
        write_bundle(predictor, tmp_path / "bundle", "run")
    assert list(tmp_path.iterdir()) == []
