"""Readers of the worked numbers of methods that are written against the contract alone."""

from dataclasses import replace

import torch
from contract_methods import SCAFFOLD, Ditto, FedProx
from oracles import assert_equal, contains, everyone, tensor

from fedmerit.capabilities.local_training import Trained, TrainingView
from fedmerit.core import Layout


def descent(content, site):
    """`Train`, literally: K plain gradient steps on 1/2 Σ_k H_ik (w_k - a_ik)²."""
    target, curvature = tensor(content["targets"][site]), tensor(content["curvature"][site])

    def train(start, buffers=None, penalty=None, shift=None):
        w = start
        for _ in range(content["steps"]):
            gradient = curvature * (w - target)
            if penalty:
                at = w.clone().requires_grad_()
                gradient = gradient + torch.autograd.grad(penalty(at), at)[0]
            if shift is not None:
                gradient = gradient + shift
            w = w - content["lr"] * gradient
        return Trained(w, buffers or {}, 0.0, content["steps"], content["lr"])

    return train


def rounds_of(method, content):
    """Every round's outcome, the sites' results and what was expected."""
    samples = content["num_samples"]
    model, vectors = tensor(content["start"]), {}
    kept, own = [{} for _ in samples], [None for _ in samples]
    state = method.start(model, len(samples), Layout.of(len(model)))
    for expected in content["trace"]:
        results = [
            method.train(TrainingView(model, {}, vectors, kept[i], own[i], descent(content, i)))
            for i in range(len(samples))
        ]
        updates = torch.stack([result.trained.parameters - model for result in results])
        sent = {name: torch.stack([result.vectors[name] for result in results]) for name in method.vectors}
        state, outcome = method.round(state, updates, replace(everyone(samples), vectors=sent))
        assert_equal(updates, expected["updates"], "updates")
        assert_equal(outcome.models, expected["model"], "model")
        yield outcome, results, expected
        model, vectors, kept = outcome.models, outcome.vectors, [result.kept for result in results]
        own = [result.own and (result.own.parameters, result.own.buffers) for result in results]


def check_fedprox(content, entry):
    assert len(list(rounds_of(FedProx(content[entry]["mu"]), content[entry]))) == content[entry]["rounds"]


def check_scaffold(content, entry):
    for outcome, results, expected in rounds_of(SCAFFOLD(content[entry]["eta_g"]), content[entry]):
        assert_equal(outcome.vectors["control"], expected["c"], "c")
        assert_equal(torch.stack([result.kept["control"] for result in results]), expected["c_sites"], "c_i")


def check_ditto(content, entry):
    for _, results, expected in rounds_of(Ditto(content[entry]["lambda_"]), content[entry]):
        assert_equal(torch.stack([result.own.parameters for result in results]), expected["personal"], "v_i")


READERS = [  # method, whether a file's entry is what is read here, its name, how it is compared
    ("fedprox", contains, "fedprox", check_fedprox),
    ("scaffold", contains, "scaffold", check_scaffold),
    ("ditto", contains, "ditto", check_ditto),
]
