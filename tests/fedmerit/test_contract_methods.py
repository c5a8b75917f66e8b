"""The four methods of `contract_methods`, where no worked number says it (those are in methods/oracles_further.py)."""

import pytest
import torch
from contract_methods import CONTRACT_METHODS, SCAFFOLD, Ditto, SiloBN, register

from fedmerit.capabilities.local_training import Trained, TrainingView
from fedmerit.configuration.run import TASKS, make_configuration
from fedmerit.core import Layout, Reports
from fedmerit.errors import BadInput
from fedmerit.methods.fedavg import FedAvg
from fedmerit.methods.registry import METHODS


@pytest.fixture
def known(monkeypatch):
    """The methods by name, in this test."""
    for name, kind in CONTRACT_METHODS.items():
        monkeypatch.setitem(METHODS, name, kind)


def test_silobn_is_fedavg_with_statistics_of_each_sites_own():
    updates, samples = torch.tensor([[1.0, 2.0], [5.0, 0.0]]), torch.tensor([1.0, 3.0]).double()
    reports = Reports(samples, torch.ones(2, dtype=torch.bool))
    ours, theirs = (
        method.round(method.start(torch.zeros(2), 2, Layout.of(2)), updates, reports)[1]
        for method in (SiloBN(), FedAvg())
    )
    assert (ours.statistics, theirs.statistics) == ("own", "shared")
    assert torch.equal(ours.models, theirs.models)


def test_scaffold_counts_absent_sites_in_the_control():
    """c ← c + |S|/N mean over S."""
    method = SCAFFOLD()
    state = method.start(torch.zeros(1), 4, Layout.of(1))
    here = torch.tensor([True, True, False, False])
    sent = {"control": torch.tensor([[1.0], [3.0], [0.0], [0.0]])}
    reports = Reports(torch.ones(4).double(), here, vectors=sent)
    state, outcome = method.round(state, torch.tensor([[2.0], [4.0], [0.0], [0.0]]), reports)
    assert state.control.tolist() == outcome.vectors["control"].tolist() == [1.0]
    assert outcome.models.tolist() == [3.0]


def test_ditto_goes_on_from_its_own_model_and_statistics():
    given = []

    def train(start, buffers=None, penalty=None, shift=None):
        given.append((start.tolist(), buffers))
        return Trained(start + 1, {"mean": torch.tensor(len(given))}, 0.0, 1, 0.1)

    received, own = {"mean": torch.tensor(0)}, None
    for model in (0.0, 10.0):
        made = Ditto().train(TrainingView(torch.tensor([model]), received, {}, {}, own, train)).own
        own = made.parameters, made.buffers
    assert given == [
        ([0.0], None),
        ([0.0], received),
        ([10.0], None),
        ([1.0], {"mean": torch.tensor(2)}),
    ]


def test_scaffold_takes_sgd_alone(known):
    with pytest.raises(BadInput, match=r"optimizer=adam: method scaffold .*sgd"):
        make_configuration("scaffold", "prostate", 3, 0, TASKS["prostate"], {})
    made = make_configuration("scaffold", "prostate", 3, 0, TASKS["prostate"], {"optimizer": "sgd"})
    assert made.build_method() == SCAFFOLD()
    assert make_configuration("fedprox", "prostate", 3, 0, TASKS["prostate"], {"mu": "0.1"}).parameters == {"mu": 0.1}


def test_they_can_be_registered(monkeypatch):
    methods = dict(METHODS)
    monkeypatch.setattr("contract_methods.METHODS", methods)
    register()
    assert methods["ditto"] is Ditto
