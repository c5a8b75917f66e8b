"""Options of a preparation: ranges, defaults, and what arrays depend on."""

import pytest

from fedmerit.errors import BadInput
from fedmerit_data.preparation import Preparation

KIND = "prostate-multisite"
BAD = {
    "ratios .5,.5": ({"ratios": (0.5, 0.5)}, "ratios 0.5,0.5: expected three"),
    "ratios sum": ({"ratios": (0.5, 0.5, 0.5)}, "ratios 0.5,0.5,0.5: expected three shares with sum 1"),
    "ratios negative": ({"ratios": (1.5, -0.5, 0.0)}, "ratios 1.5,-0.5,0: expected three shares"),
    "ratios nan": ({"ratios": (0.5, 0.5, float("nan"))}, "ratios"),
    "field of photographs": (
        {"kind": "fundus-rois", "field_of_view": 100},
        "images of kind fundus-rois are not cropped by mm",
    ),
    "crop": ({"crop": "disc"}, "crop 'disc': kind prostate-multisite allows whole$"),
    "crop multiple": ({"crop_multiple": 3.0}, "crop multiple 3: is the size of a disc crop, but the crop is whole"),
    "patients": ({"patients": 9}, "takes all patients of its source"),
    "source": ({"source": None}, "kind prostate-multisite: needs --source"),
    "kind": ({"kind": "cardiac"}, "kind 'cardiac': expected one of prostate-multisite, "),
    "labels": ({"labels": {"prostate": ()}}, "^labels: fixed for kind prostate-multisite"),
    "channels": ({"channels": 1}, "^channels: fixed for kind prostate-multisite"),
    "task": ({"task": "prostate"}, "^task: fixed for kind prostate-multisite"),
    "own channels": ({"kind": "generic", "channels": 99}, "channels 99: expected 1"),
}


@pytest.mark.parametrize("option", BAD)
def test_what_is_out_of_range_or_of_another_kind_is_refused(tmp_path, option):
    fields, message = BAD[option]
    with pytest.raises(BadInput, match=message):
        Preparation(**{"kind": KIND, "source": tmp_path, **fields})


def test_what_is_not_given_is_the_kinds_own(tmp_path):
    prostate = Preparation(KIND, tmp_path)
    assert (prostate.field_of_view, prostate.crop, prostate.crop_multiple) == (120.0, "whole", None)
    whole, disc = Preparation("fundus-rois", tmp_path), Preparation("refuge", tmp_path)
    assert (whole.field_of_view, whole.crop, whole.crop_multiple) == (None, "whole", None)
    assert (disc.field_of_view, disc.crop, disc.crop_multiple) == (None, "disc", 3.0)
    own = Preparation("generic", tmp_path, labels={"disc": (1,), "ignore": (2,)}, channels=1, task="eyes")
    assert own.meaning() == {"task": "eyes", "labels": ["disc"], "channels": 1}
    assert own.record()["label_values"] == {"disc": [1], "ignore": [2]}
    assert Preparation("synthetic-fundus").raw_folder(tmp_path / "out") == tmp_path / "out-raw"


def test_arrays_do_not_depend_on_what_only_the_lists_say(tmp_path):
    one = Preparation(KIND, tmp_path)
    lists = {"ratios": (0.4, 0.3, 0.3), "seed": 5, "slices": "organ", "server_share": 0.1}
    assert Preparation(KIND, tmp_path, **lists).array_options(tmp_path) == one.array_options(tmp_path)
    assert Preparation(KIND, tmp_path, size=32).array_options(tmp_path) != one.array_options(tmp_path)
    generated = [Preparation("synthetic-fundus", seed=seed).array_options(tmp_path) for seed in (0, 1)]
    assert generated[0] != generated[1]
