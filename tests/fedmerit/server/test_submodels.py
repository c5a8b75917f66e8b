"""Neurons that sites hold: layout, importance before a round, submodels, checkpoints, whole runs."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from measured import rows
from stepping import Stepped as Federation
from torch import nn

from fedmerit.contract import flat
from fedmerit.contract.method import Layout
from fedmerit.contract.vectors import parameter_mask
from fedmerit.errors import RunFailed
from fedmerit.schema.configuration.run import RunConfiguration, make_configuration
from fedmerit.schema.configuration.settings import TASKS
from fedmerit.schema.expected import check_importance
from fedmerit.schema.messages import Evaluated, Failure, Importance, ImportanceTask, Reply, Task, payload_bytes
from fedmerit.schema.records import EVALUATE, TRAIN
from fedmerit.schema.results import read_results
from fedmerit.schema.run_info import read_run
from fedmerit.schema.scores import SERVER_SPLIT, Overlap
from fedmerit.schema.site_folder import open_sites
from fedmerit.server.checkpoint import is_finished
from fedmerit.server.submodels import Submodels
from fedmerit.site.site import Site
from fedmerit.trainers.factory import initial_network, load_network, read_layout
from fedmerit.trainers.monai import neurons
from fedmerit.trainers.monai.neurons import loss_increases
from fedmerit.trainers.monai.samples import Slices


class Embedded(nn.Module):
    """As a network of others may be: it takes images of one size only."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(1, 4, 1)
        self.places = nn.Parameter(torch.zeros(4, 128, 128))
        self.head = nn.Conv2d(4, 1, 1)

    def forward(self, images):
        return self.head(self.embed(images) + self.places)


def test_no_image_is_sent_through_a_network_whose_neurons_nobody_allocates():
    layout = read_layout(Embedded())
    assert (layout.owners == -1).all()
    assert layout.owners.shape == (sum(layout.tensor_sizes),)


def test_a_network_without_convolutions_has_no_neurons():
    network = nn.Linear(3, 2)
    assert (read_layout(network, with_neurons=True).owners == -1).all()
    assert read_layout(network).outputs.numel() == 0


SITES = ("Alder", "Birch", "Cedar")
NAMES = ["site1", "site2", "site3"]
SETTINGS = ("contributions=0.5,0.8,0.7", "importance_interval=2")
GIVEN = dict(setting.split("=") for setting in SETTINGS)


def tiny_plan(rounds: int = 4, **settings: Any) -> RunConfiguration:
    network = {"architecture": "unet", "width": 2, "depth": 2, "residual_units": 0}
    config = make_configuration("fedsac", "prostate", rounds, 0, TASKS["prostate"], network | GIVEN | settings)
    return replace(config, share_models=True)


NETWORK = initial_network(tiny_plan().network, 0)
SIZE, COUNT = flat.get_parameters(NETWORK).numel(), neurons.count(NETWORK)
OWNERS = neurons.owners(NETWORK)


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


def increases_of(site: str, round: int = 0) -> torch.Tensor:
    random = torch.Generator().manual_seed(10 * round + SITES.index(site))
    return torch.rand(COUNT, generator=random, dtype=torch.float64)


def importances(federation: Federation, **other: Any) -> dict[str, Any]:
    """Alder has one image, Birch two, Cedar three."""
    return {
        site: Importance(federation.round, increases_of(site, federation.round), 1 + place)
        for place, site in enumerate(federation.tasks())
    } | other


def replies(federation: Federation) -> dict[str, Reply]:
    answers = {}
    for place, (site, task) in enumerate(federation.tasks().items()):
        assert isinstance(task, Task)
        update = 0.01 * torch.randn(SIZE, generator=torch.Generator().manual_seed(100 * federation.round + place))
        buffers = {name: value + 1 + place for name, value in task.buffers.items()}
        overlaps = (Overlap("000", "prostate", 5, 2, 1),)
        answers[site] = Reply(federation.round, update, buffers, 10 * (place + 1), overlaps)
    return answers


def same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


SPOILED = {
    "none": (Failure("asleep"), "asleep"),
    "another kind": (Reply(0, torch.zeros(SIZE), {}, 1, ()), "no answer to the task (Reply)"),
    "another round": (Importance(1, increases_of("Alder"), 1), "Importance.round: 1, expected 0"),
    "too few": (Importance(0, increases_of("Alder")[1:], 1), "shape"),
    "NaN": (Importance(0, increases_of("Alder") * float("nan"), 1), "NaN or infinite"),
    "too much": (Importance(0, increases_of("Alder") + 2, 1), "beyond 1.00001 an image"),
    "too many images": (Importance(0, increases_of("Alder"), 17), "Importance.images: 17, expected at most"),
}


@pytest.mark.parametrize("spoiled", SPOILED)
def test_importance_that_cannot_be_is_not_used(run, spoiled):
    answer, reported = SPOILED[spoiled]
    federation = Federation(tiny_plan(), SITES, run)
    task = federation.tasks()["Birch"]
    assert reported in check_importance(answer, task, COUNT)
    others = importances(federation)
    federation.take(others | {"Birch": answer})
    without = federation.submodels.held
    assert federation.work == TRAIN
    federation.take(replies(federation))
    rejected = federation.recorder.ledger.records[0]["rejected"]
    assert list(rejected) == ["Birch"]
    assert rejected["Birch"].startswith("importance of neurons: ")
    assert list(federation.recorder.ledger.records[0]["participants"]) == list(SITES)  # its update counts
    expected = (others["Alder"].increases + others["Cedar"].increases) / (1 + 3)
    state = federation.method.allocate(federation.state, expected)
    assert torch.equal(state[2], without)


def test_sites_rate_the_importance_of_neurons_before_a_round_and_then_train_submodels(run):
    federation = Federation(tiny_plan(), SITES, run)
    start = federation.models.parameters
    work = []
    while federation.training:
        work.append((federation.round, federation.work))
        tasks = federation.tasks()
        assert set(tasks) == set(SITES)
        if federation.work == EVALUATE:
            for task in tasks.values():
                assert (task.round, task.split, task.order, task.images) == (
                    federation.round,
                    SERVER_SPLIT,
                    "exact",
                    16,
                )
                assert federation.round or torch.equal(task.model, start)
                assert torch.equal(task.model, federation.state.model)
            federation.take(importances(federation))
        else:
            for row, task in enumerate(tasks.values()):
                assert torch.equal(task.neurons, federation.submodels.held[row])
                held, sent = parameter_mask(task.neurons, OWNERS), federation.models.parameters[row]
                assert not sent[~held].any()
                assert torch.equal(sent[held], federation.state.model[held])
            assert tasks["Birch"].neurons.all()
            assert tasks["Alder"].neurons.sum() < tasks["Cedar"].neurons.sum() < COUNT
            federation.take(replies(federation))
    assert work == [(0, EVALUATE), (0, TRAIN), (1, TRAIN), (2, EVALUATE), (2, TRAIN), (3, TRAIN)]
    results = read_results(run).query("split == ''")
    held = results.query("quantity == 'neuron_share'").pivot(index="round", columns="site", values="value")
    assert (held["Birch"] == 1).all()
    assert (held["Alder"] < held["Cedar"]).all()
    received = results.query("quantity == 'bytes_received'").pivot(index="round", columns="site", values="value")
    task = payload_bytes(Task(0, start, flat.get_buffers(NETWORK), neurons=torch.ones(COUNT, dtype=torch.bool)))
    asking = payload_bytes(Task(0, start, flat.get_buffers(NETWORK)))
    assert received["Birch"].tolist() == [task + asking, task, task + asking, task]


def test_importance_task_that_nobody_answers_can_be_repeated(run):
    federation = Federation(tiny_plan(), SITES, run)
    with pytest.raises(RunFailed, match=r"round 0: no site sent a usable importance of neurons.*Alder.*asleep"):
        federation.take(dict.fromkeys(SITES, Failure("asleep")))
    again = Federation(tiny_plan(), SITES, run)
    assert again.work == EVALUATE
    again.take(importances(again))
    assert again.work == TRAIN


def test_a_run_continues_from_its_last_importances(run, tmp_path):
    """With the submodels, and with what asking for importances cost and who failed in it."""
    one = Federation(tiny_plan(), SITES, run)
    whole = Federation(tiny_plan(), SITES, tmp_path / "whole")
    for federation in (one, whole):
        federation.take(importances(federation, Birch=Failure("asleep")))
    one = Federation(tiny_plan(), SITES, run)
    assert one.work == TRAIN
    while whole.training:
        for federation in (one, whole):
            federation.take(importances(federation) if federation.work == EVALUATE else replies(federation))
        one = Federation(tiny_plan(), SITES, run)
        assert (one.round, one.work) == (whole.round, whole.work)
        assert torch.equal(one.models.parameters, whole.models.parameters)
        assert torch.equal(one.submodels.held, whole.submodels.held)
        assert all(map(same, one.models.buffers, whole.models.buffers))
    ours, theirs = (rows(folder) for folder in (run, tmp_path / "whole"))
    assert ours == theirs
    assert one.recorder.ledger.records[0]["rejected"] == whole.recorder.ledger.records[0]["rejected"] != {}


def test_after_rounds_only_all_start_again(run):
    federation = Federation(tiny_plan(contributions="", standalone_rounds=2), SITES, run)
    first, model = federation.models.buffers[0], federation.models.parameters
    for _ in range(2):
        assert federation.work == TRAIN
        assert all(task.neurons is None for task in federation.tasks().values())
        federation.take(replies(federation))
        if federation.round == 1:
            own = [{name: value + 1 + row for name, value in first.items()} for row in range(3)]
            assert all(map(same, federation.models.buffers, own))
    candidates = federation.tasks()["Alder"]
    overlaps = tuple((Overlap("000", "prostate", tp, 0, 100 - tp),) for tp in (30, 60, 50))
    federation.take(dict.fromkeys(SITES, Evaluated(1, overlaps, torch.zeros(3, 0))))
    assert len(candidates.mixtures) == 3
    assert all(same(buffers, first) for buffers in federation.models.buffers)
    assert federation.models.parameters.tolist() == [model.tolist()] * 3
    assert federation.state.contribution.tolist() == pytest.approx([60 / 130, 120 / 160, 100 / 150])
    assert (federation.round, federation.work) == (2, EVALUATE)
    assert isinstance(federation.tasks()["Alder"], ImportanceTask)


@pytest.fixture(scope="module")
def finished(trained, server_sites_data):
    def build(*settings: str, **changes: Any) -> Any:
        return trained(*SETTINGS, *settings, **{"method": "fedsac", "sites": server_sites_data, **changes})

    return build


def test_what_sites_send_and_get_is_zero_where_they_hold_nothing(finished):
    run = finished()
    checkpoint = torch.load(run / "checkpoint.pt", weights_only=True)
    config = RunConfiguration.from_dict(read_run(run)["plan"])
    network = initial_network(config.network, config.seed)
    held = parameter_mask(checkpoint["neurons"], neurons.owners(network))
    assert held[1].all()
    assert not held[0].all()
    for row, name in enumerate(NAMES):
        memory = torch.load(run / "sites" / name / "round_00002.pt", weights_only=True)
        final = flat.get_parameters(load_network(run / "models", name))
        for model in (memory["received"], memory["trained"], final):
            assert not model[~held[row]].any()
        assert (memory["trained"] != memory["received"])[held[row]].any()
        assert torch.equal(final[held[row]], checkpoint["state"]["model"][held[row]])


@pytest.mark.slow
def test_importance_is_computed_on_images_spread_over_the_server_split(finished, server_sites_data, tmp_path):
    run = finished()
    config = RunConfiguration.from_dict(read_run(run)["plan"])
    network = initial_network(config.network, config.seed).to(memory_format=torch.channels_last)
    total, images = torch.zeros(neurons.count(network), dtype=torch.float64), 0
    for folder in open_sites(server_sites_data):
        slices = Slices(folder.cases(SERVER_SPLIT))
        count = min(16, len(slices))
        chosen = [slices[int(place)] for place in np.floor(np.arange(count) * len(slices) / count)]
        total += loss_increases(network, chosen, "exact")
        images += count
    federation = Federation(config, NAMES, tmp_path / "run")
    _, _, held = federation.method.allocate(federation.state, total / images)
    for row, name in enumerate(NAMES):  # the submodels of the first two rounds
        received = torch.load(run / "sites" / name / "round_00001.pt", weights_only=True)["received"]
        mask = parameter_mask(held[row], neurons.owners(network))
        assert not received[~mask].any()
        assert (received[mask] != 0).double().mean() > 0.99


@pytest.mark.slow
def test_the_server_computes_importance_on_its_own_images_where_it_has_any(finished, server_sites_data, monkeypatch):
    monkeypatch.setattr(Site, "measure_importance", lambda *_: pytest.fail("a site was asked"))
    run = finished(**{"server-sites": server_sites_data.parent / "server"})
    assert is_finished(run, 3)
    held = read_results(run).query("quantity == 'neuron_share' and round == 0")["value"].tolist()
    assert held[0] < held[2] < held[1] == 1


def test_statistics_of_neuron_are_mean_of_sites_that_hold_it():
    owners = {
        "hidden.running_mean": torch.tensor([0, 1, 2], dtype=torch.int32),
        "last.running_mean": torch.tensor([-1], dtype=torch.int32),
        "hidden.num_batches_tracked": torch.tensor(-1, dtype=torch.int32),
    }
    before = {"hidden.running_mean": torch.full((3,), 9.0), "last.running_mean": torch.zeros(1)}
    before["hidden.num_batches_tracked"] = torch.tensor(0)
    buffers = [
        {
            "hidden.running_mean": torch.tensor([1.0, 2.0, 3.0]) * site,
            "last.running_mean": torch.tensor([float(site)]),
            "hidden.num_batches_tracked": torch.tensor(site),
        }
        for site in (1, 2, 4)
    ]
    shares = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    held = torch.tensor([[True, True, False], [False, True, False], [True, True, False]])
    submodels = Submodels(None, replace(Layout.of(1), buffer_owners=owners))
    submodels.held, present = held, torch.tensor([True, True, True])
    mean = submodels.average_statistics(buffers, shares, present, before)
    first, all_three = (0.5 * 1 + 0.2 * 4) / 0.7, 0.5 * 1 + 0.3 * 2 + 0.2 * 4
    assert mean["hidden.running_mean"].tolist() == pytest.approx([first, 2 * all_three, 9.0])
    assert mean["last.running_mean"].tolist() == pytest.approx([all_three])
    assert int(mean["hidden.num_batches_tracked"]) == 4
    submodels.held = torch.ones_like(held)
    every = submodels.average_statistics(buffers, shares, present, before)
    for name, value in flat.average_buffers(buffers, shares).items():
        assert torch.equal(value, every[name])
