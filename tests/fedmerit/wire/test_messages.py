"""What a site makes of a message that its memory does not fit."""

import pytest
import torch

from fedmerit.errors import MemoryLost
from fedmerit.wire.messages import SparseUpdate


@pytest.mark.parametrize("index", [-1, -5, 5, 2**31 - 1])
def test_index_outside_of_the_model(index):
    update = SparseUpdate(torch.tensor([0, index], dtype=torch.int32), torch.tensor([9.0, 9.0]))
    with pytest.raises(MemoryLost):
        update.apply(torch.zeros(5))


def test_indices_within_are_applied():
    update = SparseUpdate(torch.tensor([0, 4], dtype=torch.int32), torch.tensor([9.0, 8.0]))
    assert update.apply(torch.zeros(5)).tolist() == [9, 0, 0, 0, 8]
