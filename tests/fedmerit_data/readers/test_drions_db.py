import layouts_fundus as layouts
import numpy as np
import pytest
from layouts_fundus import SHAPE, decoded, disc_and_cup
from PIL import Image

from fedmerit.errors import BadInput
from fedmerit_data.kinds import KINDS


def test_drions_masks_survive_jpeg(tmp_path):
    layouts.drions(tmp_path)
    with Image.open(tmp_path / "train" / "groundtruth" / "image_001.jpg") as mask:
        assert len(np.unique(np.asarray(mask))) > 2
    for name, case in decoded("drions-db", tmp_path).items():
        np.testing.assert_array_equal(case.label[0, 0], disc_and_cup(int(name[-3:]) % 7)[0])
        assert case.label.shape == (1, 1, *SHAPE)


def test_one_case_in_two_folders(tmp_path):
    layouts.drions(tmp_path, train=(1,), test=(1,))
    with pytest.raises(BadInput, match="case image_001 already has the file"):
        KINDS["drions-db"].find_sites(tmp_path)
