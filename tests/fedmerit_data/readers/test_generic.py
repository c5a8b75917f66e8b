"""The generic reader: folders, lists, tables, channels, label maps."""

import csv
import json
from functools import partial

import nibabel as nib
import numpy as np
import pytest
import SimpleITK
from layouts import AXIAL, box, save_nifti, save_png, volume
from layouts_fundus import disc_and_cup, photo, save
from PIL import ExifTags, Image

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import Channel, RawCase
from fedmerit_data.readers import generic
from fedmerit_data.readers.generic import generic_kind
from fedmerit_data.readers.lists import COLUMNS

MAP = {"disc": (1, 2), "cup": (2,)}


colour = partial(generic.decode, labels=MAP, channels=3)


def zones(shift=0):
    """1 in the rim, 2 in the cup."""
    disc, cup = disc_and_cup(shift)
    return disc.astype(np.uint8) + cup


def photographs(folder, ending="", image=".png", mask=".png", cases=("a", "b")):
    for shift, case in enumerate(cases):
        save(folder / "images" / f"{case}{image}", photo(shift))
        save(folder / "masks" / f"{case}{ending}{mask}", zones(shift))


@pytest.mark.parametrize("ending", ["", "_mask", "_segmentation", "_seg", "-label", "_Mask"])
def test_site_folders_pair_by_name(tmp_path, ending):
    photographs(tmp_path / "east", ending, ".png", ".tif")
    photographs(tmp_path / "west", ending, ".tif", ".bmp", ("c",))
    (tmp_path / "east" / "notes.txt").write_text("")
    (tmp_path / "east" / "images" / "list.txt").write_text("")
    east, west = generic.find_sites(tmp_path)
    assert [(case.name, case.patient) for case in east.cases] == [("a", "east-a"), ("b", "east-b")]
    assert [(case.name, case.patient) for case in west.cases] == [("c", "west-c")]
    assert east.left_out == (
        ("east/images/list.txt", "of no format that is read"), ("east/notes.txt", "of no format that is read")
    )  # fmt: skip
    for shift, case in enumerate(east.cases):
        decoded = colour(case)
        np.testing.assert_array_equal(decoded.label[0], disc_and_cup(shift))
        np.testing.assert_array_equal(decoded.image[0], photo(shift).transpose(2, 0, 1))
        grey = generic.decode(case)
        assert grey.image.shape[:2] == (1, 1)
        np.testing.assert_array_equal(grey.label[0, 0], disc_and_cup(shift)[0])


def test_values_without_a_label_are_refused_unless_they_are_to_be_ignored(tmp_path):
    photographs(tmp_path / "east")
    mask = zones()
    mask[80, 100] = 7
    mask[81, 100] = 9
    save_png(tmp_path / "east" / "masks" / "a.png", mask)
    a, b = generic.find_sites(tmp_path)[0].cases
    with pytest.raises(BadInput, match=r"a.png: has the values 7, 9, which no label has; .*NAME=7\+9.*ignore=7\+9"):
        colour(a)
    ignoring = MAP | {"ignore": (7, 9, 11)}
    decoded = generic.decode(a, ignoring, 3)
    assert decoded.remarks == ("values 7, 9 ignored: background",)
    np.testing.assert_array_equal(decoded.label[0], disc_and_cup())
    assert generic.decode(b, ignoring, 3).remarks == ()
    assert generic.decode(a).label[0, 0, 80, 100] == 1


def test_palettes_colours_and_jpeg_masks(tmp_path):
    photographs(tmp_path / "east", cases=("a", "b", "c", "d"))
    masks = tmp_path / "east" / "masks"
    indexed = Image.fromarray(zones(), mode="P")
    indexed.putpalette([0, 0, 0, 128, 0, 0, 0, 128, 0])
    indexed.save(masks / "a.png")
    save_png(masks / "b.png", np.repeat(zones(1)[..., None], 3, axis=2))
    save_png(masks / "c.png", photo(0))
    (masks / "d.png").unlink()
    save(masks / "d.jpg", (disc_and_cup(3)[0] * 255).astype(np.uint8), quality=90)
    a, b, c, d = generic.find_sites(tmp_path)[0].cases
    np.testing.assert_array_equal(colour(a).label[0], disc_and_cup())
    np.testing.assert_array_equal(colour(b).label[0], disc_and_cup(1))
    with pytest.raises(BadInput, match=r"c.png: the mask is in colours"):
        colour(c)
    decoded = generic.decode(d, channels=3)
    np.testing.assert_array_equal(decoded.label[0, 0], disc_and_cup(3)[0])
    assert decoded.remarks == ("JPEG mask: levels above 127 taken as 255, others as 0",)


def itk(path, voxels):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = SimpleITK.GetImageFromArray(voxels.transpose(2, 1, 0))
    image.SetSpacing((1.0, 1.0, 3.0))
    SimpleITK.WriteImage(image, str(path))


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz", ".mhd", ".nrrd"])
def test_volumes_with_a_label_map(tmp_path, suffix):
    mask = box().copy()
    mask[9:11, 10:14, 1] = 2
    write = save_nifti if suffix.startswith(".nii") else itk
    write(tmp_path / "east" / "images" / f"p.1{suffix}", volume(0))
    write(tmp_path / "east" / "masks" / f"p.1_seg{suffix}", mask)
    (east,) = generic.find_sites(tmp_path)
    assert east.left_out == ()
    (case,) = east.cases
    assert case.name == "p.1"
    decoded = generic.decode(case, MAP)
    np.testing.assert_array_equal(decoded.label[:, 0], (mask > 0).transpose(2, 1, 0))
    np.testing.assert_array_equal(decoded.label[:, 1], (mask == 2).transpose(2, 1, 0))
    np.testing.assert_array_equal(decoded.image[:, 0], volume(0).transpose(2, 1, 0))
    assert decoded.spacing == (1.0, 1.0)
    write(tmp_path / "east" / "masks" / f"p.1_seg{suffix}", mask.astype(np.float32) / 2)
    with pytest.raises(BadInput, match=r"has values other than 0, 1, 2, \.\.\., such as 0\.5; .* set a threshold"):
        generic.decode(case, MAP)


def test_decathlon(tmp_path):
    for number in (2, 1):
        save_nifti(tmp_path / "imagesTr" / f"p_{number}.nii.gz", volume(number))
        save_nifti(tmp_path / "labelsTr" / f"p_{number}.nii.gz", box())
    training = [{"image": f"./imagesTr/p_{n}.nii.gz", "label": f"./labelsTr/p_{n}.nii.gz"} for n in (2, 1)]
    listing = tmp_path / "dataset.json"
    listing.write_text(json.dumps({"name": "PROSTATE", "training": training, "test": ["./imagesTs/p_9.nii.gz"]}))
    (site,) = generic.find_sites(tmp_path)
    assert site.name == "PROSTATE"
    assert [(case.name, case.patient) for case in site.cases] == [("p_1", "PROSTATE-p_1"), ("p_2", "PROSTATE-p_2")]
    assert site.left_out == (("imagesTs/p_9.nii.gz", "listed as test, without a mask"),)
    decoded = generic.decode(site.cases[0])
    np.testing.assert_array_equal(decoded.label[:, 0], box().transpose(2, 1, 0))
    np.testing.assert_array_equal(decoded.image[:, 0], volume(1).transpose(2, 1, 0))
    assert nib.load(site.cases[0].image).affine.tolist() == AXIAL.tolist()
    for content, message in (
        ("{", "not a readable list"),
        (json.dumps({"name": "a", "training": ["x"]}), "not a readable list"),
        (json.dumps({"name": "../a", "training": training}), "is not a valid site name"),
        (json.dumps({"name": "a", "training": [{"image": "x.nii", "label": "y.nii"}]}), "x.nii, file not found"),
        (json.dumps({"name": "a", "training": [training[0]] * 2}), "case p_2 already has the file"),
    ):
        listing.write_text(content)
        with pytest.raises(BadInput, match=message):
            generic.find_sites(tmp_path)


def test_a_table_of_pairs(tmp_path):
    photographs(tmp_path / "files", cases=("a", "b", "c"))
    listing = tmp_path / "pairs.csv"

    def write(rows, columns=COLUMNS):
        with listing.open("w", newline="") as file:
            csv.writer(file).writerows([columns, *rows])

    rows = [(site, patient, f"files/images/{case}.png", f"files/masks/{case}.png")
            for site, patient, case in (("west", "p1", "c"), ("east", "p1", "b"), ("east", "p1", "a"))]  # fmt: skip
    write(rows)
    east, west = generic.find_sites(tmp_path)
    assert [(case.name, case.patient) for case in east.cases] == [("a", "east-p1"), ("b", "east-p1")]
    assert [(case.name, case.patient) for case in west.cases] == [("c", "west-p1")]
    np.testing.assert_array_equal(colour(west.cases[0]).label[0], disc_and_cup(2))
    for table, columns, message in (
        (rows, ("site", "patient", "image", "outline"), "has no column label"),
        ([("east", "", *rows[0][2:])], COLUMNS, "line 2 lacks a value"),
        ([("../east", *rows[0][1:])], COLUMNS, "not a plain name"),
        ([(*rows[0][:3], "gone.png")], COLUMNS, "gone.png, file not found"),
        ([], COLUMNS, "has no rows"),
    ):
        write(table, columns)
        with pytest.raises(BadInput, match=message):
            generic.find_sites(tmp_path)


def pairs(folder, images):
    """A pairs.csv of one site that names a patient by row, and these images, each its own mask."""
    rows = [f"east,p{number},{image},{image}" for number, image in enumerate(images)]
    (folder / "pairs.csv").write_text("\n".join([",".join(COLUMNS), *rows]))


def test_images_of_one_name_are_cases_by_their_folders(tmp_path):
    """Those whose name is the only one of their site keep it, so do all where it is another site's."""
    for image in ("A/P0/t2.nii.gz", "A/P1/t2.nii.gz", "A/P1/adc.nii.gz"):
        save_nifti(tmp_path / image, volume(0))
    images = ["./A/P0/t2.nii.gz", str(tmp_path / "A" / "P1" / "t2.nii.gz"), "A/P1/adc.nii.gz"]
    expected = [("A-P0-t2", "east-p0"), ("A-P1-t2", "east-p1"), ("adc", "east-p2")]
    pairs(tmp_path, images)
    (east,) = generic.find_sites(tmp_path)
    assert [(case.name, case.patient) for case in east.cases] == expected
    assert {case.image.parent.name for case in east.cases[:2]} == {"P0", "P1"}
    pairs(tmp_path, images[1:])
    assert [case.name for case in generic.find_sites(tmp_path)[0].cases] == ["adc", "t2"]
    with (tmp_path / "pairs.csv").open("a") as table:
        table.write(f"\nwest,p0,{images[0]},{images[0]}")
    assert [[case.name for case in site.cases] for site in generic.find_sites(tmp_path)] == [["adc", "t2"], ["t2"]]
    training = [{"image": image, "label": image} for image in images]
    (tmp_path / "dataset.json").write_text(json.dumps({"name": "east", "training": training}))
    found = [(case.name, case.patient) for case in generic.find_sites(tmp_path)[0].cases]
    assert found == [(name, f"east-{name}") for name, _ in expected]


def test_a_kind_of_ones_own(tmp_path):
    photographs(tmp_path / "east")
    kind = generic_kind(MAP, task="fundus")
    assert (kind.labels, kind.channels, kind.crops) == (("disc", "cup"), 3, ("whole", "disc"))
    (east,) = kind.find_sites(tmp_path)
    np.testing.assert_array_equal(kind.decode(east.cases[0]).label[0], disc_and_cup())
    assert generic_kind({"disc": (1,), "ignore": (2,)}).labels == ("disc",)
    found = [generic_kind(channels=channels).normalisation for channels in (1, 2, 3, 4)]
    assert found == ["mri", "mri_by_channel", "photo", "mri_by_channel"]
    assert generic_kind(channels=1, modality="ct_lung").normalisation == "ct_lung"


def test_a_source_may_be_the_folder_of_one_site(tmp_path):
    photographs(tmp_path / "HK")
    for name, site in (("HK", None), ("Hospital", "Hospital")):
        (found,) = generic_kind(site=site).find_sites(tmp_path / "HK")
        assert (found.name, [case.patient for case in found.cases]) == (name, [f"{name}-a", f"{name}-b"])
    photographs(tmp_path / "BMC")
    (found,) = generic_kind(site="Hospital").find_sites(tmp_path)
    assert (found.name, len(found.cases)) == ("Hospital", 4)


def test_a_photograph_that_viewers_turn_is_refused(tmp_path):
    photographs(tmp_path / "a", image=".jpg", cases=("a",))
    (path,) = (tmp_path / "a" / "images").iterdir()
    picture = Image.open(path)
    for orientation in (1, 3):
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = orientation
        picture.save(path, exif=exif)
        (site,) = generic.find_sites(tmp_path)
        if orientation == 1:
            assert colour(site.cases[0]).image.shape[:2] == (1, 3)
        else:
            with pytest.raises(BadInput, match=r"a\.jpg: is stored rotated \(EXIF orientation 3\).*save it upright"):
                colour(site.cases[0])


def test_channels_in_files_of_their_own_are_brought_to_one_grid(tmp_path):
    """Sagittal, the second channel stored with its rows the other way round."""
    voxels = volume(1, (12, 20, 8))
    label = box((12, 20, 8))
    sagittal = np.array([[0, 0, 3.0, 0], [1.0, 0, 0, 0], [0, 1.0, 0, 0], [0, 0, 0, 1]])
    turned = sagittal.copy()
    turned[:, 1] *= -1
    turned[:3, 3] = sagittal[:3, :3] @ [0, 19, 0]
    for name, array, affine in (("images/a_0000", voxels, sagittal), ("images/a_0001", voxels[:, ::-1], turned),
                                ("masks/a", label, sagittal)):  # fmt: skip
        path = tmp_path / "site" / f"{name}.nii.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        nib.save(nib.Nifti1Image(np.ascontiguousarray(array).astype(np.float32), affine), path)
    first, second = (tmp_path / "site" / "images" / f"a_000{place}.nii.gz" for place in (0, 1))
    case = RawCase(
        "a", "a", first, tmp_path / "site" / "masks" / "a.nii.gz", channels=(Channel(first), Channel(second))
    )
    decoded = generic.decode(case, channels=2)
    np.testing.assert_array_equal(decoded.image[:, 0], decoded.image[:, 1])
