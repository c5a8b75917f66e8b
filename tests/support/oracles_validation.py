"""Readers of the worked numbers of the methods that evaluate models: CFFL, FedAVE, q-FedAvg, FedCI and ECI."""

import torch
from oracles import assert_equal, contains, everyone, tensor

from fedmerit.contract.method import CandidateResults, Layout
from fedmerit.contract.vectors import gram, histogram, norms, quota_counts
from fedmerit.methods.cffl import largest_entries
from fedmerit.methods.fedave import FLOOR, FedAVE, distribution, divergence
from fedmerit.methods.qfedavg import QFedAvg
from fedmerit_lab.methods.cffl_released import CFFLReleased
from fedmerit_lab.methods.fedci import ECI, FedCI


def dice(values):
    """What the server validation set said, where nobody asked for losses."""
    return CandidateResults(tensor(values), torch.zeros(len(values), 0, dtype=torch.float64))


CFFL_MODES = {
    "released_sum": {"reputation": "released", "aggregation": "sum"},
    "released_mean_growing_alpha": {"reputation": "released", "aggregation": "mean"},
    "alt_sinh_first_sum": {"reputation": "sinh_first", "aggregation": "sum"},
}


def check_cffl(content, mode):
    config, size = content["config"], content["config"]["D"]
    method = CFFLReleased(
        **CFFL_MODES[mode],
        **{name: config[name] for name in ("theta", "clip", "alpha", "coef")},
        alpha_growth=config["T"] if "growing" in mode else 0,
        keep_own=True,
    )
    state = method.start(tensor(config["w0"]), config["N"], Layout.of(size))
    for round, updates, accuracy in zip(content[mode], content["deltas"], content["acc"], strict=True):
        what, updates = f"round {round['round']}", tensor(updates)
        reports = everyone(config["n"], candidates=dice(accuracy))
        members = ~state.removed
        assert_equal(method.coef / members.sum(), round["threshold_used"], what)
        assert_equal(largest_entries(tensor(round["clipped"]), method.theta), round["upload"], what)
        raw = method.unnormalised_reputation(state, tensor(round["share"]), reports) * members
        assert_equal(raw / raw.sum(), round["c_normalised"], what)

        before = state.models
        state, outcome = method.round(state, updates, reports)
        assert_equal(outcome.contribution, round["share"], what)
        assert_equal(outcome.quantities["utility"], accuracy, what)
        assert outcome.quantities["expelled"].nonzero().flatten().tolist() == round["removed"], what
        assert (~state.removed).nonzero().flatten().tolist() == round["R"], what
        assert_equal(outcome.reputation, round["c"], what)
        assert_equal(method.coef / (~state.removed).sum(), round["threshold_next"], what)
        weights = tensor(round["agg_weight"]) * ~state.removed
        assert_equal(outcome.weights, (weights / weights.sum()).tolist(), what)
        assert quota_counts(outcome.quantities["quota"], size) == round["num_download"], what
        kept = tensor(round["clipped"])
        returned = tensor(round["kappa"])[:, None] * tensor(round["upload"]) * ~state.removed[:, None]
        assert_equal(outcome.models - before - kept + returned, round["allocated"], what)
        assert_equal(outcome.models, round["client_w"], what)


def check_fedave(content, form):
    config, size = content["config"], content["config"]["D"]
    assert config["clamp_min"] == FLOOR
    method = FedAVE(
        form=form,
        **{name: config[name] for name in ("tau", "alpha", "beta", "bins")},
        kl_floor=1e-3,
        unrewarded="nothing",
    )
    state = method.start(
        tensor(config["w0"]), config["N"], Layout.of(*(end - start for start, end in config["layers"]))
    )
    given = zip(content["L_own"], content["L_val"], content["acc"], content["deltas"], strict=True)
    for round, (own, validation, accuracy, updates) in zip(content[form], given, strict=True):
        what, updates = f"round {round['round']}", tensor(updates)
        own, validation = (torch.stack([histogram(tensor(x), method.bins) for x in of]) for of in (own, validation))
        p, q = distribution(own, config["eps"]), distribution(validation, config["eps"])
        assert_equal(p, round["p"], what)
        assert_equal(q, round["q_val"], what)
        kl = divergence(p, q)
        assert_equal(kl, round["KL"], what)

        candidates = CandidateResults(torch.cat([tensor(accuracy)] * 2), torch.cat([validation] * 2))
        reports = everyone(config["n"], dict(zip(method.asks, own.T, strict=True)), candidates)
        before = state.models
        state, outcome = method.round(state, updates, reports)
        assert_equal(outcome.quantities["utility"], accuracy, what)
        assert_equal(outcome.quantities["divergence"], round["KL"], what)
        assert_equal(kl.min() / outcome.quantities["divergence"], round["K"], what)
        assert_equal(outcome.contribution, round["r_tilde"], what)
        assert_equal(outcome.reputation, round["r"], what)
        quota = outcome.quantities["quota"]
        assert_equal(quota * size, tensor(round["quota_raw"]).clamp(max=size).tolist(), what)
        assert quota_counts(quota, size) == round["quota"], what
        aggregate = method.weighted_uploads(outcome.weights, updates, norms(gram(updates)))
        assert_equal(aggregate, round["g"], what)
        assert_equal(tensor(round["mask"]) * aggregate, round["reward"], what)
        assert_equal(outcome.models - before, round["reward"], what)
        assert_equal(outcome.models, round["client_w"], what)


def check_qfedavg(content, rule):
    """Every q, of which ``local`` is where the sites' training ended."""
    received = tensor(content["w"])
    updates = tensor(content["local"]) - received
    reports = everyone([1.0] * len(updates), {"loss": tensor(content["F"])})
    for q, numbers in content["by_q"].items():
        method = QFedAvg(float(q), 1 / content["lr"] if rule == "exact" else None)
        state = method.start(received, len(updates), Layout.of(len(received)))
        _, outcome = method.round(state, updates, reports)
        assert_equal(outcome.weights, numbers["effective_weights"], q)
        assert_equal(outcome.contribution, numbers["effective_weights"], q)
        assert_equal(outcome.quantities["loss"], content["F"], q)
        assert_equal(outcome.models, numbers["w_next" if rule == "exact" else "w_next_weights_only"], q)
        shrink = numbers["step_shrink"] if rule == "exact" else 1.0
        assert_equal(outcome.models - received, (shrink * (outcome.weights @ updates)).tolist(), q)


def utilities(round, sites):
    """(2^n,) the file's U of every coalition, by its bits."""
    values = [0.0] * 2**sites
    for names, utility in round["U_of_subsets"].items():
        values[0 if names == "empty" else sum(1 << int(name) for name in names.split(","))] = utility
    return dice(values)


def check_fedci(content, _):
    config, method = content["config"], FedCI()
    state = method.start(tensor(config["w0"]), config["N"], Layout.of(config["D"]))
    for round, updates in zip(content["rounds"], content["updates"], strict=True):
        what, updates = f"round {round['round']}", tensor(updates)
        assert_equal(state.model, round["w_received"], what)
        reports = everyone(config["n"], candidates=utilities(round, config["N"]))
        candidates = method.candidates(state, updates, reports)
        assert_equal(candidates.mixtures[0] @ candidates.models, round["w_received"], what)
        assert_equal(candidates.mixtures[-1] @ candidates.models, round["w_next"], what)
        state, outcome = method.round(state, updates, reports)
        assert_equal(outcome.contribution, round["CI_round"], what)
        assert_equal(state.index, round["CI_sum"], what)
        assert_equal(outcome.weights, round["fedci_weights"], what)
        assert_equal(outcome.reputation, round["fedci_weights"], what)
        assert_equal(outcome.models, round["fedci_w_next"], what)


def check_eci(content, _):
    config, size, method = content["config"], content["config"]["D"], ECI(unrewarded="nothing")
    state = method.start(tensor(config["w0"]), config["N"], Layout.of(size))
    for round, updates in zip(content["rounds"], content["updates"], strict=True):
        what, before = f"round {round['round']}", state
        reports = everyone(config["n"], candidates=utilities(round, config["N"]))
        state, outcome = method.round(state, tensor(updates), reports)
        assert_equal(outcome.contribution, round["CI_round"], what)
        assert_equal(state.index, round["CI_sum"], what)
        assert_equal(outcome.quantities["quota"], round["eci_ratio"], what)
        assert quota_counts(outcome.quantities["quota"], size) == round["eci_q"], what
        step = tensor(round["w_next"]) - tensor(round["w_received"])  # the file's models are FedCI's
        assert_equal(state.model - before.model, step.tolist(), what)
        assert_equal(tensor(round["eci_mask"]) * (state.model - before.model), round["eci_reward"], what)
        assert_equal(outcome.models - before.models, round["eci_reward"], what)


def losses_of_images(content, entry):
    return entry in content and {"L_own", "L_val"} <= set(content)


def losses_by_q(content, _):
    return {"by_q", "F", "local"} <= set(content)


def coalitions(content, _):
    rounds = content.get("rounds")
    return isinstance(rounds, list) and "U_of_subsets" in rounds[0]


READERS = [  # method, whether a file's entry is what is read here, its name, how it is compared
    *(("cffl", contains, mode, check_cffl) for mode in CFFL_MODES),
    *(("fedave", losses_of_images, form, check_fedave) for form in ("resolved", "paper")),
    *(("qfedavg", losses_by_q, rule, check_qfedavg) for rule in ("weights", "exact")),
    ("fedci", coalitions, "rounds", check_fedci),
    ("eci", coalitions, "rounds", check_eci),
]
