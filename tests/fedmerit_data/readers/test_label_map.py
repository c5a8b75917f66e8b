import numpy as np
import pytest
from layouts import save_nifti, save_png

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import RawCase
from fedmerit_data.readers.label_map import Layer, ignored_remarks, parse_labels, split_masks
from fedmerit_data.readers.labelled_images import decode


def test_a_label_map_as_text():
    assert parse_labels("disc=1+2, cup=2") == {"disc": (1, 2), "cup": (2,)}
    assert parse_labels("gtv=GTV primary+ GTV_n1,rest=any") == {"gtv": ("GTV primary", "GTV_n1"), "rest": ()}
    assert list(parse_labels("cup=2,disc=1")) == ["cup", "disc"]
    assert parse_labels("prostate=any") == {"prostate": ()}
    assert parse_labels("disc=255,ignore=128+64") == {"disc": (255,), "ignore": (128, 64)}
    assert parse_labels("kidneys=left kidney+kidney_right") == {"kidneys": ("left kidney", "kidney_right")}


def test_names_of_structures_may_hold_separators(tmp_path):
    assert parse_labels("ctv='CTV+5mm',gtv=1_GTV") == {"ctv": ("CTV+5mm",), "gtv": ("1_GTV",)}
    assert parse_labels("b=~Bladder,k=Kidney (L), cortex,t=2") == {
        "b": ("~Bladder",), "k": ("Kidney (L), cortex",), "t": (2,)
    }  # fmt: skip
    assert parse_labels('a="x=1, y"+2') == {"a": ("x=1, y", 2)}
    file = tmp_path / "labels.json"
    file.write_text('{"ctv": ["CTV+5mm", 3], "any_of": "any"}')
    assert parse_labels(str(file)) == {"ctv": ("CTV+5mm", 3), "any_of": ()}
    assert parse_labels("polyp=#FA3253,ignore=others") == {"polyp": ("#fa3253",), "ignore": ("others",)}
    with pytest.raises(BadInput, match="ignore=others is all values that no label has"):
        parse_labels("a=1,ignore=others+2")


def test_one_organ_of_a_parcellation_of_many(tmp_path):
    index = np.arange(150, dtype=np.float32).reshape(15, 10, 1) + 1000
    index[0, 0] = 17
    labels = parse_labels("hippocampus=17+53,ignore=others")
    (mask,) = split_masks(tmp_path, [Layer(index)], labels)
    assert mask.sum() == 1
    assert ignored_remarks([Layer(index)], labels) == ["149 other values ignored: background"]
    with pytest.raises(BadInput, match="ignore=others ignores all of them"):
        split_masks(tmp_path, [Layer(index)], parse_labels("hippocampus=17"))


def test_labels_of_an_atlas_that_float32_does_not_tell_apart_are_kept(tmp_path):
    index = (312782548 + 4 * np.arange(3, dtype=np.int32)).reshape(3, 1, 1).repeat(4, 1)
    for name, voxels in (("image", index.astype(np.float32)), ("mask", index)):
        save_nifti(tmp_path / f"{name}.nii", voxels)
    case = RawCase("a", "a", tmp_path / "image.nii", tmp_path / "mask.nii")
    decoded = decode(case, parse_labels("organ=312782552,ignore=others"))
    np.testing.assert_array_equal(decoded.label[:, 0], (index == 312782552).transpose(2, 1, 0))
    assert decoded.image.dtype == np.float32


def test_colours_of_a_mask_are_labels(tmp_path):
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[2:4, 2:4], pixels[5:7, 5:7] = (250, 50, 83), (0, 0, 255)
    save_png(tmp_path / "mask.png", pixels)
    save_png(tmp_path / "image.png", np.full((8, 8), 90, np.uint8))
    case = RawCase("a", "a", tmp_path / "image.png", tmp_path / "mask.png")
    assert decode(case, parse_labels("polyp=#fa3253,tool=#0000FF"), 1).label.sum(axis=(0, 2, 3)).tolist() == [4, 4]
    with pytest.raises(BadInput, match="has the values #0000ff, which no label has"):
        decode(case, parse_labels("polyp=#fa3253"), 1)
    assert decode(case, parse_labels("polyp=#fa3253,ignore=others"), 1).label.sum() == 4


MALFORMED = {
    "": "'' is not NAME=VALUE",
    "disc": "'disc' is not NAME=VALUE; expected such as",
    "disc=1,": "'' is not NAME=VALUE",
    "disc=1.5": "'disc=1.5' is not",
    "disc=-1": "'disc=-1' is not",
    "disc=1+": "'disc=1\\+' is not",
    "=1": "'' is not a valid name",
    "2nd=1": "'2nd' is not a valid name",
    "../disc=1": "'../disc' is not a valid name",
    "disc=0": "disc has the value 0; 0 is the background",
    "disc=1+1": "disc has a value twice",
    "disc=1,disc=2": "disc is named twice; give all its values at once",
    "disc=1,cup=1": "cup and disc have the same values",
    "disc=1+2,cup=2+1": "cup and disc have the same values",
    "ignore=3": "none; expected at least one",
    "disc=1,ignore=any": "ignore needs values",
    "disc=any,ignore=3": "ignore needs values",
    "disc=one,ignore=one": "one is a value of disc and of ignore",
    "disc=1,ignore=1": "1 is a value of disc and of ignore",
}


@pytest.mark.parametrize("text", MALFORMED)
def test_a_malformed_label_map(text):
    with pytest.raises(BadInput, match=f"^labels.*{MALFORMED[text]}"):
        parse_labels(text)
