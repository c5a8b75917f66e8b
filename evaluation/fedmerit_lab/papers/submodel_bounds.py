"""Theorems 1 and 2 of FedSAC (Wang et al., KDD 2024, Secs. 4.3 and 4.4) in numbers, on quadratic losses.

Theorem 1: of nested submodels the larger is nearer to the whole model and has the lower loss. It assumes a loss that is
L-smooth and μ-strongly convex with L <= μ, which leaves L = μ, the same curvature in every direction; and a whole model
near a minimum (Eq. 16). Here it is asked with and without.

Theorem 2 bounds by how much the loss of the whole model exceeds the least after T steps. It assumes that every site
gets every neuron equally often (Assumption 5); FedSAC withholds the important ones of some sites for good. Both are
tried, with averages by count (Eq. 9). Γ is F* less the mean of the sites' own least losses, G² the largest mean squared
gradient met.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Array = NDArray[np.float64]
CONDITIONS = (1.0, 2.0, 10.0, 100.0)  # L / μ
DISTANCES = (0.0, 0.1, 1.0)  # of the whole model from the minimum, by the length of this
KEPT = (4, 8, 12, 16, 20, 24)  # of 24 neurons, by site: the better its reputation, the more
DRAWS = 100
HELD = (0.25, 0.5, 0.75, 1.0)  # p_i of Theorem 2
NEURONS = 12
ROUNDS = (10, 100, 1000)
RUNS = 4
NOISE = 0.1  # σ_i² of stochastic gradients


def order(condition: float, distance: float, draws: int = DRAWS) -> dict[str, float]:
    """Of all pairs of sites of ``draws`` problems, percent: what Theorem 1 says, and where its Eq. 16 is met."""
    size = KEPT[-1]
    nearer, near_minimum, lower = [], [], []
    for seed in range(draws):
        random = np.random.default_rng(seed)
        basis = np.linalg.qr(random.normal(size=(size, size)))[0]
        curvature = (basis * np.geomspace(1, condition, size)) @ basis.T
        least = random.normal(size=size)
        step = random.normal(size=size)
        whole = least + distance * np.linalg.norm(least) * step / np.linalg.norm(step)
        parts = np.where(np.arange(size) < np.array(KEPT)[:, None], whole, 0.0)  # θ_i, nested
        away = np.linalg.norm(whole - parts, axis=1)  # δ_i
        losses = ((parts - least) @ curvature * (parts - least)).sum(axis=1) / 2
        gradient = float(np.linalg.norm(curvature @ (whole - least)))
        j, i = np.triu_indices(len(KEPT), 1)  # r_i > r_j
        allowed = condition * np.abs(away[i] ** 2 - away[j] ** 2) / 2 / np.linalg.norm(parts[i] - parts[j], axis=1)
        nearer.append(away[i] <= away[j])
        near_minimum.append(gradient <= allowed)
        lower.append(losses[i] <= losses[j])
    met = np.array(near_minimum)
    return {
        "nearer model [%]": 100 * float(np.mean(nearer)),
        "lower loss [%]": 100 * float(np.mean(lower)),
        "Eq. 16 met [%]": 100 * float(met.mean()),
        "of these lower loss [%]": 100 * float(np.array(lower)[met].mean()) if met.any() else float("nan"),
    }


def orders() -> pd.DataFrame:
    """`order` by L / μ and distance of the whole model from the minimum."""
    rows = [
        {"L / mu": condition, "From the minimum": distance, **order(condition, distance)}
        for condition in CONDITIONS
        for distance in DISTANCES
    ]
    return pd.DataFrame(rows)


@dataclass(frozen=True)
class Problem:
    """F_i(θ) = (θ - c_i)ᵀ H_i (θ - c_i) / 2, F their mean."""

    curvatures: Array  # (n, d, d)
    centres: Array  # (n, d)

    @classmethod
    def draw(cls, seed: int) -> "Problem":
        """Of as many sites as `HELD` says, eigenvalues of 1 to 2."""
        random, sites = np.random.default_rng(seed), len(HELD)
        bases = np.linalg.qr(random.normal(size=(sites, NEURONS, NEURONS)))[0]
        values = random.uniform(1, 2, size=(sites, 1, NEURONS))
        values[..., 0], values[..., -1] = 1, 2  # μ and L
        return cls((bases * values) @ bases.swapaxes(1, 2), random.normal(size=(sites, NEURONS)))

    @property
    def least(self) -> Array:
        """(d,) θ*, where F is least."""
        pulled = np.einsum("nij,nj->i", self.curvatures, self.centres)
        return np.asarray(np.linalg.solve(self.curvatures.sum(axis=0), pulled))

    def loss(self, model: Array) -> Array:
        """(...,) F of models (..., d)."""
        away = model[..., None, :] - self.centres
        return np.asarray(np.einsum("...ni,nij,...nj->...n", away, self.curvatures, away).mean(axis=-1) / 2)

    def gradients(self, models: Array) -> Array:
        """(n, ..., d) each site's own of its models (n, ..., d)."""
        return np.asarray((models - self.centres[:, None]) @ self.curvatures)


def held(masks: str, runs: int, random: np.random.Generator) -> NDArray[np.bool_]:
    """(n, runs, d) the neurons of each site: all; ``drawn`` anew, each with p_i; or ``nested``, FedSAC's prefixes."""
    shares, shape = np.array(HELD)[:, None, None], (len(HELD), runs, NEURONS)
    if masks == "whole":
        return np.ones(shape, dtype=bool)
    if masks == "nested":
        return np.broadcast_to(np.arange(NEURONS) < np.round(shares * NEURONS), shape)
    return np.asarray(random.uniform(size=shape) < shares)


def excess(masks: str, local_steps: int, rounds: Sequence[int] = ROUNDS, seed: int = 0) -> pd.DataFrame:
    """E F - F* after ``rounds``, a mean of `RUNS`, beside Theorem 2's bound; μ = 1, L = 2, E ``local_steps``."""
    problem, random = Problem.draw(seed), np.random.default_rng(seed)
    smooth, convex = 2.0, 1.0
    gamma = max(8 * smooth / convex, local_steps) - 1
    sizes = np.ones(len(HELD)) if masks == "whole" else np.array(HELD)
    model = np.zeros((RUNS, NEURONS))
    first = float((problem.least**2).sum())  # Δ_1 of θ = 0
    least = float(problem.loss(problem.least))
    largest, time, rows = 0.0, 0, []
    for number in range(1, max(rounds) + 1):
        own = held(masks, RUNS, random)
        parts = np.where(own, model, 0.0)
        for _ in range(local_steps):
            eta = 2 / (convex * (gamma + time))
            noise = random.normal(scale=(NOISE / NEURONS) ** 0.5, size=parts.shape)
            gradients = np.where(own, problem.gradients(parts) + noise, 0.0)
            largest = max(largest, float((gradients**2).sum(axis=-1).mean(axis=1).max()))
            parts = parts - eta * gradients
            time += 1
        count = own.sum(axis=0)
        model = np.where(count > 0, (parts * own).sum(axis=0) / np.maximum(count, 1), model)  # Eq. 9
        if number in rounds:
            b = float((NOISE / sizes**2).sum()) + 6 * smooth * least + 8 * (local_steps - 1) ** 2 * largest
            bound = smooth / (gamma + time) * (2 * b / convex**2 + (gamma + 1) / 2 * first)
            found = float(problem.loss(model).mean()) - least
            rows.append({"Rounds": number, "Loss above the least": found, "Theorem 2: at most": bound})
    return pd.DataFrame(rows)


def convergence(rounds: Sequence[int] = ROUNDS) -> pd.DataFrame:
    """`excess` of every kind of submodel, one local step and three."""
    kinds = {"whole": "whole models", "drawn": "drawn anew every round (Assumption 5)", "nested": "nested, for good"}
    parts = []
    for masks, told in kinds.items():
        for local_steps in (1, 3):
            found = excess(masks, local_steps, rounds)
            found.insert(0, "Local steps", local_steps)
            found.insert(0, "Submodels", told)
            parts.append(found)
    table = pd.concat(parts, ignore_index=True)
    within = table["Loss above the least"] <= table["Theorem 2: at most"]
    return table.assign(**{"Within it": np.where(within, "yes", "no")})
