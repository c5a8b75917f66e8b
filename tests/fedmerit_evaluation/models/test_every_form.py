"""Every form that `prepare` reads is predicted and scored, with the values that other libraries read from the files."""

from dataclasses import dataclass, field
from typing import Any

import highdicom
import nibabel as nib
import numpy as np
import pydicom
import pytest
import SimpleITK
import tifffile
import torch
from layouts import prepare, save_nifti, save_png
from layouts_dicom import save_enhanced, save_seg, save_structures, square, x_ray
from layouts_prostate import save_itk, save_series
from PIL import Image
from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid
from torch import nn

from fedmerit.schema.configuration.data import Preprocessing
from fedmerit.schema.configuration.settings import Network
from fedmerit.schema.site_folder import open_sites
from fedmerit_data.preparation import recorded_kind
from fedmerit_data.preparing.sources import read_sources
from fedmerit_evaluation.models.own_grid import evaluate_masks
from fedmerit_evaluation.models.predictor import Predictor, predict_files

SIDE, SLICES = 32, 4
AT = (slice(8, 20), slice(10, 26), slice(1, 3))  # of the organ: x, y, z
TURNED = np.diag([-0.5, -0.5, 3.0, 1.0])


class Bright(nn.Module):
    """Logits: the mean of the normalised channels, positive where an image is brighter than its mean."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, images):
        return images.mean(1, keepdim=True)


def scan(seed, top=2400, shape=(SIDE, SIDE, SLICES)):
    """A volume (x, y, z) with a bright organ."""
    rng = np.random.default_rng(seed)
    voxels = rng.integers(top // 24, top // 8, shape)
    voxels[AT] = rng.integers(top * 5 // 6, top, voxels[AT].shape)
    return voxels.astype(np.uint16 if top > 255 else np.uint8)


def organ():
    mask = np.zeros((SIDE, SIDE, SLICES), np.uint8)
    mask[AT] = 1
    return mask


def picture(seed, top, colours=0):
    """Pixels (height, width) or (height, width, colours)."""
    layers = [scan([seed, colour], top)[..., 1].T for colour in range(colours or 1)]
    return np.stack(layers, -1) if colours else layers[0]


def itk(path):
    """The values (slices, channels, height, width) that SimpleITK reads."""
    image = SimpleITK.ReadImage(str(path))
    pixels = SimpleITK.GetArrayFromImage(image)
    if image.GetNumberOfComponentsPerPixel() == 1:
        pixels = pixels[..., None]
    pixels = pixels if pixels.ndim == 4 else pixels[None]
    return np.moveaxis(pixels, -1, 1)


# Each writes the image of a patient below a folder, and its mask, and returns what another library reads.


def volume_in(suffix):
    def write(root, name, seed):
        path = root / "A" / "images" / f"{name}{suffix}"
        volume_mask(root, name)
        if suffix in (".mgz", ".hdr"):
            path.parent.mkdir(parents=True, exist_ok=True)
            nib.save((nib.MGHImage if suffix == ".mgz" else nib.Nifti1Pair)(scan(seed).astype(np.int16), TURNED), path)
            return np.asarray(nib.load(path).dataobj).T[:, None]
        (save_nifti if suffix.startswith(".nii") else save_itk)(path, scan(seed), TURNED)
        return itk(path)

    return write


def volume_mask(root, name):
    save_nifti(root / "A" / "masks" / f"{name}.nii.gz", organ(), TURNED)


def four_axes(root, name, seed):
    path = root / "A" / "images" / f"{name}.nii.gz"
    save_nifti(path, np.stack([scan([seed, 0]), scan([seed, 1])], axis=-1), TURNED)
    volume_mask(root, name)
    return np.asarray(nib.load(path).dataobj).transpose(2, 3, 1, 0)


def second_of_four_axes(root, name, seed):
    return four_axes(root, name, seed)[:, 1:]


def without_some(root, name, seed):
    path = root / "A" / "images" / f"{name}.nii.gz"
    voxels = scan(seed).astype(np.float32)
    voxels[:3] = np.nan
    save_nifti(path, voxels, TURNED)
    volume_mask(root, name)
    return np.nan_to_num(np.asarray(nib.load(path).dataobj).T[:, None], nan=100)


def file_for_each_channel(root, name, seed):
    for number, channel in enumerate(("t2", "adc")):
        save_nifti(root / name / f"{name}_{channel}.nii.gz", scan([seed, number]), TURNED)
    save_nifti(root / name / f"{name}_seg.nii.gz", organ(), TURNED)
    return np.concatenate([itk(root / name / f"{name}_{one}.nii.gz") for one in ("t2", "adc")], axis=1)


def stack(root, name, seed):
    path = root / "A" / "images" / f"{name}.tif"
    path.parent.mkdir(parents=True, exist_ok=True)
    tifffile.imwrite(path, scan(seed).T, photometric="minisblack", imagej=True)
    mask = root / "A" / "masks" / f"{name}.tif"
    mask.parent.mkdir(parents=True, exist_ok=True)
    tifffile.imwrite(mask, organ().T, photometric="minisblack")
    return tifffile.imread(path)[:, None]


def picture_in(suffix, top=240, colours=3, mode=None):
    def write(root, name, seed):
        path = root / "A" / "images" / f"{name}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = picture(seed, top, colours)
        if suffix == ".tif":
            tifffile.imwrite(path, pixels, photometric="rgb" if colours else "minisblack", compression="deflate")
            seen = tifffile.imread(path)
        elif mode:
            Image.fromarray(pixels).convert(mode).save(path)
            seen = np.asarray(Image.open(path).convert("RGB"))
        else:
            SimpleITK.WriteImage(SimpleITK.GetImageFromArray(pixels, isVector=bool(colours)), str(path))
            seen = SimpleITK.GetArrayFromImage(SimpleITK.ReadImage(str(path)))
        save_png(root / "A" / "masks" / f"{name}.png", organ()[..., 1].T * 255)
        return np.moveaxis(np.atleast_3d(seen), -1, 0)[None]

    return write


def series(mask):
    def write(root, name, seed):
        folder = root / "A" / "images" / name
        slices = save_series(folder, scan(seed), TURNED)
        if mask == "seg":
            save_seg(root / "A" / "masks" / f"{name}.dcm", slices, {"Organ": organ(), "Other": 1 - organ()})
        elif mask == "structures":
            contours = {"Organ": [(z, square(8, 10, 20, 26)) for z in (1, 2)]}
            save_structures(root / "A" / "masks" / f"{name}.dcm", slices, contours, TURNED)
        else:
            volume_mask(root, name)
        return np.stack([slice_.pixel_array for slice_ in slices])[:, None]

    return write


def multi_frame(root, name, seed):
    path = root / "A" / "images" / f"{name}.dcm"
    save_enhanced(path, save_series(root.parent / "from" / name, scan(seed), TURNED))
    volume_mask(root, name)
    return highdicom.imread(path).get_volume().to_patient_orientation("HPL").array[:, None]


def radiograph(root, name, seed):
    (slice_,) = save_series(root.parent / "from" / name, scan(seed)[..., 1:2], TURNED)
    x_ray(root / "A" / "images" / f"{name}.dcm", slice_)
    save_png(root / "A" / "masks" / f"{name}.png", organ()[..., 1].T * 255)
    return pydicom.dcmread(root / "A" / "images" / f"{name}.dcm").pixel_array[None, None]


def ultrasound(root, name, seed):
    path = root / "A" / "images" / f"{name}.dcm"
    path.parent.mkdir(parents=True, exist_ok=True)
    file = pydicom.Dataset()
    file.file_meta = pydicom.dataset.FileMetaDataset()
    file.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    file.SOPClassUID = file.file_meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    file.SOPInstanceUID = file.file_meta.MediaStorageSOPInstanceUID = generate_uid()
    file.Modality, file.SamplesPerPixel, file.PhotometricInterpretation, file.PlanarConfiguration = "US", 3, "RGB", 0
    file.Rows = file.Columns = SIDE
    file.BitsAllocated = file.BitsStored = 8
    file.HighBit, file.PixelRepresentation = 7, 0
    file.PixelData = picture(seed, 240, 3).tobytes()
    file.save_as(path, enforce_file_format=True)
    save_png(root / "A" / "masks" / f"{name}.png", organ()[..., 1].T * 255)
    return pydicom.dcmread(path).pixel_array.transpose(2, 0, 1)[None]


@dataclass(frozen=True)
class Form:
    write: Any
    channels: int = 1
    labels: dict = field(default_factory=lambda: {"organ": (1,)})
    options: dict = field(default_factory=dict)
    names: tuple = ()
    asked: dict = field(default_factory=dict)  # of `predict`


WHITE = {"organ": (255,)}
FORMS = {
    **{suffix: Form(volume_in(suffix)) for suffix in (".nii", ".nii.gz", ".mha", ".mhd", ".nrrd", ".mgz", ".hdr")},
    "four axes": Form(four_axes, 2),
    "one of four axes": Form(second_of_four_axes, options={"channel": 1}, asked={"channel": 1}),
    "voxels without a value": Form(without_some, options={"fill": 100.0}, asked={"fill": 100.0}),
    "a file for each channel": Form(file_for_each_channel, 2, names=("t2", "adc")),
    "tiff stack": Form(stack),
    "png": Form(picture_in(".png"), 3, WHITE),
    "bmp": Form(picture_in(".bmp"), 3, WHITE),
    "png of 16 bits": Form(picture_in(".png", 60_000), 3, WHITE),
    "grey png": Form(picture_in(".png", 240, 0), 1, WHITE),
    "grey png of 16 bits": Form(picture_in(".png", 60_000, 0), 1, WHITE),
    "png with alpha": Form(picture_in(".png", mode="RGBA"), 3, WHITE),
    "png with a palette": Form(picture_in(".png", mode="P"), 3, WHITE),
    "tiff of 16 bits": Form(picture_in(".tif", 60_000), 3, WHITE),
    "tiff of 12 bits in 16": Form(picture_in(".tif", 4000, 0), 1, WHITE),
    "dicom series": Form(series("nifti")),
    "dicom series with segmentation": Form(series("seg"), labels={"organ": ("Organ",)}),
    "dicom series with structures": Form(series("structures"), labels={"organ": ("Organ",)}),
    "dicom multi-frame": Form(multi_frame),
    "radiograph": Form(radiograph, 1, WHITE),
    "dicom in colours": Form(ultrasound, 3, WHITE),
}


@pytest.mark.parametrize("name", FORMS)
def test_each_form_is_prepared_predicted_and_scored_with_the_values_of_other_libraries(tmp_path, name):
    form = FORMS[name]
    source = tmp_path / "raw"
    expected = {f"p{number}": form.write(source, f"p{number}", number) for number in range(3)}
    asked = form.options | {"labels": form.labels, "channels": form.names or form.channels}
    prepare("generic", tmp_path / "sites", source=source, size=SIDE, **asked)
    (site,) = open_sites(tmp_path / "sites")
    kind, (case,) = recorded_kind(site), site.cases("testing")
    for other, read in read_sources(site).items():
        decoded = kind.decode(read.open(source)).image
        np.testing.assert_array_equal(decoded, expected[other])
        assert site.splits["testing"][0].image.shape == decoded.shape
    network = Network(in_channels=form.channels, labels=site.labels, architecture="unet", width=2, depth=2)
    model = tmp_path / "model.pt"
    torch.save({}, model)
    predictor = Predictor(model, Bright(), network, Preprocessing.from_dict(site.info))
    raw = read_sources(site)[case.name].open(source)
    written = predict_files(predictor, [part.path for part in raw.parts], tmp_path / "masks", **form.asked)
    assert len(written) == 1
    table = evaluate_masks(tmp_path / "masks", tmp_path / "sites", source, "testing", "own")
    values = table.set_index("quantity")["value"]
    assert values["dice"] == 1
    assert values["true_positives"] == case.label.sum() == organ()[..., 1].sum() * (2 if len(decoded) > 1 else 1)
