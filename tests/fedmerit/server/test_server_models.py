"""The models of a run at the server: in the clear, encrypted, or at the sites."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from pretending import SITES, tiny_plan
from torch import nn

from fedmerit.ciphertexts import Ciphertexts
from fedmerit.contract import flat
from fedmerit.contract.capabilities import Sharing, capabilities
from fedmerit.contract.method import Outcome, Reports
from fedmerit.evidence.digests import digest
from fedmerit.guard.admission import Admission
from fedmerit.schema.messages import Purpose, Reply
from fedmerit.server import encryption
from fedmerit.server.encryption import EncryptedModels
from fedmerit.server.models import Models, ModelsAtSites, ModelsInTheClear
from fedmerit.server.server import build_models

IMAGES = torch.tensor([10.0, 20.0, 10.0], dtype=torch.float64)  # shares 1/4, 1/2, 1/4
MEANS = (1.0, 3.0, 9.0)  # of the images that each site trained on, in its statistics
START = torch.tensor([1.0, 2.0, 0.0, 1.0, 0.0])


def network():
    """d = 5: two weights and a bias, then a BatchNorm's scale and shift."""
    built = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1))
    with torch.no_grad():
        for parameter, values in zip(built.parameters(), ([[1.0, 2.0]], [0.0], [1.0], [0.0]), strict=True):
            parameter.copy_(torch.tensor(values))
    return built


def statistics(mean):
    return {
        "1.running_mean": torch.tensor([mean]),
        "1.running_var": torch.tensor([1.0]),
        "1.num_batches_tracked": torch.tensor(0),
    }


def clear(method="fedavg", **settings):
    config = tiny_plan(method, **settings)
    return ModelsInTheClear(config, network(), SITES, capabilities(config.build_method()))


def replies_of(*means, ciphertexts=(None, None, None)):
    """Of three sites, None for one that is away."""
    return [
        None if mean is None else Reply(0, torch.zeros(5), statistics(mean), 10, (), ciphertexts=sealed)
        for mean, sealed in zip(means, ciphertexts, strict=True)
    ]


def outcome(models, weights=(0.5, 0.25, 0.25), rule="models"):
    weights = torch.tensor(weights, dtype=torch.float64)
    return Outcome(weights, weights, weights, models, statistics=rule)


def admission_of(replies, withheld=()):
    present = torch.tensor([reply is not None for reply in replies])
    all_of_them = Admission.unguarded(torch.empty(3, 0), Reports(IMAGES, present))
    rows = torch.tensor([row in withheld for row in range(3)])
    counted = present & ~rows
    statistics = [reply.buffers if there else {} for reply, there in zip(replies, counted, strict=True)]
    return replace(all_of_them, withheld=rows, counted=counted, statistics=statistics)


def advance(models, parameters, round=0, means=MEANS, rule="models", withheld=()):
    sent = replies_of(*means)
    models.advance(round, outcome(parameters, rule=rule), admission_of(sent, withheld), sent)


def means_of(models):
    return [float(buffers["1.running_mean"]) for buffers in models.buffers]


@pytest.mark.parametrize(
    ("method", "settings", "kind"),
    [
        ("fedavg", {}, ModelsInTheClear),
        ("cycle", {}, ModelsInTheClear),
        ("cycle", {"exchange": "peer", "warmup_by": "own"}, ModelsAtSites),
    ],
)
def test_the_kind_that_a_run_needs(method, settings, kind):
    config = tiny_plan(method, **settings)
    assert type(build_models(config, capabilities(config.build_method()), network(), SITES, None)) is kind


@pytest.mark.parametrize(
    ("asked", "of_the_method", "expected"),
    [
        ("method", "models", [4.0] * 3),  # 1/4 + 3/2 + 9/4, by images
        ("method", "own", [1.0, 3.0, 9.0]),
        ("mean", "own", [4.0] * 3),  # what the run asks for goes before the method's word
        ("weights", "own", [3.5] * 3),  # 1/2 + 3/4 + 9/4
        ("own", "models", [1.0, 3.0, 9.0]),
        ("frozen", "models", [4.0] * 3),  # of round 0, which is before the first that is frozen
    ],
)
def test_statistics_follow_the_rule(asked, of_the_method, expected):
    models = clear(statistics=asked, frozen_from=1)
    advance(models, START + 1, rule=of_the_method)
    assert means_of(models) == expected
    assert torch.equal(models.parameters, START + 1)
    assert models.has_own_statistics == (len(set(expected)) > 1)


def test_statistics_by_weights_are_a_mean_whatever_the_weights():
    """RFFL's, not clamped, may be below 0: such an update is taken away, statistics are of the others."""
    models = clear(statistics="weights")
    weighed = outcome(START, weights=(-0.5, 1.0, 0.5))
    sent = replies_of(*MEANS)
    models.advance(0, weighed, admission_of(sent), sent)
    assert means_of(models) == [5.0] * 3  # (3 * 1 + 9 * .5) / 1.5


def test_initial_statistics_are_those_that_the_runs_network_begins_with():
    models = clear()
    advance(models, START, rule="initial")
    begun = flat.get_buffers(network())
    assert models.statistics.keys() == begun.keys()
    assert all(torch.equal(value, begun[name]) for name, value in models.statistics.items())
    assert models.shared_rows == [0, 1, 2]


def test_frozen_statistics_stay():
    models = clear(statistics="frozen", frozen_from=1)
    advance(models, START)
    advance(models, START, round=1, means=(100.0, 100.0, 100.0))
    assert means_of(models) == [4.0] * 3


def test_the_mean_is_of_those_who_are_there_and_an_absent_site_keeps_its_own():
    shared, own = clear(), clear(statistics="own")
    for models in (shared, own):
        advance(models, START)
        advance(models, START, round=1, means=(2.0, None, 4.0))
    assert means_of(shared) == [3.0] * 3
    assert means_of(own) == [2.0, 3.0, 4.0]


def test_of_a_model_of_its_own_a_site_gets_what_changed_and_after_an_absence_all():
    models = clear("cgsv")
    advance(models, START.expand(3, -1).clone())
    changed = models.parameters.clone()
    changed[0, 3] = 7.0
    changed[2, 1:4] = 5.0
    changed[1, 0] = 8.0
    advance(models, changed, round=1, means=(1.0, None, 9.0))
    sparse, whole, large = (models.task_parts(row) for row in range(3))
    assert len(sparse["parameters"]) == 0
    sparse, whole, large = sparse["changes"], whole["parameters"], large["parameters"]
    assert (sparse.indices.tolist(), sparse.values.tolist()) == ([3], [7.0])
    assert torch.equal(whole, changed[1])  # one entry changed as well, of a model that the site may not have
    assert torch.equal(large, changed[2])  # three of five entries and their places are more than the five
    assert models.digests() == [digest(row.clone()) for row in changed]
    models.replace(changed + 1)
    assert torch.equal(models.task_parts(0)["parameters"], changed[0] + 1)


def test_a_checkpoint_brings_back_what_is_sent_and_who_has_one_model(tmp_path):
    models, again = clear("cgsv"), clear("cgsv")
    advance(models, START.expand(3, -1).clone())
    changed = models.parameters.clone()
    changed[0, 3] = 7.0
    advance(models, changed, round=1)
    models.separate = [0]
    torch.save(models.content(), tmp_path / "checkpoint")
    again.restore(torch.load(tmp_path / "checkpoint"))
    assert torch.equal(again.changed, models.changed)
    assert again.task_parts(0)["changes"].values.tolist() == [7.0]
    assert (
        again.shared_rows == models.shared_rows == []
    )  # Birch and Cedar have equal models, each with its own statistics
    assert (list(again.separate), again.ended()) == ([0], models.ended())


def test_a_separate_site_has_a_final_model_of_its_own(tmp_path):
    """Alder is separate: its statistics are those it trained; the others have the mean."""
    models = clear()
    advance(models, START)
    assert models.shared_rows == [0, 1, 2]
    given = torch.stack([START + 1, START, START])
    advance(models, given, round=1, means=(5.0, 4.0, 4.0), rule="shared", withheld=[0])
    assert means_of(models) == [5.0, 4.0, 4.0]
    assert models.shared_rows == [1, 2]
    torch.save(models.content(), tmp_path / "checkpoint")
    again = clear()
    again.restore(torch.load(tmp_path / "checkpoint"))
    assert again.shared_rows == [1, 2]
    assert float(again.statistics["1.running_mean"]) == 4.0
    task = models.final_test(3, "head")
    assert (task.models.shape, task.count, task.purpose) == ((3, 5), 3, Purpose.FINAL)
    models.save(tmp_path)
    saved = {path.stem: torch.load(path, weights_only=True) for path in tmp_path.glob("*.pt")}
    assert set(saved) == {"Alder", "global"}
    assert saved["Alder"]["0.weight"].tolist() == [[2.0, 3.0]]
    assert saved["global"]["0.weight"].tolist() == [[1.0, 2.0]]
    assert [float(saved[name]["1.running_mean"]) for name in ("Alder", "global")] == [5.0, 4.0]


def test_one_model_is_tested_once_and_one_with_statistics_of_each_site_by_each():
    models = clear()
    advance(models, START)
    task = models.final_test(3, "head")
    assert (task.models.tolist(), task.count, task.ledger) == ([START.tolist()], 1, "head")
    own = clear(statistics="own")
    advance(own, START)
    task = own.final_test(3, "head")
    assert (task.models.shape, task.mixtures.tolist()) == ((1, 5), [[1.0]] * 3)
    assert [float(buffers["1.running_mean"]) for buffers in task.buffers] == [1.0, 3.0, 9.0]
    mine = own.own_model(1, 2, "validation", "head", Purpose.ROUND)
    assert (mine.models.tolist(), mine.split, mine.purpose) == ([START.tolist()], "validation", Purpose.ROUND)
    assert float(mine.buffers[0]["1.running_mean"]) == 3.0


def test_a_final_model_that_stays_with_its_site_is_not_sent():
    models = clear("ditto")
    assert models.tests_own_only
    for task in (models.final_test(3, "head"), models.own_model(1, 3, "testing", "head")):
        assert (task.models.shape, task.buffers, task.count) == ((1, 0), ({},), 1)
    assert not clear().tests_own_only


def test_a_separate_site_that_does_not_reply_keeps_the_statistics_that_it_had():
    models = clear()
    advance(models, START)
    advance(models, START.expand(3, -1), round=1, means=(None, 6.0, 7.0), rule="shared", withheld=[0, 1])
    assert means_of(models) == [4.0, 6.0, 7.0]


def test_estimated_statistics_are_averaged_where_there_is_one_model_and_kept_where_each_has_its_own():
    models = clear()
    advance(models, START)
    models.take_estimates([statistics(8.0), None, statistics(16.0)], torch.tensor([0.25, 0.5, 0.25]))
    assert means_of(models) == [12.0] * 3  # by the shares of those who said something
    assert not models.has_own_statistics
    models.separate, models.buffers[2] = [2], statistics(7.0)
    models.take_estimates([statistics(2.0), statistics(5.0), statistics(1.0)], torch.tensor([0.25, 0.5, 0.25]))
    assert means_of(models) == [4.0, 4.0, 1.0]
    models.take_estimates([None] * 3, torch.tensor([0.25, 0.5, 0.25]))
    assert means_of(models) == [4.0, 4.0, 1.0]


def test_estimated_statistics_of_sites_that_had_no_part_in_the_round_count_alike():
    """Who trained does not answer: those who do stand with no images in the round."""
    models = clear()
    advance(models, START)
    models.take_estimates([None, statistics(8.0), statistics(16.0)], torch.tensor([10.0, 0.0, 0.0]))
    assert means_of(models) == [12.0] * 3


def test_peers_models_reach_a_site_unless_they_missed_the_round():
    models = clear("cycle")
    models.replace(torch.stack([START, START + 1, START + 2]))
    weights = torch.tensor([[0.0, 0.3, 0.4], [0.0] * 3, [0.0] * 3], dtype=torch.float64)
    always = Sharing(torch.ones(3, 3, dtype=torch.float64), weights)
    peers = models.peer_parts(always, 0, 1)["peers"]
    assert {name: (peer.parameters[0].item(), peer.weight) for name, peer in peers.items()} == {
        "Birch": (2.0, 0.3),
        "Cedar": (3.0, 0.4),
    }
    models.weights = torch.tensor([0.5, torch.nan, 0.5])  # Birch missed the round
    assert set(models.peer_parts(always, 0, 1)["peers"]) == {"Cedar"}
    never = Sharing(torch.zeros(3, 3, dtype=torch.float64), weights)
    assert models.peer_parts(never, 0, 1) == {"peers": {}}
    models.separate = [0]
    assert models.peer_parts(always, 0, 1) == {"peers": {}}  # nothing of the others


def test_vectors_beside_the_model_are_the_same_for_all_or_each_sites():
    models = clear("scaffold")
    (name,) = models.vectors
    assert models.task_parts(2)["vectors"][name].tolist() == [0.0] * 5
    models.vectors = {name: torch.arange(15.0).reshape(3, 5)}
    assert models.task_parts(2)["vectors"][name].tolist() == [10.0, 11.0, 12.0, 13.0, 14.0]


def test_ciphertexts_are_refused_where_models_are_in_the_clear():
    sealed = Ciphertexts((b"u",), (b"s",))
    fine, sent = replies_of(1.0, 1.0, None, ciphertexts=(None, sealed, None))[:2]
    assert clear().check_message(fine) is None
    assert clear().check_message(sent) == "ciphertexts, expected the update in the clear"


def test_different_models_are_not_one_whichever_sites_are_separate():
    models = clear()
    advance(models, START)
    models.separate = [0]
    models.replace(torch.stack([START, START, START + 1]))
    assert models.shared_rows == []
    models.separate = [0, 1, 2]
    assert models.shared_rows == []


def test_a_server_without_models_sends_none_and_says_whom_to_ask():
    models = ModelsAtSites(tiny_plan("cycle", exchange="peer", warmup_by="own"), network(), SITES)
    parts = models.task_parts(0)
    assert (parts["parameters"].shape, parts["buffers"]) == ((0,), {})
    weights = torch.tensor([[0.1, 0.2, 0.3]] * 3, dtype=torch.float64)
    sharing = Sharing(torch.zeros(3, 3, dtype=torch.float64), weights)
    assert models.peer_parts(sharing, 1, 2) == {"others": {"Alder": 0.1, "Cedar": 0.3}}
    assert models.digests() == [models.ended()] * 3 == [digest(torch.empty(0))] * 3
    assert models.tests_own_only
    assert models.final_test(5, "head").models.shape == (1, 0)
    assert Models(models.config, network(), SITES).peer_parts(sharing, 1, 2) == {}


@pytest.fixture
def added(monkeypatch):
    """What was added up, by an adder that joins the bytes."""
    calls = []

    def add(total, sent, weights, shares):
        calls.append((weights, shares))
        return Ciphertexts((b"+".join([total.update[0] if total else b"0", *(one.update[0] for one in sent)]),), (b"",))

    def build(context, parameters, buffers):
        assert (context, parameters, len(buffers)) == (b"context", 5, 3)
        return SimpleNamespace(add=add, fault=lambda sent: None if sent else "not encrypted")

    monkeypatch.setattr(encryption, "Adder", build)
    return calls


def test_ciphertexts_of_those_who_are_there_are_added_to_the_sum(added):
    config = tiny_plan()
    models = build_models(config, capabilities(config.build_method()), network(), SITES, b"context")
    assert isinstance(models, EncryptedModels)
    assert models.task_parts(0)["ciphertexts"] is None
    sent = [Ciphertexts((name,), (b"",)) for name in (b"a", b"b", b"c")]
    given = outcome(torch.empty(0))
    for number, means in enumerate([(1.0, 1.0, 1.0), (1.0, None, 1.0)]):
        replies = replies_of(*means, ciphertexts=sent)
        models.advance(number, given, admission_of(replies), replies)
    assert models.total.update == (b"0+a+b+c+a+c",)
    assert added == [([0.5, 0.25, 0.25], [0.25, 0.5, 0.25]), ([0.5, 0.25], [0.5, 0.5])]
    parts = models.task_parts(2)
    assert (parts["parameters"].shape, parts["buffers"], parts["ciphertexts"]) == ((0,), {}, models.total)
    assert models.digests() == [models.ended()] * 3 == [models.total.digest] * 3
    assert models.final_test(3, "head").ciphertexts == models.total
    assert not models.tests_own_only
    with_one, without = replies_of(1.0, 1.0, None, ciphertexts=(sent[0], None, None))[:2]
    assert (models.check_message(with_one), models.check_message(without)) == (None, "not encrypted")


def test_a_checkpoint_brings_back_the_sum(added, tmp_path):
    models, again = (EncryptedModels(tiny_plan(), network(), SITES, b"context") for _ in range(2))
    again.restore(models.content())
    assert again.total is None
    models.total = Ciphertexts((b"u", b"v"), (b"s",))
    torch.save(models.content(), tmp_path / "checkpoint")
    again.restore(torch.load(tmp_path / "checkpoint", weights_only=True))
    assert again.total == models.total
