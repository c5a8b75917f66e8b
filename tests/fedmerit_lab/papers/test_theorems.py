"""Theorems of the papers, checked in numbers on problems whose constants can be computed; a U-Net has none of them."""

from itertools import combinations_with_replacement, product
from math import comb

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from fedmerit.contract.games import cosine_game, shapley
from fedmerit.contract.vectors import cosine_to_others, gram, share
from fedmerit.methods.fedce import COMBINATIONS


@pytest.mark.parametrize("gamma", [1.0, 0.3])
def test_cgsv_theorem_1(gamma):
    """φ_i = L_i ψ_i + e_i with |e_i| <= Γ² / min r_i |⟨u_i, u_N⟩| (Xu et al. 2021, Appendix A.2; B_S with Γ)."""
    n, draw = 5, torch.Generator().manual_seed(3)
    updates = torch.randn(n, 40, generator=draw, dtype=torch.float64) + 0.3
    weights = torch.tensor([0.1, 0.3, 0.2, 0.25, 0.15], dtype=torch.float64)
    products = gram(gamma * updates / updates.norm(dim=1, keepdim=True) * weights[:, None])
    values = np.asarray(shapley(cosine_game(products, torch.ones(n, dtype=torch.float64))))
    products = products.numpy()
    members = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    norms = np.sqrt(np.einsum("si,ij,sj->s", members, products, members).clip(min=0))
    inner = products.sum(axis=1)  # ⟨r_i u_i, u_N⟩
    game = np.divide(members @ inner, norms * norms[-1], out=np.zeros(2**n), where=norms > 0)
    for i in range(n):
        without = np.flatnonzero(members[:, i] == 0)
        joined = without | (1 << i)
        c = np.array([1 / (n * comb(n - 1, int(size))) for size in members[without].sum(axis=1)])
        own = np.sqrt(products[i, i])
        factor = np.sum(c * own / norms[joined])
        error = np.sum(c * (norms[without] - norms[joined]) / norms[joined] * game[without])
        assert values[i] == pytest.approx(factor * inner[i] / (own * norms[-1]) + error)
        assert 0 < abs(error) <= gamma**2 / np.abs(inner).min()


ERROR = ("error (Eq. 3)", lambda others, client: ((others - client) ** 2).sum(axis=-1) / 4)
OTHERS_ONLY = ("of the others only", lambda others, client: (1 + others[..., 1] + 0 * client[..., 1]) / 2)


@pytest.mark.parametrize(
    ("gamma", "holds_as_printed"), [(ERROR, True), (OTHERS_ONLY, False)], ids=["error (Eq. 3)", "of the others only"]
)
def test_fedce_theorem_3_2(gamma, holds_as_printed):
    """|ν_s(z) - ν_t(z)| <= 2 N B W_1 (Jiang et al. 2023, Appendix A), if B bounds the change of another site (Eq. 11).

    As printed, B bounds the change of the client itself (Eq. 8), and the bound fails for a contribution that depends
    on the others only.
    """
    number, change = 3, gamma[1]
    angles, radii = np.linspace(-0.8, 0.8, 4), np.linspace(0.6, 1.0, 4)
    first, second = (np.stack([radii * np.cos(angles + by), radii * np.sin(angles + by)], 1) for by in (0.0, 0.5))
    space = np.concatenate([first, second])

    def value(points):
        means = np.array([np.mean(drawn, axis=0) for drawn in product(points, repeat=number)])
        return change(means[None], space[:, None]).mean(axis=1)

    fixed = np.array([np.sum(drawn, axis=0) for drawn in combinations_with_replacement(space, number - 1)])
    table = change(((fixed[:, None] + space) / number)[:, :, None], space)  # (sets, another site, client)
    distances = np.linalg.norm(space[:, None] - space, axis=-1)
    differ = distances > 0
    slopes = (
        np.abs(table[..., :, None] - table[..., None, :]).max(axis=(0, 1)),  # the client is another
        np.abs(table[:, :, None] - table[:, None]).max(axis=(0, 3)),  # one of the others is another
    )
    costs = np.linalg.norm(first[:, None] - second, axis=-1)
    shift = costs[linear_sum_assignment(costs)].mean()
    printed, proved = (2 * number * (slope[differ] / distances[differ]).max() * shift for slope in slopes)
    difference = np.abs(value(first) - value(second)).max()
    assert 0.05 < difference <= proved
    assert (difference <= printed) == holds_as_printed


def test_fedce_theorem_3_3():
    """F falls by ‖∇F‖² / 2L at least in a round of one step of 1/L with weights p; with FedCE's weights it need not."""
    broken = 0
    for seed in range(20):
        random, n, d = np.random.default_rng(seed), 4, 8
        bases = np.linalg.qr(random.normal(size=(n, d, d)))[0]
        curvatures = (bases * random.uniform(0.1, 1, size=(n, 1, d))) @ bases.swapaxes(1, 2)
        centres, images = random.normal(size=(n, d)), random.uniform(1, 4, size=n)
        shares = images / images.sum()
        smoothness = np.linalg.eigvalsh(np.tensordot(shares, curvatures, 1)).max()

        def losses(model, centres=centres, curvatures=curvatures):
            return np.einsum("ni,nij,nj->n", model - centres, curvatures, model - centres) / 2

        gradients = -np.einsum("nij,nj->ni", curvatures, centres)  # at 0
        bound = -((shares @ gradients) ** 2).sum() / smoothness / 2
        updates = torch.from_numpy(-gradients / smoothness)
        p, everyone = torch.from_numpy(shares), torch.ones(n, dtype=torch.bool)
        without = [(shares @ updates.numpy() - shares[i] * updates[i].numpy()) / (1 - shares[i]) for i in range(n)]
        errors = torch.tensor([losses(model)[i] for i, model in enumerate(without)])
        distances = share((1 - cosine_to_others(gram(updates), p)).clamp(min=0), everyone)
        fedce = share(COMBINATIONS["times"](distances, share(errors / (1 + errors), everyone)), everyone).numpy()
        change, by_fedce = (shares @ (losses(w @ updates.numpy()) - losses(np.zeros(d))) for w in (shares, fedce))
        assert change <= bound
        broken += by_fedce > bound
    assert broken


@pytest.mark.parametrize(("condition", "distance", "holds"), [(1.0, 0.0, True), (100.0, 0.0, False), (1.0, 1.0, False)])
def test_fedsac_theorem_1(condition, distance, holds):
    """Of nested submodels the larger has the lower loss if L = μ (one curvature) and the whole model is near a minimum.

    Wang et al., KDD 2024, Section 4.3.
    """
    size, lower = 24, []
    parts_of = np.arange(size) < np.array([4, 8, 12, 16, 20, 24])[:, None]
    for seed in range(20):
        random = np.random.default_rng(seed)
        basis = np.linalg.qr(random.normal(size=(size, size)))[0]
        curvature = (basis * np.geomspace(1, condition, size)) @ basis.T
        minimum, step = random.normal(size=(2, size))
        whole = minimum + distance * np.linalg.norm(minimum) * step / np.linalg.norm(step)
        rest = np.where(parts_of, whole, 0.0) - minimum
        losses = (rest @ curvature * rest).sum(axis=1)
        lower.append((np.diff(losses) <= 0).all())
    assert all(lower) == holds


def test_fedsac_theorem_2():
    """The loss approaches the minimum with whole models; with nested ones for good it stays above (Section 4.4)."""
    random, n, d = np.random.default_rng(0), 4, 12
    centres = random.normal(size=(n, d))  # F_i(θ) = ‖θ - c_i‖² / 2, L = μ = 1
    excess = {}
    for kind, kept in (("whole", [12] * 4), ("nested", [3, 6, 9, 12])):
        owned, model = np.arange(d) < np.array(kept)[:, None], np.zeros(d)
        for number in range(400):
            parts = np.where(owned, model - 2 / (8 + number) * (model - centres), 0.0)
            model = parts.sum(axis=0) / owned.sum(axis=0)  # Eq. 9
        excess[kind] = ((model - centres.mean(axis=0)) ** 2).sum() / 2
    assert excess["whole"] < 1e-3
    assert excess["nested"] > 1
