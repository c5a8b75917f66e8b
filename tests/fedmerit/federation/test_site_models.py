"""How a model reaches a site, and what of it leaves."""

import pytest
import torch
from pretending import NETWORK, SIZE

from fedmerit import flat
from fedmerit.errors import MemoryLost
from fedmerit.federation.memory import Learned, Memory, MemoryFolder
from fedmerit.federation.site_models import ModelsFromServer
from fedmerit.wire.messages import LOST_MEMORY, Evaluation, SparseUpdate, Task

BUFFERS = flat.get_buffers(NETWORK)
WHOLE = torch.arange(float(SIZE))
ONE = torch.eye(1, dtype=torch.float64)


@pytest.fixture
def folder(tmp_path):
    made = MemoryFolder(tmp_path)
    made.remember(0, Memory(WHOLE, WHOLE + 1, BUFFERS))
    return made


def test_a_whole_model_is_as_it_came_with_the_memory_of_the_round_before(folder):
    received = ModelsFromServer(folder).receive(Task(1, WHOLE + 5, BUFFERS))
    assert torch.equal(received.model, WHOLE + 5)
    assert torch.equal(received.memory.trained, WHOLE + 1)
    assert ModelsFromServer(folder).receive(Task(5, WHOLE, BUFFERS)).memory is None


def test_what_changed_is_put_on_what_was_received_before(folder):
    sparse = SparseUpdate(torch.tensor([0, 2], dtype=torch.int32), torch.tensor([-1.0, -2.0]))
    received = ModelsFromServer(folder).receive(Task(1, sparse, BUFFERS))
    assert received.model[:4].tolist() == [-1, 1, -2, 3]
    assert torch.equal(ModelsFromServer(folder).seen(received), received.model)
    with pytest.raises(MemoryLost) as lost:
        ModelsFromServer(folder).receive(Task(3, sparse, BUFFERS))
    assert str(lost.value) == LOST_MEMORY


def test_update_and_statistics_leave_as_they_are(folder):
    learned = Learned(WHOLE, WHOLE + 3, BUFFERS, 0.5)
    leaving = ModelsFromServer(folder).outgoing(learned)
    assert torch.equal(leaving.update, WHOLE)
    assert (leaving.buffers, leaving.ciphertexts) == (BUFFERS, None)
    assert ModelsFromServer(folder).give("B", 1) is None


def test_the_model_to_test_is_the_tasks_unless_it_stays_here(folder):
    models = ModelsFromServer(folder)
    assert models.final(Evaluation(2, "testing", WHOLE[None], ONE, (BUFFERS,), ONE)) is None
    own = Evaluation(2, "testing", torch.empty(1, 0), ONE, ({},), ONE)
    with pytest.raises(MemoryLost):
        models.final(own)
    folder.remember(1, Memory(WHOLE, WHOLE, BUFFERS, own=(WHOLE + 7, BUFFERS)))
    name, model, buffers = models.final(own)
    assert name == ""
    assert torch.equal(model, WHOLE + 7)
    assert buffers.keys() == BUFFERS.keys()
