"""Slow, literal references of the methods that evaluate models: plain numbers and loops, no torch, nothing of FedMerit.

A round is what the server sees: one update (a list of d numbers) per site, or None for a site that sat out. Models are
lists of d numbers, one per site where sites differ.
"""

import math
from itertools import permutations

from reference_rewards import largest, largest_per_tensor


def cffl(
    start,
    samples,
    rounds,
    dice,
    *,
    theta=1.0,
    clip=None,
    alpha=None,
    growth=0,
    coef=1 / 6,
    released=False,
    aggregation="share",
    keep_own=False,
    sparse=True,
):
    """CFFL (Lyu et al. 2020): one dict per round of share, c, removed, weights and models; ``dice`` of a model."""
    n, d = len(samples), len(start)
    models, c, removed, results = [list(start) for _ in samples], [0.0] * n, [False] * n, []
    for t, updates in enumerate(rounds):
        here = [i for i in range(n) if updates[i] is not None]
        members = [i for i in here if not removed[i]] or here
        utility = {i: dice(_plus(models[i], updates[i])) for i in here}
        total = sum(utility[i] for i in members)
        shares = [utility[i] / total if i in members else 0.0 for i in range(n)]
        a = min(5.0, 0.7 * len(here)) if alpha is None else alpha
        if growth:
            a *= 1 + min(t / growth, 1)
        raw = {}
        for i in members:
            if released:
                raw[i] = math.sinh(a * (0.8 * c[i] + 0.2 * shares[i]))
            else:
                raw[i] = 0.5 * c[i] + 0.5 * math.sinh(a * shares[i])
        normalised = {i: raw[i] / sum(raw.values()) for i in members}
        stay = [i for i in members if normalised[i] >= coef / len(members)] or members
        held = _held(c[i] for i in here)
        for i in here:
            removed[i] = i not in stay
            c[i] = held * normalised[i] / sum(normalised[j] for j in stay) if i in stay else 0.0

        clipped = {i: [x if clip is None else max(-clip, min(clip, x)) for x in updates[i]] for i in here}
        uploads = {i: _largest(clipped[i], int(d * theta + 1e-9)) for i in here}
        images, most = sum(samples[i] for i in stay), max(samples[i] for i in stay)
        if not sparse:
            amounts = {i: c[i] / sum(c[j] for j in stay) for i in stay}
        elif aggregation == "share":
            amounts = {i: samples[i] / images for i in stay}
        elif aggregation == "mean":
            amounts = {i: samples[i] / sum(samples[j] for j in here) for i in stay}
        else:
            amounts = dict.fromkeys(stay, 1.0)
        update = [sum(amounts[i] * uploads[i][k] for i in stay) for k in range(d)]
        if not sparse:
            models = [_plus(model, update) for model in models]
        else:
            for i in here:
                if i not in stay:  # it trains locally, whatever becomes of the others' entries
                    models[i] = _plus(models[i], clipped[i])
                    continue
                quota = c[i] / max(c[j] for j in stay) * samples[i] / most
                reward = _rewarded(update, d * quota, clipped[i], "nothing")
                if keep_own:
                    kappa = samples[i] / most if aggregation == "mean" else amounts[i]
                    reward = [r + x - kappa * u for r, x, u in zip(reward, clipped[i], uploads[i], strict=True)]
                models[i] = _plus(models[i], reward)
        weights = [amounts[i] / sum(amounts.values()) if i in stay else 0.0 for i in range(n)]
        shares = [shares[i] if i in here else None for i in range(n)]
        results.append({"share": shares, "c": list(c), "removed": list(removed), "weights": weights, "models": models})
        models = list(models)
    return results


def fedave(
    start, samples, rounds, dice, own_losses, server_losses, *, tau=None, form="resolved", alpha=0.95, beta=1.5,
    bins=10, in_score=True, in_quota=True, kl_floor=None, clip=None, unrewarded="own",
):  # fmt: skip
    """FedAVE (Wang et al. 2024): one dict per round of score, divergence, r and models.

    ``own_losses`` of (site, model) and ``server_losses`` of a model are lists of losses in [0, 1].
    """
    n, d = len(samples), len(start)
    tensors = (d // 3, d - d // 3) if form == "released" else ()  # as of `rounds.layout`
    models, r, results = [list(start) for _ in samples], [None] * n, []
    for updates in rounds:
        here = [i for i in range(n) if updates[i] is not None]
        if clip is not None:
            updates = [update and [max(-clip, min(clip, x)) for x in update] for update in updates]
        p = {i: samples[i] / sum(samples[j] for j in here) for i in here}
        kl = {}
        for i in here:
            own, server = own_losses(i, models[i]), server_losses(models[i])
            noise = (bins - 1) / 2 * (1 / len(own) + 1 / len(server))
            shares = zip(_shares(own, bins), _shares(server, bins), strict=True)
            kl[i] = max(noise if kl_floor is None else kl_floor, sum(x * math.log(x / y) for x, y in shares))
        near = {i: (1 / kl[i]) / max(1 / kl[j] for j in here) for i in here}
        accuracy = {i: dice(_plus(models[i], updates[i])) for i in here}
        power = {"resolved": 1, "released": 2}
        known = {i: 1 / kl[i] if form == "paper" else near[i] ** power[form] for i in here}
        score = {i: accuracy[i] * known[i] if in_score else accuracy[i] for i in here}
        late = any(r[i] is not None for i in here)  # then a newcomer starts with its share of the scores
        first = {i: score[i] / sum(score[j] for j in here) if late and any(score.values()) else score[i] for i in here}
        raw = {i: max(1e-3, first[i] if r[i] is None else alpha * r[i] + (1 - alpha) * score[i]) for i in here}
        held = _held(r[i] or 0.0 for i in here)
        for i in here:
            r[i] = held * raw[i] / sum(raw.values())

        norm = {i: math.sqrt(sum(x * x for x in updates[i])) for i in here}
        step = sum(p[i] * norm[i] for i in here) if tau is None else tau
        update = [sum(p[i] * step * updates[i][k] / norm[i] for i in here if norm[i]) for k in range(d)]
        for i in here:
            quota = math.tanh(beta * r[i]) / max(math.tanh(beta * r[j]) for j in here)
            if in_quota:
                quota = min(1.0, quota / kl[i] if form == "paper" else quota * near[i])
            models[i] = _plus(models[i], _rewarded(update, d * quota, updates[i], unrewarded, tensors))
        results.append({"score": score, "divergence": kl, "r": [x or 0.0 for x in r], "models": list(models)})
    return results


def qfedavg(start, rounds, own_losses, *, q, lipschitz=None):
    """q-FedAvg (Algorithm 2, Li et al. 2020): one dict per round of loss, weights and w_next."""
    model, results, exact, lipschitz = list(start), [], lipschitz is not None, lipschitz or 1.0
    for updates in rounds:
        loss, delta, h = {}, [0.0] * len(model), 0.0
        for i, update in enumerate(updates):
            if update is None:
                continue
            losses = own_losses(i, model)
            loss[i] = sum(losses) / len(losses) + 1e-10
            gradient = [-lipschitz * x for x in update]
            delta = [a + loss[i] ** q * g for a, g in zip(delta, gradient, strict=True)]
            h += lipschitz * loss[i] ** q
            if exact:
                h += q * loss[i] ** (q - 1) * sum(g * g for g in gradient)
        model = [w - a / h for w, a in zip(model, delta, strict=True)]
        total = sum(f**q for f in loss.values())
        weights = [loss[i] ** q / total if i in loss else 0.0 for i in range(len(updates))]
        results.append({"loss": loss, "weights": weights, "w_next": model})
    return results


def fedci(start, samples, rounds, dice, truncation=0.0):
    """The contribution index as weights (Jiang et al. 2023): one dict per round of values, weights and w_next."""
    n, model, index, results = len(samples), list(start), [0.0] * len(samples), []
    for updates in rounds:
        values = _contribution_index(model, samples, updates, dice, truncation)
        here = list(values)
        for i in here:
            index[i] += values[i]
        amounts = {i: max(index[i], 0.0) for i in here}
        if not sum(amounts.values()):
            amounts = {i: samples[i] for i in here}
        total = sum(amounts.values())
        weights = [amounts[i] / total if i in here else 0.0 for i in range(n)]
        model = _plus(model, [sum(weights[i] * updates[i][k] for i in here) for k in range(len(model))])
        results.append({"values": values, "weights": weights, "w_next": model})
    return results


def eci(start, samples, rounds, dice, truncation=0.0, unrewarded="own"):
    """The contribution index as quota (Xu et al. 2021): one dict per round of values, quota and models."""
    d, index, results = len(start), [0.0] * len(samples), []
    server, models = list(start), [list(start) for _ in samples]
    for updates in rounds:
        values = _contribution_index(server, samples, updates, dice, truncation)
        here = list(values)
        for i in here:
            index[i] += values[i]
        images = sum(samples[i] for i in here)
        update = [sum(samples[i] / images * updates[i][k] for i in here) for k in range(d)]
        best = max(index[i] for i in here)
        quota = {i: max(index[i], 0.0) / best if best > 0 else 1.0 for i in here}
        for i in here:
            models[i] = _plus(models[i], _rewarded(update, d * quota[i], updates[i], unrewarded))
        server = _plus(server, update)
        results.append({"values": values, "quota": quota, "models": list(models)})
    return results


def _contribution_index(model, samples, updates, dice, truncation):
    """Exact Shapley values of the sites that took part, by all orders in which they can join."""
    here = [i for i, update in enumerate(updates) if update is not None]

    def utility(coalition):
        images = sum(samples[i] for i in coalition)
        mean = [sum(samples[i] / images * updates[i][k] for i in coalition) for k in range(len(model))]
        return dice(_plus(model, mean))

    known = {frozenset(): dice(model)}
    values = dict.fromkeys(here, 0.0)
    for order in permutations(here):
        joined = frozenset()
        for i in order:
            larger = joined | {i}
            if larger not in known:
                known[larger] = utility(sorted(larger))
            values[i] += (known[larger] - known[joined]) / math.factorial(len(here))
            joined = larger
    if abs(known[frozenset(here)] - known[frozenset()]) <= truncation:
        return dict.fromkeys(here, 0.0)
    return values


def _held(reputations):
    """What the sites that came share again: what they held together, at most 1, and 1 where they held nothing."""
    return min(sum(reputations), 1.0) or 1.0


def _plus(model, update):
    return [w + x for w, x in zip(model, update, strict=True)]


def _largest(vector, count):
    """The ``count`` entries of largest magnitude, the first of equal ones; 0 elsewhere."""
    order = sorted(range(len(vector)), key=lambda k: (-abs(vector[k]), k))
    return [x if k in order[:count] else 0.0 for k, x in enumerate(vector)]


def _rewarded(update, quota, own, unrewarded, tensors=()):
    """Its largest entries, or those of each tensor, by a quota of so many; elsewhere 0, or what the site trained."""
    if tensors:
        kept = largest_per_tensor(update, quota / len(update), tensors)
    else:
        kept = largest(update, math.floor(quota + 1e-9))
    return [x if k in kept else own[k] * (unrewarded == "own") for k, x in enumerate(update)]


def _shares(losses, bins):
    """The share of losses in each bin, one added to every count."""
    counts = [1.0] * bins
    for loss in losses:
        counts[min(int(loss * bins), bins - 1)] += 1
    return [count / sum(counts) for count in counts]
