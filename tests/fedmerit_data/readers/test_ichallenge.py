import layouts_fundus as layouts
import numpy as np
import pytest
from layouts import save_png
from layouts_fundus import decoded, disc_and_cup

from fedmerit.errors import BadInput


def test_ichallenge_reads_palette_indices_not_colours(tmp_path):
    layouts.ichallenge(tmp_path)
    cases = decoded("ichallenge", tmp_path)
    assert list(cases) == ["H0002", "P0195"]
    for shift, case in enumerate(cases.values()):
        np.testing.assert_array_equal(case.label[0, 0], disc_and_cup(shift)[0])


def test_ichallenge_refuses_three_classes(tmp_path):
    layouts.ichallenge(tmp_path)
    save_png(tmp_path / "Annotations" / "H0002.png", np.pad(np.uint8([[0, 1, 2]]), ((0, 89), (0, 117))))
    with pytest.raises(BadInput, match=r"H0002.png: holds the values \[0, 1, 2\]; expected 0 and one other"):
        decoded("ichallenge", tmp_path)
