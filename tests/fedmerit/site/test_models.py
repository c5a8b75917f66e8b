"""How a model reaches a site, and what of it leaves."""

import math
from types import SimpleNamespace
from unittest import TestCase

import pytest
import torch
from pretending import NETWORK, SIZE, tiny_plan

from fedmerit.ciphertexts import Ciphertexts
from fedmerit.contract import flat
from fedmerit.errors import BadInput, MemoryLost
from fedmerit.evidence.ledger import Ledger
from fedmerit.schema.egress import Withheld
from fedmerit.schema.messages import LOST_MEMORY, PeerModel, SparseUpdate, Task
from fedmerit.site.encryption import EncryptedModelsFromServer
from fedmerit.site.models import ModelsFromServer
from fedmerit.site.peers import UNREACHABLE, ModelsOfSites
from fedmerit.site.site_log import SITE_LOG, SiteLog, peer_digest
from fedmerit.trainers.memory import Memory, MemoryFolder

START, BUFFERS = flat.get_parameters(NETWORK), flat.get_buffers(NETWORK)  # as every site begins
WHOLE = torch.arange(float(SIZE))
ONE = torch.eye(1, dtype=torch.float64)


@pytest.fixture
def folder(tmp_path):
    made = MemoryFolder(tmp_path)
    made.remember(0, Memory(WHOLE, WHOLE + 1, BUFFERS))
    return made


def test_what_changed_is_put_on_what_was_received_before(folder):
    sparse = SparseUpdate(torch.tensor([0, 2], dtype=torch.int32), torch.tensor([-1.0, -2.0]))
    received = ModelsFromServer(folder).receive(Task(1, torch.empty(0), BUFFERS, changes=sparse))
    assert received.model[:4].tolist() == [-1, 1, -2, 3]
    assert torch.equal(ModelsFromServer(folder).seen(received), received.model)
    with pytest.raises(MemoryLost) as lost:
        ModelsFromServer(folder).receive(Task(3, torch.empty(0), BUFFERS, changes=sparse))
    assert str(lost.value) == LOST_MEMORY


@pytest.fixture
def among_sites(tmp_path):
    """The models of site A: ``answers`` of its peers, who are asked, ``probability`` of its sharing with each."""

    def make(answers=None, probability=1.0, memories=None):
        memory = MemoryFolder(tmp_path)
        for round, kept in (memories or {}).items():
            memory.remember(round, kept)

        def ask(peer, round):
            if isinstance(answers[peer], Exception):
                raise answers[peer]
            return answers[peer]

        asked = []
        method = SimpleNamespace(
            probability=lambda weights, round: asked.append((float(weights), round)) or torch.tensor(probability)
        )
        plan = tiny_plan("cycle", exchange="peer", warmup_by="own")
        models = ModelsOfSites(memory, plan, "A", method, ask, SiteLog(tmp_path, "A"))
        models.weights_seen = asked
        return models

    return make


def logged(folder):
    path = folder / SITE_LOG
    return [(one["work"], one["peer"], one["model"]) for one in Ledger(path).records] if path.exists() else []


def test_a_site_begins_with_its_own_model_and_asks_its_peers_for_theirs(among_sites, tmp_path):
    """The weight of B is what A remembers, that of C, who does not answer, what came with the task."""
    kept = Memory(WHOLE, WHOLE + 2, BUFFERS, {"B": 0.75})
    of_b = PeerModel(WHOLE + 4, BUFFERS, math.nan)
    models = among_sites({"B": of_b, "C": OSError("/data/Mueller.npy: gone"), "D": None}, memories={1: kept})
    with TestCase().assertLogs("fedmerit.site.peers") as reported:
        received = models.receive(Task(2, torch.empty(0), {}, others={"B": 0.1, "C": 0.2, "D": 0.3}))
    assert torch.equal(received.model, WHOLE + 2)
    assert torch.equal(received.task.parameters, WHOLE + 2)
    assert set(received.task.peers) == {"B", "C"}  # D shares nothing
    assert torch.equal(received.task.peers["B"].parameters, WHOLE + 4)
    assert [peer.weight for peer in received.task.peers.values()] == [0.75, 0.2]
    assert received.task.peers["C"].parameters.shape == UNREACHABLE.parameters.shape == (0,)
    assert logged(tmp_path) == [("got", "B", peer_digest(of_b)), ("got", "C", None)]
    assert "C cannot be asked for its model: OSError" in reported.output[0]
    assert "Mueller" not in reported.output[0]
    assert models.seen(received).shape == (0,)


def test_a_model_is_given_by_the_weight_that_the_site_remembers_and_logged(among_sites, tmp_path):
    models = among_sites(memories={1: Memory(WHOLE, WHOLE + 2, BUFFERS, {"B": 0.75})})
    given = models.give("B", 2)
    assert torch.equal(given.parameters, WHOLE + 2)
    assert math.isnan(given.weight)  # it is the receiver's own
    assert models.give("C", 2) is not None
    assert models.weights_seen[0] == (0.75, 2)
    assert math.isnan(models.weights_seen[1][0])  # of C nothing is known yet
    assert logged(tmp_path) == [("gave", "B", peer_digest(given)), ("gave", "C", peer_digest(given))]


def test_a_site_that_did_not_do_the_round_before_gives_none_but_in_the_first(among_sites, tmp_path):
    models = among_sites()
    assert models.give("B", 2) is None
    assert logged(tmp_path) == []
    assert torch.equal(models.give("B", 0).parameters, START)


def test_what_is_not_listed_does_not_leave_and_is_not_logged(among_sites, tmp_path):
    spoiled = BUFFERS | {"running": torch.zeros(1, dtype=torch.float64)}
    models = among_sites(memories={1: Memory(WHOLE, WHOLE, spoiled)})
    with pytest.raises(Withheld):
        models.give("B", 2)
    assert logged(tmp_path) == []


class Key:
    """Opens any ciphertexts as ``added`` and the statistics it is given."""

    def __init__(self, added=None, fault=None):
        self.added, self.fault = added, fault

    def encrypt(self, update, buffers):
        return Ciphertexts((str(float(update.sum())).encode(),), (b"s",) * len(buffers))

    def decrypt(self, ciphertexts, like):
        if self.fault:
            raise self.fault
        return self.added, {name: value + 1 for name, value in like.items()}


SEALED = Ciphertexts((b"u",), (b"s",))


def encrypted(folder, **key):
    return EncryptedModelsFromServer(MemoryFolder(folder), tiny_plan(), "A", Key(**key))


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ({"fault": ValueError("scale out of bounds")}, r"cannot decrypt the model \(scale out of bounds\)"),
        ({"fault": RuntimeError("no parms")}, "cannot decrypt the model"),
        ({"added": torch.full((SIZE,), math.nan, dtype=torch.float64)}, "decrypts what is no model .*NaN"),
        ({"added": torch.full((SIZE,), 1e30, dtype=torch.float64)}, "decrypts what is no model .*entries beyond"),
    ],
    ids=["not opened", "not read", "no numbers", "too large"],
)
def test_another_key_is_noticed(tmp_path, key, words):
    with pytest.raises(BadInput, match=rf"site A: {words}.*do all sites have kits of the same"):
        encrypted(tmp_path, **key).receive(Task(1, torch.empty(0), {}, ciphertexts=SEALED))


def test_who_shares_with_nobody_gives_none(among_sites, tmp_path):
    models = among_sites(probability=0.0, memories={1: Memory(WHOLE, WHOLE, BUFFERS)})
    assert models.give("B", 2) is None
    assert logged(tmp_path) == []
