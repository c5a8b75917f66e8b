"""Seconds of preparing and of only decoding: the files, their libraries, and the folders that stay."""

import json

import nibabel as nib
import numpy as np
import pytest
import SimpleITK
from PIL import Image

from fedmerit.errors import BadInput
from fedmerit_data.preparation import Preparation
from fedmerit_lab.benchmarks import costs as module
from fedmerit_lab.benchmarks.costs import decode, generated_source, preparation_costs


def photographs(root, cases=3):
    """A site of images and masks of 20 x 20 pixels: a square on a dim ground."""
    mask = np.zeros((20, 20), np.uint8)
    mask[5:12, 6:14] = 255
    for folder, array in (("images", np.dstack([mask // 2 + 40] * 3)), ("masks", mask)):
        (root / "Alder" / folder).mkdir(parents=True)
        for number in range(cases):
            Image.fromarray(array).save(root / "Alder" / folder / f"case{number}.png")
    return root


def test_files_are_read_decoded_and_prepared_and_nothing_prepared_is_left(tmp_path):
    source, seen = photographs(tmp_path / "raw"), []
    asked = Preparation("generic", source=source, size=16, ratios=(0, 0, 1))
    benchmark = preparation_costs(tmp_path / "out", asked, 1, 2, lambda *case: seen.append(case))
    cases = ["read", "decode", "reader", "prepare", "prepare, pictures"]
    assert seen == [(case, repetition) for repetition in range(2) for case in cases]
    settings = json.loads((tmp_path / "out" / "preparation.json").read_text())["settings"]
    assert [settings[name] for name in ("size", "cases", "files", "jobs")] == [16, 3, 6, 1]
    assert all(row["seconds"] > 0 and row["CPU seconds"] >= 0 for row in benchmark.rows)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"preparation.json", "preparation.csv"}


def test_several_processes_have_no_cpu_seconds(tmp_path, monkeypatch):
    asked, jobs_seen = Preparation("generic", source=photographs(tmp_path / "raw"), size=16, ratios=(0, 0, 1)), []

    def prepare(asked, out, *, jobs, progress):
        jobs_seen.append((jobs, asked.pictures))
        out.mkdir(parents=True)

    monkeypatch.setattr(module, "prepare", prepare)
    benchmark = preparation_costs(tmp_path / "out", asked, 3, 1, lambda *_: None)
    assert jobs_seen == [(1, False), (1, True), (3, False)]
    table = benchmark.table.set_index(["case", "quantity"])
    assert ("prepare", "CPU seconds") in table.index
    assert ("prepare, 3 processes", "seconds") in table.index
    assert ("prepare, 3 processes", "CPU seconds") not in table.index


@pytest.mark.parametrize("source", [None, "raw"])
def test_a_kind_that_generates_its_files_is_refused(tmp_path, source):
    asked = Preparation("synthetic-prostate", source=source and tmp_path / source)
    with pytest.raises(BadInput, match="kind synthetic-prostate: generates its files"):
        preparation_costs(tmp_path / "out", asked, 1, 1, lambda *_: pytest.fail("measured"))


def test_generated_files_are_complete_or_absent(tmp_path, monkeypatch):
    asked = []

    def generate(raw, seed, patients):
        asked.append((seed, patients))
        assert not list(raw.iterdir())
        (raw / "site1").mkdir()
        if len(asked) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(module.prostate, "generate", generate)
    with pytest.raises(KeyboardInterrupt):
        generated_source(tmp_path, 4)
    assert not (tmp_path / "raw-4").exists()
    for _ in range(2):
        assert generated_source(tmp_path, 4) == tmp_path / "raw-4"
    assert [path.name for path in (tmp_path / "raw-4").iterdir()] == ["site1"]
    assert asked == [(0, 4)] * 2


def test_every_format_is_decoded(tmp_path):
    array = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    nib.save(nib.Nifti1Image(array, np.eye(4)), tmp_path / "a.nii.gz")
    SimpleITK.WriteImage(SimpleITK.GetImageFromArray(array), str(tmp_path / "a.nrrd"))
    Image.fromarray(array[0].astype(np.uint8)).save(tmp_path / "a.png")
    np.testing.assert_array_equal(decode(tmp_path / "a.nii.gz"), array)
    np.testing.assert_array_equal(decode(tmp_path / "a.nrrd"), array)
    np.testing.assert_array_equal(decode(tmp_path / "a.png"), array[0])
    image = SimpleITK.GetImageFromArray(np.arange(12, dtype=np.int16).reshape(1, 3, 4))
    SimpleITK.WriteImage(image, str(tmp_path / "000.dcm"))
    np.testing.assert_array_equal(decode(tmp_path / "000.dcm"), np.arange(12).reshape(3, 4))
