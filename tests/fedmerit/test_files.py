"""Files that are whole or absent, on a disk that may be full."""

import errno
import os
from functools import partial

import pytest
import torch

from fedmerit.errors import BadInput, RunFailed
from fedmerit.files import (
    lock_folder,
    read_json,
    remove_partial_files,
    require_inside,
    write_atomically,
    write_durably,
    write_text,
)


class Full:
    """A file on a disk that has room for a thousand bytes."""

    def __init__(self):
        self.size = 0

    def write(self, content):
        self.size += len(content)
        if self.size > 1000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return len(content)


@pytest.mark.parametrize("save", [lambda file: file.write(bytes(2000)), partial(torch.save, torch.zeros(10_000))])
def test_full_disk_is_reported_with_the_file_and_leaves_what_was_there(tmp_path, save):
    path = tmp_path / "file"
    write_text(path, "before")
    with pytest.raises(RunFailed, match=r"file: cannot be written, the disk is full; make room"):
        write_atomically(path, lambda file: save(Full()))
    assert [one.name for one in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "before"


def test_other_errors_stay_what_they_are(tmp_path):
    def fail(file):
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        write_atomically(tmp_path / "file", fail)


def test_what_a_killed_process_left_half_written_is_dropped(tmp_path):
    def end(file):
        file.write(b"half")
        file.flush()
        os._exit(9)

    if (child := os.fork()) == 0:
        write_atomically(tmp_path / "models" / "global.pt", end)
    os.waitpid(child, 0)
    write_text(tmp_path / "models" / "whole.tmp.json", "whole")
    assert len(list((tmp_path / "models").iterdir())) == 2
    remove_partial_files(tmp_path)
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["whole.tmp.json"]


def test_a_name_is_on_disk_where_that_is_asked_for(tmp_path, monkeypatch):
    """A checkpoint that a loss of power takes back is older than what sites were reported."""
    synced = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append((os.fstat(file).st_ino, (tmp_path / "file").exists())))
    write_durably(tmp_path / "file", lambda file: file.write(b"content"))
    assert synced == [((tmp_path / "file").stat().st_ino, False), (tmp_path.stat().st_ino, True)]
    assert (tmp_path / "file").read_bytes() == b"content"


def test_folder_is_held_by_one(tmp_path):
    for _ in range(2):
        reported = f"another process is at work on this run, begun by process {os.getpid()}; wait"
        with lock_folder(tmp_path), pytest.raises(BadInput, match=reported), lock_folder(tmp_path):
            pass


@pytest.mark.parametrize("text", ["no JSON", "[" * 200_000])
def test_what_is_no_json_or_too_deep_is_named(tmp_path, text):
    (tmp_path / "file.json").write_text(text)
    with pytest.raises(BadInput, match=r"file\.json: not readable as JSON"):
        read_json(tmp_path / "file.json")


def test_archive_in_place_of_a_run_folder_is_named(tmp_path):
    write_text(tmp_path / "run.zip", "PK")
    with pytest.raises(BadInput, match=r"run\.zip: is no folder; expected a run folder: unpack it first"):
        require_inside(tmp_path / "run.zip")


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "has 'c' twice in one object"),
        ('[{"run": 1, "run": 1}]', "has 'run' twice in one object"),
    ],
)
def test_json_that_readers_take_differently_is_refused(tmp_path, text, reported):
    write_text(tmp_path / "run.json", text)
    with pytest.raises(BadInput, match=rf"run\.json: not readable as JSON \({reported}"):
        read_json(tmp_path / "run.json")
