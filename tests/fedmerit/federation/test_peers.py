"""Sites that learn from each other: whose models reach whom, what bad ones cost, and the same from every engine."""

from collections import Counter
from dataclasses import replace
from unittest import TestCase

import pytest
import torch
from faulty_peers import FAULTS, install_here, install_in_children
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import make_reply
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from stepping import Stepped as Federation
from stopping import stop_at

from fedmerit import flat
from fedmerit.capabilities.peer_learning import Sharing
from fedmerit.configuration.run import TASKS, make_configuration
from fedmerit.engines import runs
from fedmerit.errors import BadInput
from fedmerit.federation.peers import ModelExchange, givers, gives
from fedmerit.federation.server_models import ModelsAtSites
from fedmerit.federation.site import Site
from fedmerit.federation.site_log import SITE_LOG, digest_of_peer
from fedmerit.flare.executor import ERRORS
from fedmerit.flare.translation import (
    answer_to_model,
    model_to_evaluation,
    model_to_reply,
    model_to_task,
    peer_to_shareable,
    shareable_to_peer,
    task_to_model,
)
from fedmerit.methods.cycle import CYCle
from fedmerit.methods.fedavg import FedAvg
from fedmerit.records.ledger import Ledger
from fedmerit.records.results import PAIRS, read_results
from fedmerit.seeds import random_seed
from fedmerit.training.data import SiteFolder
from fedmerit.training.networks import build_network, initial_network
from fedmerit.training.overlaps import Overlap
from fedmerit.verification.verify import verify_run
from fedmerit.wire.egress_list import LARGEST_MB, Withheld
from fedmerit.wire.inspection import fault_of_reply
from fedmerit.wire.messages import Evaluation, Failure, PeerModel, Reply, Task, payload

SITES = ("Alder", "Birch", "Cedar")
NAMES = ("site1", "site2", "site3")  # of generated images
EARLY = ("warmup=1", "R=2", "warmup_by=own", "score=gradients")
NAN = float("nan")


def plan_of(method="cycle", **settings):
    tiny = {"architecture": "unet", "width": 2, "depth": 2, "residual_units": 0, "warmup": 1} | (
        {"R": 3, "warmup_by": "own", "score": "gradients"} if method == "cycle" else {}
    )
    return make_configuration(method, "prostate", 5, 0, TASKS["prostate"], tiny | settings)


PLAN = plan_of()
NETWORK = initial_network(PLAN.network, 0)
MODEL, BUFFERS = flat.get_parameters(NETWORK), flat.get_buffers(NETWORK)


def held(run, quantity):
    """{(round, holder, site): value}"""
    rows = read_results(run).query(f"quantity == '{quantity}'")
    return {(row.round, row.coalition, row.site): row.value for row in rows.itertuples()}


# Who shares with whom


def test_sharing_is_as_probable_as_it_should_be():
    drawn = [gives(0.3, 0, "Alder", "Birch", round) for round in range(2000)]
    assert sum(drawn) / 2000 == pytest.approx(0.3, abs=0.04)
    assert not any(gives(0.0, seed, "Alder", "Birch", 0) for seed in range(50))
    assert all(gives(1.0, seed, "Alder", "Birch", 0) for seed in range(50))


def test_each_pair_seed_and_round_draws_for_itself():
    pairs = [("Alder", "Birch"), ("Birch", "Alder"), ("Alder", "Cedar")]
    draws = {(seed, pair): [gives(0.5, seed, *pair, round) for round in range(40)] for seed in (0, 1) for pair in pairs}
    assert len(set(map(tuple, draws.values()))) == 6
    assert draws[0, pairs[0]] == [gives(0.5, 0, *pairs[0], round) for round in range(40)]


def test_nobody_is_its_own_peer():
    always = torch.ones(3, 3, dtype=torch.float64)
    assert [givers(Sharing(always, always), 0, SITES, row, 4) for row in range(3)] == [[1, 2], [0, 2], [0, 1]]
    one_way = torch.tensor([[0, 1, 0], [0, 0, 0], [0, 1, 0]]).double()
    assert [givers(Sharing(one_way, always), 0, SITES, row, 4) for row in range(3)] == [[], [0, 2], []]


# A peer's model


SPOILED = {
    "NaN": (lambda peer: replace(peer, parameters=peer.parameters * NAN), "NaN"),
    "infinite": (lambda peer: replace(peer, parameters=peer.parameters + float("inf")), "infinite"),
    "too short": (lambda peer: replace(peer, parameters=peer.parameters[:-1]), "shape"),
    "double precision": (lambda peer: replace(peer, parameters=peer.parameters.double()), "float64"),
    "no statistics": (lambda peer: replace(peer, buffers={}), "buffers"),
    "NaN in the statistics": (
        lambda peer: replace(peer, buffers={name: value * NAN for name, value in peer.buffers.items()}),
        "buffers",
    ),
}


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


@pytest.fixture(scope="module")
def site(sites, tmp_path_factory):
    """A new site each time, with nothing to remember."""

    def make(method="cycle"):
        return Site(SiteFolder(sites / "site1"), plan_of(method), tmp_path_factory.mktemp("memory"), "cpu")

    return make


def peers_of(seed=0):
    draw = torch.Generator().manual_seed(seed)
    return {
        name: PeerModel(MODEL + 0.1 * torch.randn(MODEL.shape, generator=draw), BUFFERS, NAN)
        for name in ("site2", "site3")
    }


@pytest.mark.parametrize("method", ["cycle", pytest.param("vpdl", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "spoiled",
    [pytest.param(name, marks=() if name in ("NaN", "no statistics") else pytest.mark.slow) for name in SPOILED],
)
def test_bad_peer_costs_its_own_exchange_alone(site, method, spoiled):
    good = {name: replace(peer, weight=NAN if method == "cycle" else 0.5) for name, peer in peers_of().items()}
    task = Task(1, MODEL, BUFFERS, peers=good | {"site3": SPOILED[spoiled][0](good["site3"])})
    reply = site(method).train(task)
    without = site(method).train(replace(task, peers={"site2": good["site2"]}))
    assert reply.pairs["available"] == {"site2": 1.0, "site3": 0.0}
    assert torch.equal(reply.update, without.update)
    assert reply.pairs.get("misalignment") == without.pairs.get("misalignment")
    assert not torch.equal(reply.update, site(method).train(replace(task, peers={})).update)


# The server's half


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
def test_site_that_fails_in_a_round_shares_nothing_in_the_next_and_then_goes_on(tmp_path, way, round):
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
    federation = Federation(plan_of("vpdl"), SITES, tmp_path / "run")
    sent = {site: reply_of(federation, site) for site in SITES}
    federation.take(sent)
    for site, task in federation.tasks().items():
        assert set(task.peers) == set(SITES) - {site}
        assert torch.equal(task.parameters, MODEL + sent[site].update)
        for peer, model in task.peers.items():
            assert torch.equal(model.parameters, MODEL + sent[peer].update)
            assert model.weight == 0.5
        assert payload(task) == 3 * payload(Task(0, MODEL, BUFFERS))


@pytest.mark.parametrize(
    ("pairs", "word"),
    [
        ({"agreement": {"Birch": 0.4}, "available": {"Cedar": 1.0}}, None),
        ({"agreement": {"Birch": 1.1}}, "agreement 1.1 of Birch"),
        ({"agreement": {"Birch": NAN}}, "agreement nan"),
        ({"available": {"Alder": 1.0}}, "none of the other sites"),
        ({"available": {"Dogwood": 1.0}}, "none of the other sites"),
        ({"honesty": {"Birch": 1.0}}, "does not ask for"),
    ],
)
def test_what_is_said_of_others_is_checked(pairs, word):
    reply = Reply(0, MODEL, BUFFERS, 5, (), pairs=pairs)
    fault = fault_of_reply(reply, 0, MODEL, BUFFERS, ("prostate",), CYCle(), ("Birch", "Cedar"))
    assert fault is None if word is None else word in fault
    assert "does not ask for" in fault_of_reply(reply, 0, MODEL, BUFFERS, ("prostate",), FedAvg(), ("Birch", "Cedar"))


def test_peers_and_what_is_said_of_them_arrive_as_they_were_sent():
    def over_the_wire(model):
        return FLModelUtils.from_shareable(FLModelUtils.to_shareable(model))

    task = Task(3, MODEL, BUFFERS, 0.25, None, peers=peers_of())
    arrived = model_to_task(over_the_wire(task_to_model(task, NETWORK, 9)), NETWORK)
    assert torch.equal(arrived.parameters, MODEL)
    assert list(arrived.peers) == list(task.peers)
    for name, peer in arrived.peers.items():
        assert torch.equal(peer.parameters, task.peers[name].parameters)
        assert peer.buffers.keys() == BUFFERS.keys()
        assert peer.weight != peer.weight
    assert payload(arrived) == payload(task)
    reply = Reply(3, MODEL, BUFFERS, 5, (), pairs={"misalignment": {"Birch": 1 / 3}, "available": {"Birch": 1.0}})
    assert model_to_reply(over_the_wire(answer_to_model(reply, NETWORK)), NETWORK).pairs == reply.pairs


@pytest.mark.parametrize("here", [torch.empty(0), torch.empty(3, 0)], ids=["first round", "later, of three sites"])
def test_what_stays_at_a_site_does_not_travel(here):
    def over_the_wire(model):
        return FLModelUtils.from_shareable(FLModelUtils.to_shareable(model))

    models = ModelsAtSites(PLAN, NETWORK, SITES)
    models.parameters = here
    task = Task(3, **models.task_parts(0), others={"Birch": 0.5, "Cedar": NAN})
    arrived = model_to_task(over_the_wire(task_to_model(task, NETWORK, 9)), NETWORK)
    assert (arrived.parameters.numel(), arrived.buffers, arrived.peers) == (0, {}, {})
    assert arrived.others["Birch"] == 0.5
    assert arrived.others["Cedar"] != arrived.others["Cedar"]
    one = torch.eye(1, dtype=torch.float64)
    test = Evaluation(5, "testing", torch.empty(1, 0), one, ({},), one)
    arrived = model_to_evaluation(over_the_wire(task_to_model(test, NETWORK, 9)), NETWORK)
    assert (arrived.models.shape, arrived.buffers, arrived.split) == ((1, 0), ({},), "testing")
    reply = Reply(3, torch.empty(0), {}, 5, ())
    arrived = model_to_reply(over_the_wire(answer_to_model(reply, NETWORK)), NETWORK)
    assert (arrived.update.numel(), arrived.buffers) == (0, {})


def test_a_peers_model_arrives_as_it_was_sent():
    (peer, _) = peers_of().values()
    arrived = shareable_to_peer(peer_to_shareable(peer, NETWORK), NETWORK)
    assert torch.equal(arrived.parameters, peer.parameters)
    assert all(torch.equal(arrived.buffers[name], value) for name, value in BUFFERS.items())
    assert shareable_to_peer(peer_to_shareable(None, NETWORK), NETWORK) is None
    with pytest.raises(RuntimeError, match=ReturnCode.COMMUNICATION_ERROR):
        shareable_to_peer(make_reply(ReturnCode.COMMUNICATION_ERROR), NETWORK)


# Whole runs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "settings", "threads"), [("vpdl", EARLY[:1], 3), ("cycle", EARLY, 3), ("cycle", EARLY, 2)]
)
def test_every_way_to_simulate_gives_what_the_local_engine_gives(trained, assert_same_run, method, settings, threads):
    run = trained(*settings, method=method, engine="sim", threads=threads)
    assert_same_run(trained(*settings, method=method), run)


def test_reputations_are_recorded_by_holder_and_site(trained):
    run = trained(*EARLY, method="cycle")
    names = ["site1", "site2", "site3"]
    pairs = {(holder, site) for holder in names for site in names if holder != site}
    reputation, found = held(run, "peer_reputation"), held(run, "misalignment")
    assert set(reputation) == {(round, *pair) for round in (1, 2) for pair in pairs}
    assert set(found) == {(1, *pair) for pair in pairs}
    for key, s in found.items():
        assert reputation[key] == pytest.approx(min(1, max(0, (0.75 - s) / 0.5)))
    table = read_results(run).query("quantity == 'reputation' and round == 2").set_index("site")["value"]
    for site in names:
        assert table[site] == pytest.approx(sum(reputation[2, holder, site] for holder in names if holder != site) / 2)
    assert Counter(round for round, *_ in held(run, "available"))[1] == 6


@pytest.mark.parametrize(
    ("method", "settings"), [("cycle", ("warmup_by=own",)), pytest.param("vpdl", (), marks=pytest.mark.slow)]
)
def test_until_the_warm_up_is_over_every_site_trains_alone(trained, method, settings):
    def losses(run):
        rows = read_results(run).query("quantity == 'train_loss'")
        return rows.pivot(index="round", columns="site", values="value")

    ours, alone = losses(trained("warmup=2", *settings, method=method)), losses(trained(method="standalone"))
    assert ours.loc[:1].equals(alone.loc[:1])
    assert (ours.loc[2] != alone.loc[2]).any()  # sharing is drawn by reputation


def test_by_default_the_warm_up_is_fedavg_and_peers_are_scored_by_dice(trained):
    run, fedavg = trained("warmup=1", method="cycle"), trained(method="fedavg")
    losses = (read_results(one).query("quantity == 'train_loss'") for one in (run, fedavg))
    ours, theirs = (rows.pivot(index="round", columns="site", values="value") for rows in losses)
    assert ours.loc[:1].equals(theirs.loc[:1])  # in the second each trains alone, on from the model of all
    assert (ours.loc[2] != theirs.loc[2]).any()
    scored = read_results(run).query("quantity == 'agreement'")
    assert set(scored["round"]) == {2}
    assert scored["value"].between(0, 1).all()


@pytest.mark.slow
def test_what_sites_learn_from_each_other_changes_their_models(trained, model):
    alone = model(trained(method="standalone"), "site1")
    first = next(iter(alone))
    runs_of = {
        "cycle": trained(*EARLY, method="cycle"),
        "vpdl": trained(EARLY[0], method="vpdl"),
        "one way": trained(*EARLY, "kl=peer_own", method="cycle"),
    }
    learned = [alone[first], *(model(run, "site1")[first] for run in runs_of.values())]
    assert not any(torch.equal(one, other) for i, one in enumerate(learned) for other in learned[:i])


# From site to site


@pytest.mark.parametrize("method", ["cycle", pytest.param("vpdl", marks=pytest.mark.slow)])
def test_models_from_site_to_site_give_what_the_server_would_have_passed_on(trained, assert_same_model, method):
    settings = EARLY if method == "cycle" else EARLY[:1]
    relayed, direct = trained(*settings, method=method), trained(*settings, "exchange=peer", method=method)
    for name in ("site1", "site2", "site3"):
        assert_same_model(relayed / f"models/{name}.pt", direct / f"models/{name}.pt")

    def told(run):
        table = read_results(run)
        rows = table[table["quantity"].isin(["dice", "train_loss", "reputation", "contribution", *PAIRS])]
        rows = rows[~rows["split"].isin(["union", "testing_best"])]  # of models that the server sees
        return rows.drop(columns="run").astype(str).values.tolist()

    assert told(relayed) == told(direct)
    assert len(told(direct)) > 50
    for run, more in ((relayed, set()), (direct, {"lend", "borrow"})):
        assert {record["work"] for record in Ledger(run / "sites/site1" / SITE_LOG).records} == {
            "train",
            "evaluate",
            "close",
        } | more


@pytest.mark.slow
def test_simulated_sites_ask_each_other(trained, assert_same_run, processes_of):
    run = trained(*EARLY, "exchange=peer", method="cycle", engine="sim", threads=3)
    assert_same_run(trained(*EARLY, "exchange=peer", method="cycle"), run)
    assert processes_of(run) == []
    given = verify_run(run, [run / "sites" / site / SITE_LOG for site in NAMES]).peer_models
    assert len(given) == 6
    assert all(one.models and not one.lost for one in given)


def test_server_never_sees_a_model_that_stays(trained):
    run = trained(*EARLY, "exchange=peer", method="cycle")
    checkpoint = torch.load(run / "checkpoint.pt", weights_only=True)

    def sizes(part):
        if isinstance(part, torch.Tensor):
            return [part.numel()]
        values = part.values() if isinstance(part, dict) else part if isinstance(part, (list, tuple)) else ()
        return [size for value in values for size in sizes(value)]

    assert max(sizes(checkpoint)) <= 9  # of pairs of three sites
    assert all(record["updates"] == {} for record in Ledger(run / "ledger.jsonl").records)
    results = read_results(run)
    moved = results[results["quantity"].isin(["bytes_sent", "bytes_received"])]
    assert set(moved["value"]) == {0.0}
    assert "union" not in set(results["split"])
    assert not {"norm", "cosine_to_mean"} & set(results["quantity"])
    assert set(results.query("quantity == 'repeated'")["value"]) == {0.0}


def test_fewer_processes_than_sites_cannot_ask_each_other(fedmerit, options, tmp_path):
    chosen = options("exchange=peer", "warmup_by=own", "warmup=1", method="cycle", engine="sim", threads=2)
    result = fedmerit("run", "--out", tmp_path / "run", *chosen)
    assert result.exit_code == 2
    assert "exchange=relay" in result.stderr
    assert not (tmp_path / "run").exists()


@pytest.fixture
def asking(sites, tmp_path):
    """What a site says of peers that answer with what ``answers`` holds, the model it then has, and the site."""

    def play(answers):
        def ask(peer, round):
            if isinstance(answers[peer], Exception):
                raise answers[peer]
            return answers[peer]

        memory = tmp_path / f"{len(list(tmp_path.iterdir()))}" / "sites" / "site1"
        site = Site(
            SiteFolder(sites / "site1"), plan_of(exchange="peer"), memory, "cpu", ask, participants=(*NAMES, "site4")
        )
        site.train(Task(0, torch.empty(0), {}))
        reply = site.train(Task(1, torch.empty(0), {}, others=dict.fromkeys(answers, NAN)))
        assert (reply.update.numel(), reply.buffers) == (0, {})
        return reply.pairs, torch.load(memory / "round_00001.pt", weights_only=True)["trained"], site

    return play


@pytest.mark.parametrize("bad", [TimeoutError("no answer"), *(spoil for spoil, _ in SPOILED.values())])
def test_peer_that_vanishes_or_answers_wrongly_costs_its_own_exchange_alone(asking, bad):
    good = peers_of()
    pairs, model, _ = asking(good | {"site3": bad if isinstance(bad, Exception) else bad(good["site3"])})
    expected, alone, _ = asking(good | {"site3": None})
    assert pairs == expected | {"available": {"site2": 1.0, "site3": 0.0}}
    assert expected["available"] == {"site2": 1.0}
    assert torch.equal(model, alone)


def test_site_decides_by_its_own_memory_with_whom_it_shares(asking):
    _, _, site = asking(peers_of())
    held = torch.load(site.memory.path / "round_00001.pt", weights_only=True)["weights"]
    for peer in ("site2", "site3"):
        given = site.give_model(peer, 2)
        assert (given is not None) == gives(held[peer], 0, "site1", peer, 2)
        assert site.give_model(peer, 3) is None  # it did no round 2, of which it could share what it trained
        assert site.give_model(peer, 1) is not None  # scoring is due
        assert torch.equal(site.give_model(peer, 0).parameters, MODEL)
    assert site.give_model("site4", 2) is not None  # never scored: shared with until it is
    assert site.give_model("Dogwood", 2) is None  # no site of the run
    site.participants = ()
    assert site.give_model("site2", 2) is None  # nobody is known to be one


def spoiled_memory(site, round, change):
    """What the site remembers of a round, changed."""
    path = site.memory.path / f"round_{round:05d}.pt"
    memory = torch.load(path, weights_only=True)
    torch.save(change(memory), path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        lambda memory: memory | {"trained": memory["trained"].double()},
        lambda memory: memory | {"buffers": {name: value.double() for name, value in memory["buffers"].items()}},
        lambda memory: memory | {"buffers": memory["buffers"] | {"patient Mueller": torch.zeros(1)}},
        lambda memory: memory | {"buffers": {"statistics": torch.zeros(LARGEST_MB << 18)}},
    ],
    ids=["float64", "statistics of float64", "a name", "too large"],
)
def test_model_that_is_not_as_listed_is_neither_given_nor_logged_as_given(asking, change):
    _, _, site = asking(peers_of())
    assert site.give_model("site2", 2) is not None
    before = Ledger(site.memory.path / SITE_LOG).records
    assert (before[-1]["work"], before[-1]["peer"], before[-1]["round"]) == ("lend", "site2", 2)
    spoiled_memory(site, 1, change)
    with pytest.raises(Withheld) as withheld:
        site.give_model("site2", 2)
    assert "Mueller" not in str(withheld.value)
    assert Ledger(site.memory.path / SITE_LOG).records == before


def test_what_cannot_be_asked_for_is_logged_by_kind_alone(asking):
    with TestCase().assertLogs() as logged:
        _, _, site = asking(peers_of() | {"site3": OSError("/data/Mueller.npy: gone")})
    told = "\n".join(logged.output)
    assert "site3 cannot be asked for its model: OSError" in told
    assert "Mueller" not in told
    got = [record for record in Ledger(site.memory.path / SITE_LOG).records if record["work"] == "borrow"]
    assert [(record["peer"], record["model"]) for record in got] == [
        ("site2", digest_of_peer(peers_of()["site2"])),
        ("site3", None),
    ]


def test_site_that_shares_nothing_with_a_peer_is_not_in_its_log(asking):
    _, _, site = asking(dict.fromkeys(("site2", "site3")))
    assert {record["work"] for record in Ledger(site.memory.path / SITE_LOG).records} == {"train"}


# What a bad peer costs


def available(run):
    """{round: who got nothing usable of whom, receiver and giver}, in the rounds in which sites shared at all"""
    said = held(run, "available")
    return {
        number: {(holder, site) for round, holder, site in said if round == number and not said[round, holder, site]}
        for number in sorted({round for round, *_ in said})
    }


@pytest.fixture(scope="module")
def sharing(sites, tmp_path_factory):
    """Makes a tiny run of VPDL, where all share with all in every round but the first."""

    def play(engine="local", exchange="peer", rounds=3):
        settings = {"architecture": "unet", "width": "4", "depth": "3", "warmup": "1", "exchange": exchange}
        run = tmp_path_factory.mktemp("sharing") / "run"
        runs.create(run, method="vpdl", sites=sites, rounds=rounds, engine=engine, threads=3, settings=settings)
        runs.execute(run, lambda record: None)
        return run

    return play


BAD = {(receiver, giver) for giver, receiver in FAULTS}


@pytest.fixture(scope="module")
def faulty(sharing):
    """A run in one round of which some sites answer some peers with NaN, another shape, or not at all."""
    with pytest.MonkeyPatch.context() as patch:
        install_here(patch)
        return sharing()


@pytest.mark.slow
def test_bad_answer_to_a_peer_costs_that_pair_one_exchange(faulty):
    """The next round everybody learns from everybody again."""
    run = faulty
    assert available(run) == {1: BAD, 2: set()}
    assert Counter(round for round, *_ in held(run, "available")) == {1: 6, 2: 6}
    assert "rejected" not in set(read_results(run)["quantity"])
    logs = {site: run / "sites" / site / SITE_LOG for site in ("site1", "site2", "site3")}
    lost = {(one.giver, one.receiver): one.lost for one in verify_run(run, [logs["site1"], logs["site3"]]).peer_models}
    assert lost == {("site1", "site3"): (), ("site3", "site1"): (1,)}
    for receiver in ("site1", "site3"):  # what site2 wrote down is not what it gave
        with pytest.raises(BadInput, match=f"{receiver} got model .* of site2 in round 1, but .*, says"):
            verify_run(run, [logs["site2"], logs[receiver]])


@pytest.mark.slow  # the test above has the local engine; `test_simulated_sites_ask_each_other`, the exchange
def test_bad_answer_to_a_peer_costs_the_same_on_the_simulator(faulty, sharing, monkeypatch, tmp_path, assert_same_run):
    install_in_children(monkeypatch, tmp_path / "site")
    run = sharing("sim")
    assert_same_run(faulty, run)
    (log,) = run.glob("nvflare/**/site3/log.txt")
    assert "no model given at this site (ConnectionError); its own errors.log says why" in log.read_text()
    assert "Mueller" not in "".join(path.read_text() for path in run.glob("nvflare/**/log*.txt"))
    assert "ConnectionError: /data/Mueller: gone" in (run / "sites/site3" / ERRORS).read_text()
    given = verify_run(run, [run / "sites" / site / SITE_LOG for site in ("site1", "site3")]).peer_models
    assert [(one.giver, one.models, one.lost) for one in given] == [("site1", 2, ()), ("site3", 1, (1,))]


BAD_UPDATES = {
    "vanished": lambda reply: Failure("gone"),
    "NaN": lambda reply: replace(reply, update=reply.update * NAN),
    "another shape": lambda reply: replace(reply, update=reply.update[:-1]),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "way", ["NaN", *(pytest.param(way, marks=pytest.mark.slow) for way in BAD_UPDATES if way != "NaN")]
)
def test_bad_update_costs_those_whom_the_site_would_share_with_one_exchange(sharing, monkeypatch, way):
    """Where the server passes models on, a site's model is known there by its update."""
    original = Site.answer

    def answer(site, task):
        said = original(site, task)
        bad = site.name == "site2" and isinstance(task, Task) and task.round == 1
        return BAD_UPDATES[way](said) if bad else said

    monkeypatch.setattr(Site, "answer", answer)
    run = sharing(exchange="relay", rounds=4)
    pairs = {(one, other) for one in NAMES for other in NAMES if one != other}
    found = held(run, "available")
    assert set(found.values()) == {1.0}
    heard = {number: {key[1:] for key in found if key[0] == number} for number in (1, 2, 3)}
    assert heard == {
        1: {(receiver, giver) for receiver, giver in pairs if receiver != "site2"},
        2: {(receiver, giver) for receiver, giver in pairs if giver != "site2"},
        3: pairs,
    }


@pytest.mark.parametrize(
    ("count", "exchange"),
    [
        pytest.param(8, "relay", marks=pytest.mark.slow),
        (5, "peer"),
        pytest.param(5, "relay", marks=pytest.mark.slow),
        pytest.param(8, "peer", marks=pytest.mark.slow),
    ],
)
def test_run_stopped_anywhere_ends_the_same(trained, fedmerit, sites, tmp_path, assert_same_run, count, exchange):
    run = tmp_path / "run"
    settings = {"architecture": "unet", "width": "4", "depth": "3", "exchange": exchange}
    settings |= dict(setting.split("=") for setting in EARLY)
    runs.create(run, method="cycle", sites=sites, rounds=3, engine="local", threads=1, settings=settings)
    stop_at(run, Site, "train", count)
    assert fedmerit("run", "--resume", "--out", run).exit_code == 0
    direct = ("exchange=peer",) if exchange == "peer" else ()
    assert_same_run(trained(*EARLY, *direct, method="cycle"), run)
    given = verify_run(run, [run / "sites" / site / SITE_LOG for site in NAMES]).peer_models
    assert len(given) == (6 if exchange == "peer" else 0)
    assert not any(one.lost for one in given)
