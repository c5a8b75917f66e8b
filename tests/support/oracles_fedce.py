"""Readers of the worked numbers of FedAvg and FedCE."""

import math

import torch
from oracles import assert_equal, contains, everyone, tensor

from fedmerit.contract.capabilities import OwnUpdate
from fedmerit.contract.method import Layout, SiteView
from fedmerit.methods.fedavg import FedAvg
from fedmerit.methods.fedce import FedCE, minus_model
from fedmerit_lab.methods.fedce_nvflare import FedCENVFlare


def reports(samples, cosine=None, minus_error=None):
    unknown = torch.full((len(samples),), math.nan, dtype=torch.float64)
    values = {
        "cosine": unknown if cosine is None else tensor(cosine),
        "minus_error": unknown if minus_error is None else tensor(minus_error),
    }
    return everyone(samples, values)


def stand_in_dice(centre):
    """1 / (1 + ||w - c||²), a Dice with a formula."""
    return lambda model: 1 / (1 + float((model - tensor(centre)).square().sum()))


def check_fedce_at_sites(content, combine):
    """Every round: the sites' claims from what they hold, then the server's weights and model."""
    config, method = content["config"], FedCE(combine=combine)
    state = method.start(tensor(config["w0"]), len(config["n"]), Layout.of(len(config["w0"])))
    received, before, trained = tensor(config["w0"]), None, None
    for round, updates in zip(content[combine], content["updates"], strict=True):
        what = f"round {round['round']}"
        assert_equal(received, round["w_received"], what)
        cosine = minus_error = None
        if round["cosine"] is not None:
            cosine, minus_error = [], []
            for i, weight in enumerate(round["rho_received"]):
                dice = stand_in_dice(config["centres"][i])
                own = OwnUpdate(before, trained[i], weight, dice)
                claims = method.measure(SiteView(received, lambda: torch.zeros(1)), own)
                cosine.append(claims["cosine"])
                minus_error.append(claims["minus_error"])
                assert_equal(minus_model(received, trained[i], weight), round["minus_model"][i], what)
            assert_equal(cosine, round["cosine"], what)
            assert_equal(minus_error, round["minus_error"], what)
            assert_equal(state.cosine, round["cosine"], what)  # as the server computes it
        state, outcome = method.round(state, tensor(updates), reports(config["n"], cosine, minus_error))
        if cosine is not None:
            assert_equal(outcome.contribution, round["gamma"], what)
            assert_equal(state.gamma_accumulated, round["gamma_accumulated"], what)
            assert not outcome.quantities["flagged"].any()
        assert_equal(outcome.weights, round["weights"], what)
        assert_equal(outcome.models, round["w_next"], what)
        received, before, trained = outcome.models, received, received + tensor(updates)


def check_fedce_at_server(content, entry):
    """The rule of NVFlare 2.9's aggregator; nobody has a minus model in round 0."""
    config, method = content["config"], FedCENVFlare(entry.removeprefix("nvflare_2_9_"))
    state = method.start(tensor(config["w0"]), len(config["n"]), Layout.of(len(config["w0"])))
    received, trained = tensor(config["w0"]), None
    for round, updates in zip(content[entry], content["updates"], strict=True):
        what = f"round {round['round']}"
        assert_equal(received, round["w_received"], what)
        minus_error = None if round["minus_model"][0] is None else [1 - dice for dice in round["minus_dice"]]
        if minus_error:
            for i, weight in enumerate(round["coef_received"]):
                without = minus_model(received, trained[i], weight)
                assert_equal(without, round["minus_model"][i], what)
                assert abs(stand_in_dice(config["centres"][i])(without) - round["minus_dice"][i]) < 1e-6
        state, outcome = method.round(state, tensor(updates), reports(config["n"], minus_error=minus_error))
        assert_equal(outcome.quantities["cosine"], round["cos_sim"], what)
        assert_equal(state.minus_error_mean, round["err_score"], what)
        assert_equal(1 - state.cosine_mean, round["one_minus_mean_cos"], what)
        assert_equal(outcome.weights, round["coef"], what)
        assert_equal(outcome.models, round["w_next"], what)
        received, trained = outcome.models, received + tensor(updates)


def check_fedavg(content, _):
    method = FedAvg()
    state = method.start(tensor(content["w0"]), len(content["n"]), Layout.of(len(content["w0"])))
    _, outcome = method.round(state, tensor(content["delta"]), reports(content["n"]))
    assert_equal(outcome.weights, content["p"], "weights")
    assert_equal(outcome.models, content["FedAvg"]["server_w"], "model")


def at_sites(content, key):
    return isinstance(content.get(key), list) and {"rho_received", "cosine", "minus_error"} <= set(content[key][0])


READERS = [  # method, whether a file's entry is what is read here, its name, how it is compared
    *(("fedce", at_sites, combine, check_fedce_at_sites) for combine in ("times", "plus")),
    *(("fedce", contains, f"nvflare_2_9_{combine}", check_fedce_at_server) for combine in ("times", "plus")),
    ("fedavg", contains, "FedAvg", check_fedavg),
]
