"""Readers of the worked numbers of what is beyond the five papers: other baselines, and mends of their rules."""

import torch
from oracles import assert_equal, contains, tensor
from quadratics import played
from torch import nn
from torch.utils.data import TensorDataset

from fedmerit.contract import flat
from fedmerit.contract.rewards import Reward
from fedmerit.contract.vectors import aggregate
from fedmerit.methods.fedave import sampling_divergence
from fedmerit.methods.fedavg import BETA1, BETA2, FedAdam, FedAvgM
from fedmerit.methods.proximal import Ditto, FedProx
from fedmerit.methods.scaffold import SCAFFOLD
from fedmerit.trainers.monai.evaluation import estimate_statistics


def rounds_of(method, content):
    """Every round's outcome, the sites' results, the state after it, and what was expected."""
    for (updates, outcome, results, state), expected in zip(played(method, content), content["trace"], strict=True):
        assert_equal(updates, expected["updates"], "updates")
        assert_equal(outcome.models, expected["model"], "model")
        yield outcome, results, state, expected


def check_fedprox(content, entry):
    assert len(list(rounds_of(FedProx(content[entry]["mu"]), content[entry]))) == content[entry]["rounds"]


def check_fedavgm(content, entry):
    given = content[entry]
    for _, _, state, expected in rounds_of(FedAvgM(given["beta"]), given):
        assert_equal(state.momentum, expected["m"], "m")


def check_fedadam(content, entry):
    given = content[entry]
    assert (given["beta1"], given["beta2"]) == (BETA1, BETA2)
    for _, _, state, expected in rounds_of(FedAdam(given["eta"], given["tau"]), given):
        assert_equal(state.m, expected["m"], "m")
        assert_equal(state.v, expected["v"], "v")


def check_scaffold(content, entry):
    for outcome, results, _, expected in rounds_of(SCAFFOLD(), content[entry]):
        assert_equal(outcome.vectors["control"], expected["c"], "c")
        assert_equal(torch.stack([result.kept["control"] for result in results]), expected["c_sites"], "c_i")


def check_ditto(content, entry):
    for _, results, _, expected in rounds_of(Ditto(content[entry]["lambda_"]), content[entry]):
        assert_equal(torch.stack([result.own.parameters for result in results]), expected["personal"], "v_i")


def check_recalibrated(content, entry):
    """Each site one pass over its inputs, in one batch; then the mean over sites by data share."""
    given = content[entry]
    buffers = []
    for inputs, mean, variance in zip(given["inputs"], given["site_mean"], given["site_var"], strict=True):
        network = nn.Sequential(nn.BatchNorm1d(len(mean))).double()
        rows = tensor(inputs)
        estimate_statistics(network, TensorDataset(rows, torch.zeros(len(rows))))
        buffers.append(flat.get_buffers(network))
        assert_equal(buffers[-1]["0.running_mean"], mean, "site_mean")
        assert_equal(buffers[-1]["0.running_var"], variance, "site_var")
    shared = flat.average_buffers(buffers, tensor(given["share"]))
    assert_equal(shared["0.running_mean"], given["mean"], "mean")
    assert_equal(shared["0.running_var"], given["var"], "var")


def check_unrewarded(content, entry):
    """The sum by images, of which each site gets the entries that it earns, and keeps its own elsewhere."""
    given = content[entry]
    models, updates, quota = (tensor(given[name]) for name in ("models", "updates", "quota"))
    images = tensor(given["num_samples"])
    total = aggregate(torch.zeros_like(updates[0]), images / images.sum(), updates)
    assert_equal(total, given["aggregate"], "aggregate")
    reward = Reward(total, quota, own=updates)
    assert_equal(reward.masks.double(), given["masks"], "masks")
    assert_equal(reward.add_to(models), given["result"], "result")


def check_kl_floor(content, entry):
    given = content[entry]
    found = sampling_divergence(tensor([given["n_site"]]), tensor([given["n_server"]]), given["bins"])
    assert_equal(found, [given["floor"]], "floor")


READERS = [  # method, whether a file's entry is what is read here, its name, how it is compared
    ("fedprox", contains, "fedprox", check_fedprox),
    ("fedavgm", contains, "fedavgm", check_fedavgm),
    ("fedadam", contains, "fedadam", check_fedadam),
    ("scaffold", contains, "scaffold", check_scaffold),
    ("ditto", contains, "ditto", check_ditto),
    ("statistics", contains, "recalibrated", check_recalibrated),
    ("eci", contains, "unrewarded_own", check_unrewarded),
    ("fedave", contains, "kl_floor", check_kl_floor),
]
