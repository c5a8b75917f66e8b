"""The server's state on disk: written whole, read back, refused where it is none."""

import os
import stat

import pytest
import torch

from fedmerit.errors import BadInput
from fedmerit.federation.checkpoint import (
    CHECKPOINT,
    complete_rounds,
    is_finished,
    known_sites,
    read_checkpoint,
    write_checkpoint,
)


def test_what_is_written_is_read_back(tmp_path):
    assert read_checkpoint(tmp_path) is complete_rounds(tmp_path) is None
    write_checkpoint(tmp_path, {"round": 2, "complete_rounds": 2, "models": torch.arange(3.0), "sites": ["A", "B"]})
    content = read_checkpoint(tmp_path)
    assert torch.equal(content.pop("models"), torch.arange(3.0))
    assert content == {"round": 2, "complete_rounds": 2, "sites": ["A", "B"]}
    assert complete_rounds(tmp_path) == 2
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT]  # nothing of a temporary name is left


@pytest.mark.parametrize(("round", "finished"), [(2, False), (3, False), (4, True)])
def test_a_run_is_finished_once_its_final_models_are_tested(tmp_path, round, finished):
    """After the three rounds 0 to 2 the checkpoint says 3, after the last test 4."""
    assert not is_finished(tmp_path, 3)
    write_checkpoint(tmp_path, {"round": round, "complete_rounds": min(round, 3)})
    assert is_finished(tmp_path, 3) == finished
    assert complete_rounds(tmp_path) == min(round, 3)


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 cut short"])
def test_a_spoiled_file_is_named(tmp_path, content):
    (tmp_path / CHECKPOINT).write_bytes(content)
    with pytest.raises(BadInput, match=rf"{CHECKPOINT}: not readable as a checkpoint .*; start another run"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "content",
    [[1, 2], torch.zeros(2), {}, {"round": "3"}, {"round": 3}, {"round": 3, "complete_rounds": torch.arange(2)}],
)
def test_a_file_of_something_else_is_named(tmp_path, content):
    torch.save(content, tmp_path / CHECKPOINT)
    for read in (read_checkpoint, complete_rounds, lambda run: is_finished(run, 3)):
        with pytest.raises(BadInput, match=rf"{CHECKPOINT}: not a checkpoint of FedMerit; start another run"):
            read(tmp_path)


def test_its_name_is_on_disk_before_the_next_round_is_told(tmp_path, monkeypatch):
    kinds = []
    monkeypatch.setattr(os, "fsync", lambda file: kinds.append(stat.S_ISDIR(os.fstat(file).st_mode)))
    write_checkpoint(tmp_path, {"round": 1})
    assert kinds == [False, True]


def test_a_run_goes_on_with_its_own_sites_or_some_of_them(tmp_path):
    checkpoint = {"sites": ["A", "B", "C"]}
    assert known_sites(checkpoint, ["C", "A"], tmp_path) == ["A", "B", "C"]
    with pytest.raises(BadInput, match=r"D, E is not a site of this run, whose sites are A, B, C"):
        known_sites(checkpoint, ["E", "A", "D"], tmp_path)
