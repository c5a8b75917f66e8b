"""Interrupted preparations: the next call gives the bytes of an undisturbed one."""

import json
import multiprocessing
import os
import shutil
import signal
import sys
from dataclasses import replace

import numpy as np
import pytest
from layouts import prepare, prostate_site, save_nifti, snapshot, volume

from fedmerit.errors import BadInput
from fedmerit.files import sha256
from fedmerit_data.folders import partial_path
from fedmerit_data.kinds import KINDS
from fedmerit_data.preparing.resumption import count_finished_cases

KIND = "prostate-multisite"


FIELD = {"size": 16, "field_of_view": 24.0}


@pytest.fixture
def source(tmp_path):
    prostate_site(tmp_path / "raw" / "UCL", cases=4, seed=1)
    prostate_site(tmp_path / "raw" / "ISBI", cases=3, seed=2)
    return tmp_path / "raw"


def interrupted(source, out, after=3, **options):
    """A preparation stopped by Ctrl-C when ``after`` cases of a site were done."""

    def progress(site, done, total):
        if done == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(KIND, out, source=source, progress=progress, **FIELD | options)
    assert not out.exists()
    assert count_finished_cases(out) == after


@pytest.fixture
def decoded(monkeypatch):
    """The names of the cases that were decoded."""
    names = []
    decode = KINDS[KIND].decode
    counting = replace(KINDS[KIND], decode=lambda case: (names.append(case.patient), decode(case))[1])
    monkeypatch.setitem(KINDS, KIND, counting)
    return names


def test_finished_cases_are_not_done_again(source, tmp_path, decoded):
    out = tmp_path / "sites"
    interrupted(source, out)
    assert decoded == ["RUNMC-Case00", "RUNMC-Case01", "RUNMC-Case02"]
    prepare(KIND, out, source=source, **FIELD)
    assert decoded[3:] == ["UCL-Case00", "UCL-Case01", "UCL-Case02", "UCL-Case03"]
    prepare(KIND, tmp_path / "undisturbed", source=source, **FIELD)
    assert snapshot(out) == snapshot(tmp_path / "undisturbed")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["raw", "sites", "undisturbed"]


def test_what_changed_since_is_done_again(source, tmp_path, decoded):
    out = tmp_path / "sites"
    interrupted(source, out)
    changed = source / "ISBI" / "Case00.nii.gz"
    before = changed.stat()
    save_nifti(changed, volume(99))
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))  # neither time nor size would tell
    array = partial_path(out) / "sites" / "RUNMC" / "cases" / "Case01_label.npy"
    array.write_bytes(array.read_bytes()[:-1])
    (partial_path(out) / "done" / "RUNMC" / "Case02.json").write_text("{")
    decoded.clear()
    prepare(KIND, out, source=source, **FIELD)
    assert decoded[:3] == ["RUNMC-Case00", "RUNMC-Case01", "RUNMC-Case02"]
    prepare(KIND, tmp_path / "undisturbed", source=source, **FIELD)
    assert snapshot(out) == snapshot(tmp_path / "undisturbed")


def test_prepare_flushes_all_files_before_it_publishes_them(source, tmp_path, monkeypatch):
    flushed, out = set(), tmp_path / "sites"
    monkeypatch.setattr(os, "fsync", lambda file: flushed.add((os.fstat(file).st_ino, out.exists())))
    prepare(KIND, out, source=source, **FIELD)
    assert {(path.stat().st_ino, False) for path in out.rglob("*") if path.is_file()} <= flushed


def test_a_finished_case_that_is_no_longer_in_the_source_goes(source, tmp_path):
    prostate_site(source / "ISBI", cases=4, seed=2)
    out = tmp_path / "sites"
    interrupted(source, out, after=4)
    for name in ("Case03.nii.gz", "Case03_segmentation.nii.gz"):
        (source / "ISBI" / name).unlink()
    (partial_path(out) / "sites" / "RUNMC" / "cases" / ".Case00_image.npy.1.tmp").write_bytes(b"half")
    (partial_path(out) / "sites" / "HK").mkdir()
    prepare(KIND, out, source=source, **FIELD)
    prepare(KIND, tmp_path / "undisturbed", source=source, **FIELD)
    assert snapshot(out) == snapshot(tmp_path / "undisturbed")
    assert not (out / "HK").exists()


def test_other_options_are_refused_by_name_but_those_of_the_lists_may_change(source, tmp_path, decoded):
    out = tmp_path / "sites"
    interrupted(source, out)
    with pytest.raises(BadInput, match=r"sites: 3 finished cases .*\(size 16 then, 32 now\); .*remove that folder"):
        prepare(KIND, out, source=source, size=32, field_of_view=24.0)
    with pytest.raises(BadInput, match=r"\(field of view 24.0 then, 120.0 now\)"):
        prepare(KIND, out, source=source, size=16)
    assert count_finished_cases(out) == 3
    decoded.clear()
    lists = {"seed": 5, "slices": "organ", "ratios": (0.4, 0.3, 0.3)}
    prepare(KIND, out, source=source, **FIELD | lists)
    assert len(decoded) == 4
    prepare(KIND, tmp_path / "undisturbed", source=source, **FIELD | lists)
    assert snapshot(out) == snapshot(tmp_path / "undisturbed")


def test_cut_off_after_the_last_rename(source, tmp_path, monkeypatch):
    out = tmp_path / "sites"

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", stop)
        with pytest.raises(KeyboardInterrupt):
            prepare(KIND, out, source=source, **FIELD)
    before = snapshot(out)
    with pytest.raises(BadInput, match="is not empty"):
        prepare(KIND, out, source=source, seed=3, **FIELD)
    assert prepare(KIND, out, source=source, **FIELD) == [out / "RUNMC", out / "UCL"]
    assert snapshot(out) == before
    assert not partial_path(out).exists()


def test_generated_files_are_kept_with_the_finished_cases(few_generated, tmp_path):
    def stop(site, done, total):
        if done == 2:
            raise KeyboardInterrupt

    for out, progress in (("sites", stop), ("sites", None), ("undisturbed", None)):
        try:
            prepare("synthetic-prostate", tmp_path / out, progress=progress, **FIELD)
        except KeyboardInterrupt:
            assert count_finished_cases(tmp_path / out) == 2
            assert (tmp_path / "sites-raw" / "site1").is_dir()
    for suffix in ("", "-raw"):
        assert snapshot(tmp_path / f"sites{suffix}") == snapshot(tmp_path / f"undisturbed{suffix}")
    assert not list(tmp_path.glob(".*"))


EVENTS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir")


def killed_after(events, source, out):
    """Prepare in a process that is killed, as by kill -9, before a file operation; True where it came to its end."""

    def body():
        left = [events]

        def count(event, _):
            if event in EVENTS:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        prepare(KIND, out, source=source, pictures=False, **FIELD)

    process = multiprocessing.get_context("fork").Process(target=body)
    process.start()
    process.join(120)
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode == 0


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_again_and_again_the_folder_is_that_of_an_undisturbed_preparation(source, tmp_path, seed):
    prepare(KIND, tmp_path / "undisturbed", source=source, **FIELD)
    expected = snapshot(tmp_path / "undisturbed")
    out = tmp_path / "sites"
    rng = np.random.default_rng(seed)
    kills = 0
    while not killed_after(int(rng.integers(20, 60 + 10 * kills)), source, out):
        kills += 1
        assert kills < 100
        if out.exists():
            assert snapshot(out) == expected
        for note in partial_path(out).glob("done/*/*.json"):
            for name, known in json.loads(note.read_text())["checksums"].items():
                if (stored := partial_path(out) / "sites" / note.parent.name).exists():
                    assert sha256(stored / name) == known
    assert kills >= 2
    assert snapshot(out) == expected
    assert not partial_path(out).exists()
