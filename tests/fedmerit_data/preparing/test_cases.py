"""One case from raw files to arrays, and all cases in one process or several."""

import importlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from layouts import box, prepare, prostate_site, save_nifti, snapshot, volume
from layouts_prostate import save_itk

from fedmerit.errors import BadInput
from fedmerit_data.kinds import KINDS
from fedmerit_data.preparing import case_processes
from fedmerit_data.preparing.cases import CaseTask, prepare_case, raw_files
from fedmerit_data.preparing.resumption import count_finished_cases
from fedmerit_data.raw_cases import Channel, Decoded, RawCase
from fedmerit_data.readers.generic import generic_kind

KIND = "prostate-multisite"


def test_every_raw_file_counts(tmp_path):
    save_itk(tmp_path / "a.mhd", volume(1))
    header = (tmp_path / "a.mhd").read_text()
    (tmp_path / "B.MHD").write_text(header.replace("a.raw", "voxels.raw"))
    for name in ("b.raw", "voxels.raw", "C.HDR", "C.IMG", "series/1.dcm", "series/2.dcm", "m1.png", "m2.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")

    def files(image, label, *more):
        case = RawCase("a", "a", tmp_path / image, tmp_path / label, tuple(tmp_path / name for name in more))
        work = CaseTask(KINDS[KIND], tmp_path, "site", case, tmp_path / "out", 16, None, None)
        return [path.as_posix() for path in raw_files(work)]

    assert files("a.mhd", "m1.png", "m2.png") == ["a.mhd", "a.raw", "m1.png", "m2.png"]
    assert files("B.MHD", "C.HDR") == ["B.MHD", "C.HDR", "C.IMG", "voxels.raw"]
    assert files("series", "m1.png") == ["m1.png", "series/1.dcm", "series/2.dcm"]


def test_a_finished_case_of_other_channels_is_done_again(tmp_path):
    """The same files in another order are another image."""
    for seed, name in enumerate(("t2", "adc")):
        save_nifti(tmp_path / f"{name}.nii.gz", volume(seed))
    save_nifti(tmp_path / "seg.nii.gz", box())
    images = []
    for names in (("t2", "adc"), ("t2", "adc"), ("adc", "t2")):
        parts = tuple(Channel(tmp_path / f"{name}.nii.gz", name) for name in names)
        case = RawCase("a", "a", parts[0].path, tmp_path / "seg.nii.gz", channels=parts)
        kind = generic_kind(channels=2)
        task = CaseTask(kind, tmp_path, "A", case, tmp_path / "out", 24, None, None)
        before = task.array("cases/a_image.npy").stat().st_mtime_ns if images else None
        prepare_case(task)
        images.append(np.load(task.array("cases/a_image.npy")))
        assert (before == task.array("cases/a_image.npy").stat().st_mtime_ns) == (len(images) == 2)
    np.testing.assert_array_equal(images[0], images[2][:, ::-1])


@pytest.mark.parametrize(
    ("pieces", "remarks"),
    [
        ([1, 33], ["prostate of 4 voxels is lost at 16 pixels"]),
        ([1, 20], ["prostate: 1 of 2 pieces, of 2 voxels, lost at 16 pixels"]),
        ([20], []),
        ([], ["no prostate in its mask"]),
    ],
)
def test_pieces_lost_in_resizing_are_counted(tmp_path, pieces, remarks):
    label = np.zeros((3, 1, 64, 64), np.uint8)
    for row in pieces:
        label[1, 0, row, 5:7] = 1
    label[1, 0, 20:24] = 20 in pieces and label[1, 0, 20]
    image = np.random.default_rng(0).random(label.shape, np.float32)
    (tmp_path / "raw.nii").write_text("")
    case = RawCase("a", "a", tmp_path / "raw.nii", tmp_path / "raw.nii")
    kind = replace(KINDS[KIND], decode=lambda case: Decoded(image, label))
    assert prepare_case(CaseTask(kind, tmp_path, "site", case, tmp_path / "out", 16, None, None)).remarks == remarks


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


def test_processes_begin_with_what_cases_need_and_with_what_is_asked(monkeypatch):
    begun = []
    monkeypatch.setattr(case_processes, "begin_fork_server", begun.append)
    case_processes.begin_processes(["__main__"])
    ((first, *preloaded),) = begun
    assert first == "__main__"
    assert prepare_case.__module__ in preloaded
    for name in preloaded:
        importlib.import_module(name)


KIND = "prostate-multisite"


FIELD = {"size": 16, "field_of_view": 24.0}


@pytest.fixture
def source(tmp_path):
    prostate_site(tmp_path / "raw" / "UCL", cases=4, seed=1)
    prostate_site(tmp_path / "raw" / "ISBI", cases=3, seed=2)
    return tmp_path / "raw"


@pytest.mark.slow
def test_the_number_of_processes_changes_no_byte(source, tmp_path):
    for jobs in (1, 2):
        prepare(KIND, tmp_path / f"{jobs}", source=source, jobs=jobs, pictures=True, **FIELD)
    assert snapshot(tmp_path / "1") == snapshot(tmp_path / "2")
    assert (tmp_path / "1" / "overview" / "montage.png").is_file()
    assert not (tmp_path / "1" / "RUNMC" / "overview").exists()


def dies(case):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_dies_names_its_case(source, tmp_path, monkeypatch):
    monkeypatch.setitem(KINDS, KIND, replace(KINDS[KIND], decode=dies))
    with pytest.raises(BadInput, match=r"died at one of .*Case00.nii.gz.*use fewer jobs"):
        prepare(KIND, tmp_path / "sites", source=source, jobs=2, **FIELD)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.slow
def test_processes_end_with_the_command_and_the_next_continues(source, tmp_path):
    out = tmp_path / "sites"
    prostate_site(source / "UCL", cases=40, seed=1)
    arguments = ["prepare", KIND, "--source", str(source), "--out", str(out), "--jobs", "2"]
    arguments += ["--size", "16", "--field-of-view", "24", "--no-pictures"]
    code = "from fedmerit_cli.main import app; app()"
    command = subprocess.Popen([sys.executable, "-c", code, *arguments], start_new_session=True)
    while count_finished_cases(out) < 2 and command.poll() is None:
        time.sleep(0.01)
    command.kill()
    command.wait()
    for _ in range(600):
        try:
            os.killpg(command.pid, 0)  # whether any process of its session is left
        except ProcessLookupError:
            break
        time.sleep(0.1)
    else:
        pytest.fail("its processes outlive the command")
    assert count_finished_cases(out) >= 2 or out.exists()
    if not out.exists():
        prepare(KIND, out, source=source, **FIELD)
    prepare(KIND, tmp_path / "undisturbed", source=source, **FIELD)
    assert snapshot(out) == snapshot(tmp_path / "undisturbed")
