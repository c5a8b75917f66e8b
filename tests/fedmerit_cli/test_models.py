"""`fedmerit predict` and `fedmerit model export`."""

import nibabel as nib
import numpy as np
import pytest

from fedmerit.schema.site_folder import open_sites


@pytest.fixture
def scan(sites):
    """A raw test image."""
    site = open_sites(sites)[0]
    (raw,) = (sites.with_name("sites-raw") / site.name).rglob(f"{site.cases('testing')[0].name}.nii.gz")
    return raw


def test_predict(fedmerit, trained, scan, tmp_path):
    result = fedmerit("predict", trained(), scan, "--out", tmp_path / "masks", "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert [path.name for path in sorted((tmp_path / "masks").iterdir())] == [
        scan.name.replace(".nii.gz", "_prostate.nii.gz"),
        "prediction.json",
    ]


def test_predict_notes_oddities_of_an_image(fedmerit, trained, tmp_path):
    """Its third axis leads to the left, so that slices are cut across the body, and nothing is in it."""
    across = np.array([[0, 0, -3, 0], [0, -1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1]])
    image = tmp_path / "odd.nii.gz"
    nib.save(nib.Nifti1Image(np.full((64, 64, 4), 7, np.int16), across), image)
    result = fedmerit("predict", trained(), image, "--out", tmp_path / "masks", "--box", "whole", "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines() == [
        f"noted: {image}: slices in the sagittal plane",
        f"noted: {image}: no content in its image: all of one value",
    ]
    assert "noted" not in result.stdout


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--site", "Nowhere"), "has no model of 'Nowhere'"),
        (("--box", "1,2"), "--box 1,2: expected TOP,LEFT,HEIGHT,WIDTH"),
        (("--channel", "1"), "no such channel"),
        (("--device", "none"), "device 'none' cannot be used"),
    ],
)
def test_what_predict_cannot_use_is_named(fedmerit, trained, scan, tmp_path, given, message):
    result = fedmerit("predict", trained(), scan, "--out", tmp_path / "masks", *given)
    assert result.exit_code == 2
    assert message in result.output.replace("\n", " ")
    assert not (tmp_path / "masks").exists()


def test_export_model(fedmerit, trained, tmp_path):
    result = fedmerit("model", "export", trained(), "--torchscript", tmp_path / "m.ts", "--bundle", tmp_path / "bundle")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "m.ts").exists()
    assert (tmp_path / "bundle" / "configs" / "metadata.json").exists()
    assert fedmerit("model", "export", trained()).exit_code == 2
