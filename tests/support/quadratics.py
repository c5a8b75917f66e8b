"""Sites whose loss is 1/2 Σ_k H_ik (w_k - a_ik)², which they descend by plain gradient steps: method and reference."""

import random
from dataclasses import replace

import torch
from oracles import everyone, tensor

from fedmerit.contract.capabilities import LocalResult, Trained, TrainingView, TrainsLocally
from fedmerit.contract.method import Layout


def synthetic(seed, sites=3, size=4, **parameters):
    """Numbers of such sites, as the oracles hold them."""
    draw = random.Random(seed)

    def rows(low, high):
        return [[draw.uniform(low, high) for _ in range(size)] for _ in range(sites)]

    samples = [float(draw.randint(1, 50)) for _ in range(sites)]
    numbers = {"targets": rows(-2, 2), "curvature": rows(0.5, 2), "num_samples": samples}
    return {"start": rows(-2, 2)[0], **numbers, "lr": 0.1, "steps": 3, "rounds": 4, **parameters}


def descended(content, site, w, extra=lambda w: [0.0] * len(w)):
    """The reference's: ``w``, a list, after K steps along the gradient plus ``extra`` of where it is."""
    target, curvature = content["targets"][site], content["curvature"][site]
    for _ in range(content["steps"]):
        gradient = [h * (x - a) + e for x, a, h, e in zip(w, target, curvature, extra(w), strict=True)]
        w = [x - content["lr"] * g for x, g in zip(w, gradient, strict=True)]
    return w


def descent(content, site):
    """The method's: `Train`."""
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


def played(method, content):
    """Every round's updates, outcome and the sites' results, and the state after it."""
    samples, local = content["num_samples"], isinstance(method, TrainsLocally)
    model = tensor(content["start"])
    beside = method.vectors if local else ()
    vectors = {name: torch.zeros_like(model) for name in beside}
    kept, own = [{} for _ in samples], [None for _ in samples]
    state = method.start(model, len(samples), Layout.of(len(model)))
    for _ in range(content["rounds"]):
        results = []
        for i in range(len(samples)):
            view = TrainingView(model, {}, vectors, kept[i], own[i], descent(content, i))
            results.append(method.train(view) if local else LocalResult(view.train(model)))
        updates = torch.stack([result.trained.parameters - model for result in results])
        sent = {name: torch.stack([result.vectors[name] for result in results]) for name in beside}
        state, outcome = method.round(state, updates, replace(everyone(samples), vectors=sent))
        yield updates, outcome, results, state
        model, vectors, kept = outcome.models, outcome.vectors, [result.kept for result in results]
        own = [result.own and (result.own.parameters, result.own.buffers) for result in results]


def mean(models, shares):
    """The reference's: of lists."""
    return [sum(s * x for s, x in zip(shares, column, strict=True)) for column in zip(*models, strict=True)]


def shares(content):
    return [n / sum(content["num_samples"]) for n in content["num_samples"]]
