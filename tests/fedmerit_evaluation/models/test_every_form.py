"""Every form that `prepare` reads is predicted and scored, with the values that other libraries read from the files."""

import copy
import struct
import zlib
from dataclasses import dataclass, field
from typing import Any

import gdcm
import highdicom
import nibabel as nib
import numpy as np
import pydicom
import pytest
import SimpleITK
import tifffile
import torch
from layouts import prepare, save_nifti, save_png
from layouts_dicom import MADE, outline, save_enhanced, save_seg, save_structures, square, x_ray
from layouts_prostate import save_itk, save_series
from one_in import one_in
from PIL import Image
from pydicom.pixels.processing import apply_rescale
from pydicom.sr.codedict import codes
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGLosslessSV1,
    JPEGLSLossless,
    RLELossless,
    SecondaryCaptureImageStorage,
    generate_uid,
)
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


def four_axes_of_itk(root, name, seed):
    path = root / "A" / "images" / f"{name}.mha"
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = []
    for number in (0, 1):
        save_itk(root.parent / "from" / f"{number}.mha", scan([seed, number]), TURNED)
        parts.append(SimpleITK.ReadImage(str(root.parent / "from" / f"{number}.mha")))
    SimpleITK.WriteImage(SimpleITK.JoinSeries(parts), str(path))
    volume_mask(root, name)
    return SimpleITK.GetArrayFromImage(SimpleITK.ReadImage(str(path))).swapaxes(0, 1)


def detached(root, name, seed):
    """A header in capitals whose voxels are in a compressed file of another name."""
    path = root / "A" / "images" / f"{name}.NHDR"
    save_itk(path.with_suffix(".nhdr"), scan(seed), TURNED)
    lines = path.with_suffix(".nhdr").read_text().replace(f"{name}.raw", f"voxels of {name}.raw")
    path.with_suffix(".nhdr").unlink()
    voxels = next(one for one in path.parent.iterdir() if one.stem.startswith(name))
    voxels.rename(path.with_name(f"voxels of {voxels.name}"))
    path.write_text(lines)
    volume_mask(root, name)
    return itk(path)


def scaled(root, name, seed):
    """Fractions stored as whole numbers, a name in capitals, and a qform elsewhere."""
    path = root / "A" / "images" / f"{name}.Nii.GZ"
    image = nib.Nifti1Image(scan(seed).astype(np.float32) / 7 - 100, TURNED)
    image.set_data_dtype(np.int16)
    image.set_qform(np.diag([0.5, 0.5, 3, 1]), 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(image, root.parent / f"{name}.nii.gz")
    expected = nib.load(root.parent / f"{name}.nii.gz").get_fdata(dtype=np.float32)
    (root.parent / f"{name}.nii.gz").rename(path)
    volume_mask(root, name)
    return expected.T[:, None]


def pair_in_capitals(root, name, seed):
    path = root / "A" / "images" / f"{name}.HDR"
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Pair(scan(seed).astype(np.int16), TURNED), root.parent / f"{name}.hdr")
    for suffix in (".HDR", ".IMG"):
        (root.parent / f"{name}{suffix.lower()}").rename(path.with_suffix(suffix))
    volume_mask(root, name)
    return scan(seed).T[:, None]


def tiff_of(kind, **stored):
    """A TIFF picture of these numbers, the mask a TIFF file of 64-bit numbers."""

    def write(root, name, seed):
        path = root / "A" / "images" / f"{name}.tif"
        path.parent.mkdir(parents=True, exist_ok=True)
        separate = "planarconfig" in stored
        pixels = picture(seed, 60_000, 3 if stored.get("photometric") == "rgb" else 0)
        tifffile.imwrite(path, (np.moveaxis(pixels, -1, 0) if separate else pixels).astype(kind) / kind(3), **stored)
        (root / "A" / "masks").mkdir(parents=True, exist_ok=True)
        tifffile.imwrite(root / "A" / "masks" / f"{name}.tif", organ()[..., 1].T.astype(np.float64))
        seen = np.atleast_3d(tifffile.imread(path))
        return (seen if separate else np.moveaxis(seen, -1, 0)).astype(np.float32)[None]

    return write


def zero_is_white(shape):
    """A TIFF file of 16 bits whose 0 is white: a picture, or a stack."""

    def write(root, name, seed):
        path = root / "A" / "images" / f"{name}.tif"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = (scan(seed).T if len(shape) == 3 else picture(seed, 60_000)).astype(np.uint16)
        tifffile.imwrite(path, 2**16 - 1 - pixels, photometric="miniswhite")
        (root / "A" / "masks").mkdir(parents=True, exist_ok=True)
        marked = organ().T if len(shape) == 3 else organ()[..., 1].T
        tifffile.imwrite(root / "A" / "masks" / f"{name}.tif", marked, photometric="minisblack")
        return np.atleast_3d(2**16 - 1 - tifffile.imread(path)).reshape(-1, 1, SIDE, SIDE)

    return write


def tiff_of_channels(axes):
    """An OME-TIFF of two channels, of one picture or several slices."""

    def write(root, name, seed):
        path = root / "A" / "images" / f"{name}.ome.tif"
        path.parent.mkdir(parents=True, exist_ok=True)
        channels = [scan([seed, number]).T for number in range(2)]
        pixels = np.stack(channels, axis=axes.index("C")) if "Z" in axes else np.stack([one[1] for one in channels])
        tifffile.imwrite(path, pixels, photometric="minisblack", metadata={"axes": axes})
        (root / "A" / "masks").mkdir(parents=True, exist_ok=True)
        if "Z" in axes:
            tifffile.imwrite(root / "A" / "masks" / f"{name}.tif", organ().T, photometric="minisblack")
        else:
            save_png(root / "A" / "masks" / f"{name}.png", organ()[..., 1].T)
        seen = np.moveaxis(tifffile.imread(path), axes.index("C"), 0)
        return np.moveaxis(seen.reshape(2, -1, SIDE, SIDE), 0, 1)

    return write


def raw_png(kind, interlaced=False, colours=0, depth=16):
    """A PNG file made of its chunks, for what other writers do not write."""

    def write(root, name, seed):
        path = root / "A" / "images" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.atleast_3d(picture(seed, 60_000, colours))
        opaque = np.full_like(pixels[..., :1], 2**16 - 1)
        rows = np.concatenate([pixels, opaque], -1) if kind in (4, 6) else pixels
        passes = ADAM7 if interlaced else [(0, 0, 1, 1)]
        lines = [b"\0" + row.astype(">u2").tobytes() for y, x, dy, dx in passes for row in rows[y::dy, x::dx]]
        head = struct.pack(">IIBBBBB", SIDE, SIDE, depth, kind, 0, 0, interlaced)
        chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(b"".join(lines))), (b"IEND", b"")]
        packed = [
            struct.pack(">I", len(data)) + key + data + struct.pack(">I", zlib.crc32(key + data))
            for key, data in chunks
        ]
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(packed))
        save_png(root / "A" / "masks" / f"{name}.png", organ()[..., 1].T * 255)
        return np.moveaxis(pixels, -1, 0)[None]

    return write


def black_and_white(root, name, seed):
    """Group 4 of fax machines, where white is 0."""
    path = root / "A" / "images" / f"{name}.tif"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture(seed, 240) > 100).save(path, compression="group4")
    save_png(root / "A" / "masks" / f"{name}.png", organ()[..., 1].T * 255)
    return np.asarray(Image.open(path))[None, None] * 255


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
        elif mask == "keyhole":  # an outline that goes round a hole by way of a cut
            round_hole = [(11.5, 13.5), (11.5, 15.5), (13.5, 15.5), (13.5, 13.5)]
            contour = outline((7.5, 13.5), *round_hole, (11.5, 13.5), (7.5, 13.5), *square(8, 10, 20, 26)[[3, 2, 1, 0]])
            contours = {"Organ": [(z, contour) for z in (1, 2)], "Hole": [(z, square(12, 14, 14, 16)) for z in (1, 2)]}
            save_structures(root / "A" / "masks" / f"{name}.dcm", slices, contours, TURNED)
        elif mask == "structures":
            contours = {"Organ": [(z, square(8, 10, 20, 26)) for z in (1, 2)]}
            save_structures(root / "A" / "masks" / f"{name}.dcm", slices, contours, TURNED)
        else:
            volume_mask(root, name)
        return np.stack([slice_.pixel_array for slice_ in slices])[:, None]

    return write


def series_of(syntax, **tags):
    """A series whose slices are stored in a transfer syntax, with other tags."""

    def write(root, name, seed):
        folder = root / "A" / "images" / name
        slices = save_series(folder, scan(seed), TURNED)
        volume_mask(root, name)
        for path in folder.iterdir():
            slice_ = pydicom.dcmread(path)
            for tag, value in tags.items():
                setattr(slice_, tag, value)
            store_as(slice_, syntax, path)
        read = sorted(map(pydicom.dcmread, folder.iterdir()), key=lambda one: one.ImagePositionPatient[2])
        assert {one.file_meta.TransferSyntaxUID for one in read} == {syntax}
        assert len(read) == len(slices)
        return np.stack([apply_rescale(one.pixel_array, one) for one in read])[:, None]

    return write


def store_as(slice_, syntax, path):
    """Write a slice in a transfer syntax: by pydicom if it does not compress pixels or by RLE, else by GDCM."""
    if syntax == RLELossless:
        slice_.compress(syntax)
    if syntax == ExplicitVRBigEndian:
        slice_.PixelData = np.frombuffer(slice_.PixelData, "<u2").astype(">u2").tobytes()
    if not (syntax.is_compressed and syntax not in (DeflatedExplicitVRLittleEndian, RLELossless)):
        slice_.file_meta.TransferSyntaxUID = syntax
        order = {"implicit_vr": syntax.is_implicit_VR, "little_endian": syntax.is_little_endian}
        pydicom.dcmwrite(path, slice_, **order, force_encoding=True)
        return
    slice_.save_as(path, enforce_file_format=True)
    reader, change, writer = gdcm.ImageReader(), gdcm.ImageChangeTransferSyntax(), gdcm.ImageWriter()
    reader.SetFileName(str(path))
    assert reader.Read()
    change.SetTransferSyntax(gdcm.TransferSyntax(gdcm.TransferSyntax.GetTSType(syntax)))
    change.SetInput(reader.GetImage())
    assert change.Change()
    writer.SetFileName(str(path))
    writer.SetFile(reader.GetFile())
    writer.SetImage(change.GetOutput())
    assert writer.Write()


def of_several_times(root, name, seed):
    """A series that has each slice at two b-values, one after the other in no order of names."""
    folder, shared = root / "A" / "images" / name, generate_uid()
    for number, b_value in enumerate((1000.0, 0.0)):
        part = root.parent / "from" / name / str(number)
        save_series(part, scan([seed, number]), TURNED, uid=shared, seed=number)
        folder.mkdir(parents=True, exist_ok=True)
        for path in part.iterdir():
            slice_ = pydicom.dcmread(path)
            slice_.DiffusionBValue, slice_.FrameOfReferenceUID = b_value, "1.2.3"
            slice_.save_as(folder / f"{path.stem}-{number}.dcm")
    volume_mask(root, name)
    return np.stack([scan([seed, number]).T for number in (1, 0)], axis=1)


def frames_of_several_times(root, name, seed):
    """The frames of two echoes in one file."""
    path = root / "A" / "images" / f"{name}.dcm"
    save_enhanced(path, save_series(root.parent / "from" / name, scan([seed, 0]), TURNED))
    file = pydicom.dcmread(path)
    groups, pixels = [], []
    for number, time in enumerate((100.0, 10.0)):
        for group in file.PerFrameFunctionalGroupsSequence:
            own = copy.deepcopy(group)
            echo = pydicom.Dataset()
            echo.EffectiveEchoTime = time
            own.MREchoSequence = [echo]
            groups.append(own)
            at = round(float(own.PlanePositionSequence[0].ImagePositionPatient[2]) / TURNED[2, 2])
            pixels.append(scan([seed, number])[..., at].T)
    file.PerFrameFunctionalGroupsSequence, file.NumberOfFrames = groups, len(groups)
    file.PixelData = np.stack(pixels).astype("<u2").tobytes()
    file.save_as(path)
    volume_mask(root, name)
    return np.stack([scan([seed, number]).T for number in (1, 0)], axis=1)


def parametric_map(root, name, seed):
    """Numbers of 32 bits with a fraction, as of an ADC map."""
    slices = save_series(root.parent / "from" / name, scan(seed), TURNED)
    values = (scan(seed).T / 7).astype(np.float32)
    unit = {"unit": codes.UCUM.NoUnits, "value_range": (-1e6, 1e6), "slope": 1, "intercept": 0}
    meaning = highdicom.pm.RealWorldValueMapping("1", "map", **unit)
    uids = (generate_uid(), 7, generate_uid(), 1)
    file = highdicom.pm.ParametricMap(slices, values, *uids, *MADE.values(), False, [meaning], 0, 1)
    path = root / "A" / "images" / f"{name}.dcm"
    path.parent.mkdir(parents=True, exist_ok=True)
    file.save_as(path)
    volume_mask(root, name)
    return highdicom.imread(path).get_volume(dtype=np.float32).to_patient_orientation("HPL").array[:, None]


def multi_frame(root, name, seed):
    path = root / "A" / "images" / f"{name}.dcm"
    save_enhanced(path, save_series(root.parent / "from" / name, scan(seed), TURNED))
    volume_mask(root, name)
    return highdicom.imread(path).get_volume().to_patient_orientation("HPL").array[:, None]


def radiograph(**tags):
    def write(root, name, seed):
        (slice_,) = save_series(root.parent / "from" / name, scan(seed)[..., 1:2], TURNED)
        x_ray(root / "A" / "images" / f"{name}.dcm", slice_, **tags)
        save_png(root / "A" / "masks" / f"{name}.png", organ()[..., 1].T * 255)
        return itk(root / "A" / "images" / f"{name}.dcm")

    return write


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


SIGNED = {"PixelRepresentation": 1, "RescaleSlope": "2", "RescaleIntercept": "-1024"}
SYNTAXES = (
    ImplicitVRLittleEndian,
    ExplicitVRBigEndian,
    DeflatedExplicitVRLittleEndian,
    RLELossless,
    JPEGLosslessSV1,
    JPEGLSLossless,
    JPEG2000Lossless,
)
ADAM7 = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
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
    **{f"dicom {syntax.name}": Form(series_of(syntax)) for syntax in SYNTAXES},
    "dicom signed with rescale": Form(series_of(ExplicitVRLittleEndian, **SIGNED)),
    "dicom multi-frame": Form(multi_frame),
    "dicom of several b-values": Form(of_several_times, 2),
    "dicom multi-frame of several echoes": Form(frames_of_several_times, 2),
    "dicom parametric map": Form(parametric_map),
    "dicom series with keyholes": Form(series("keyhole"), labels={"organ": ("Organ", "Hole")}),
    "radiograph": Form(radiograph(), 1, WHITE),
    "radiograph with rescale": Form(radiograph(RescaleSlope="2", RescaleIntercept="-1024"), 1, WHITE),
    "four axes of mha": Form(four_axes_of_itk, 2),
    "nrrd with voxels elsewhere": Form(detached),
    "nifti with slope and two places": Form(scaled),
    "pair in capitals": Form(pair_in_capitals),
    "tiff of planes of 16 bits": Form(tiff_of(np.float32, photometric="rgb", planarconfig="separate"), 3),
    "tiff of 64 bits": Form(tiff_of(np.float64)),
    "tiff picture whose 0 is white": Form(zero_is_white((SIDE, SIDE))),
    "tiff stack whose 0 is white": Form(zero_is_white((SIDE, SIDE, SLICES))),
    "tiff picture of two channels": Form(tiff_of_channels("CYX"), 2),
    "tiff stack of two channels": Form(tiff_of_channels("ZCYX"), 2),
    "tiff stacks of two channels": Form(tiff_of_channels("CZYX"), 2),
    "tiff of 1 bit": Form(black_and_white, 1, WHITE),
    "grey png of 16 bits with alpha": Form(raw_png(4), 1, WHITE),
    "interlaced grey png of 16 bits with alpha": Form(raw_png(4, interlaced=True), 1, WHITE),
    "interlaced png of 16 bits": Form(raw_png(2, interlaced=True, colours=3), 3, WHITE),
    "dicom in colours": Form(ultrasound, 3, WHITE),
}


@pytest.mark.parametrize("name", one_in(3, FORMS))
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
