"""The role that names of folders and files state, by the table of words."""

import pytest

from fedmerit_data.readers.inventory import Item
from fedmerit_data.readers.names import WORDS, place_item, read_folder

FOLDERS = {  # role and what else it names
    "Images_C1": ("image", ""),
    "JPEGImages": ("image", ""),
    "imagesTr": ("image", ""),
    "test-image": ("image", ""),
    "labelsTs": ("mask", ""),
    "Ground Truth": ("mask", ""),
    "1st_manual": ("mask", ""),
    "segmentation_masks": ("mask", ""),
    "SegmentationClassPNG": ("mask", ""),
    "ROIs": ("mask", ""),
    "SiteA_masks": ("mask", "SiteA"),
    "100_images": ("image", "100"),
    "Training400": ("split", ""),
    "TrainDataset": ("split", ""),
    "train_a": ("split", ""),
    "TestHospital": ("", "TestHospital"),
    "segmentation_dataset": ("", "segmentation_dataset"),
    "images_and_masks": ("", "images_and_masks"),
    "C1": ("", "C1"),
}
FILES = {  # whether it is a mask, and the words that pair it
    "p1_seg": (True, ("p1",)),
    "label0001": (True, ("0001",)),
    "volume-7": (False, ("7",)),
    "21_manual1": (True, ("21",)),
    "Image_01L_1stHO": (True, ("Image", "01L", "1stHO")),
    "p1_ground_truth": (True, ("p1",)),
    "p1_t2": (False, ("p1", "t2")),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_read_folder_gives_role_and_rest(name):
    assert read_folder(name, by_last_word=True) == FOLDERS[name]


@pytest.mark.parametrize("word", [word for role in ("image", "mask") for word in WORDS[role].split()])
def test_every_word_of_a_role_states_it_in_folders_and_files(tmp_path, word):
    role = "image" if word in WORDS["image"].split() else "mask"
    assert read_folder(f"{word.capitalize()}s") == (role, "")
    placed = place_item(Item(tmp_path / f"p1_{word}.png", f"p1_{word}"))
    assert (placed.is_mask, placed.core) == (role == "mask", ("p1",))


@pytest.mark.parametrize("name", FILES)
def test_place_item_takes_words_of_a_role_out_of_the_name(tmp_path, name):
    placed = place_item(Item(tmp_path / f"{name}.png", name))
    assert (placed.is_mask, placed.core) == FILES[name]


def test_place_item_reads_site_and_split_from_folders(tmp_path):
    placed = place_item(Item(tmp_path / "p.png", "A/train/images/p"))
    assert (placed.folders, placed.above, placed.splits) == (("A",), ("A",), ("train",))
