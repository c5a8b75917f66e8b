"""Every form that `prepare` reads is read for `predict`, with the levels that other libraries read."""

import highdicom
import nibabel as nib
import numpy as np
import pydicom
import pytest
import SimpleITK
import tifffile
from layouts import save_nifti, save_png, volume
from layouts_dicom import save_enhanced
from layouts_prostate import save_series
from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

from fedmerit_data.raw_cases import RawCase
from fedmerit_data.readers.generic import decode
from fedmerit_data.readers.image_files import read_image

COLOURS = np.random.default_rng(0).integers(300, 60_000, (20, 24, 3), np.uint16)


def itk(path):
    return SimpleITK.GetArrayFromImage(SimpleITK.ReadImage(str(path)))


def picture(path, pixels):
    image = SimpleITK.GetImageFromArray(pixels, isVector=pixels.shape[-1] == 3)
    SimpleITK.WriteImage(image, str(path))
    return itk(path)


def ultrasound(path):
    file = pydicom.Dataset()
    file.file_meta = pydicom.dataset.FileMetaDataset()
    file.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    file.SOPClassUID = file.file_meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    file.SOPInstanceUID = file.file_meta.MediaStorageSOPInstanceUID = generate_uid()
    file.Modality, file.SamplesPerPixel, file.PhotometricInterpretation, file.PlanarConfiguration = "US", 3, "RGB", 0
    file.Rows, file.Columns = COLOURS.shape[:2]
    file.BitsAllocated = file.BitsStored = 8
    file.HighBit, file.PixelRepresentation = 7, 0
    file.PixelData = (COLOURS // 256).astype(np.uint8).tobytes()
    file.save_as(path, enforce_file_format=True)
    return pydicom.dcmread(path).pixel_array


def nifti(path):
    save_nifti(path, volume(0))
    return np.asarray(nib.load(path).dataobj).transpose(2, 1, 0)


def four_axes(path):
    save_nifti(path, np.stack([volume(0), volume(1)], axis=-1))
    return np.asarray(nib.load(path).dataobj).transpose(2, 1, 0, 3)


def stack(path):
    tifffile.imwrite(path, volume(0).astype(np.uint16).T, photometric="minisblack")
    return tifffile.imread(path)


def deep_tiff(path):
    tifffile.imwrite(path, COLOURS, photometric="rgb", compression="deflate")
    return tifffile.imread(path)


def series(path):
    slices = save_series(path, volume(0))
    return np.stack([slice_.pixel_array for slice_ in slices])


def enhanced(path):
    save_enhanced(path, save_series(path.parent / "from", volume(0)))
    return highdicom.imread(path).get_volume().array


FORMS = {  # name, channels, how it is written; returns what another library reads
    "nifti": ("a.nii.gz", 1, nifti),
    "four axes": ("a.nii", 2, four_axes),
    "metaimage": ("a.mha", 1, lambda path: picture(path, volume(0).T)),
    "tiff stack": ("a.tif", 1, stack),
    "png": ("a.png", 3, lambda path: picture(path, (COLOURS // 256).astype(np.uint8))),
    "png of 16 bits": ("a.png", 3, lambda path: picture(path, COLOURS)),
    "grey png of 16 bits": ("a.png", 1, lambda path: picture(path, COLOURS[..., 0])),
    "tiff of 16 bits": ("a.tif", 3, deep_tiff),
    "dicom series": ("a", 1, series),
    "dicom multi-frame": ("a.dcm", 1, enhanced),
    "dicom in colours": ("a.dcm", 3, ultrasound),
}


@pytest.mark.parametrize("name", FORMS)
def test_each_form_has_the_levels_that_other_libraries_read(tmp_path, name):
    file, channels, write = FORMS[name]
    expected = np.asarray(write(tmp_path / file), np.float64)
    image = read_image(tmp_path / file, channels).decoded.image
    assert image.size == expected.size
    assert image.shape[1] == channels
    np.testing.assert_array_equal(np.unique(image), np.unique(expected))
    if image.shape[0] == 1:  # a picture
        mask = tmp_path / "mask.png"
        save_png(mask, np.full(image.shape[2:], 255, np.uint8))
        decoded = decode(RawCase("a", "a", tmp_path / file, mask), {"organ": (255,)}, channels)
        np.testing.assert_array_equal(decoded.image, image)
        seen = expected.reshape(*image.shape[2:], -1).transpose(2, 0, 1)
        np.testing.assert_array_equal(decoded.image[0], seen)
