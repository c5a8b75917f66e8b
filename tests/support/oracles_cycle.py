"""Readers of the worked numbers of CYCle and of the loss that it shares with VPDL."""

import math
from dataclasses import replace

import torch
from oracles import assert_equal, contains, everyone, tensor

from fedmerit.contract.capabilities import PeerView
from fedmerit.methods.cycle import VPDL, CYCle, agreement, current_reputation, distillation, divergence, misalignment
from fedmerit.trainers.monai.local_training import build_loss
from fedmerit_evaluation.fairness.measures import gain_spread, mean_gain


def matrix(rows):
    """(n, n), NaN where the file has none."""
    return tensor([[math.nan if value is None else value for value in row] for row in rows])


def but_own(values):
    return values.masked_fill(torch.eye(len(values), dtype=torch.bool), 0.0)


def method_of(config):
    parameters = {name: config[name] for name in ("alpha", "tau_opt", "tau_max", "R", "lambda0")}
    return CYCle(**parameters, warmup=0, score="gradients")


def check_rounds(content, entry):
    """Scores, reputations, the gradient that is followed, and who shares next."""
    config = content["config"]
    method, n = method_of(config), config["N"]
    state, theta = method.start(torch.zeros(1), n, [1]), tensor(config["theta0"])
    z = tensor(content["z"])
    for expected in content[entry]:
        t, what = expected["t"], f"round {expected['t']}"
        own, peers = tensor(content["g_ce"][t]), tensor(content["g_dl"][t])
        available = torch.tensor(expected["available"]) & ~torch.eye(n, dtype=torch.bool)
        assert method.scores(t) == expected["scored"], what
        s = torch.full((n, n), math.nan, dtype=torch.float64)
        for i, k in available.nonzero().tolist():
            s[i, k] = misalignment(own[i], peers[i, k])
        reports = replace(everyone([1.0] * n), pairs={"misalignment": s, "available": available.double()})
        state, outcome = method.round(state, torch.zeros(n, 1), reports)
        found = outcome.pairs["misalignment"]
        assert torch.equal(found.isnan(), matrix(expected["s"]).isnan()), what
        assert_equal(found.nan_to_num(9), matrix(expected["s"]).nan_to_num(9).tolist(), what)
        now = current_reputation(found, method.tau_opt, method.tau_max)
        assert_equal(now.nan_to_num(9), matrix(expected["r_tilde"]).nan_to_num(9).tolist(), what)
        assert_equal(but_own(outcome.pairs["peer_reputation"]), expected["r"], what)
        taken = but_own(state.reputation) * available
        combined = own + method.lambda0 * torch.einsum("ik,ikd->id", taken, peers)
        assert_equal(combined, expected["combined_gradient"], what)
        theta = theta - config["eta"] * combined
        assert_equal(theta, expected["theta"], what)
        probability = method.sharing(state).probability
        assert torch.equal(but_own(probability), but_own(method.probability(state.reputation, t + 1)))
        assert but_own((z < probability).double()).bool().tolist() == expected["send_n_to_k"], what


def check_h(content, entry):
    table = {float(s): value for s, value in content[entry].items()}
    method = method_of(content["config"])
    assert_equal(current_reputation(tensor(list(table)), method.tau_opt, method.tau_max), list(table.values()), entry)


def check_distillation(content, entry, method=None):
    """Both directions, and their gradients; with a method, through the loss that it adds to a site's own."""
    expected = content[entry]
    for kl, name in (("own_peer", "n_to_k"), ("peer_own", "k_to_n")):
        own, peer = tensor(expected["z_n"]).requires_grad_(), tensor(expected["z_k"])
        if method is None:
            loss = divergence(own, peer, expected["T"], kl)
            each = [divergence(a, b, expected["T"], kl) for a, b in zip(own, peer, strict=True)]
            assert_equal(torch.stack(each), expected[f"KL_{name}"], kl)
        else:
            if method is VPDL and kl != "own_peer":
                continue
            chosen = method(**{"kl": kl} if method is CYCle else {}, T=expected["T"], lambda0=1.0)
            view = PeerView(
                chosen.warmup + 1,
                {"k": 1.0},
                lambda site, images, peer=peer: peer,
                torch.nn.Identity(),
                list,
                torch.sub,
                lambda peer: None,
            )
            loss = chosen.learn_from(view).loss(tensor([0.0]), own)
        assert_equal(loss, expected[f"mean_KL_{name}"], kl)
        assert_equal(torch.autograd.grad(loss, own)[0], expected[f"grad_{name}"], kl)


def check_dice(content, entry):
    """The training loss, and how it aligns with distillation: it is not what sites are scored with."""
    expected, distill = content[entry], content["distill"]
    own = tensor(distill["z_n"]).requires_grad_()
    label = tensor(expected["label"])
    loss = build_loss("dice")(own.view(1, 1, 1, -1), label.view(1, 1, 1, -1))
    assert_equal(loss, expected["loss"], entry)
    gradient = torch.autograd.grad(loss, own)[0]
    assert_equal(gradient, expected["grad"], entry)
    for kl, name in (("own_peer", "n_to_k"), ("peer_own", "k_to_n")):
        extra = distillation(lambda site, images: tensor(distill["z_k"]), {"k": 1.0}, distill["T"], kl)
        other = torch.autograd.grad(extra(tensor([0.0]), own), own)[0]
        assert_equal(misalignment(gradient, other), expected[f"s_dice_vs_KL_{name}"], kl)


def check_gains(content, entry):
    expected = content[entry]
    assert_equal(tensor(expected["collab"]) - tensor(expected["standalone"]), expected["G"], entry)
    assert_equal(float(mean_gain(expected["standalone"], expected["collab"])), expected["MCG"], entry)
    assert_equal(float(gain_spread(expected["standalone"], expected["collab"])), expected["CGS"], entry)


def check_agreement(content, entry):
    given = content[entry]
    rows = zip(given["dice_of_peer_on_own_masks"], given["own_dice"], strict=True)
    assert_equal(tensor([[agreement(peer, own) for peer in peers] for peers, own in rows]), given["reputation"], entry)


def of_cycle(content, entry):
    return "g_dl" in content and entry in content


READERS = [  # method, whether a file's entry is what is read here, its name, how it is compared
    ("cycle", of_cycle, "rounds", check_rounds),
    ("cycle", of_cycle, "h_table", check_h),
    ("cycle", of_cycle, "distill", check_distillation),
    ("cycle", of_cycle, "distill", lambda content, entry: check_distillation(content, entry, CYCle)),
    ("vpdl", of_cycle, "distill", lambda content, entry: check_distillation(content, entry, VPDL)),
    ("cycle", of_cycle, "dice", check_dice),
    ("cycle", of_cycle, "metrics", check_gains),
    ("cycle", contains, "agreement", check_agreement),
]
