"""Sites that learn from each other: who shares with whom, models that do not fit, what the server passes on."""

import pytest
import torch
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import make_reply
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from peer_models import BUFFERS, MODEL, NAN, NETWORK, PLAN, SITES, SPOILED, held, peers_of, read_plan
from stepping import Stepped as Federation

from fedmerit.contract import flat
from fedmerit.contract.capabilities import Sharing
from fedmerit.engines.nvflare.translation import (
    message_to_model,
    model_to_answer,
    model_to_task,
    peer_to_shareable,
    shareable_to_peer,
)
from fedmerit.methods.cycle import CYCle
from fedmerit.methods.fedavg import FedAvg
from fedmerit.schema.expected import check_reply
from fedmerit.schema.messages import Evaluation, Failure, PeerModel, Reply, Task, payload_bytes
from fedmerit.schema.scores import Overlap
from fedmerit.seeds import random_seed
from fedmerit.server.models import ModelsAtSites
from fedmerit.site.peers import find_givers, shares_with
from fedmerit.trainers.factory import build_network
from fedmerit.trainers.monai.local_round import ModelExchange

# Who shares with whom


def test_sharing_is_as_probable_as_it_should_be():
    drawn = [shares_with(0.3, 0, "Alder", "Birch", round) for round in range(2000)]
    assert sum(drawn) / 2000 == pytest.approx(0.3, abs=0.04)
    assert not any(shares_with(0.0, seed, "Alder", "Birch", 0) for seed in range(50))
    assert all(shares_with(1.0, seed, "Alder", "Birch", 0) for seed in range(50))


def test_each_pair_seed_and_round_draws_for_itself():
    pairs = [("Alder", "Birch"), ("Birch", "Alder"), ("Alder", "Cedar")]
    draws = {
        (seed, pair): [shares_with(0.5, seed, *pair, round) for round in range(40)] for seed in (0, 1) for pair in pairs
    }
    assert len(set(map(tuple, draws.values()))) == 6
    assert draws[0, pairs[0]] == [shares_with(0.5, 0, *pairs[0], round) for round in range(40)]


def test_nobody_is_its_own_peer():
    always = torch.ones(3, 3, dtype=torch.float64)
    assert [find_givers(Sharing(always, always), 0, SITES, row, 4) for row in range(3)] == [[1, 2], [0, 2], [0, 1]]
    one_way = torch.tensor([[0, 1, 0], [0, 0, 0], [0, 1, 0]]).double()
    assert [find_givers(Sharing(one_way, always), 0, SITES, row, 4) for row in range(3)] == [[], [0, 2], []]


@pytest.mark.parametrize("spoiled", SPOILED)
def test_model_that_does_not_fit_is_not_available(spoiled):
    spoil, word = SPOILED[spoiled]
    good = PeerModel(MODEL, BUFFERS, 0.5)
    exchange = ModelExchange({"good": good, "bad": spoil(good)}, NETWORK, PLAN.network)
    images = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert list(exchange.faults) == ["bad"]
    assert word in exchange.faults["bad"]
    assert exchange.predict("bad", images) is None
    expected = build_network(PLAN.network, torch.device("cpu")).eval()  # another memory layout sums in another order
    flat.load(expected, MODEL, BUFFERS)
    with torch.no_grad():
        assert torch.equal(exchange.predict("good", images), expected(images))


def test_predictions_that_are_no_numbers_end_the_exchange_with_that_peer():
    huge = PeerModel(torch.full_like(MODEL, 9e5), BUFFERS, 0.5)
    exchange = ModelExchange({"huge": huge}, NETWORK, PLAN.network)
    assert exchange.faults == {}
    assert exchange.predict("huge", torch.full((1, 1, 8, 8), 1e38)) is None
    assert exchange.faults == {"huge": "predictions with NaN or infinite entries"}
    assert exchange.predict("huge", torch.zeros(1, 1, 8, 8)) is None


def reply_of(federation, name, spoil=lambda update: update):
    task = federation.tasks()[name]
    draw = torch.Generator().manual_seed(random_seed(federation.round, name))
    misalignments = {peer: 0.2 for peer, model in task.peers.items() if task.round == 1 or model.weight != model.weight}
    said = {"misalignment": misalignments, "available": dict.fromkeys(task.peers, 1.0)}
    return Reply(
        round=task.round,
        update=spoil(0.01 * torch.randn(task.parameters.shape, generator=draw)),
        buffers=task.buffers,
        num_samples=10,
        overlaps=(Overlap("000", "prostate", 5, 2, 1),),
        pairs=said if task.peers else {},
    )


WAYS_TO_FAIL = {
    "vanished": lambda federation: None,
    "failure": lambda federation: Failure("out of memory"),
    "NaN": lambda federation: reply_of(federation, "Birch", lambda update: update * NAN),
    "another shape": lambda federation: reply_of(federation, "Birch", lambda update: update[:-1]),
}


@pytest.mark.parametrize("way", WAYS_TO_FAIL)
@pytest.mark.parametrize("round", [0, 1, 2])
def test_site_that_fails_in_a_round_shares_nothing_in_the_next_and_then_continues(tmp_path, way, round):
    """Before scoring, in the scoring round, after it: nobody holds it against the site, and nobody else is touched."""
    federation = Federation(PLAN, SITES, tmp_path / "run")
    received = []
    while federation.training:
        received.append({site: set(task.peers) for site, task in federation.tasks().items()})
        answers = {site: reply_of(federation, site) for site in SITES}
        if federation.round == round:
            answers["Birch"] = WAYS_TO_FAIL[way](federation)
        federation.take({site: answer for site, answer in answers.items() if answer is not None})
    assert received[0] == {site: set() for site in SITES}
    for number, peers in enumerate(received):
        assert "Birch" not in peers["Alder"] | peers["Cedar"] or number != round + 1
    reputation = held(tmp_path / "run", "peer_reputation")
    assert {(holder, site) for number, holder, site in reputation if number == 4} == {
        (holder, site) for holder in SITES for site in SITES if holder != site
    }
    assert set(reputation.values()) == {1.0}
    shared = {(number, site) for number, _, site in held(tmp_path / "run", "available")}
    assert shared == {(number, site) for number in (1, 2, 3, 4) for site in SITES} - {(round + 1, "Birch")}


def test_models_that_sites_get_are_those_that_their_peers_trained(tmp_path):
    federation = Federation(read_plan("vpdl"), SITES, tmp_path / "run")
    sent = {site: reply_of(federation, site) for site in SITES}
    federation.take(sent)
    for site, task in federation.tasks().items():
        assert set(task.peers) == set(SITES) - {site}
        assert torch.equal(task.parameters, MODEL + sent[site].update)
        for peer, model in task.peers.items():
            assert torch.equal(model.parameters, MODEL + sent[peer].update)
            assert model.weight == 0.5
        assert payload_bytes(task) == 3 * payload_bytes(Task(0, MODEL, BUFFERS))


@pytest.mark.parametrize(
    ("pairs", "word"),
    [
        ({"agreement": {"Birch": 0.4}, "available": {"Cedar": 1.0}}, None),
        ({"agreement": {"Birch": 1.1}}, "Reply.pairs: agreement 1.1, expected 0 to 1"),
        ({"agreement": {"Birch": NAN}}, "Reply.pairs.agreement.Birch: nan, expected a finite number"),
        ({"available": {"Alder": 1.0}}, "none of the other sites"),
        ({"available": {"Dogwood": 1.0}}, "'Dogwood', which is none of the other sites"),
        ({"honesty": {"Birch": 1.0}}, "a name that no method asks for"),
    ],
)
def test_what_is_said_of_others_is_checked(pairs, word):
    reply = Reply(0, MODEL, BUFFERS, 5, (), pairs=pairs)
    fault = check_reply(reply, 0, MODEL, BUFFERS, ("prostate",), CYCle(), ("Birch", "Cedar"))
    assert fault is None if word is None else word in fault
    assert "Reply.pairs" in check_reply(reply, 0, MODEL, BUFFERS, ("prostate",), FedAvg(), ("Birch", "Cedar"))


@pytest.mark.parametrize("here", [torch.empty(0), torch.empty(3, 0)], ids=["first round", "later, of three sites"])
def test_what_stays_at_a_site_does_not_travel(here):
    def over_the_wire(model):
        return FLModelUtils.from_shareable(FLModelUtils.to_shareable(model))

    models = ModelsAtSites(PLAN, NETWORK, SITES)
    models.parameters = here
    task = Task(3, **models.task_parts(0), others={"Birch": 0.5, "Cedar": NAN})
    arrived = model_to_task(over_the_wire(message_to_model(task, NETWORK, 9)), NETWORK)
    assert (arrived.parameters.numel(), arrived.buffers, arrived.peers) == (0, {}, {})
    assert arrived.others["Birch"] == 0.5
    assert arrived.others["Cedar"] != arrived.others["Cedar"]
    one = torch.eye(1, dtype=torch.float64)
    test = Evaluation(5, "testing", torch.empty(1, 0), one, ({},), one)
    arrived = model_to_task(over_the_wire(message_to_model(test, NETWORK, 9)), NETWORK)
    assert (arrived.models.shape, arrived.buffers, arrived.split) == ((1, 0), ({},), "testing")
    reply = Reply(3, torch.empty(0), {}, 5, ())
    arrived = model_to_answer(over_the_wire(message_to_model(reply, NETWORK)), NETWORK)
    assert (arrived.update.numel(), arrived.buffers) == (0, {})


def test_a_peers_model_arrives_as_it_was_sent():
    (peer, _) = peers_of().values()
    arrived = shareable_to_peer(peer_to_shareable(peer, NETWORK), NETWORK)
    assert torch.equal(arrived.parameters, peer.parameters)
    assert all(torch.equal(arrived.buffers[name], value) for name, value in BUFFERS.items())
    assert shareable_to_peer(peer_to_shareable(None, NETWORK), NETWORK) is None
    with pytest.raises(RuntimeError, match=ReturnCode.COMMUNICATION_ERROR):
        shareable_to_peer(make_reply(ReturnCode.COMMUNICATION_ERROR), NETWORK)
