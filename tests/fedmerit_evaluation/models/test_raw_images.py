"""From raw images to masks: the network sees what it was trained on, and masks lie where the image does."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from made_photographs import write_photographs
from PIL import Image
from torch import nn

from fedmerit.errors import BadInput
from fedmerit.schema.configuration.data import Preprocessing
from fedmerit.schema.configuration.settings import Network
from fedmerit.schema.site_folder import open_sites
from fedmerit.trainers.factory import initial_network
from fedmerit.trainers.monai.prediction import predict
from fedmerit_data.preparation import Preparation
from fedmerit_data.prepare import prepare
from fedmerit_data.readers.image_files import OneImage, read_image
from fedmerit_data.spatial.preprocessing import Box, normalise_mri, preprocess
from fedmerit_evaluation.models.predictor import Predictor, open_predictor, predict_files


@pytest.fixture
def scan(sites):
    """A test case of a generated hospital: raw image, what `prepare` stored of it."""
    site = open_sites(sites)[0]
    case = site.cases("testing")[0]
    (raw,) = (sites.with_name("sites-raw") / site.name).rglob(f"{case.name}.nii.gz")
    return raw, case


def test_the_network_sees_what_prepare_stored(predictor, scan):
    raw, case = scan
    seen, _ = predictor.preprocess(read_image(raw, 1).decoded)
    np.testing.assert_array_equal(seen, case.image)


def test_masks_lie_on_the_image(predictor, scan, tmp_path):
    raw, case = scan
    (file,) = predict_files(predictor, [raw], tmp_path)
    image, mask = nib.load(raw), nib.load(file)
    assert file.name == f"{case.name}_prostate.nii.gz"
    assert mask.shape == image.shape
    np.testing.assert_allclose(mask.affine, image.affine)
    reported = json.loads((tmp_path / "prediction.json").read_text())
    assert reported["model"]["file"] == str(predictor.file)
    assert [(one["masks"], one["box"], one["channel"]) for one in reported["images"]] == [([file.name], None, None)]


def test_the_box_of_each_image_is_reported(predictor, scan, tmp_path):
    raw, _ = scan
    other = shutil.copy(raw, tmp_path / "other.nii.gz")
    predict_files(predictor, [raw], tmp_path, box="whole")
    predict_files(predictor, [Path(other)], tmp_path, box="0,0,24,24")
    reported = json.loads((tmp_path / "prediction.json").read_text())
    assert [one["box"] for one in reported["images"]] == ["whole", "0,0,24,24"]


def test_masks_prepared_again_are_what_evaluation_saw(predictor, scan):
    """The way there and back moves no edge by more than the two grids make it: half a pixel of a wave's border."""
    decoded = read_image(scan[0], 1).decoded
    rows, columns = (np.linspace(0, 3 * np.pi, side) for side in decoded.image.shape[-2:])
    wave = np.sin(rows)[:, None] * np.sin(columns / 2 + 1) + 0.2 * np.cos(rows / 3)[:, None]
    decoded = replace(decoded, image=np.broadcast_to(wave, decoded.image.shape).astype(decoded.image.dtype))
    bright = replace(predictor, network=Bright())
    seen, box = bright.preprocess(decoded)
    on_grid, masks = predict(bright.network, seen), bright.masks(decoded)
    _, again = preprocess(replace(decoded, label=masks.astype(np.uint8)), len(seen[0, 0]), box, normalise_mri)
    assert 0.2 < on_grid.mean() < 0.8
    assert 2 * (on_grid & (again > 0)).sum() / (on_grid.sum() + again.sum()) > 0.97
    assert not np.delete(masks, np.s_[box.top : box.top + box.height], axis=2).any()


class Bright(nn.Module):
    """The image as logits: whatever is above the mean."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, images):
        return images


def test_another_order_of_voxels_is_another_order_of_the_mask(predictor, scan, tmp_path):
    raw, _ = scan
    image = nib.load(raw)
    turned = nib.as_closest_canonical(image).slicer[:, ::-1]
    nib.save(turned, tmp_path / "turned.nii.gz")
    one, other = predict_files(predictor, [raw, tmp_path / "turned.nii.gz"], tmp_path / "out")
    straight = [np.asarray(nib.as_closest_canonical(nib.load(file)).dataobj) for file in (one, other)]
    np.testing.assert_array_equal(*straight)


def test_a_photograph_about_its_disc(tmp_path):
    """The window that `prepare` chose gives what it stored; without one, nothing says where the disc is."""
    source, labels = write_photographs(tmp_path / "raw"), {"disc": (1, 2), "cup": (2,)}
    prepare(Preparation("generic", source=source, size=32, labels=labels, crop="disc"), tmp_path / "sites")
    site = open_sites(tmp_path / "sites")[0]
    entry = json.loads((site.path / "datalist.json").read_text())["testing"][0]
    raw = source / site.name / "images" / f"{entry['case']}.png"
    network = Network(in_channels=3, labels=("disc", "cup"), architecture="unet", width=2, depth=2)
    fed = Preprocessing.from_dict(site.info)
    predictor = Predictor(tmp_path, initial_network(network, 0), network, fed)
    image = read_image(raw, 3)
    seen, _ = predictor.preprocess(image.decoded, Box(**entry["crop"]))
    np.testing.assert_array_equal(seen, site.cases("testing")[0].image)
    with pytest.raises(BadInput, match="--box"):
        predictor.preprocess(image.decoded)
    masks = predictor.masks(image.decoded, Box(-5, -5, 40, 40))
    (file,) = image.write_masks(tmp_path / "masks", ["disc"], masks[:, :1])
    assert Image.open(file).size == Image.open(raw).size
    assert not masks[..., 35:, :].any()
    np.testing.assert_array_equal(np.array(Image.open(file)) > 0, masks[0, 0])


@pytest.mark.parametrize("box", ["HEIGHT,0,9,9", "0,WIDTH,9,9", "-9,0,9,9", "0,-9,9,9"])
def test_a_box_beyond_the_image_is_refused(predictor, scan, tmp_path, box):
    raw, _ = scan
    height, width = read_image(raw, 1).decoded.image.shape[2:]
    box = box.replace("HEIGHT", str(height)).replace("WIDTH", str(width))
    with pytest.raises(BadInput, match=f"{raw}: --box {box}: is outside the image of {height} x {width} pixels"):
        predict_files(predictor, [raw], tmp_path, box)
    assert not list(tmp_path.glob("*.nii.gz"))


@pytest.mark.parametrize("box", [(-8, -8, 9, 9), (-1, 0, 9, 1)])
def test_a_box_that_meets_the_image_in_a_pixel_is_looked_at(predictor, scan, box):
    image = read_image(scan[0], 1).decoded
    assert predictor.masks(image, Box(*box)).shape == (len(image.image), 1, *image.image.shape[2:])


def test_a_model_that_does_not_say_what_it_is_fed(own_run, sites):
    said = json.loads((own_run / "models" / "model.json").read_text())
    fed = said.pop("preprocessing")
    (own_run / "models" / "model.json").write_text(json.dumps(said))
    assert open_predictor(own_run, device="cpu").preprocessing == Preprocessing.from_dict(fed)  # by the run's sites
    info = json.loads((own_run / "run.json").read_text())
    del info["sites_folder"]
    (own_run / "run.json").write_text(json.dumps(info))
    with pytest.raises(BadInput, match="--sites"):
        open_predictor(own_run, device="cpu")
    assert open_predictor(own_run, sites=sites, device="cpu").preprocessing.field_of_view == fed["field_of_view"]


@pytest.mark.parametrize(("name", "message"), [("scan.txt", "expected one of .nii"), ("none.nii", "not found")])
def test_what_is_no_image_is_named(predictor, tmp_path, name, message):
    if name == "scan.txt":
        (tmp_path / name).write_text("no image")
    with pytest.raises(BadInput, match=message):
        predict_files(predictor, [tmp_path / name], tmp_path / "out")


def test_a_photograph_knows_no_millimetres_of_a_model_that_does(predictor, tmp_path):
    Image.new("L", (40, 40), 9).save(tmp_path / "eye.png")
    with pytest.raises(BadInput, match=r"eye.png: the model was trained on squares of \d+ mm, .*--box"):
        predict_files(predictor, [tmp_path / "eye.png"], tmp_path)
    assert not (tmp_path / "prediction.json").exists()
    assert predict_files(predictor, [tmp_path / "eye.png"], tmp_path, "whole") == [tmp_path / "eye_prostate.png"]


def test_where_a_later_image_fails_the_record_has_those_before(predictor, scan, tmp_path):
    with pytest.raises(BadInput, match=r"none\.nii: not found"):
        predict_files(predictor, [scan[0], tmp_path / "none.nii"], tmp_path / "out")
    reported = json.loads((tmp_path / "out" / "prediction.json").read_text())
    assert [one["image"] for one in reported["images"]] == [str(scan[0])]


def test_what_was_interrupted_is_done_again_by_the_same_command(predictor, scan, tmp_path, monkeypatch):
    raw, _ = scan
    out = tmp_path / "out"

    def write_and_stop(self, out, labels, masks, model):
        out.mkdir(exist_ok=True)
        self.mask_files(out, labels)[0].write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as stopped:
        stopped.setattr(OneImage, "write_masks", write_and_stop)
        with pytest.raises(KeyboardInterrupt):
            predict_files(predictor, [raw], out)
    (mask,) = predict_files(predictor, [raw], out)
    assert mask.read_bytes() != b"half"


def test_masks_of_another_model_are_not_replaced(predictor, scan, tmp_path):
    raw, _ = scan
    (mask,) = predict_files(predictor, [raw], tmp_path / "out")
    before = mask.read_bytes()
    other = replace(predictor, file=tmp_path / "other.pt")
    other.file.write_bytes(b"another")
    fed_otherwise = replace(predictor, preprocessing=replace(predictor.preprocessing, threshold=0.9))
    for one in (other, fed_otherwise):
        with pytest.raises(BadInput, match=rf"out: holds masks of another model, {predictor.file}.*another --out"):
            predict_files(one, [raw], tmp_path / "out")
    assert predict_files(predictor, [raw], tmp_path / "out") == [mask]
    assert mask.read_bytes() == before
    (tmp_path / "out" / "prediction.json").write_text("[]")
    with pytest.raises(
        BadInput, match=r"prediction.json: (is not what `fedmerit predict` writes|holds no JSON object)"
    ):
        predict_files(predictor, [raw], tmp_path / "out")
    (tmp_path / "out" / "prediction.json").unlink()
    with pytest.raises(BadInput, match=f"{mask}: exists, and prediction.json beside it does not say"):
        predict_files(predictor, [raw], tmp_path / "out")


def test_a_later_command_adds_to_the_record(predictor, scan, tmp_path):
    raw, case = scan
    (tmp_path / "other.nii.gz").write_bytes(raw.read_bytes())
    for image in (raw, tmp_path / "other.nii.gz", raw):
        predict_files(predictor, [image], tmp_path / "out")
    reported = json.loads((tmp_path / "out" / "prediction.json").read_text())
    assert [one["masks"] for one in reported["images"]] == [["other_prostate.nii.gz"], [f"{case.name}_prostate.nii.gz"]]


def test_the_mask_of_another_image_of_one_name_is_not_replaced(predictor, scan, tmp_path, monkeypatch):
    """Nor where both were given by one path, which reported different files; the same image is known in any place."""
    raw, out = nib.load(scan[0]), tmp_path / "out"
    for patient, slices in (("a", slice(None)), ("b", slice(None, None, -1))):
        (tmp_path / patient).mkdir()
        nib.save(nib.Nifti1Image(raw.get_fdata()[..., slices], raw.affine), tmp_path / patient / "t2.nii.gz")
    monkeypatch.chdir(tmp_path / "a")
    (mask,) = predict_files(predictor, [Path("t2.nii.gz")], out)
    before, record = mask.read_bytes(), (out / "prediction.json").read_text()
    monkeypatch.chdir(tmp_path / "b")
    with pytest.raises(BadInput, match=f"{mask}: exists, .* made it from this image; name another --out"):
        predict_files(predictor, [Path("t2.nii.gz")], out)
    assert (mask.read_bytes(), (out / "prediction.json").read_text()) == (before, record)
    monkeypatch.chdir(tmp_path)
    assert predict_files(predictor, [tmp_path / "a" / "t2.nii.gz"], out) == [mask]
    reported = json.loads((out / "prediction.json").read_text())
    assert [one["image"] for one in reported["images"]] == [str(tmp_path / "a" / "t2.nii.gz")]


def test_two_images_of_one_name_are_refused(predictor, tmp_path):
    with pytest.raises(BadInput, match="the name of 2 images"):
        predict_files(predictor, [tmp_path / "a" / "x.nii", tmp_path / "b" / "x.nii.gz"], tmp_path)
