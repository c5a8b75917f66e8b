"""STD-DAGMM: density of an update's reconstruction error and of the standard deviation of its entries."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedmerit.contract.vectors import gram
from fedmerit_lab.detection.detector import Detection, MonitoredRound, compare_with_others

CODE = 2  # dimensions
WINDOW = 5  # rounds whose updates the mixture is fitted to
COMPONENTS = 2
STEPS = 20  # of expectation and maximisation
LEAST = 1.0  # median absolute deviation of energies, at least
APART = 5.0  # median absolute deviations from the others' energy


@dataclass
class StdDagmm:
    """A detector by the energy of the update under a mixture fitted to the other sites' updates of the last rounds.

    Source: Lin, Du and Liu 2019 (arXiv 1911.12560), who add the standard deviation of an update's entries to the
    features of DAGMM (Zong et al. 2018): an autoencoder's code, its reconstruction error and cosine. They train a
    deep autoencoder on the updates of a hundred clients. For a few sites, a linear one is fitted to each round here.
    Its code means something else in every round and is left out, a site is compared with a mixture of the others
    only, and the threshold is ours, as the paper gives none.
    """

    name: str = "STD-DAGMM"
    seen: list[Tensor] = field(default_factory=list, repr=False)  # (n, 3) each; NaN rows for absent sites

    def see(self, round: MonitoredRound) -> Detection[Tensor]:
        """Return energies of the round."""
        self.seen = [*self.seen, features(round.updates, round.present)][-WINDOW:]
        n = len(round.updates)
        energies = torch.full((n,), torch.nan, dtype=torch.float64)
        for site in round.present.nonzero().flatten().tolist():
            others = torch.cat([rows[torch.arange(n) != site] for rows in self.seen])
            others = others[others.isfinite().all(dim=1)]
            if len(others) > 2 * COMPONENTS:
                energies[site] = energy(self.seen[-1][site], others)
        return Detection(energies, compare_with_others(energies, round.present, LEAST) > APART)


def features(updates: Tensor, present: Tensor) -> Tensor:
    """Return (n, 3) features: log relative standard deviation of entries, relative reconstruction error, its cosine.

    The reconstruction is by the mean and the `CODE` first principal components of the ``present`` (n,) rows of
    ``updates`` (n, d); everything follows from their Gram matrix.
    """
    rows = updates[present]
    products, n = gram(rows), len(rows)
    mean = torch.full((n, n), 1 / n, dtype=torch.float64)
    centring = torch.eye(n, dtype=torch.float64) - mean
    vectors = torch.linalg.eigh(centring @ products @ centring).eigenvectors[:, -CODE:]
    rebuilding = mean + vectors @ vectors.T @ centring
    squared = products.diagonal().clamp(min=0)
    rebuilt = (rebuilding @ products @ rebuilding.T).diagonal().clamp(min=0)
    inner = (products @ rebuilding.T).diagonal()
    error = (squared + rebuilt - 2 * inner).clamp(min=0).sqrt() / squared.sqrt().clamp(min=1e-12)
    cosine = inner / (squared * rebuilt).sqrt().clamp(min=1e-24)
    spread = rows.double().std(dim=1)
    level = (spread / spread.quantile(0.5).clamp(min=1e-12)).clamp(min=1e-3).log()
    result = torch.full((len(updates), 3), torch.nan, dtype=torch.float64)
    result[present] = torch.stack([level, error.clamp(max=2), cosine.clamp(-1, 1)], dim=1)
    return result


def energy(one: Tensor, others: Tensor) -> float:
    """Return -log density of ``one`` (f,) under Gaussians with diagonal covariances fitted to ``others`` (m, f).

    The fit is by expectation maximisation and starts from the halves above and below the median of the feature that
    varies most.
    """
    middle, scale = others.mean(dim=0), others.std(dim=0).clamp(min=1e-3)
    samples, point = (others - middle) / scale, (one - middle) / scale
    widest = samples[:, int((others.std(dim=0)).argmax())]
    above = (widest > widest.quantile(0.5)).double()
    shares = torch.stack([above, 1 - above], dim=1) * 0.9 + 0.05  # (m, components)
    for _ in range(STEPS):
        counts = shares.sum(dim=0)
        means = (shares.T @ samples) / counts[:, None]
        variances = (shares.T @ samples.square()) / counts[:, None] - means.square()
        variances = variances.clamp(min=0.05)  # of standardised features; so few samples do not show less
        densities = _log_densities(samples, means, variances, counts / counts.sum())
        shares = densities.softmax(dim=1)
    return -float(_log_densities(point[None], means, variances, counts / counts.sum()).logsumexp(dim=1))


def _log_densities(samples: Tensor, means: Tensor, variances: Tensor, priors: Tensor) -> Tensor:
    """Return (m, components)."""
    away = (samples[:, None] - means).square() / variances
    return priors.log() - 0.5 * (away + (2 * torch.pi * variances).log()).sum(dim=2)
