"""Lists and folders as MONAI, NVFlare, nnU-Net, BraTS, TotalSegmentator and 3D Slicer write them: the right values."""

import json
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import SimpleITK
import tifffile
from layouts import AXIAL, box, save_nifti, save_png, volume
from PIL import Image

from fedmerit.errors import BadInput
from fedmerit_data.preparation import Preparation
from fedmerit_data.readers import generic
from fedmerit_data.readers.image_files import read_image
from fedmerit_data.readers.lists import read_pairs
from fedmerit_data.spatial.stacks import is_stack, read_stack

LIVER, SPLEEN = box(), np.roll(box(), 2, axis=0)  # which overlap
CASES = ("p_1", "p_2")


def write_json(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def sliced(*voxels):
    """(slices, channels or labels, height, width) of axial volumes."""
    return np.stack(voxels, axis=-1).transpose(2, 3, 1, 0)


def monai(root):
    """A file for each channel, in a list whose paths are relative to it; NVFlare's has a list for each site."""
    for site, cases in zip(("site-1", "site-2"), (CASES, ["p_3"]), strict=True):
        entries = []
        for case in cases:
            for channel, name in enumerate(("flair", "t1")):
                save_nifti(root / site / f"{case}_{name}.nii.gz", volume(channel))
            save_nifti(root / site / f"{case}_seg.nii.gz", LIVER)
            images = [f"{site}/{case}_{name}.nii.gz" for name in ("flair", "t1")]
            entries.append({"image": images, "label": f"{site}/{case}_seg.nii.gz", "fold": 0})
        write_json(root / f"{site}.json", {"training": entries[:1], "validation": entries[1:], "testing": []})


def monai_masks(root):
    """A list of masks is stacked: the first counts as 1."""
    monai(root)
    (root / "site-2.json").unlink()
    content = json.loads((root / "site-1.json").read_text())
    for entry in (*content["training"], *content["validation"]):
        case = entry["label"].removesuffix("_seg.nii.gz")
        save_nifti(root / f"{case}_spleen.nii.gz", SPLEEN)
        entry["label"] = [entry["label"], f"{case}_spleen.nii.gz"]
    write_json(root / "dataset.json", content)


def nnunet_v1(root):
    """The list names p.nii.gz, the files are p_0000.nii.gz and p_0001.nii.gz."""
    for case in CASES:
        for channel in range(2):
            save_nifti(root / "imagesTr" / f"{case}_000{channel}.nii.gz", volume(channel))
        save_nifti(root / "labelsTr" / f"{case}.nii.gz", LIVER + np.uint8(2) * (SPLEEN > LIVER))
    training = [{"image": f"./imagesTr/{case}.nii.gz", "label": f"./labelsTr/{case}.nii.gz"} for case in CASES]
    stated = {"modality": {"0": "T2", "1": "ADC"}, "labels": {"0": "background", "1": "liver", "2": "rest"}}
    write_json(root / "dataset.json", {**stated, "tensorImageSize": "3D", "numTraining": 2, "training": training})


def nnunet_v2(root):
    """Regions, a label to ignore, and files of another ending beside."""
    nnunet_v1(root)
    (root / "labelsTr" / "p_1.png").write_bytes(b"")
    stated = {
        "channel_names": {"0": "T2", "1": "ADC"},
        "labels": {"background": 0, "both": [1, 2], "liver": 1, "ignore": 3},
    }
    more = {"regions_class_order": [2, 1], "overwrite_image_reader_writer": "NibabelIO", "file_ending": ".nii.gz"}
    write_json(root / "dataset.json", {**stated, **more, "numTraining": 2})


def nnunet_given(root):
    """nnU-Net's mapping of cases to files."""
    nnunet_v2(root)
    content = json.loads((root / "dataset.json").read_text()) | {"numTraining": 1}
    files = {"images": [f"imagesTr/p_1_000{n}.nii.gz" for n in range(2)], "label": "labelsTr/p_1.nii.gz"}
    write_json(root / "dataset.json", {**content, "dataset": {"p_1": files}})


def brats(root):
    for case in CASES:
        for channel, name in enumerate(("flair", "t1")):
            save_nifti(root / case / f"{case}_{name}.nii.gz", volume(channel))
        save_nifti(root / case / f"{case}_seg.nii.gz", LIVER * 4)


def sites_of_patients(root):
    brats(root / "A")
    brats(root / "B")


def totalsegmentator(root):
    for case in CASES:
        save_nifti(root / case / "ct.nii.gz", volume(0))
        for name, mask in (("liver", LIVER), ("spleen", SPLEEN), ("femur", SPLEEN)):
            save_nifti(root / case / "segmentations" / f"{name}.nii.gz", mask)


def masks_of_organs(root):
    for case in CASES:
        save_nifti(root / "A" / "images" / f"{case}.nii.gz", volume(0))
        for name, mask in (("liver", LIVER), ("spleen", SPLEEN)):
            save_nifti(root / "A" / "masks" / case / f"{name}.nii.gz", mask)


def table(root):
    brats(root)
    rows = [f"A,x,{c}/{c}_t1.nii.gz,{c}/{c}_flair.nii.gz,{c}/{c}_seg.nii.gz,{c}/s.nii.gz" for c in CASES]
    for case in CASES:
        save_nifti(root / case / "s.nii.gz", SPLEEN)
    (root / "pairs.csv").write_text("\n".join(["site,patient,image_t1,image_flair,label_liver,label_spleen", *rows]))


def four_axes(root):
    for case in CASES:
        save_nifti(root / "A" / "images" / f"{case}.nii.gz", volume(0))
        save_nifti(root / "A" / "masks" / f"{case}.nii.gz", np.stack([LIVER, SPLEEN], axis=-1))


def slicer(root):
    """Two layers with a segment of value 1 each, on the part of the grid that they need."""
    head = """NRRD0004
type: unsigned char
dimension: 4
space: right-anterior-superior
sizes: 2 22 20 4
space directions: none (-1,0,0) (0,-1,0) (0,0,3)
kinds: list domain domain domain
encoding: raw
space origin: (-1,0,0)
Segment0_ID:=Segment_1
Segment0_Name:=Liver
Segment0_LabelValue:=1
Segment0_Layer:=0
Segment1_Name:=Spleen 1
Segment1_LabelValue:=1
Segment1_Layer:=1

"""
    for case in CASES:
        save_nifti(root / "A" / "images" / f"{case}.nii.gz", volume(0))
        voxels = np.stack([LIVER[1:23], SPLEEN[1:23]])
        (root / "A" / "masks").mkdir(exist_ok=True)
        (root / "A" / "masks" / f"{case}.seg.nrrd").write_bytes(head.encode() + voxels.tobytes(order="F"))


def colour_volumes(root):
    """RGB NIfTI, and RGB NRRD."""
    rgb = np.stack([volume(channel) % 256 for channel in range(3)], axis=-1).astype(np.uint8)
    packed = np.ascontiguousarray(rgb).view([("R", "u1"), ("G", "u1"), ("B", "u1")])[..., 0]
    for case in CASES:
        save_nifti(root / "A" / "masks" / f"{case}.nii.gz", LIVER)
    save_nifti(root / "A" / "images" / "p_1.nii.gz", packed)
    image = SimpleITK.GetImageFromArray(np.ascontiguousarray(rgb.transpose(2, 1, 0, 3)), isVector=True)
    image.SetSpacing((1.0, 1.0, 3.0))
    SimpleITK.WriteImage(image, str(root / "A" / "images" / "p_2.nrrd"))
    (root / "A" / "masks" / "p_2.nii.gz").unlink()
    mask = SimpleITK.GetImageFromArray(LIVER.transpose(2, 1, 0))
    mask.SetSpacing((1.0, 1.0, 3.0))
    SimpleITK.WriteImage(mask, str(root / "A" / "masks" / "p_2.nrrd"))


def colour_photographs(root):
    """One file holds the three channels that nnU-Net's list names."""
    for case in CASES:
        save_png(root / "imagesTr" / f"{case}_0000.png", RGB[0].transpose(1, 2, 0).astype(np.uint8))
        save_png(root / "labelsTr" / f"{case}.png", LIVER[..., 1].T)
    stated = {"channel_names": {"0": "R", "1": "G", "2": "B"}, "labels": {"background": 0, "liver organ": 1}}
    write_json(root / "dataset.json", {**stated, "numTraining": 2, "file_ending": ".png"})


def stacks(root):
    """TIFF, as nnU-Net has it: with a file of the spacing beside."""
    for case in CASES:
        for folder, name, voxels in (("imagesTr", f"{case}_0000", volume(0)), ("labelsTr", case, LIVER)):
            (root / folder).mkdir(parents=True, exist_ok=True)
            tifffile.imwrite(root / folder / f"{name}.tif", voxels.T, photometric="minisblack")
            write_json(root / folder / f"{case}.json", {"spacing": [3.0, 1.0, 1.0]})
    write_json(root / "dataset.json", {"channel_names": {"0": "em"}, "labels": {"liver": 1}, "file_ending": ".tif"})


V0, V1 = volume(0), volume(1)
FLAIR = ("p_1_flair", "p_2_flair")  # cases of a list go by the first file of their image
BOTH = {"l": ("liver",), "s": ("spleen",)}
SEGMENTS = {"l": ("Liver",), "s": ("spleen 1",)}
VALUES = {"l": (1,), "s": (2,)}
TWO, ONE = sliced(V0, V1), sliced(V0)
RGB = sliced(*(volume(c) % 256 for c in range(3)))
OVERLAPPING, EITHER = sliced(LIVER, SPLEEN), sliced(LIVER | SPLEEN)
LAYOUTS = {  # how it is written, options; sites and their cases, image, label
    "monai": (monai, {"channels": 2}, {"site-1": FLAIR, "site-2": ("p_3_flair",)}, TWO, sliced(LIVER)),
    "monai masks": (monai_masks, {"channels": 2, "labels": VALUES}, {None: FLAIR}, TWO, OVERLAPPING),
    "nnunet v1": (nnunet_v1, {}, {None: CASES}, TWO, sliced(LIVER, SPLEEN > LIVER)),
    "nnunet v2": (nnunet_v2, {}, {None: CASES}, TWO, sliced((LIVER + SPLEEN) > 0, LIVER)),
    "nnunet files": (nnunet_given, {}, {None: ("p_1",)}, TWO, sliced((LIVER + SPLEEN) > 0, LIVER)),
    "brats": (brats, {"channels": 2, "labels": {"tumour": (4,)}}, {None: CASES}, TWO, sliced(LIVER)),
    "sites": (sites_of_patients, {"channels": 2}, {"A": CASES, "B": CASES}, TWO, sliced(LIVER)),
    "organs": (totalsegmentator, {"channels": 1, "labels": BOTH}, {None: CASES}, ONE, OVERLAPPING),
    "union": (totalsegmentator, {"channels": 1, "labels": {"l": ("liver", "spleen")}}, {None: CASES}, ONE, EITHER),
    "masks": (masks_of_organs, {"channels": 1, "labels": BOTH}, {"A": CASES}, ONE, OVERLAPPING),
    "table": (table, {"channels": 2, "labels": BOTH}, {"A": ("p_1_t1", "p_2_t1")}, sliced(V1, V0), OVERLAPPING),
    "four axes": (four_axes, {"channels": 1, "labels": VALUES}, {"A": CASES}, ONE, OVERLAPPING),
    "slicer": (slicer, {"channels": 1, "labels": SEGMENTS}, {"A": CASES}, ONE, OVERLAPPING),
    "colour volumes": (colour_volumes, {"channels": 3}, {"A": CASES}, RGB, sliced(LIVER)),
    "colour photographs": (colour_photographs, {}, {None: CASES}, RGB[:1], sliced(LIVER)[1:2]),
    "stacks": (stacks, {}, {None: CASES}, ONE, sliced(LIVER)),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_of_others(name, tmp_path):
    write, options, expected, image, label = LAYOUTS[name]
    write(tmp_path / "raw")
    kind = Preparation("generic", tmp_path / "raw", **options).layout
    sites = kind.find_sites(tmp_path / "raw")
    found = {site.name: tuple(case.name for case in site.cases) for site in sites}
    assert found == {site or "raw": cases for site, cases in expected.items()}
    for case in (case for site in sites for case in site.cases):
        decoded = kind.decode(case)
        np.testing.assert_array_equal(decoded.image, image)
        np.testing.assert_array_equal(decoded.label, label)
        assert decoded.slice_distance == (None if name == "colour photographs" else 3.0)
        assert not any("resampled" in remark for remark in decoded.remarks)


def edit(root, **changed):
    file = root / "dataset.json"
    write_json(file, json.loads(file.read_text()) | changed)


WRONG_WAY = r'dataset\.json: channel_names .*\{"0": "T2"\}: is it the wrong way round'
REFUSED = {  # what is wrong, options, and what is reported
    "too few": (nnunet_v2, lambda root: edit(root, numTraining=3), {}, "numTraining is 3, but imagesTr has 2 cases"),
    "another ending": (nnunet_v2, lambda root: edit(root, file_ending=".nrrd"), {},
                       r"imagesTr: no file is named CASE_0000\.nrrd, as dataset\.json says"),
    "a channel missing": (nnunet_v2, lambda root: (root / "imagesTr" / "p_2_0001.nii.gz").unlink(), {},
                          "p_2_0001: no such file; dataset.json names this channel"),
    "too few channels": (nnunet_v2, None, {"channels": 1}, r"has 2 channels \(T2, ADC\), not 1; pass --channels 2"),
    "names in a list": (nnunet_v2, lambda root: edit(root, channel_names=["T2", "ADC"]), {}, WRONG_WAY),
    "numbers of names": (nnunet_v2, lambda root: edit(root, channel_names={"T2": 0}), {}, WRONG_WAY),
    "number of names": (nnunet_v2, lambda root: edit(root, channel_names=2), {}, WRONG_WAY),
    "labels": (nnunet_v2, lambda root: edit(root, labels=["liver"]), {}, r"dataset.json: labels \['liver'\]; expected"),
    "endless": (nnunet_v2, lambda root: edit(root, labels={"liver": 1e999}), {}, r"labels \{'liver': inf\}; expected"),
    "half": (nnunet_v2, lambda root: edit(root, labels={"liver": 1.5}), {}, r"labels \{'liver': 1.5\}; expected"),
    "huge": (nnunet_v2, lambda root: edit(root, labels={"liver": 10**30}), {}, r"labels \{'liver': 10+\}; expected"),
    "no channel": (brats, lambda root: (root / "p_2" / "p_2_t1.nii.gz").unlink(), {"channels": 2},
                   "p_2: has the images flair, the other patients flair, t1|p_1: has the images"),
    "no mask": (brats, lambda root: (root / "p_2" / "p_2_seg.nii.gz").unlink(), {"channels": 2},
                "p_2_flair.nii.gz: its mask is missing; add it"),
    "organs unnamed": (totalsegmentator, None, {"channels": 1},
                       "masks of 3 organs .femur, liver, spleen.* --labels femur="),
    "organ missing": (totalsegmentator, lambda root: (root / "p_1" / "segmentations" / "liver.nii.gz").unlink(),
                      {"channels": 1, "labels": BOTH}, "has no liver, which --labels names"),
    "segment": (slicer, None, {"channels": 1, "labels": {"l": ("Lung",)}}, "has no Lung, .* it has Liver, Spleen 1"),
    "too many": (brats, None, {"channels": 3}, "has 2 channels .*; pass --channels 2, or list those to use"),
    "nothing": (lambda root: (root / "A" / "B" / "C").mkdir(parents=True), None, {},
                ": no case in it; expected images and masks .*, a folder for each patient, .*, a dataset.json"),
    "other names": (lambda root: pngs(root, "A/images/one.png", "A/masks/1.png"), None, {},
                    "1.png: its image is missing; add it, rename one.png, which has no image or mask, or move"),
    "no entry": (monai, lambda root: write_json(root / "site-1.json", {"training": [], "validation": []}), {},
                 "site-1.json: lists no image with a mask; expected some in training or validation"),
    "a text": (monai, lambda root: write_json(root / "site-1.json", {"training": [{"image": [], "label": "x"}]}), {},
               "site-1.json: not a readable list"),
}  # fmt: skip


def pngs(root, *names):
    """Images of zeros."""
    for name in names:
        save_png(root / name, np.zeros((4, 4), np.uint8))


def decode_all(root, options):
    kind = Preparation("generic", root, **options).layout
    return [kind.decode(case) for site in kind.find_sites(root) for case in site.cases]


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_with_them_is_said(name, tmp_path):
    write, spoil, options, message = REFUSED[name]
    write(tmp_path)
    if spoil:
        spoil(tmp_path)
    with pytest.raises(BadInput, match=message):
        decode_all(tmp_path, options)


def test_paths_of_a_list_may_be_whole_though_the_source_is_relative(tmp_path, monkeypatch):
    monai(tmp_path)
    (tmp_path / "site-2.json").unlink()
    text = (tmp_path / "site-1.json").read_text()
    (tmp_path / "site-1.json").write_text(text.replace("site-1/", f"{tmp_path}/site-1/"))
    monkeypatch.chdir(tmp_path)
    (site,) = generic.find_sites(Path("."))
    assert {file for file, _ in site.left_out} == {f"site-2/p_3_{part}.nii.gz" for part in ("flair", "t1", "seg")}


def test_folders_with_a_dataset_json_each_state_labels_and_channels(tmp_path):
    for hospital in ("A", "B"):
        nnunet_v2(tmp_path / hospital)
    asked = Preparation("generic", source=tmp_path)
    one = Preparation("generic", source=tmp_path / "A")
    assert (asked.labels, asked.channels) == (one.labels, one.channels)
    edit(tmp_path / "B", labels={"background": 0, "other": 1})
    with pytest.raises(BadInput, match=r"B/dataset.json: states the labels .*; give --labels, or prepare each folder"):
        Preparation("generic", source=tmp_path)


def test_entries_with_a_key_for_each_channel_are_read(tmp_path):
    for number in range(3):
        for name in ("t1", "t2", "seg"):
            save_nifti(tmp_path / f"p{number}_{name}.nii.gz", box() if name == "seg" else volume(number))
    entries = [{name: f"p{number}_{name}.nii.gz" for name in ("t2", "t1", "seg")} for number in range(3)]
    write_json(tmp_path / "site-1.json", {"training": entries[:2], "validation": entries[2:]})
    (site,) = generic.generic_kind(channels=2).find_sites(tmp_path)
    assert {case.channel_names for case in site.cases} == {("t2", "t1")}
    assert [case.label.name for case in site.cases] == [f"p{number}_seg.nii.gz" for number in range(3)]


def test_masks_on_another_grid_and_voxels_without_a_value(tmp_path):
    """Refused as such; with the options read, and said so."""
    image, coarse = volume(0).astype(np.float32), AXIAL @ np.diag([2.0, 2.0, 1.0, 1.0])
    image[3, 4, 1] = np.nan
    coarse[:2, 3] = -0.5
    save_nifti(tmp_path / "A" / "images" / "p.nii.gz", image)
    save_nifti(tmp_path / "A" / "masks" / "p.nii.gz", LIVER[::2, ::2], coarse)
    for options, message in (({}, "not finite, 1 in all; .*--fill"), ({"fill": 0.0}, "one grid, or --resample given")):
        with pytest.raises(BadInput, match=message):
            decode_all(tmp_path, {"channels": 1, **options})
    (decoded,) = decode_all(tmp_path, {"channels": 1, "fill": -5.0, "resample": True})
    expected = np.where(np.isnan(image), -5, image)
    np.testing.assert_array_equal(decoded.image, sliced(expected))
    np.testing.assert_array_equal(decoded.label, sliced(LIVER[::2, ::2].repeat(2, 0).repeat(2, 1)))
    assert decoded.remarks == (
        "1 voxels (0.05%) without a value set to -5, as --fill asks",
        "mask resampled (nearest) to the grid of its image",
    )


@pytest.mark.parametrize(("unit", "factor"), [("mm", 1.0), ("cm", 0.1), ("um", 1000.0), ("\\u00B5m", 1000.0)])
def test_stacks_state_their_spacing_by_a_unit(tmp_path, unit, factor):
    path = tmp_path / "a.tif"
    steps = {"spacing": 3 * factor, "unit": unit, "axes": "ZYX"}
    tifffile.imwrite(path, volume(0).astype("u2").T, imagej=True, resolution=(2 / factor, 1 / factor), metadata=steps)
    found = read_stack(path)
    np.testing.assert_allclose(nib.affines.voxel_sizes(found.affine), [0.5, 1, 3], rtol=1e-5)
    assert (is_stack(path), found.is_measured, found.is_located) == (True, True, False)
    tifffile.imwrite(path, volume(0).T, photometric="minisblack", resolution=(72, 72), resolutionunit=2)
    assert not read_stack(path).is_measured


@pytest.mark.parametrize(
    ("change", "expected"),
    [({}, [0.5, 1, 3]), ({"PhysicalSizeZUnit": "mm", "PhysicalSizeZ": 2}, [0.5, 1, 2]), ({"PhysicalSizeZ": 0}, None)],
)
def test_stacks_state_their_spacing_by_ome(tmp_path, change, expected):
    path = tmp_path / "a.ome.tif"
    stated = {"axes": "ZYX", "PhysicalSizeX": 500.0, "PhysicalSizeY": 1000.0, "PhysicalSizeZ": 3000.0} | change
    tifffile.imwrite(path, volume(0).astype("u2").T, metadata=stated)
    found = read_stack(path)
    assert (is_stack(path), found.is_measured) == (True, expected is not None)
    np.testing.assert_allclose(nib.affines.voxel_sizes(found.affine), expected or [1, 1, 1])


@pytest.mark.parametrize("kind", ["tiff_lzw", "tiff_adobe_deflate", "packbits"])
def test_stacks_compressed_in_any_way(tmp_path, kind):
    first, *others = (Image.fromarray(picture) for picture in volume(0).astype(np.uint16).T)
    first.save(tmp_path / "a.tif", save_all=True, append_images=others, compression=kind)
    assert is_stack(tmp_path / "a.tif")
    np.testing.assert_array_equal(read_stack(tmp_path / "a.tif").voxels, volume(0))
    (tmp_path / "a.json").write_text('{"spacing": [3, 0, 1]}')
    with pytest.raises(BadInput, match=r"a\.json: states no spacing of a\.tif"):
        read_stack(tmp_path / "a.tif")


def test_flat_nifti_and_masks_written_of_stacks(tmp_path):
    """A file of two axes is one slice; a predicted mask of a stack is a stack with its spacing."""
    for part, voxels in (("images", volume(0)[..., 0]), ("masks", LIVER[..., 1])):
        save_nifti(tmp_path / "raw" / "A" / part / "p.nii.gz", voxels, np.diag([-0.5, -0.5, 1.0, 1.0]))
    (decoded,) = decode_all(tmp_path / "raw", {"channels": 1})
    np.testing.assert_array_equal(decoded.image, sliced(volume(0))[:1])
    np.testing.assert_array_equal(decoded.label, sliced(LIVER)[1:2])
    assert decoded.spacing == (0.5, 0.5)
    stated = {"spacing": 3.0, "unit": "mm", "axes": "ZYX"}
    tifffile.imwrite(tmp_path / "a.tif", volume(0).astype("u2").T, imagej=True, resolution=(2, 1), metadata=stated)
    image = read_image(tmp_path / "a.tif", 1)
    (file,) = image.write_masks(tmp_path / "out", ("organ",), sliced(LIVER) > 0)
    written = read_stack(file)
    assert file.name == "a_organ.tif"
    np.testing.assert_array_equal(written.voxels, LIVER)
    np.testing.assert_allclose(written.affine, read_stack(tmp_path / "a.tif").affine, rtol=1e-6)


def test_read_pairs_of_a_spreadsheet_from_windows(tmp_path):
    """Semicolons, other headings, backslashes, and neither sites nor patients."""
    save_nifti(tmp_path / "data" / "p 1.nii.gz", volume(0))
    save_nifti(tmp_path / "data" / "p 1 seg.nii.gz", box())
    (tmp_path / "p.csv").write_bytes(b"\xef\xbb\xbfImage;Mask\r\ndata\\p 1.nii.gz;data\\p 1 seg.nii.gz\r\n\r\n")
    (site,) = read_pairs(tmp_path / "p.csv", tmp_path)
    (case,) = site.cases
    name = tmp_path.name
    assert (site.name, case.patient, case.label.name) == (name, f"{name}-p 1", "p 1 seg.nii.gz")


def test_read_list_names_channels_by_what_differs_in_their_files(tmp_path):
    for name in ("p_1_flair", "p_1_t1ce", "p_1_seg"):
        save_nifti(tmp_path / f"{name}.nii.gz", volume(0))
    entry = {"image": ["p_1_flair.nii.gz", "p_1_t1ce.nii.gz"], "label": "p_1_seg.nii.gz"}
    (tmp_path / "dataset.json").write_text(json.dumps({"training": [entry]}))
    (site,) = generic.generic_kind(channels=("t1ce", "flair")).find_sites(tmp_path)
    assert [part.name for part in site.cases[0].channels] == ["t1ce", "flair"]
