"""Matrices in large pages: zero, of their own, saved and given back as others are."""

import gc
import mmap

import psutil
import pytest
import torch

from fedmerit import fresh_memory
from fedmerit.fresh_memory import LARGE, zeros


def private_memory():
    """Bytes of this process that are no file's."""
    used = psutil.Process().memory_info()
    return used.rss - used.shared


@pytest.mark.parametrize("columns", [1, LARGE // 8, LARGE // 8 + 1])  # below, at and above what is large
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_zeros_that_can_be_written(columns, dtype):
    matrix = zeros(2, columns, dtype=dtype)
    assert (matrix.shape, matrix.dtype, matrix.is_contiguous()) == ((2, columns), dtype, True)
    assert not matrix.any()
    matrix[1] = 1
    assert matrix.sum(dim=1).tolist() == [0, columns]


def test_two_matrices_share_nothing():
    one, other = zeros(2, LARGE), zeros(2, LARGE)
    one[:] = 1
    assert not other.any()


def test_a_row_holds_the_memory_and_the_last_one_gives_it_back():
    before = private_memory()
    matrix = zeros(4, LARGE)
    matrix[:] = 7
    row = matrix[2]
    del matrix
    gc.collect()
    assert (row == 7).all()
    assert private_memory() - before > 3.9 * 4 * LARGE
    del row
    gc.collect()
    assert private_memory() - before < 0.5 * 4 * LARGE


def test_saved_and_loaded(tmp_path):
    matrix = zeros(2, LARGE)
    matrix[1] = torch.arange(LARGE)
    torch.save({"matrix": matrix}, tmp_path / "file.pt")
    assert torch.equal(torch.load(tmp_path / "file.pt", weights_only=True)["matrix"], matrix)


def test_systems_without_large_pages(monkeypatch):
    def refuse(*_):
        raise OSError("no large pages")

    class Memory(mmap.mmap):
        madvise = refuse

    monkeypatch.setattr(fresh_memory.mmap, "mmap", Memory)
    assert not zeros(1, LARGE).any()
    monkeypatch.delattr(fresh_memory.mmap, "MADV_HUGEPAGE")
    assert not zeros(1, LARGE).any()
