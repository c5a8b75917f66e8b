"""The generic reader over files of every format: read, or named."""

import gzip
from dataclasses import replace

import gdcm
import nibabel as nib
import numpy as np
import pytest
import SimpleITK
from layouts import AXIAL, box, prepare, save_nifti, save_png, volume
from layouts_dicom import save_enhanced, save_seg, x_ray
from layouts_fundus import disc_and_cup, photo, save
from layouts_prostate import OBLIQUE, flipped, save_itk, save_series
from PIL import Image

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import RawCase
from fedmerit_data.readers import generic
from fedmerit_data.readers.image_files import read_image
from fedmerit_data.readers.lists import COLUMNS
from fedmerit_data.spatial import volumes
from fedmerit_data.spatial.volumes import require_sane

FORMATS = (".mha", ".mhd", ".nrrd", ".nhdr", ".mgz", ".hdr", ".nii", ".nii.gz", "")


def write(path, voxels, affine=AXIAL):
    """A volume in the format of the path; in DICOM without an ending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == "":
        save_series(path, voxels, affine)
    elif path.suffix in (".mgz", ".hdr"):
        nib.save((nib.MGHImage if path.suffix == ".mgz" else nib.Nifti1Pair)(voxels, affine), path)
    else:
        (save_nifti if path.name.endswith((".nii", ".nii.gz")) else save_itk)(path, voxels, affine)


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_is_read(tmp_path, suffix):
    write(tmp_path / "east" / "images" / f"p{suffix}", volume(1))
    write(tmp_path / "east" / "masks" / f"p{suffix or '.nrrd'}", box())
    (east,) = generic.find_sites(tmp_path)
    assert (east.left_out, [case.name for case in east.cases]) == ((), ["p"])
    decoded = generic.decode(east.cases[0])
    np.testing.assert_array_equal(decoded.image[:, 0], volume(1).transpose(2, 1, 0))
    np.testing.assert_array_equal(decoded.label[:, 0], box().transpose(2, 1, 0))


@pytest.mark.parametrize("compression", [None, "tiff_lzw"])
@pytest.mark.parametrize("is_stack", [False, True])
def test_tiff_levels_whose_zero_is_white_count_from_black(tmp_path, compression, is_stack):
    levels = np.random.default_rng(0).integers(0, 2**16, (3, 20, 24) if is_stack else (1, 20, 24), dtype=np.uint16)
    pictures = [Image.fromarray(2**16 - 1 - one) for one in levels]
    kept = {"compression": compression} if compression else {}
    pictures[0].save(tmp_path / "a.tif", save_all=True, append_images=pictures[1:], tiffinfo={262: 0}, **kept)
    with Image.open(tmp_path / "a.tif") as stored:
        assert stored.tag_v2[262] == 0
    np.testing.assert_array_equal(read_image(tmp_path / "a.tif", 1).decoded.image[:, 0], levels)


def test_mask_of_each_time_or_channel_is_read(tmp_path):
    other = np.roll(box(), 2, axis=0)
    for name, masks in {"equal": (box(), box()), "moving": (box(), other)}.items():
        save_nifti(tmp_path / name / "images" / "p.nii.gz", np.stack([volume(1), volume(2)], axis=-1))
        save_nifti(tmp_path / name / "masks" / "p.nii.gz", np.stack(masks, axis=-1))
    organ = {"organ": (1,)}
    (case,) = generic.find_sites(tmp_path / "equal")[0].cases
    assert generic.decode(case, organ, 2).label.sum() == box().sum()
    (case,) = generic.find_sites(tmp_path / "moving")[0].cases
    decoded = generic.decode(case, organ, 1, replace(generic.Allowed(), channel=1))
    np.testing.assert_array_equal(decoded.label[:, 0], other.transpose(2, 1, 0))
    with pytest.raises(BadInput, match="has the values 2, which no label has"):
        generic.decode(case, organ, 2)


@pytest.mark.parametrize(("labels", "are_known"), [((1,), True), ((255,), True), ((), True), ((2,), False)])
def test_white_of_a_mask_of_one_bit_is_what_labels_name(tmp_path, labels, are_known):
    marked = np.zeros((20, 24), bool)
    marked[4:9, 5:12] = True
    save_png(tmp_path / "images" / "p.png", np.full((20, 24, 3), 9, np.uint8))
    (tmp_path / "masks").mkdir()
    Image.fromarray(marked).save(tmp_path / "masks" / "p.png")
    (case,) = generic.find_sites(tmp_path)[0].cases
    if are_known:
        assert generic.decode(case, {"organ": labels}, 3).label.sum() == marked.sum()
    else:
        with pytest.raises(BadInput, match="has the values 1, which no label has"):
            generic.decode(case, {"organ": labels}, 3)


def test_folders_of_dicom_slices_are_prepared(tmp_path):
    """In site folders, and by a table that names them; each slice is one of the files that were used."""
    for number in range(4):
        write(tmp_path / "all" / "east" / "images" / f"p{number}", volume(number))
        write(tmp_path / "all" / "east" / "masks" / f"p{number}_seg.nii.gz", box())
    rows = [f"east,p{number},east/images/p{number},east/masks/p{number}_seg.nii.gz" for number in range(4)]
    prepare("generic", tmp_path / "by folder", source=tmp_path / "all", channels=1, size=16)
    (tmp_path / "all" / "pairs.csv").write_text("\n".join([",".join(COLUMNS), *rows]))
    (east,) = generic.find_sites(tmp_path / "all")
    assert east.left_out == ()
    prepare("generic", tmp_path / "by table", source=tmp_path / "all", channels=1, size=16)
    for number in range(4):
        arrays = [
            np.load(tmp_path / by / "east" / "cases" / f"p{number}_image.npy") for by in ("by folder", "by table")
        ]
        np.testing.assert_array_equal(*arrays)


def test_photographs_of_further_formats(tmp_path):
    save(tmp_path / "east" / "images" / "a.webp", photo(0), lossless=True)
    save(tmp_path / "east" / "masks" / "a.gif", (disc_and_cup()[0] * 255).astype(np.uint8))
    (case,) = generic.find_sites(tmp_path)[0].cases
    decoded = generic.decode(case, {"disc": (255,)}, 3)
    np.testing.assert_array_equal(decoded.image[0], photo(0).transpose(2, 0, 1))
    np.testing.assert_array_equal(decoded.label[0, 0], disc_and_cup()[0])


def test_a_segmentation_as_slicer_names_it_is_the_mask_of_its_image(tmp_path):
    write(tmp_path / "east" / "images" / "p.nii.gz", volume(1))
    write(tmp_path / "east" / "masks" / "p.seg.nrrd", box())
    (case,) = generic.find_sites(tmp_path)[0].cases
    assert case.name == "p"
    np.testing.assert_array_equal(generic.decode(case).label[:, 0], box().transpose(2, 1, 0))


def test_an_enhanced_multi_frame_file_is_read(tmp_path):
    """By itself in a folder, or by itself; highdicom converts a series into one."""
    frames = save_series(tmp_path / "series", volume(1))
    for name in ("folder/e.dcm", "e.dcm"):
        save_enhanced(tmp_path / name, frames)
    expected = read_image(tmp_path / "series", 1).decoded
    for name in ("folder", "e.dcm"):
        decoded = read_image(tmp_path / name, 1).decoded
        np.testing.assert_array_equal(decoded.image, expected.image)
        np.testing.assert_allclose((*decoded.spacing, decoded.slice_distance), (0.75, 0.5, 4), atol=1e-6)
    save_enhanced(tmp_path / "folder" / "f.dcm", frames)
    with pytest.raises(BadInput, match=r"e\.dcm: holds several frames \(4, enhanced.*keep it in a folder of its own"):
        read_image(tmp_path / "folder", 1)


def test_an_x_ray_is_one_slice_and_its_mask_may_be_a_picture(tmp_path):
    (slice_,) = save_series(tmp_path / "series", volume(1)[..., :1])
    x_ray(tmp_path / "raw" / "east" / "images" / "p.dcm", slice_)
    save_png(tmp_path / "raw" / "east" / "masks" / "p.png", box()[..., 1].T * 255)
    (case,) = generic.find_sites(tmp_path / "raw")[0].cases
    decoded = generic.decode(case, {"lung": (255,)})
    np.testing.assert_array_equal(decoded.image, volume(1)[..., 0].T[None, None])
    np.testing.assert_array_equal(decoded.label, box()[..., 1].T[None, None])
    assert decoded.spacing == pytest.approx((0.75, 0.5))
    (mask,) = read_image(case.image, 1).write_masks(tmp_path / "masks", ["lung"], decoded.label > 0)
    again = generic.decode(replace(case, label=mask), {"lung": ("lung",)})
    np.testing.assert_array_equal(again.label, decoded.label)


def test_one_slice_with_a_place_is_turned_as_a_volume_is(tmp_path):
    """As sets of single slices have it; an X-ray states none."""
    voxels, affine = flipped(volume(1)[..., :1], OBLIQUE, 0, 1)
    save_series(tmp_path / "series", voxels, affine)
    image = read_image(tmp_path / "series" / "1-01.dcm", 1)
    np.testing.assert_array_equal(image.decoded.image[0, 0], volume(1)[..., 0].T)
    assert (*image.decoded.spacing, image.decoded.slice_distance) == pytest.approx((0.75, 0.5, 4))
    (mask,) = image.write_masks(tmp_path / "masks", ["organ"], image.decoded.image > 700)
    again = generic.decode(RawCase("p", "p", image.path, mask), {"organ": (1,)})
    np.testing.assert_array_equal(again.label, image.decoded.image > 700)


def test_a_file_as_archives_compress_it(tmp_path):
    """JPEG lossless, which pydicom reads only by GDCM."""
    (slice_,) = save_series(tmp_path / "series", volume(1)[..., :1])
    x_ray(tmp_path / "x.dcm", slice_)
    reader, change, writer = gdcm.ImageReader(), gdcm.ImageChangeTransferSyntax(), gdcm.ImageWriter()
    reader.SetFileName(str(tmp_path / "x.dcm"))
    assert reader.Read()
    change.SetTransferSyntax(gdcm.TransferSyntax(gdcm.TransferSyntax.JPEGLosslessProcess14_1))
    change.SetInput(reader.GetImage())
    assert change.Change()
    writer.SetFileName(str(tmp_path / "packed.dcm"))
    writer.SetFile(reader.GetFile())
    writer.SetImage(change.GetOutput())
    assert writer.Write()
    found, expected = (read_image(tmp_path / name, 1).decoded.image for name in ("packed.dcm", "x.dcm"))
    np.testing.assert_array_equal(found, expected)


def test_a_mask_among_the_slices_of_its_series_is_left_out_with_a_remark(tmp_path):
    slices = save_series(tmp_path / "p", volume(1))
    save_seg(tmp_path / "p" / "mask.dcm", slices, {"organ": box()})
    decoded = read_image(tmp_path / "p", 1).decoded
    assert decoded.image.shape[0] == len(slices)
    assert "mask.dcm: SEG, no image: left out" in decoded.remarks


def test_slices_without_a_place_are_no_channels(tmp_path):
    for number, head in enumerate(save_series(tmp_path / "series", volume(1))):
        x_ray(tmp_path / "H" / "images" / "p" / f"{number}.dcm", head)
    save_nifti(tmp_path / "H" / "masks" / "p.nii.gz", box())
    kind = generic.generic_kind(channels=1)
    with pytest.raises(BadInput, match=r"slices of one volume, export them with their places \(ImagePositionPatient\)"):
        kind.decode(kind.find_sites(tmp_path / "H")[0].cases[0])


@pytest.mark.parametrize("what", ["place", "structures"])
def test_what_is_no_slice_of_a_volume_is_reported(tmp_path, what):
    slices = save_series(tmp_path / "series", volume(1))
    changes = {} if what == "place" else {"Modality": "RTSTRUCT"}
    if what == "structures":
        for key in ("Rows", "PixelData"):
            del slices[0][key]
    for number in (0, 1):
        x_ray(tmp_path / "folder" / f"{number}.dcm", slices[number], **changes)
    reported = r"does not state the directions of its rows and columns \(ImageOrientationPatient\)"
    with pytest.raises(BadInput, match=reported if what == "place" else r"0\.dcm: holds no image \(RTSTRUCT\)"):
        read_image(tmp_path / "folder", 1)
    if what == "structures":
        with pytest.raises(
            BadInput, match=r"0\.dcm: is DICOM RTSTRUCT, not an image; give the series that it belongs to"
        ):
            read_image(tmp_path / "folder" / "0.dcm", 1)


@pytest.mark.parametrize(("image", "mask"), [(".heic", ".heic"), (".nii.gz", ".xml"), (".minc", ".nii.gz")])
def test_a_file_of_a_format_that_is_not_read_is_named(tmp_path, image, mask):
    """It is not missing."""
    for part, suffix in (("images", image), ("masks", mask)):
        (tmp_path / "east" / part).mkdir(parents=True)
        (tmp_path / "east" / part / f"p{suffix}").write_bytes(b"")
    unread = f"images/p{image}" if image != ".nii.gz" else f"masks/p{mask}"
    with pytest.raises(BadInput, match=rf"east/{unread}: is of no format that is read; expected one of \.nii"):
        generic.find_sites(tmp_path)


def test_a_name_that_lies_about_compression_is_reported(tmp_path):
    save_nifti(tmp_path / "a.nii.gz", volume(1))
    plain = gzip.decompress((tmp_path / "a.nii.gz").read_bytes())
    (tmp_path / "b.nii").write_bytes((tmp_path / "a.nii.gz").read_bytes())
    (tmp_path / "a.nii.gz").write_bytes(plain)
    for name, message in (
        ("a.nii.gz", "is not compressed.*call it a.nii"),
        ("b.nii", "is compressed.*call it b.nii.gz"),
    ):
        with pytest.raises(BadInput, match=rf"{name}: {message}$"):
            read_image(tmp_path / name, 1)


def test_a_leading_axis_of_one_is_reported(tmp_path):
    save_nifti(tmp_path / "east" / "images" / "p.nii.gz", volume(1)[None])
    save_nifti(tmp_path / "east" / "masks" / "p.nii.gz", box())
    (case,) = generic.find_sites(tmp_path)[0].cases
    for read in (lambda: generic.decode(case), lambda: read_image(case.image, 1)):
        with pytest.raises(
            BadInput, match=r"shape \(1, 24, 20, 4\), whose first axis has length 1.*remove the first axis$"
        ):
            read()


def test_further_axes_of_one_are_dropped(tmp_path):
    save_nifti(tmp_path / "a.nii", volume(1)[..., None, None])
    save_nifti(tmp_path / "b.nii", np.stack([volume(1), volume(2)], -1)[:, :, :, None])
    np.testing.assert_array_equal(read_image(tmp_path / "a.nii", 1).decoded.image[:, 0], volume(1).transpose(2, 1, 0))
    assert read_image(tmp_path / "b.nii", 2).decoded.image.shape == (4, 2, 20, 24)


def test_more_slices_than_512_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(volumes.psutil, "virtual_memory", lambda: type("Memory", (), {"available": 2**33}))
    require_sane(tmp_path, (512, 512, 2000))
    with pytest.raises(BadInput, match="more than any scan"):
        require_sane(tmp_path, (65535, 65535, 1))
    monkeypatch.setattr(volumes.psutil, "virtual_memory", lambda: type("Memory", (), {"available": 2**30}))
    with pytest.raises(BadInput, match=r"need about 2\.1 GiB of memory, and 1\.0 GiB are free"):
        require_sane(tmp_path, (512, 512, 527))


@pytest.mark.parametrize("name", ["a.mha", "a.nrrd"])
def test_a_header_that_states_no_place(tmp_path, name):
    """SimpleITK writes all fields; others leave them out."""
    image = SimpleITK.GetImageFromArray(volume(1).T)
    SimpleITK.WriteImage(image, str(tmp_path / name))
    content = (tmp_path / name).read_bytes()
    dropped = (
        b"space",
        b"Offset",
        b"TransformMatrix",
        b"ElementSpacing",
        b"CenterOfRotation",
        b"AnatomicalOrientation",
    )
    end = content.index(b"ElementDataFile") if name == "a.mha" else content.index(b"\n\n")
    kept = [line for line in content[:end].split(b"\n") if not line.startswith(dropped)]
    (tmp_path / name).write_bytes(b"\n".join(kept) + content[end:])
    decoded = read_image(tmp_path / name, 1).decoded
    assert decoded.slice_distance is None
    assert decoded.remarks == ("its header does not state where its voxels are: axes kept as stored",)


def test_a_mask_in_colours_of_black_and_white_is_grey(tmp_path):
    """An adaptive palette whose first colour is white, through the whole preparation."""
    for number in range(4):
        save(tmp_path / "raw" / "A" / "images" / f"p{number}.png", photo(number))
        mask = Image.fromarray((disc_and_cup(number)[0] * 255).astype(np.uint8)).convert("RGB").quantize(2)
        (tmp_path / "raw" / "A" / "masks").mkdir(exist_ok=True)
        mask.save(tmp_path / "raw" / "A" / "masks" / f"p{number}.png")
    save_png(tmp_path / "raw" / "A" / "masks" / "p0.png", (disc_and_cup(0)[0] * 255).astype(np.uint8))
    (site,) = prepare("generic", tmp_path / "sites", source=tmp_path / "raw", size=32, labels={"disc": (255,)})
    shares = [np.load(file).mean() for file in sorted((site / "cases").glob("*label.npy"))]
    assert max(shares) < 0.3
