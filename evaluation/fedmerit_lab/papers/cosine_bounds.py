"""Theorem 1 and Lemma 1 of CGSV (Xu et al., NeurIPS 2021, Appendix A.2) in numbers.

φ_i = L_i ψ_i + e_i, exactly, with L_i = Σ_S c_S r_i Γ/‖u_{S∪i}‖ and e_i = Σ_S c_S (‖u_S‖ - ‖u_{S∪i}‖)/‖u_{S∪i}‖ v(S),
c_S = 1/(N binom(N-1, |S|)), over the coalitions S without i. (The paper prints B_S with ‖u_S‖ in the place of Γ, and a
minus; its proof goes on with Γ.) Theorem 1 says that |e_i| is at most I Γ², of I = 1/min r_i |⟨u_i, u_N⟩|.
"""

from dataclasses import dataclass
from math import comb

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmerit.games import cosine_game, shapley

GAMMAS = (1.0, 0.5, 0.15)  # Γ of the paper's experiments
REPEATS = 20


@dataclass(frozen=True)
class Parts:
    """Of n updates of norm Γ with weights r."""

    values: NDArray[np.float64]  # (n,) φ
    cosines: NDArray[np.float64]  # (n,) ψ
    factors: NDArray[np.float64]  # (n,) L
    errors: NDArray[np.float64]  # (n,) e
    bound: float  # I Γ²
    spread: float  # of Σ_S 1/(binom ‖u_{S∪i}‖) over sites, the largest difference: the L of Lemma 1
    spread_bound: float  # Lemma 1's


def parts(updates: Tensor, weights: Tensor, gamma: float) -> Parts:
    """The terms of Theorem 1, of directions ``updates`` (n, d) float64, n up to 12, and r ``weights`` (n,) above 0."""
    n = len(updates)
    weighted = gamma * updates / updates.norm(dim=1, keepdim=True) * weights[:, None]  # r_i u_i
    products = (weighted @ weighted.T).numpy()
    members = (np.arange(2**n)[:, None] >> np.arange(n)) & 1  # (2^n, n)
    norms = np.sqrt(np.einsum("si,ij,sj->s", members, products, members).clip(min=0))
    values = np.asarray(shapley(cosine_game(torch.from_numpy(products), torch.ones(n, dtype=torch.float64))))
    inner = products.sum(axis=1)  # ⟨r_i u_i, u_N⟩
    whole = norms[-1]
    cosines = inner / (np.sqrt(products.diagonal()) * whole)
    v = np.divide(members @ inner, norms * whole, out=np.zeros(2**n), where=norms > 0)
    sizes = members.sum(axis=1)
    factors, errors = np.zeros(n), np.zeros(n)
    for i in range(n):
        without = np.flatnonzero(members[:, i] == 0)
        joined = without | (1 << i)
        c = np.array([1 / (n * comb(n - 1, int(size))) for size in sizes[without]])
        factors[i] = np.sum(c * np.sqrt(products[i, i]) / norms[joined])
        errors[i] = np.sum(c * (norms[without] - norms[joined]) / norms[joined] * v[without])
    spread, spread_bound = _closeness(norms, sizes, members, gamma)
    return Parts(values, cosines, factors, errors, gamma**2 / np.abs(inner).min(), spread, spread_bound)


def _closeness(
    norms: NDArray[np.float64], sizes: NDArray[np.int64], members: NDArray[np.int64], gamma: float
) -> tuple[float, float]:
    """The largest difference of Lemma 1's L of two sites, and its bound."""
    n = members.shape[1]
    spread, bound = 0.0, 0.0
    for i in range(n):
        for k in range(i):
            without = np.flatnonzero((members[:, i] == 0) & (members[:, k] == 0))
            c = np.array([1 / comb(n - 1, int(size)) for size in sizes[without]])
            with_i, with_k = norms[without | (1 << i)], norms[without | (1 << k)]
            m = min(with_i.min(), with_k.min()) / gamma
            spread = max(spread, abs(float(np.sum(c * (1 / with_i - 1 / with_k)))))
            bound = max(bound, float(np.sum(c * 2 / (m**2 * gamma))))
    return spread, bound


def table(sites: int = 6, dimensions: int = 1024, repeats: int = REPEATS, seed: int = 0) -> pd.DataFrame:
    """By Γ and kind of updates: errors beside bounds, the largest of ``repeats`` draws, equal weights."""
    rows = []
    for kind, common in (("independent", 0.0), ("with something in common", 1.0)):
        for gamma in GAMMAS:
            found = []
            for repeat in range(repeats):
                generator = torch.Generator().manual_seed(seed + repeat)
                draw = torch.randn(sites + 1, dimensions, generator=generator, dtype=torch.float64)
                weights = torch.full((sites,), 1 / sites, dtype=torch.float64)
                found.append(parts(draw[1:] + common * draw[0], weights, gamma))
            rows.append(
                {
                    "Updates": kind,
                    "Gamma": gamma,
                    "Error, largest": max(np.abs(one.errors).max() for one in found),
                    "Theorem 1: at most": min(one.bound for one in found),
                    "Within it [%]": 100 * np.mean([np.abs(one.errors).max() <= one.bound for one in found]),
                    "L, spread": max(one.spread for one in found),
                    "Lemma 1: at most": min(one.spread_bound for one in found),
                    "Within it, L [%]": 100 * np.mean([one.spread <= one.spread_bound for one in found]),
                }
            )
    return pd.DataFrame(rows)
