"""What a site remembers of its rounds, on disk."""

from dataclasses import replace

import pytest
import torch

from fedmerit.federation.local_round import Memory, MemoryFolder


@pytest.fixture
def folder(tmp_path):
    return MemoryFolder(tmp_path / "site")


def memory(value):
    return Memory(torch.full((5,), value), torch.full((5,), value + 1), {"count": torch.tensor(3)}, {"other": 0.5})


def test_what_was_remembered_comes_back(folder):
    assert folder.of(0) is None
    assert folder.latest(3) is None
    folder.remember(0, memory(1.0))
    found = folder.of(0)
    assert torch.equal(found.received, torch.full((5,), 1.0))
    assert torch.equal(found.model, torch.full((5,), 2.0))
    assert found.buffers == {"count": torch.tensor(3)}
    assert found.weights == {"other": 0.5}
    assert torch.equal(folder.latest(4).trained, found.trained)


def test_that_round_and_the_one_before_are_kept(folder):
    for round in (0, 1, 4):
        folder.remember(round, memory(float(round)))
    assert [folder.of(round) is not None for round in range(5)] == [False, True, False, False, True]


def test_what_was_read_stays_when_its_file_is_written_anew_or_goes(folder):
    """The vectors are mapped from the file."""
    folder.remember(0, memory(1.0))
    held = folder.of(0)
    folder.remember(0, replace(held, trained=held.received + 7))
    assert torch.equal(held.trained, torch.full((5,), 2.0))
    assert torch.equal(folder.of(0).trained, torch.full((5,), 8.0))
    held.received.add_(1)  # of the one read alone
    assert torch.equal(folder.of(0).received, torch.full((5,), 1.0))
    folder.remember(1, memory(3.0))
    folder.remember(2, memory(4.0))
    assert folder.of(0) is None
    assert torch.equal(held.received, torch.full((5,), 2.0))
