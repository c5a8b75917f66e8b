"""Masks as DICOM segmentations and structure sets, by number and by name."""

import json
import subprocess

import numpy as np
import pydicom
import pytest
from layouts import AXIAL, box, save_nifti, volume
from layouts_dicom import outline, save_seg, save_structures, shuffle_frames, square, x_ray
from layouts_prostate import OBLIQUE, flipped, save_itk, save_series

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import RawCase
from fedmerit_data.readers import generic
from fedmerit_data.readers.label_map import parse_labels

SHAPE = (24, 20, 9)


def marked(*boxes):
    mask = np.zeros(SHAPE, np.uint8)
    for columns, rows, at in boxes:
        mask[slice(*columns), slice(*rows), at] = 1
    return mask


GLAND = marked(((5, 15), (6, 12), 2), ((6, 12), (7, 11), 5), ((6, 9), (7, 9), 6))
LESION = marked(((7, 9), (8, 10), 5), ((14, 17), (11, 13), 2))  # overlaps, and reaches beyond
REGIONS = {"Gland": GLAND, "Lesion 1": LESION}


@pytest.fixture
def study(tmp_path):
    return tmp_path / "image", save_series(tmp_path / "image", volume(1, SHAPE))


def decode(image, mask, labels):
    return generic.decode(RawCase("p", "p", image, mask), parse_labels(labels))


def require_drawn(decoded, *masks):
    found = decoded.label.transpose(1, 3, 2, 0)
    assert found.shape[0] == len(masks)
    for one, mask in zip(found, masks, strict=True):
        np.testing.assert_array_equal(one, mask)


def make_hard(file):
    """Frames in no order, and no word of the distance of slices."""
    shuffle_frames(file)
    del file.SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0].SpacingBetweenSlices


@pytest.mark.parametrize(
    ("labels", "masks", "remarks"),
    [
        ("gland=1,lesion=2", (GLAND, LESION), ()),
        ("lesion=lesion 1,gland=Gland", (LESION, GLAND), ()),
        ("any=any", (GLAND | LESION,), ()),
        ("both=1+Lesion 1", (GLAND | LESION,), ()),
        ("gland=1", (GLAND,), ("regions left out, which no label has: 2 (Lesion 1)",)),
        ("gland=1,ignore=2", (GLAND,), ()),
        ("gland=1,other=7,ignore=2", (GLAND, GLAND * 0), ("has no region 7 (other)",)),
    ],
)
def test_segments_by_number_and_by_name(study, tmp_path, labels, masks, remarks):
    """Which overlap; empty frames are left out, and the order of the others means nothing."""
    mask = save_seg(tmp_path / "seg.dcm", study[1], REGIONS, edit=make_hard)
    decoded = decode(study[0], mask, labels)
    require_drawn(decoded, *masks)
    assert decoded.remarks == remarks


def test_soft_segments_are_cut_at_half(study, tmp_path):
    mask = save_seg(tmp_path / "f.dcm", study[1], {"a": GLAND * 0.5 + LESION * 0.4}, "FRACTIONAL")
    decoded = decode(study[0], mask, "a=1")
    require_drawn(decoded, GLAND)
    assert decoded.remarks == ("soft edges cut at half of 255",)


def test_a_label_map(study, tmp_path):
    inner = GLAND & LESION
    mask = save_seg(tmp_path / "l.dcm", study[1], {"a": GLAND & ~inner, "b": LESION}, "LABELMAP")
    require_drawn(decode(study[0], mask, "whole=a+b,b=2"), GLAND | LESION, LESION)


def test_segments_on_another_file_of_their_scan(study, tmp_path):
    """Its axes turned, as NIfTI."""
    mask = save_seg(tmp_path / "seg.dcm", study[1], REGIONS)
    voxels, affine = flipped(volume(1, SHAPE), OBLIQUE, 1, 2)
    save_nifti(tmp_path / "a.nii.gz", voxels.transpose(1, 0, 2), affine[:, [1, 0, 2, 3]])
    decoded = decode(tmp_path / "a.nii.gz", mask, "gland=1,lesion=2")
    np.testing.assert_array_equal(decoded.image[:, 0], volume(1, SHAPE).transpose(2, 1, 0))
    require_drawn(decoded, GLAND, LESION)


def test_segments_on_another_grid_are_resampled(study, tmp_path):
    """Drawn on slices of twice the thickness, with pixels of half the size."""
    fine = OBLIQUE @ np.diag([0.5, 0.5, 2, 1])
    fine[:3, 3] += OBLIQUE[:3, :3] @ [-0.25, -0.25, 0.5]  # so that voxels have the same corners
    coarse = GLAND[..., [2, 2, 5, 5]]
    other = save_series(tmp_path / "other", volume(2, (48, 40, 2)), fine)
    for slice_ in other:
        slice_.FrameOfReferenceUID = study[1][0].FrameOfReferenceUID
    mask = save_seg(tmp_path / "seg.dcm", other, {"a": coarse[..., ::2].repeat(2, 0).repeat(2, 1)})
    image = tmp_path / "four"
    save_series(image, volume(1, (24, 20, 4)))
    for path in image.iterdir():
        slice_ = pydicom.dcmread(path)
        slice_.FrameOfReferenceUID = other[0].FrameOfReferenceUID
        slice_.save_as(path)
    decoded = decode(image, mask, "a=1")
    np.testing.assert_array_equal(decoded.label[:, 0].T, coarse)
    assert decoded.remarks[0] == "mask resampled (nearest) to the grid of its image"


def test_a_mask_of_an_x_ray(tmp_path):
    (slice_,) = save_series(tmp_path / "series", volume(1)[..., :1])
    del slice_.FrameOfReferenceUID
    x_ray(tmp_path / "p.dcm", slice_)
    save_seg(tmp_path / "seg.dcm", [slice_], {"lung": box()[..., 1:2]})
    np.testing.assert_array_equal(
        decode(tmp_path / "p.dcm", tmp_path / "seg.dcm", "lung=1").label[0, 0].T, box()[..., 1]
    )


KEYHOLE = outline(
    (2.5, 3.5), (15.5, 3.5), (15.5, 14.5), (2.5, 14.5), (2.5, 3.5),
    (5.5, 6.5), (5.5, 10.5), (9.5, 10.5), (9.5, 6.5), (5.5, 6.5),
)  # fmt: skip


@pytest.mark.parametrize(
    ("contours", "boxes", "holes"),
    [
        ((square(3, 4, 16, 15), square(6, 7, 10, 11)), [((3, 16), (4, 15))], [((6, 10), (7, 11))]),
        ((KEYHOLE,), [((3, 16), (4, 15))], [((6, 10), (7, 11))]),
        ((square(1, 1, 4, 4), square(8, 2, 11, 9)), [((1, 4), (1, 4)), ((8, 11), (2, 9))], []),
        ((square(-9, 3, 99, 7),), [((0, 24), (3, 7))], []),
    ],
)
def test_contours_have_holes_islands_and_ends(study, tmp_path, contours, boxes, holes):
    """Also a hole that a line joins to its outer contour, as planning systems write them."""
    mask = save_structures(tmp_path / "rt.dcm", study[1], {"a": [(2, one) for one in contours]})
    expected = marked(*((*box, 2) for box in boxes)) - marked(*((*box, 2) for box in holes))
    require_drawn(decode(study[0], mask, "a=any"), expected)


@pytest.mark.parametrize("seed", range(4))
def test_any_contour_is_filled_by_the_rule_of_odd_and_even(study, tmp_path, seed):
    """Also one that crosses itself: a centre is inside if a ray from it crosses the contour an odd number of times."""
    points = np.random.default_rng(seed).uniform(-3, 24, (9, 2))
    mask = save_structures(tmp_path / "rt.dcm", study[1], {"a": [(3, points)]})
    expected = np.zeros(SHAPE, np.uint8)
    for x, y in np.ndindex(SHAPE[:2]):
        for (u, v), (next_u, next_v) in zip(points, np.roll(points, -1, axis=0), strict=True):
            if (v > y) != (next_v > y):
                expected[x, y, 3] ^= u + (y - v) / (next_v - v) * (next_u - u) < x
    require_drawn(decode(study[0], mask, "a=any"), expected)


def test_structures_by_name(study, tmp_path):
    regions = {"BODY": [(at, square(0, 0, 24, 20)) for at in range(9)], "GTV": [(4, square(5, 6, 9, 10))], "marker": []}
    mask = save_structures(tmp_path / "masks" / "rt.dcm", study[1], regions)
    decoded = decode(study[0], mask.parent, "tumour=gtv,dose=marker")
    require_drawn(decoded, marked(((5, 9), (6, 10), 4)), GLAND * 0)
    assert decoded.remarks == ("regions left out, which no label has: 11 (BODY)", "marker: has no closed contours")
    with pytest.raises(
        BadInput, match=r"has the structures 11 \(BODY\), 12 \(GTV\), .*name those .*such as mask=BODY$"
    ):
        decode(study[0], mask, "mask=any")


def at_slices(*places):
    return [(at, square(5, 6, 9, 10)) for at in places]


@pytest.mark.parametrize(
    ("contours", "kind", "slices", "remark"),
    [
        (at_slices(1.5, 2.5, 3.5), "CLOSED_PLANAR", (2, 3, 4), "a: contours beside the slices of the image"),
        (at_slices(2, 2.5, 3, 3.5), "CLOSED_PLANAR", (2, 3, 4), "a: 1 planes of contours between slices joined"),
        (at_slices(2.3, 3.3), "CLOSED_PLANAR", (2, 3), "a: contours beside the slices of the image, each put on the"),
        (at_slices(7, 8, 9), "CLOSED_PLANAR", (7, 8), "a: contours on 1 slices outside the image left out"),
        (at_slices(2), "POINT", (), "a: 1 points or open lines left out"),
    ],
)
def test_contours_that_do_not_fit_their_image(study, tmp_path, contours, kind, slices, remark):
    mask = save_structures(tmp_path / "rt.dcm", study[1], {"a": contours}, kind=kind)
    decoded = decode(study[0], mask, "a=any")
    require_drawn(decoded, marked(*(((5, 9), (6, 10), at) for at in slices)))
    assert any(one.startswith(remark) for one in decoded.remarks)


def test_contours_that_overlap_in_part_are_joined_and_those_of_xor_are_not(study, tmp_path):
    first, second = square(5, 6, 12, 12), square(9, 8, 15, 15)
    for kind, combine in (("CLOSED_PLANAR", np.logical_or), ("CLOSEDPLANAR_XOR", np.logical_xor)):
        mask = save_structures(tmp_path / "rt.dcm", study[1], {"a": [(2, first), (2.05, second)]}, kind=kind)
        each = [decode(study[0], save_structures(tmp_path / "one.dcm", study[1], {"a": [(2, one)]}), "a=any").label
                for one in (first, second)]  # fmt: skip
        np.testing.assert_array_equal(decode(study[0], mask, "a=any").label, combine(*each))


def test_slices_without_a_contour_between_others_are_reported(study, tmp_path):
    mask = save_structures(tmp_path / "rt.dcm", study[1], {"a": at_slices(1, 3, 5)})
    assert "a: no contour on 2 slices between others that have one" in decode(study[0], mask, "a=any").remarks


def refer_elsewhere(file):
    file.FrameOfReferenceUID = "1.2.3"


def test_another_frame_of_reference_is_reported(study, tmp_path):
    mask = save_seg(tmp_path / "seg.dcm", study[1], {"a": GLAND}, edit=refer_elsewhere)
    decoded = decode(study[0], mask, "a=1")
    require_drawn(decoded, GLAND)
    assert decoded.remarks == ("its frame of reference is not that of its image: placed by its coordinates",)


@pytest.mark.parametrize("kind", ["segmentation", "structures"])
@pytest.mark.parametrize(
    ("labels", "image", "message"),
    [
        ("a=7", "image", r"has the regions \d+ \(a\); expected 7 \(a\), as --labels says"),
        ("a=b+c", "image", r"has the regions \d+ \(a\); expected b \(a\), c \(a\), as --labels says"),
        ("a=any", "elsewhere", r"outside its image elsewhere; they have to be of one scan"),
    ],
)
def test_a_mask_that_is_not_of_its_image(study, tmp_path, kind, labels, image, message):
    moved = OBLIQUE.copy()
    moved[:3, 3] += OBLIQUE[:3, 2] * 20
    save_series(tmp_path / "elsewhere", volume(1, SHAPE), moved)
    if kind == "segmentation":
        mask = save_seg(tmp_path / "m.dcm", study[1], {"a": GLAND})
    else:
        mask = save_structures(tmp_path / "m.dcm", study[1], {"a": at_slices(2)})
    with pytest.raises(BadInput, match=rf"m\.dcm: .*{message}"):
        decode(tmp_path / image, mask, labels)


def test_a_name_in_the_map_needs_a_mask_that_has_names(tmp_path):
    save_nifti(tmp_path / "a.nii.gz", volume(1), AXIAL)
    save_nifti(tmp_path / "b.nii.gz", box(), AXIAL)
    with pytest.raises(BadInput, match=r"b\.nii\.gz: has no Gland, which --labels names; it has values without"):
        decode(tmp_path / "a.nii.gz", tmp_path / "b.nii.gz", "gland=Gland")


def test_segments_that_another_program_wrote(study, tmp_path):
    """By DCMQI, which 3D Slicer writes with."""
    code = {"CodeValue": "85756007", "CodingSchemeDesignator": "SCT", "CodeMeaning": "Tissue"}
    common = {"SegmentAlgorithmType": "MANUAL"} | dict.fromkeys(
        ("SegmentedPropertyCategoryCodeSequence", "SegmentedPropertyTypeCodeSequence"), code
    )
    described = [[{"labelID": 1, "SegmentLabel": name, **common}] for name in REGIONS]
    about = {"ContentCreatorName": "A", "SeriesDescription": "S", "SeriesNumber": "3", "InstanceNumber": "1"}
    (tmp_path / "about.json").write_text(json.dumps(about | {"segmentAttributes": described}))
    for number, mask in enumerate(REGIONS.values()):
        save_itk(tmp_path / f"{number}.nrrd", mask)
    files = ",".join(str(tmp_path / f"{number}.nrrd") for number in range(len(REGIONS)))
    options = ["--inputImageList", files, "--inputDICOMDirectory", study[0], "--inputMetadata", tmp_path / "about.json"]
    made = ["itkimage2segimage", *options, "--skip", "1", "--outputDICOM", tmp_path / "seg.dcm"]
    subprocess.run(made, check=True, capture_output=True)
    decoded = decode(study[0], tmp_path / "seg.dcm", "lesion=Lesion 1,gland=Gland")
    require_drawn(decoded, LESION, GLAND)
    assert decoded.remarks == ()


@pytest.mark.parametrize("has_group_2", [True, False])
def test_dicom_masks_without_the_preamble_are_read(study, tmp_path, has_group_2):
    """As old programs store them: from the first element on, with the group of the file's own or without."""
    image, slices = study
    seg = save_seg(tmp_path / "seg.dcm", slices, REGIONS)
    structures = save_structures(tmp_path / "rs.dcm", slices, {"Gland": [(2, square(5, 6, 15, 12))]})
    for file in (seg, structures):
        stated = pydicom.dcmread(file)
        content = file.read_bytes()[132:]
        if not has_group_2:
            content = content[12 + stated.file_meta.FileMetaInformationGroupLength :]
        file.write_bytes(content)
    require_drawn(decode(image, seg, "gland=Gland,lesion='Lesion 1'"), GLAND, LESION)
    require_drawn(decode(image, structures, "gland=Gland"), marked(((5, 15), (6, 12), 2)))


def test_structures_of_several_files_are_joined_by_their_names(tmp_path):
    source = tmp_path / "raw"
    for number in range(2):
        slices = save_series(source / f"P{number}" / "CT", volume(number, SHAPE))
        first = {"Prostate": [(2, square(5, 6, 15, 12))], "SV": [(5, square(6, 7, 12, 11))]}
        save_structures(source / f"P{number}" / "RS1.dcm", slices, first)
        save_structures(source / f"P{number}" / "RS2.dcm", slices, {"Bladder": [(6, square(6, 7, 9, 9))]})
    kind = generic.generic_kind(parse_labels("both=Prostate+Bladder,bladder=Bladder"), channels=1)
    case = kind.find_sites(source)[0].cases[0]
    assert [path.name for path in (case.label, *case.more)] == ["RS1.dcm", "RS2.dcm"]
    prostate, bladder = marked(((5, 15), (6, 12), 2)), marked(((6, 9), (7, 9), 6))
    require_drawn(kind.decode(case), prostate | bladder, bladder)
    (site,) = generic.find_sites(source, labels=parse_labels("sv=SV"))
    assert [path.name for path in (site.cases[0].label, *site.cases[0].more)] == ["RS1.dcm"]
    assert ("P0/RS2.dcm", "an organ that --labels does not name") in site.left_out
    with pytest.raises(BadInput, match=r"has several DICOM masks \(RS1.dcm: Prostate, SV; RS2.dcm: Bladder\); name"):
        generic.find_sites(source)
    save_structures(source / "P0" / "RS3.dcm", slices, {"Bladder": [(6, square(6, 7, 9, 9))]})
    with pytest.raises(BadInput, match=r"marks bladder, and so does .*; list the one to use in pairs\.csv"):
        generic.find_sites(source, labels=parse_labels("bladder=Bladder"))
