"""Slow, literal references of CGSV, RFFL and their baselines: plain numbers and loops, no torch, nothing of FedMerit.

A round is what the server sees: one update (a list of d numbers) per site, or None for a site that sat out. Every
function takes the sites' common start (d numbers), their numbers of training images and the rounds, and returns one
dict per round. "models" are the sites' [site][entry] after the round.
"""

import math
from itertools import permutations


def cgsv(start, samples, rounds, alpha=0.95, beta=1.0, gamma=None, floor=1e-3, exact=False):
    """Eqs. 1-5 of Xu et al. 2021; the first round by sample shares, the reputation floored before it is normalised."""
    count, size = len(samples), len(start)
    server, models, reputation, results = list(start), [list(start) for _ in samples], [0.0] * count, []
    for updates in rounds:
        sites = [i for i in range(count) if updates[i] is not None]
        weights = _reputation_weights(reputation, samples, sites)
        target = _gamma(gamma, updates, samples, sites)
        units = {i: _scaled(updates[i], target / _norm(updates[i])) for i in sites}
        total = _sum([_scaled(units[i], weights[i]) for i in sites], size)
        psi = {i: _cosine(units[i], total) for i in sites}
        contribution = _cosine_values({i: _scaled(units[i], weights[i]) for i in sites}, total) if exact else psi

        memory = {i: max(floor, alpha * reputation[i] + (1 - alpha) * contribution[i]) for i in sites}
        reputation = _share_again(reputation, memory, sites)

        best = max(math.tanh(beta * reputation[i]) for i in sites)
        quota = [math.tanh(beta * reputation[i]) / best if i in sites else 0.0 for i in range(count)]
        models = [_plus_largest(models[i], total, quota[i]) for i in range(count)]
        server = _sum([server, total], size)
        results.append(
            {
                "weights": weights, "psi": psi, "contribution": contribution, "reputation": reputation,
                "quota": quota, "models": models, "server": server
            }
        )  # fmt: skip
    return results


def rffl(start, samples, rounds, alpha=0.95, gamma=None, coef=1 / 3, warmup=10):
    """Clip, weigh by reputation, remember the cosine, remove, reward; a removed site trains on only."""
    count, size = len(samples), len(start)
    models, reputation, results = [list(start) for _ in samples], [0.0] * count, []
    removed, rounds_of = set(), [0] * count
    for updates in rounds:
        present = [i for i in range(count) if updates[i] is not None]
        sites = [i for i in present if i not in removed]
        uploading = sites or present  # where only removed ones came, there are weights, but no rewards
        weights = _reputation_weights(reputation, samples, uploading)
        limit = _gamma(gamma, updates, samples, uploading)
        clip = {i: min(1.0, limit / _norm(updates[i])) for i in present}
        total = _sum([_scaled(updates[i], weights[i] * clip[i]) for i in uploading], size)
        phi = {i: _cosine(updates[i], total) for i in present}

        quota = [0.0] * count
        if sites:
            memory = {i: max(0.0, alpha * reputation[i] + (1 - alpha) * phi[i]) for i in sites}
            among = _shares(memory, sites)
            below = {i for i in sites if rounds_of[i] >= warmup and among[i] < coef / len(sites)}
            removed = removed | below
            reputation = _share_again(reputation, {i: 0.0 if i in below else memory[i] for i in sites}, sites)
            best = max(reputation[i] for i in sites)
            for i in sites:
                relative = reputation[i] / best
                quota[i] = math.tanh(2 * relative) / math.tanh(2)
        models = [_plus_largest(models[i], total, quota[i]) for i in range(count)]
        for i in present:
            if i in removed:
                models[i] = _sum([models[i], updates[i]], size)
            rounds_of[i] += 1
        results.append(
            {
                "weights": weights,
                "contribution": phi,
                "reputation": reputation,
                "quota": quota,
                "removed": sorted(removed),
                "models": models,
            }
        )
    return results


def data_weighted(start, samples, rounds, ratio="max"):
    """Downloads of FedAvg's update by sample share."""
    models, results = [list(start) for _ in samples], []
    for updates in rounds:
        sites = [i for i in range(len(samples)) if updates[i] is not None]
        weights, total = _fedavg(updates, samples, sites, len(start))
        whole = max(samples[i] for i in sites) if ratio == "max" else sum(samples[i] for i in sites)
        quota = [samples[i] / whole if i in sites else 0.0 for i in range(len(samples))]
        models = [_plus_largest(model, total, part) for model, part in zip(models, quota, strict=True)]
        contribution = {i: weights[i] for i in sites}
        results.append({"weights": weights, "contribution": contribution, "quota": quota, "models": models})
    return results


def euclidean(start, samples, rounds):
    """Downloads of FedAvg's update by closeness to it."""
    models, results = [list(start) for _ in samples], []
    for updates in rounds:
        sites = [i for i in range(len(samples)) if updates[i] is not None]
        weights, total = _fedavg(updates, samples, sites, len(start))
        distance = {i: math.dist(updates[i], total) for i in sites}
        if len(sites) > 1:
            score = {i: (1 - distance[i] / sum(distance.values())) / (len(sites) - 1) for i in sites}
        else:
            score = {sites[0]: 1.0}
        quota = [score[i] / max(score.values()) if i in sites else 0.0 for i in range(len(samples))]
        models = [_plus_largest(model, total, part) for model, part in zip(models, quota, strict=True)]
        results.append({"weights": weights, "contribution": score, "quota": quota, "models": models})
    return results


def round_robin(start, samples, rounds, turns="pass"):
    """Each site in turn adds its part and downloads all; or all add theirs and the one that waits longest downloads."""
    server, models, results = list(start), [list(start) for _ in samples], []
    queue = list(range(len(samples)))
    for updates in rounds:
        sites = [i for i in range(len(samples)) if updates[i] is not None]
        weights, total = _fedavg(updates, samples, sites, len(start))
        if turns == "pass":
            for i in sites:
                server = _sum([server, _scaled(updates[i], weights[i])], len(start))
                models[i] = server
        else:
            server = _sum([server, total], len(start))
            turn = next(i for i in queue if i in sites)
            queue = [i for i in queue if i != turn] + [turn]
            models[turn] = server
        contribution = dict.fromkeys(sites, 0.0)
        results.append({"weights": weights, "contribution": contribution, "models": list(models), "server": server})
    return results


def by_orders(count, utility):
    """The Shapley values of ``count`` players: the mean, over all their orders, of what each adds to those before."""
    values = _by_orders(list(range(count)), utility)
    return [values[i] for i in range(count)]


def largest(vector, count):
    """The places of the ``count`` largest magnitudes, ties to the lower place."""
    return sorted(sorted(range(len(vector)), key=lambda place: (-abs(vector[place]), place))[:count])


def largest_per_tensor(vector, quota, sizes):
    """The places that CGSV's released rule keeps: of a tensor with s > 1 elements min(ceil(s quota), s - 1)."""
    kept, start = [], 0
    for size in sizes:
        count = 0 if quota == 0 else 1 if size == 1 else min(math.ceil(size * quota - 1e-9), size - 1)
        kept += [start + place for place in largest(vector[start : start + size], count)]
        start += size
    return kept


def _cosine_values(parts, total):
    """The Shapley values of v(S) = cos(sum of the parts of S, total)."""
    return _by_orders(list(parts), lambda who: _cosine(_sum([parts[i] for i in who], len(total)), total))


def _by_orders(sites, utility):
    values, orders = dict.fromkeys(sites, 0.0), list(permutations(sites))
    for order in orders:
        for place, i in enumerate(order):
            gain = utility(order[: place + 1]) - (utility(order[:place]) if place else 0.0)
            values[i] += gain / len(orders)
    return values


def _reputation_weights(reputation, samples, sites):
    """Of the sites, by reputation, or by samples where nobody has any."""
    known = sum(reputation[i] for i in sites) > 0
    shares = _shares({i: reputation[i] if known else samples[i] for i in sites}, sites)
    return [shares.get(i, 0.0) for i in range(len(samples))]


def _share_again(reputation, memory, sites):
    """The sites share what they held, 1 if that was nothing, by memory; the others keep theirs."""
    held = sum(reputation[i] for i in sites)
    mass = min(held, 1.0) if held > 0 else 1.0
    shares = _shares(memory, sites)
    return [shares[i] * mass if i in sites else reputation[i] for i in range(len(reputation))]


def _shares(amounts, sites):
    total = sum(amounts[i] for i in sites)
    return {i: amounts[i] / total if total > 0 else 1 / len(sites) for i in sites}


def _gamma(gamma, updates, samples, sites):
    if gamma is not None:
        return gamma
    return sum(samples[i] / sum(samples[j] for j in sites) * _norm(updates[i]) for i in sites)


def _fedavg(updates, samples, sites, size):
    shares = _shares({i: samples[i] for i in sites}, sites)
    weights = [shares.get(i, 0.0) for i in range(len(samples))]
    return weights, _sum([_scaled(updates[i], weights[i]) for i in sites], size)


def _plus_largest(model, update, quota):
    kept = largest(update, math.floor(len(update) * quota + 1e-9))
    return [value + (update[place] if place in kept else 0.0) for place, value in enumerate(model)]


def _scaled(vector, factor):
    return [factor * value for value in vector]


def _sum(vectors, size):
    return [sum(vector[place] for vector in vectors) for place in range(size)]


def _norm(vector):
    return math.sqrt(sum(value * value for value in vector))


def _cosine(a, b):
    norms = _norm(a) * _norm(b)
    return sum(x * y for x, y in zip(a, b, strict=True)) / norms if norms > 0 else 0.0
