"""Readers of the worked numbers of CGSV, RFFL and the baselines that CGSV's paper compares with."""

from dataclasses import replace

import torch
from oracles import assert_equal, contains, everyone, tensor

from fedmerit.contract.games import cosine_game, shapley
from fedmerit.contract.method import Layout
from fedmerit.contract.vectors import cosine_to_sum, gram, keep_largest, quota_counts, remember
from fedmerit.methods.cgsv import CGSV, FLOOR
from fedmerit.methods.rffl import RFFL
from fedmerit_lab.methods.xu_baselines import DataWeighted, Euclidean, RoundRobin, distances_to_sum


def single(method, update):
    """What one site gets in one round of its own, from 0."""
    update = tensor([update])
    state = method.start(torch.zeros_like(update[0]), 1, Layout.of(update.shape[1]))
    return method.round(state, update, everyone([1.0]))[1].models.flatten()


def started(method, config):
    sizes = [stop - start for start, stop in config["layers"]]
    return method.start(tensor(config["w0"]), len(config["n"]), Layout.of(*sizes))


def check_cgsv(content, mode):
    """Every round; the server's model is what reward="global" gives, since no reputation depends on the models."""
    config = content["config"]
    mask = "global" if mode == "resolved" else "per_tensor"
    assert config["clamp_min"] == FLOOR
    method = CGSV(config["alpha"], config["beta"], config["Gamma"], mask=mask)
    at_server = replace(method, reward="global")
    state, server = started(method, config), started(at_server, config)
    for round, updates in zip(content[mode], content["deltas"], strict=True):
        what, before, server_before = f"round {round['round']}", state, server
        state, outcome = method.round(state, tensor(updates), everyone(config["n"]))
        server, _ = at_server.round(server, tensor(updates), everyone(config["n"]))
        for update, normalised in zip(updates, round["u"], strict=True):
            assert_equal(single(at_server, update), normalised, what)
        assert_equal(outcome.weights, round["agg_weights"], what)
        assert_equal(server.models - server_before.models, round["u_N"], what)
        assert_equal(server.models, round["server_w"], what)
        assert_equal(outcome.contribution, round["psi"], what)
        assert_equal(outcome.quantities["cosine"], round["psi"], what)
        memory = remember(before.reputation, outcome.contribution, method.alpha, torch.tensor(True))
        assert_equal(memory, round["r_ema"], what)
        assert_equal(memory.clamp(min=FLOOR), round["r_clamped"], what)
        assert_equal(outcome.reputation, round["r"], what)
        assert_equal(outcome.quantities["quota"], round["tanh_ratio"], what)
        if round["q"] is not None:
            check_quota(outcome.quantities["quota"], tensor(round["u_N"]), round, what)
        assert_equal(outcome.models - before.models, round["reward_v"], what)
        assert_equal(tensor(round["mask"]) * tensor(round["u_N"]), round["reward_v"], what)
        assert_equal(outcome.models, round["client_w"], what)


def check_quota(quota, update, round, what):
    """The number of entries of the update that each site gets, and which."""
    counts = quota_counts(quota, len(update))
    assert counts == round["q"], what
    assert_equal(keep_largest(update, counts), round["mask"], what)


def check_exact_round(content, entry):
    """All coalitions of round 1, and the Shapley values of the round itself."""
    expected, config = content[entry], content["config"]
    products, weights = gram(tensor(expected["u"])), tensor(expected["r"])
    utilities = cosine_game(products, weights)
    for name, utility in expected["v_of_subsets"].items():
        coalition = 0 if name == "empty" else sum(1 << int(site) for site in name.split(","))
        assert_equal(utilities[coalition], utility, name)
    assert len(utilities) == len(expected["v_of_subsets"])
    assert_equal(shapley(utilities), expected["phi"], entry)
    assert_equal(cosine_to_sum(products, weights), expected["psi"], entry)
    assert_equal(weights @ tensor(expected["u"]), expected["u_N"], entry)
    method = CGSV(contribution="exact", gamma=config["Gamma"])
    _, outcome = method.round(started(method, config), tensor(content["deltas"][0]), everyone(config["n"]))
    assert_equal(outcome.contribution, expected["phi"], entry)
    assert_equal(outcome.contribution.sum(), expected["sum_phi"], entry)
    assert_equal(outcome.quantities["cosine"], expected["psi"], entry)


def check_exact_instances(content, entry):
    """Each instance from its raw vectors: u_N, psi and phi, these to 1e-9."""
    for name, expected in content[entry].items():
        arrays = {key.removeprefix(f"{name}_"): torch.from_numpy(value) for key, value in content["npz"].items()}
        updates, weights = arrays["delta"], arrays["r"]
        assert_equal(weights, expected["r"], name)
        method = CGSV(contribution="exact", reward="global", gamma=content["Gamma"])
        state = method.start(torch.zeros_like(updates[0]), len(updates), Layout.of(updates.shape[1]))
        _, outcome = method.round(state, updates, everyone(weights.tolist()))
        phi, psi = outcome.contribution, outcome.quantities["cosine"]
        for values, key in ((phi, "phi"), (psi, "psi")):
            for numbers in (tensor(expected[key]), arrays[key]):
                assert torch.allclose(values, numbers, rtol=0, atol=1e-9), f"{name}: {key}"
            assert_equal(values / values.sum(), expected[f"{key}_normalised"], name)
            assert values.argsort(descending=True).tolist() == expected[f"rank_{key}"], name
        utilities = cosine_game(gram(arrays["u"]), weights)
        assert len(utilities) == expected["n_subset_values"]
        assert torch.allclose(shapley(utilities), arrays["phi"], rtol=0, atol=1e-9), name
        difference = phi / phi.sum() - psi / psi.sum()
        assert_equal(difference.abs().sum(), expected["l1"], name)
        assert_equal(difference.norm(), expected["l2"], name)
        assert torch.allclose(outcome.models, arrays["uN"], rtol=0, atol=1e-9), name


def check_rffl(content, mode):
    """Every round, the own update not kept (resolved) and kept (released); a removed site trains on in both."""
    config, released = content["config"], mode == "released"
    method = RFFL(config["alpha"], config["Gamma"], config["coef"], config["warmup"], form=mode)
    whole = replace(method, form="resolved")
    state = started(method, config)
    trained_locally = torch.zeros_like(state.models)
    for round, updates in zip(content[mode], content["deltas"], strict=True):
        what, before = f"round {round['round']}", state
        reports = everyone(config["n"])
        state, outcome = method.round(state, tensor(updates), reports)
        for update, upload in zip(updates, round["upload"], strict=True):
            assert_equal(single(whole, update), upload, what)
        assert_equal(outcome.weights, round["agg_weights"], what)
        assert_equal(outcome.contribution, round["phi"], what)
        remembered = replace(method, warmup=1 << 30).round(before, tensor(updates), reports)[1].reputation
        assert_equal(remembered, round["r_before_removal"], what)
        assert_equal(config["coef"] / (~before.removed).sum(), round["threshold"], what)
        assert (state.removed & ~before.removed).nonzero().flatten().tolist() == round["removed"], what
        assert (~state.removed).nonzero().flatten().tolist() == round["R"], what
        assert outcome.quantities["expelled"].tolist() == state.removed.tolist(), what
        assert_equal(outcome.reputation, round["r"], what)
        assert_equal(outcome.quantities["quota"], [max(0.0, ratio) for ratio in round["ratio"]], what)
        if not released:
            check_quota(outcome.quantities["quota"], tensor(round["u_N"]), round, what)
        own = tensor(round["upload"]) if released else tensor(updates) * state.removed[:, None]
        trained_locally += own
        assert_equal(outcome.models - before.models - own, round["reward"], what)
        assert_equal(tensor(round["mask"]) * tensor(round["u_N"]), round["reward"], what)
        assert_equal(outcome.models - trained_locally, round["client_w_resolved"], what)
        if released:
            assert_equal(outcome.models, round["client_w_released"], what)
        else:  # the sites with the largest quota take all
            assert_equal((state.models - before.models)[outcome.quantities["quota"].argmax()], round["u_N"], what)


def one_round(method, content):
    state = method.start(tensor(content["w0"]), len(content["n"]), Layout.of(len(content["w0"])))
    return method.round(state, tensor(content["delta"]), everyone(content["n"]))[1]


def check_downloads(outcome, content, expected, what):
    check_quota(outcome.quantities["quota"], tensor(content["u_N"]), expected, what)
    assert_equal(outcome.weights, content["p"], what)
    assert_equal(outcome.models - tensor(content["w0"]), expected["reward"], what)
    assert_equal(outcome.models, expected["client_w"], what)


def check_data_weighted(content, entry):
    outcome, score = one_round(DataWeighted(), content), tensor(content[entry]["score"])
    assert_equal(outcome.contribution, (score / score.sum()).tolist(), entry)
    assert_equal(outcome.quantities["quota"], (score / score.max()).tolist(), entry)
    check_downloads(outcome, content, content[entry], entry)


def check_data_share_masks(content, entry):
    outcome = one_round(DataWeighted(ratio="share"), content)
    expected = tensor(content["w0"]) + tensor(content[entry]) * tensor(content["u_N"])
    assert_equal(outcome.models, expected.tolist(), entry)


def check_euclidean(content, entry):
    outcome = one_round(Euclidean(), content)
    distances = distances_to_sum(gram(tensor(content["delta"])), tensor(content["p"]))
    assert_equal(distances, content[entry]["dist"], entry)
    assert_equal(outcome.contribution, content[entry]["eu_score"], entry)
    check_downloads(outcome, content, content[entry], entry)


def check_round_robin(content, entry):
    assert_equal(one_round(RoundRobin(), content).models, content[entry]["rr_a"], "rr_a")
    method = RoundRobin(turns="one")
    state = method.start(tensor(content["w0"]), len(content["n"]), Layout.of(len(content["w0"])))
    for round in content[entry]["rr_b"]:
        state, outcome = method.round(state, tensor(content["delta"]), everyone(content["n"]))
        what = f"rr_b, round {round['round']}"
        assert state.served.argmax() == round["served_client"], what
        assert_equal(state.server, round["server_w"], what)
        assert_equal(outcome.models, round["client_w"], what)


def rounds_with(*fields):
    """Knows entries that are lists of rounds with these fields."""
    return lambda content, entry: isinstance(content.get(entry), list) and set(fields) <= set(content[entry][0])


def with_arrays(content, entry):
    return "npz" in content and entry in content


of_cgsv, of_rffl = rounds_with("psi", "r_clamped"), rounds_with("phi", "r_before_removal")
READERS = [  # method, whether a file's entry is what is read here, its name, how it is compared
    *(("cgsv", of_cgsv, mode, check_cgsv) for mode in ("resolved", "released")),
    ("cgsv", contains, "exact_small", check_exact_round),
    ("cgsv", with_arrays, "instances", check_exact_instances),
    *(("rffl", of_rffl, mode, check_rffl) for mode in ("resolved", "released")),
    ("dw", contains, "DW", check_data_weighted),
    ("dw", contains, "dw_rffl_masks", check_data_share_masks),
    ("eu", contains, "EU", check_euclidean),
    ("rr", contains, "RR", check_round_robin),
]
