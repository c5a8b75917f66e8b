"""Slow, literal references of the methods: plain numbers and loops, no torch, nothing of FedMerit.

A round is what the server sees: one update (a list of d numbers) per site, or None for a site that sat out.
"""

import math


def fedavg(start, samples, rounds):
    """The global model after each round: w ← w + Σ p_i Δ_i, p_i over the sites that took part."""
    model, models = list(start), []
    for updates in rounds:
        weights = _share(samples, [update is not None for update in updates])
        model = _aggregate(model, weights, updates)
        models.append(model)
    return models


def fedce(start, samples, rounds, dice, combine, relative=False):
    """FedCE with both terms at the sites (Algorithm 1 of Jiang et al. 2023, its round index made consistent).

    Args:
        start: d numbers.
        samples: training images of each site.
        rounds: the updates, [round][site].
        dice: [site], each from d numbers to a Dice.
        combine: "times" or "plus", or of one term only, "cosine" or "error".
        relative: the second term by the error of the model with the site.

    Returns:
        One dict per round: cosine and minus_error as the sites computed them (None: not available), weights, w_next.
    """
    count = len(samples)
    model, before, weights_before, updates_before = list(start), None, [0.0] * count, [None] * count
    accumulated, results = [0.0] * count, []
    for updates in rounds:
        present = [update is not None for update in updates]
        cosine, minus_error, term = [None] * count, [None] * count, [None] * count
        for i in range(count):
            own, weight = updates_before[i], weights_before[i]
            if own is None or not present[i]:
                continue
            if weight == 1:  # only in w_t: nobody to compare with, and no model without it
                cosine[i] = 0.0
                continue
            others = [(w - b - weight * u) / (1 - weight) for w, b, u in zip(model, before, own, strict=True)]
            without = [(w - weight * (b + u)) / (1 - weight) for w, b, u in zip(model, before, own, strict=True)]
            cosine[i] = _cosine(own, others)
            minus_error[i] = 1 - dice[i](without)
            term[i] = minus_error[i] / max(0.01, 1 - dice[i](model)) if relative else minus_error[i]

        if any(c is not None and e is not None for c, e in zip(cosine, minus_error, strict=True)):
            gamma_cos = _share_known([None if c is None else 1 - c for c in cosine], present)
            gamma_err = _share_known(term, present)
            for i in range(count):
                if present[i]:
                    of_both = {"times": gamma_cos[i] * gamma_err[i], "plus": gamma_cos[i] + gamma_err[i]}
                    accumulated[i] += (of_both | {"cosine": gamma_cos[i], "error": gamma_err[i]})[combine]
            weights = _share(accumulated, present)
        else:
            weights = _share(samples, present)
        before, model = model, _aggregate(model, weights, updates)
        weights_before, updates_before = weights, updates
        results.append({"cosine": cosine, "minus_error": minus_error, "weights": weights, "w_next": model})
    return results


def _aggregate(model, weights, updates):
    result = list(model)
    for weight, update in zip(weights, updates, strict=True):
        if update is not None:
            for k in range(len(result)):
                result[k] += weight * update[k]
    return result


def _share(amounts, present):
    """The present sites' shares of the whole."""
    total = sum(amount for amount, here in zip(amounts, present, strict=True) if here)
    return [amount / total if here else 0.0 for amount, here in zip(amounts, present, strict=True)]


def _share_known(amounts, present):
    """Likewise; a present site whose amount is not known counts as the mean of the known ones."""
    known = [amount for amount in amounts if amount is not None]
    mean = sum(known) / len(known) if known else 1.0
    return _share([mean if amount is None else amount for amount in amounts], present)


def _cosine(a, b):
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    norms = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(y * y for y in b))
    return dot / norms if norms > 0 else 0.0
