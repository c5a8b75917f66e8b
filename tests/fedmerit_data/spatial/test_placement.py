"""One anatomy in any file: equal arrays, and masks where their images are, for SimpleITK and for nibabel."""

import subprocess
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import SimpleITK
from hypothesis import example, given, settings
from hypothesis import strategies as st
from layouts import box, save_nifti, volume
from layouts_prostate import save_itk, save_series
from nibabel import orientations
from scipy.spatial.transform import Rotation

from fedmerit_data.raw_cases import RawCase
from fedmerit_data.readers.image_files import read_image
from fedmerit_data.spatial.geometry import PLANES, align_axes, slice_volume
from fedmerit_data.spatial.volumes import read_volume

SHAPE = (6, 8, 4)
BRIGHT = 4  # voxels that are marked: enough to fix every part of a place
TOWARDS = {"L": (-1, 0, 0), "R": (1, 0, 0), "P": (0, -1, 0), "A": (0, 1, 0), "I": (0, 0, -1), "S": (0, 0, 1)}
UNITS = {"mm": 1.0, "meter": 1000.0, "micron": 0.001}


def place(plane, in_plane, between, angles, origin):
    """The affine of slices of a plane, turned by angles in degrees."""
    axes = np.transpose([TOWARDS[letter] for letter in PLANES[plane]])
    affine = np.eye(4)
    affine[:3, :3] = Rotation.from_euler("xyz", angles, degrees=True).as_matrix() @ axes
    affine[:3, :3] *= (in_plane, in_plane, between)
    affine[:3, 3] = origin
    return affine


def stored(voxels, affine, order, flips):
    """The same volume with its axes in another order and direction: (voxels, affine)."""
    turn = np.stack([np.argsort(order), flips], axis=1).astype(float)
    return orientations.apply_orientation(voxels, turn), affine @ orientations.inv_ornt_aff(turn, voxels.shape)


def bright_points_of_itk(file: Path, least):
    """Where SimpleITK places the brightest voxels, in mm, sorted."""
    if file.suffix == ".dcm":  # as 3D Slicer opens it
        subprocess.run(
            ["segimage2itkimage", "--inputDICOM", file, "--outputDirectory", file.parent],
            check=True,
            capture_output=True,
        )
        image = SimpleITK.ReadImage(str(file.with_name("1.nrrd")))
    elif file.is_dir():
        reader = SimpleITK.ImageSeriesReader()
        reader.SetFileNames(reader.GetGDCMSeriesFileNames(str(file)))
        image = reader.Execute()
    else:
        image = SimpleITK.ReadImage(str(file))
    at = np.argwhere(SimpleITK.GetArrayFromImage(image) >= least)[:, ::-1]
    return sorted(image.TransformIndexToPhysicalPoint(index.tolist()) for index in at)


def bright_points_of_nibabel(file, least):
    image = nib.load(file)
    points = nib.affines.apply_affine(image.affine, np.argwhere(image.get_fdata() >= least))
    return sorted((points * UNITS.get(image.header.get_xyzt_units()[0], 1)).tolist())


def write(folder, form, unit, voxels, affine):
    """A volume in one of the formats, and its path."""
    if form == "dicom":
        save_series(folder / "scan", voxels, affine)
        return folder / "scan"
    path = folder / f"scan{form if form in ('.mha', '.nrrd') else '.nii.gz'}"
    if form in (".mha", ".nrrd"):
        save_itk(path, voxels, affine)
        return path
    scaled = np.diag([*[1 / UNITS[unit]] * 3, 1]) @ affine
    image = nib.Nifti1Image(voxels, scaled)
    image.header.set_xyzt_units(unit)
    turned = scaled.copy()
    turned[:3, :3] = Rotation.from_euler("z", 15, degrees=True).as_matrix() @ scaled[:3, :3]
    image.set_sform(scaled, 0 if form == "qform" else 2)
    image.set_qform(turned if form == "two places" else scaled, 0 if form == "sform" else 1)
    nib.save(image, path)
    return path


@settings(max_examples=40, deadline=None)
@given(
    form=st.sampled_from(["sform", "qform", "both", "two places", ".mha", ".nrrd", "dicom"]),
    unit=st.sampled_from(list(UNITS)),
    plane=st.sampled_from(list(PLANES)),
    in_plane=st.floats(0.3, 2),
    ratio=st.sampled_from([0.5, 1.5, 4]),
    angles=st.tuples(*[st.floats(-20, 20)] * 3),
    origin=st.tuples(*[st.floats(-200, 200)] * 3),
    order=st.permutations(range(3)),
    flips=st.tuples(*[st.sampled_from([1, -1])] * 3),
)
@example("two places", "mm", "axial", 0.5, 4, (0, 0, 0), (0, 0, 0), [2, 0, 1], (1, -1, 1))
@example("both", "meter", "sagittal", 0.5, 4, (9, 0, 5), (8, 0, 0), [0, 1, 2], (-1, 1, 1))
def test_one_anatomy_in_every_file(
    tmp_path_factory, form, unit, plane, in_plane, ratio, angles, origin, order, flips
):  # fmt: skip
    folder = tmp_path_factory.mktemp("one")
    voxels = np.random.default_rng(1).permutation(np.prod(SHAPE)).reshape(SHAPE).astype(np.int16)
    if form == "dicom":  # which has its slices as files
        order = [*(axis for axis in order if axis != 2), 2]
    affine = place(plane, in_plane, in_plane * ratio, angles, origin)
    path = write(folder, form, unit, *stored(voxels, affine, order, flips))
    image = read_image(path, 1)
    np.testing.assert_array_equal(image.decoded.image[:, 0], voxels.transpose(2, 1, 0))
    sizes = (*image.decoded.spacing, image.decoded.slice_distance)
    np.testing.assert_allclose(sizes, (in_plane, in_plane, in_plane * ratio), rtol=1e-4)
    least = voxels.size - BRIGHT
    (mask,) = image.write_masks(folder / "masks", ["organ"], image.decoded.image >= least)
    points = bright_points_of_itk(mask, 1)
    assert len(points) == BRIGHT
    np.testing.assert_allclose(points, bright_points_of_itk(path, least), atol=1e-3)
    if path.suffix == ".gz":
        np.testing.assert_allclose(
            bright_points_of_nibabel(mask, 1), bright_points_of_nibabel(path, least), atol=1e-3
        )  # fmt: skip


HEADER = ("sform_code", "qform_code", "pixdim", "srow_x", "srow_y", "srow_z", "quatern_b", "qoffset_x", "xyzt_units")


@pytest.mark.parametrize("fault", ["no form", "sheared"])
@pytest.mark.parametrize("kind", [nib.Nifti1Image, nib.Nifti2Image])
def test_a_mask_has_the_header_of_its_image(tmp_path, fault, kind):
    image = kind(volume(1), None)
    image.header.set_zooms((0.5, 0.5, 3))
    image.header.set_xyzt_units("meter", "sec")
    if fault == "sheared":
        image.header.set_sform([[-0.5, 0.2, 0, 4], [0, -0.5, 0, 5], [0, 0, 3, 6], [0, 0, 0, 1]], 4)
    nib.save(image, tmp_path / "a.nii.gz")
    read = read_image(tmp_path / "a.nii.gz", 1)
    marked = read.decoded.image[:, 0] > 700
    mask = nib.load(read.write_masks(tmp_path / "masks", ["organ"], marked[:, None])[0])
    assert type(mask) is kind
    for field in HEADER:
        np.testing.assert_array_equal(mask.header[field], nib.load(tmp_path / "a.nii.gz").header[field])
    np.testing.assert_array_equal(mask.get_fdata() > 0, volume(1) > 700)
    assert mask.get_data_dtype() == np.uint8


def test_a_mask_of_either_place_fits_its_image(tmp_path):
    """ITK writes a mask at the qform, nibabel at the sform."""
    write(tmp_path, "two places", "mm", volume(1), place("axial", 0.5, 3, (0, 0, 0), (8, 0, 0)))
    image = read_volume(tmp_path / "scan.nii.gz")
    assert image.remarks == ("its sform and qform are up to 4.1 mm apart: the sform is taken",)
    for name, affine in zip("sq", image.places, strict=True):
        save_nifti(tmp_path / f"{name}.nii.gz", box(), affine)
        case = RawCase("a", "a", image.path, tmp_path / f"{name}.nii.gz")
        label = align_axes(case, image, read_volume(case.label))
        np.testing.assert_array_equal(slice_volume(case, image, label).label[:, 0], box().transpose(2, 1, 0))


def test_voxels_of_one_size_are_axial_and_their_size_is_known(tmp_path):
    """BraTS and MNI space; how a file stores them does not matter."""
    for name, order in (("a", [0, 1, 2]), ("b", [2, 1, 0])):
        save_nifti(tmp_path / f"{name}.nii", *stored(volume(1), np.diag([-1.0, -1, 1, 1]), order, (1, 1, -1)))
        decoded = read_image(tmp_path / f"{name}.nii", 1).decoded
        np.testing.assert_array_equal(decoded.image[:, 0], volume(1).transpose(2, 1, 0))
        assert (decoded.spacing, decoded.slice_distance, decoded.remarks) == ((1.0, 1.0), 1.0, ())


@pytest.mark.parametrize(("sizes", "distance"), [((1.0, 1.0, 1.0), None), ((0.5, 0.5, 3.0), 3.0)])
def test_without_a_place_the_size_is_known_if_the_file_states_one(tmp_path, sizes, distance):
    image = nib.Nifti1Image(volume(1), None)
    image.header.set_zooms(sizes)
    nib.save(image, tmp_path / "a.nii")
    decoded = read_image(tmp_path / "a.nii", 1).decoded
    assert decoded.slice_distance == distance
    assert decoded.remarks == ("its header does not state where its voxels are: axes kept as stored",)
    np.testing.assert_array_equal(decoded.image[:, 0], volume(1).transpose(2, 1, 0))


def test_a_size_that_is_stated_twice_is_reported(tmp_path):
    image = nib.Nifti1Image(volume(1), np.diag([-0.5, -0.5, 3, 1]))
    image.header["pixdim"][1:4] = 1, 1, 3
    nib.save(image, tmp_path / "a.nii")
    decoded = read_image(tmp_path / "a.nii", 1).decoded
    assert decoded.spacing == (0.5, 0.5)
    assert decoded.remarks == (
        "its pixdim states voxels of 1 x 1 x 3 mm, its form 0.5 x 0.5 x 3 mm: those of the form are taken",
    )


def test_an_invalid_qform_does_not_matter_beside_an_sform(tmp_path):
    """Rounded quaternions are often longer than 1, which nibabel refuses."""
    image = nib.Nifti1Image(volume(1), np.diag([-0.5, -0.5, 3, 1]))
    for field, value in (("quatern_b", 0.9), ("quatern_c", 0.9), ("qform_code", 1)):
        image.header[field] = value
    nib.save(image, tmp_path / "a.nii")
    read = read_image(tmp_path / "a.nii", 1)
    assert (read.decoded.spacing, read.decoded.remarks) == ((0.5, 0.5), ())
    mask = nib.load(read.write_masks(tmp_path / "masks", ["organ"], read.decoded.image > 700)[0])
    assert (mask.header["qform_code"], mask.header["sform_code"]) == (1, 2)


def test_a_unit_that_gives_voxels_of_half_a_metre_is_reported(tmp_path):
    image = nib.Nifti1Image(volume(1), np.diag([-0.5, -0.5, 3, 1]))
    image.header.set_xyzt_units("meter")
    nib.save(image, tmp_path / "a.nii")
    (remark,) = read_image(tmp_path / "a.nii", 1).decoded.remarks
    assert remark == "its header states voxels of 500 x 500 x 3e+03 mm: is the unit of length right?"


@pytest.mark.parametrize("name", ["a.mha", "a.mhd", "a.nrrd", "a.nhdr", "a.mgz", "a.hdr", "a.nii"])
def test_a_mask_comes_in_the_format_of_its_image(tmp_path, name):
    affine = place("coronal", 0.5, 3, (4, 5, 6), (7, 8, 9))
    if name in ("a.mgz", "a.hdr", "a.nii"):
        kind = {"a.mgz": nib.MGHImage, "a.hdr": nib.Nifti1Pair, "a.nii": nib.Nifti1Image}[name]
        nib.save(kind(volume(1), affine), tmp_path / name)
    else:
        save_itk(tmp_path / name, volume(1), affine)
    image = read_image(tmp_path / name, 1)
    (mask,) = image.write_masks(tmp_path / "masks", ["organ"], image.decoded.image > 700)
    ending = {"a.mha": ".mha", "a.mhd": ".mha", "a.nrrd": ".nrrd", "a.nhdr": ".nrrd", "a.mgz": ".mgz"}
    assert mask.name == f"a_organ{ending.get(name, '.nii.gz')}"
    read = read_volume(mask)
    np.testing.assert_array_equal(read.voxels, volume(1) > 700)
    np.testing.assert_allclose(read.affine, affine, atol=1e-5)


@pytest.mark.parametrize("suffix", [".nii", ".mha"])
def test_a_volume_of_two_axes_is_one_slice(tmp_path, suffix):
    pixels = volume(1)[..., 0]
    if suffix == ".nii":
        nib.save(nib.Nifti1Image(pixels, np.diag([-0.5, -0.5, 1, 1])), tmp_path / "a.nii")
    else:
        image = SimpleITK.GetImageFromArray(pixels.T)
        image.SetSpacing((0.5, 0.5))
        SimpleITK.WriteImage(image, str(tmp_path / "a.mha"))
    read = read_image(tmp_path / f"a{suffix}", 1)
    np.testing.assert_array_equal(read.decoded.image, pixels.T[None, None])
    assert read.decoded.spacing == (0.5, 0.5)
    (mask,) = read.write_masks(tmp_path / "masks", ["organ"], read.decoded.image > 700)
    assert SimpleITK.ReadImage(str(mask)).GetSize() == pixels.shape
    np.testing.assert_array_equal(read_volume(mask).voxels[..., 0], pixels > 700)
