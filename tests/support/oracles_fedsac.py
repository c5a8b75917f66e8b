"""FedSAC's worked numbers: importance, submodels, masked updates, aggregation by count."""

import torch
from oracles import assert_equal, contains, everyone, tensor
from torch import nn

from fedmerit.contract.method import Layout
from fedmerit.methods.fedsac import FedSAC, percentages, reputations
from fedmerit.trainers.monai import neurons


def find_network(content):
    """The oracle's net as convolutions of single pixels: ReLU neurons, then the read-out that makes the logits."""
    hidden, readout = nn.Conv2d(2, content["H"], 1), nn.Conv2d(content["H"], 1, 1)
    rows = tensor(content["theta_g"])
    values = (rows[:, :2], rows[:, 2], tensor(content["readout"]), tensor([content["bias_out"]]))
    network = nn.Sequential(hidden, nn.ReLU(), readout).double()
    with torch.no_grad():
        for parameter, value in zip(network.parameters(), values, strict=True):
            parameter.copy_(value.reshape(parameter.shape))
    return network


def check_importance(content, _):
    points, labels = tensor(content["V"]).T, tensor(content["y"])
    image = (points.reshape(2, -1, 1), labels.reshape(1, -1, 1))
    increases = neurons.loss_increases(find_network(content), [image], "exact")
    assert_equal(increases, content["dL"], "dL")
    assert_equal(percentages(increases), content["pct"], "pct")


def played(content, aggregation):
    """Submodels and the round after them, of sites with one image each."""
    method = FedSAC(content["beta"], tuple(content["c"]), aggregation=aggregation)
    model, n = tensor(content["theta_g"]).flatten(), len(content["c"])
    owners = torch.arange(content["H"], dtype=torch.int32).repeat_interleave(3)
    state = method.start(model, n, Layout((len(model),), owners))
    assert torch.equal(method.importance_request(state).model, model)
    state, models, held = method.allocate(state, tensor(content["dL"]))
    assert method.importance_request(state) is None
    return method.round(state, tensor(content["update"]).flatten(1), everyone([1] * n))[1], models, held


def check_round(content, _):
    outcome, models, held = played(content, "count")
    assert_equal(tensor(content["dL"]).argsort(stable=True), content["order"], "order")
    assert_equal(reputations(tensor(content["c"]), content["beta"]), content["r"], "r")
    assert_equal(100 * outcome.reputation, content["r"], "reputation")
    assert_equal(outcome.contribution, content["c"], "contribution")
    assert_equal(held.double(), content["masks"], "masks")
    assert_equal(models.reshape(3, -1, 3), content["submodel"], "submodel")
    assert_equal(outcome.models[2].reshape(-1, 3), content["theta_g_next"], "model of the site that holds all")
    assert_equal(outcome.models.reshape(3, -1, 3), content["client_final"], "models")
    parts = tensor(content["masks"]) / tensor(content["freq"])
    assert_equal(outcome.weights, parts.mean(dim=1).tolist(), "weights")
    assert_equal(outcome.quantities["neuron_share"], tensor(content["masks"]).mean(dim=1).tolist(), "neuron_share")


def check_plain(content, entry):
    outcome, _, _ = played(content, "plain")
    assert_equal(outcome.models[2].reshape(-1, 3), content[entry], "model of the site that holds all")


READERS = [  # method, whether a file's entry is what is read here, its name, how it is compared
    ("fedsac", contains, "dL", check_importance),
    ("fedsac", contains, "theta_g_next", check_round),
    ("fedsac", contains, "wrong_divide_by_N", check_plain),
]
