from dataclasses import replace

import numpy as np
import pytest

from fedmerit_data.kinds import KINDS
from fedmerit_data.preparing.cases import CaseTask, prepare_case, raw_files
from fedmerit_data.raw_cases import Decoded, RawCase

KIND = "prostate-multisite"


def test_every_raw_file_counts(tmp_path):
    for name in ("a.mhd", "a.raw", "b.raw", "series/1.dcm", "series/2.dcm", "m1.png", "m2.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")

    def files(image, label, *more):
        case = RawCase("a", "a", tmp_path / image, tmp_path / label, tuple(tmp_path / name for name in more))
        work = CaseTask(KINDS[KIND], tmp_path, "site", case, tmp_path / "out", 16, None, None)
        return [path.as_posix() for path in raw_files(work)]

    assert files("a.mhd", "m1.png", "m2.png") == ["a.mhd", "a.raw", "m1.png", "m2.png"]
    assert files("series", "m1.png") == ["m1.png", "series/1.dcm", "series/2.dcm"]


@pytest.mark.parametrize(
    ("slices", "remarks"),
    [
        ("empty some some empty", []),
        ("some empty some", ["no prostate in slice 2 of its mask, between others that show it"]),
        ("some empty empty some", ["no prostate in slices 2, 3 of its mask, between others that show it"]),
        ("some full some", ["prostate everywhere in slice 2 of its mask"]),
        ("full full", ["prostate everywhere in its mask"]),
    ],
)
def test_what_is_odd_of_a_mask_is_remarked(tmp_path, slices, remarks):
    masks = {"empty": np.zeros((8, 8)), "some": np.pad(np.ones((4, 4)), 2), "full": np.ones((8, 8))}
    label = np.stack([masks[name] for name in slices.split()])[:, None].astype(np.uint8)
    image = np.random.default_rng(0).random(label.shape, np.float32)
    kind = replace(KINDS[KIND], decode=lambda case: Decoded(image, label))
    raw = tmp_path / "raw.nii"
    raw.write_text("")

    def remarked(kind):
        work = CaseTask(kind, tmp_path, "site", RawCase("a", "a", raw, raw), tmp_path / kind.task, 16, None, None)
        return prepare_case(work).remarks

    assert remarked(kind) == remarks
    assert remarked(replace(kind, task="lesions")) == [remark for remark in remarks if "between" not in remark]
