"""Theorem 3.3 and Corollary 3.4 of FedCE (Jiang et al., CVPR 2023, Appendix B) in numbers, on quadratic losses.

F_i(w) = (w - c_i)ᵀ H_i (w - c_i) / 2 and F = Σ p_i F_i. Every constant is the least that its assumption allows in the
round: L of B.1 (the largest eigenvalue of Σ p_i H_i), β_i of B.2 and δ_i of B.3 on the site's own steps. A U-Net has no
L that can be computed, so that of its training the bound says nothing in numbers.

The proof's ρ_i = ‖γ_i‖₁ / (‖γ_i‖ √κ_i) is at most 1 (Cauchy and Schwarz), and its condition Σ p_i ρ_i = 1 then makes
it 1 at every site: it is not FedCE's weight. Both are tried, FedCE's as p_i ρ_i, which also sums to 1.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from fedmerit.methods.fedce import COMBINATIONS, EPSILON
from fedmerit.methods.minus_model import average_others
from fedmerit.vectors import cosine_to_others, gram, share

Vector = NDArray[np.float64]
SITES, DIMENSIONS = 4, 8
ROUNDS, REPEATS = 10, 4
STEPS = (1, 2, 5)  # κ
RATES = (0.1, 1.0, 1.5, 1.9)  # η L; the theorem asks for 1 at least, and from 2 on it can promise no descent
AGGREGATIONS = ("as in the proof (Eq. 13)", "FedAvg", "FedCE")


@dataclass(frozen=True)
class Losses:
    """A quadratic loss for each of n sites."""

    curvatures: Vector  # (n, d, d) H
    centres: Vector  # (n, d) c
    shares: Vector  # (n,) p

    @classmethod
    def draw(cls, seed: int) -> "Losses":
        """Sites of unlike centres, eigenvalues of 0.1 to 1."""
        random = np.random.default_rng(seed)
        bases = np.linalg.qr(random.normal(size=(SITES, DIMENSIONS, DIMENSIONS)))[0]
        values = random.uniform(0.1, 1, size=(SITES, 1, DIMENSIONS))
        images = random.uniform(1, 4, size=SITES)
        return cls(
            (bases * values) @ bases.swapaxes(1, 2), random.normal(size=(SITES, DIMENSIONS)), images / images.sum()
        )

    @property
    def smoothness(self) -> float:
        """L of B.1."""
        return float(np.linalg.eigvalsh(np.tensordot(self.shares, self.curvatures, 1)).max())

    def of(self, site: int, model: Vector) -> float:
        """F_i."""
        away = model - self.centres[site]
        return float(away @ self.curvatures[site] @ away / 2)

    def total(self, model: Vector) -> float:
        """F."""
        return float(sum(share * self.of(site, model) for site, share in enumerate(self.shares)))

    def gradient(self, site: int, model: Vector) -> Vector:
        """∇F_i."""
        return np.asarray(self.curvatures[site] @ (model - self.centres[site]))

    def total_gradient(self, model: Vector) -> Vector:
        """∇F."""
        gradients = [share * self.gradient(site, model) for site, share in enumerate(self.shares)]
        return np.asarray(sum(gradients))


@dataclass(frozen=True)
class Round:
    """Both sides of Theorem 3.3 in a round, and what it assumes."""

    change: float  # F(w_{k+1}) - F(w_k)
    bound: float  # its right side
    shorter: bool  # ‖d_k‖ <= ‖∇F(w_k)‖, which the proof takes from "by comparing" two equations
    corollary: bool  # ρ_i <= 4 √A_i / (A_i - 2 L) where A_i > 2 L, at every site, and at one at least


def run(losses: Losses, aggregation: str, steps: int, rate: float) -> Iterator[Round]:
    """Rounds from 0 on, each site taking ``steps`` steps of length ``rate`` / L along its gradient."""
    smoothness = losses.smoothness
    eta = rate / smoothness
    model, accumulated, weights = np.zeros(DIMENSIONS), np.zeros(SITES), losses.shares
    for _ in range(ROUNDS):
        summed, a = np.empty((SITES, DIMENSIONS)), np.empty(SITES)
        whole = losses.total_gradient(model)
        for site in range(SITES):
            summed[site], beta, delta = _local(losses, site, model, steps, eta, float(whole @ whole))
            a[site] = eta * steps**0.5 * (steps - 1) * beta**2 * delta
        if aggregation == "FedCE":
            accumulated = accumulated + contributions(losses, model, -eta * summed, weights)
            weights = accumulated / accumulated.sum()
        scale = steps**-0.5 if aggregation.startswith("as") else 1.0  # 1/‖γ‖ of G
        direction = scale * weights @ summed  # d
        moved = model - eta * direction
        rho = weights / losses.shares
        factor = eta / 4 * (2 * eta * smoothness + eta * float(weights @ a)) - eta
        large = a > 2 * smoothness
        yield Round(
            change=losses.total(moved) - losses.total(model),
            bound=factor * float(whole @ whole),
            shorter=bool(np.linalg.norm(direction) <= np.linalg.norm(whole) + 1e-12),
            corollary=bool(large.any() and (rho[large] <= 4 * a[large] ** 0.5 / (a[large] - 2 * smoothness)).all()),
        )
        model = moved


def _local(
    losses: Losses, site: int, start: Vector, steps: int, eta: float, whole: float
) -> tuple[Vector, float, float]:
    """Σ of a site's gradients over its steps; the least β of B.2 and δ of B.3, with ``whole`` ‖∇F(w_k)‖²."""
    first = losses.gradient(site, start)
    own, summed, beta, delta = start, np.zeros_like(start), 0.0, 0.0
    for step in range(steps):
        gradient = losses.gradient(site, own)
        if step:
            beta = max(beta, float(np.linalg.norm(first - gradient)) / max(float(np.linalg.norm(start - own)), 1e-300))
            delta = max(delta, float(summed @ summed) / max(step * whole, 1e-300))
        summed = summed + gradient
        own = own - eta * gradient
    return summed, beta, delta


def contributions(losses: Losses, model: Vector, updates: Vector, weights: Vector) -> Vector:
    """(n,) Γ of Eqs. 2 to 4 (Multi.), 1 in sum, the error of a model being F_i / (1 + F_i)."""
    moved, everyone = torch.from_numpy(updates), torch.ones(len(updates), dtype=torch.bool)
    parts = torch.from_numpy(weights)
    cosines = (1 - cosine_to_others(gram(moved), parts)).clamp(min=EPSILON)
    mean = parts @ moved
    errors = []
    for site, own in enumerate(moved):
        without = losses.of(site, model + average_others(mean, own, float(parts[site])).numpy())
        errors.append(without / (1 + without))
    gamma_err = share(torch.tensor(errors, dtype=torch.float64), everyone)
    return share(COMBINATIONS["times"](share(cosines, everyone), gamma_err), everyone).numpy()


def table(repeats: int = REPEATS) -> pd.DataFrame:
    """By aggregation, κ and η L: in how many rounds of ``repeats`` problems each statement held."""
    rows = []
    for aggregation in AGGREGATIONS:
        for steps in STEPS:
            for rate in RATES:
                found = [one for seed in range(repeats) for one in run(Losses.draw(seed), aggregation, steps, rate)]
                change, bound = (np.array([getattr(one, name) for one in found]) for name in ("change", "bound"))
                shorter, corollary = (
                    np.array([getattr(one, name) for one in found]) for name in ("shorter", "corollary")
                )
                within = change <= bound + 1e-9 * np.abs(bound)
                rows.append(
                    {
                        "Aggregation": aggregation,
                        "Local steps": steps,
                        "Rate x L": rate,
                        "Within the bound [%]": 100 * within.mean(),
                        "d no longer than the gradient [%]": 100 * shorter.mean(),
                        "Of these within [%]": _share(within[shorter]),
                        "Descent promised [%]": 100 * (bound < 0).mean(),
                        "Loss fell [%]": 100 * (change < 0).mean(),
                        "Corollary's condition met [%]": 100 * corollary.mean(),
                        "Of these loss fell [%]": _share(change[corollary] < 0),
                    }
                )
    return pd.DataFrame(rows)


def _share(held: NDArray[np.bool_]) -> float:
    return 100 * float(held.mean()) if len(held) else float("nan")
