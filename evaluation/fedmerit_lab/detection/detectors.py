"""Detectors that monitor updates: the guard, those of papers, challenge images; and the list of all."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedmerit.contract.method import Reports
from fedmerit.contract.vectors import gram
from fedmerit.guard.guard import Enrolled, Guard
from fedmerit.guard.history import History
from fedmerit.plugins import Catalogue
from fedmerit.schema.configuration.settings import GuardSettings
from fedmerit_lab.detection.detector import Detection, MonitoredRound, RoundDetector, compare_with_others

WEF_STEPS = 3  # the last ones, from which an attack is simulated
WEF_LEAST = 0.02  # median absolute deviation of correlations, at least
WEF_APART = 5.0


@dataclass
class EvolvingWeights:
    """A detector by distance of a site's pattern from the others', or similarity to one simulated from last steps.

    Both are in median absolute deviations of the other sites; the larger counts.

    Source: Nakamura 2026 (S2-WEF, arXiv 2604.04611), after the weight evolving frequency of Chen et al. 2022 (arXiv
    2206.05406): a site's pattern is the set of weights that it moved by more than a threshold. S2-WEF simulates the
    patterns of free riders that send what the server broadcast, scores each site by its similarity to these and by
    its deviation from the other sites, and clusters the two scores. The paper's sites send patterns that they count
    over their batches; here the server computes them from the round's update, with the mean size of its entries as
    threshold. With so few sites a threshold for each score, which is ours, replaces the clusters.
    """

    name: str = "S2-WEF"
    steps: list[Tensor] = field(default_factory=list, repr=False)

    def see(self, round: MonitoredRound) -> Detection[Tensor]:
        """Return both scores of the round."""
        if round.last_step is not None:
            self.steps = [*self.steps, round.last_step][-WEF_STEPS:]
        n, present = len(round.updates), round.present
        similarity = correlations([*round.updates, *self.steps])
        others = present & ~torch.eye(n, dtype=torch.bool)
        deviation = 1 - similarity[:n, :n].where(others, torch.nan).nanquantile(0.5, dim=1)
        scores = [compare_with_others(deviation, present, WEF_LEAST)]
        if self.steps:
            scores.append(compare_with_others(similarity[:n, n:].amax(dim=1), present, WEF_LEAST))
        return Detection.above(torch.stack(scores).amax(dim=0), WEF_APART)


def correlations(rows: Sequence[Tensor]) -> Tensor:
    """Return (m, m) correlations of the patterns of ``rows``, (d,) each; 0 for an empty pattern."""
    patterns = torch.stack([(row.abs() > row.abs().mean()).float() for row in rows])
    patterns -= patterns.mean(dim=1, keepdim=True)
    products = gram(patterns)
    lengths = products.diagonal().clamp(min=0).sqrt()
    scale = torch.outer(lengths, lengths)
    return torch.where(scale > 0, products / scale.where(scale > 0, 1.0), 0.0)


FLD_WINDOW = 10  # rounds of a mean score
FLD_STEPS = 5  # of which the curvature is computed
REFERENCES = 20  # uniform samples of the gap statistic


@dataclass
class PredictedUpdates:
    """A detector by distance of the update from its prediction, as a share of all sites' distances, mean over rounds.

    The prediction is g_i + H (w_t - w_{t-1}), with g_i the site's last update and H by L-BFGS of the model's last
    steps and the changes of the mean update. If the gap statistic (Tibshirani, Walther and Hastie 2001) finds two or
    more clusters of scores, the sites in the cluster of larger scores are flagged.

    Source: Zhang, Cao, Jia and Gong, FLDetector, KDD 2022 (arXiv 2207.09209), which has a hundred clients.
    """

    name: str = "FLDetector"
    before: MonitoredRound | None = field(default=None, repr=False)
    moves: list[Tensor] = field(default_factory=list, repr=False)  # (d,) each
    changes: list[Tensor] = field(default_factory=list, repr=False)
    distances: list[Tensor] = field(default_factory=list, repr=False)  # (n,) each

    def see(self, round: MonitoredRound) -> Detection[Tensor]:
        """Return scores of the round."""
        last, self.before = self.before, round
        n = len(round.updates)
        if last is None:
            return Detection.unknown(n)
        both = round.present & last.present
        move = _mean(round.received - last.received, both)
        if self.moves:
            found = torch.full((n,), torch.nan, dtype=torch.float64)
            curved = curvature_times(torch.stack(self.moves), torch.stack(self.changes), move)
            for site in both.nonzero().flatten().tolist():
                found[site] = (round.updates[site] - last.updates[site] - curved).double().norm()
            total = found.nansum()
            self.distances = [*self.distances, found / total if total > 0 else found][-FLD_WINDOW:]
        change = _mean(round.updates, round.present) - _mean(last.updates, last.present)
        if move.any():
            self.moves, self.changes = [*self.moves, move][-FLD_STEPS:], [*self.changes, change][-FLD_STEPS:]
        if not self.distances:
            return Detection.unknown(n)
        scores = torch.stack(self.distances).nanmean(dim=0)
        return Detection(scores, two_clusters(scores, round.number))


def _mean(rows: Tensor, which: Tensor) -> Tensor:
    mean: Tensor = rows[which].mean(dim=0) if which.any() else torch.zeros_like(rows[0])
    return mean


def curvature_times(moves: Tensor, changes: Tensor, vector: Tensor) -> Tensor:
    """Return (d,) B v for ``vector`` v (d,), B the L-BFGS matrix of ``moves`` (m, d) and gradient ``changes`` (m, d).

    The compact form of Byrd, Nocedal and Schnabel 1994, Theorem 2.3.
    """
    s, y, v = moves.double(), changes.double(), vector.double()
    sigma = float(s[-1] @ y[-1]) / max(float(s[-1] @ s[-1]), 1e-300)
    inner = s @ y.T
    lower = inner.tril(-1)
    middle = torch.cat(
        [torch.cat([sigma * (s @ s.T), lower], dim=1), torch.cat([lower.T, -torch.diag(inner.diagonal())], dim=1)]
    )
    right = torch.cat([sigma * (s @ v), y @ v])
    parts = torch.linalg.lstsq(middle, right[:, None], driver="gelsd").solution[:, 0]
    product: Tensor = sigma * v - torch.cat([sigma * s, y]).T @ parts
    return product.to(vector.dtype)


def two_clusters(scores: Tensor, seed: int) -> Tensor:
    """Return (n,) bool: the cluster of larger ``scores`` (n,), if there are two; NaN is in none."""
    known = scores.isfinite()
    values = scores[known].numpy()
    flagged = torch.zeros_like(known)
    if len(values) < 3 or values.max() - values.min() < 1e-12:
        return flagged
    random = np.random.default_rng(seed)
    drawn = random.uniform(values.min(), values.max(), (REFERENCES, len(values)))
    logs = np.log([[max(_within(one, k), 1e-30) for k in (1, 2)] for one in drawn])
    gaps = logs.mean(axis=0) - np.log([max(_within(values, k), 1e-30) for k in (1, 2)])
    if gaps[0] >= gaps[1] - logs[:, 1].std() * (1 + 1 / REFERENCES) ** 0.5:
        return flagged
    flagged[known] = torch.from_numpy(values >= np.sort(values)[_cut(values)])
    return flagged


def _cut(values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> int:
    """Return how many of the smallest are the first of two clusters: those with the least squares within clusters."""
    ordered = np.sort(values)
    sums = [ordered[:cut].var() * cut + ordered[cut:].var() * (len(ordered) - cut) for cut in range(1, len(ordered))]
    return int(np.argmin(sums)) + 1


def _within(values: "np.ndarray[tuple[int], np.dtype[np.float64]]", clusters: int) -> float:
    """Sum of squares within one cluster, or two."""
    if clusters == 1:
        return float(values.var() * len(values))
    ordered, cut = np.sort(values), _cut(values)
    return float(ordered[:cut].var() * cut + ordered[cut:].var() * (len(ordered) - cut))


CODE = 2  # dimensions
DAGMM_WINDOW = 5  # rounds whose updates the mixture is fitted to
COMPONENTS = 2
DAGMM_STEPS = 20  # of expectation and maximisation
DAGMM_LEAST = 1.0  # median absolute deviation of energies, at least
DAGMM_APART = 5.0  # median absolute deviations from the others' energy


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
        self.seen = [*self.seen, features(round.updates, round.present)][-DAGMM_WINDOW:]
        n = len(round.updates)
        energies = torch.full((n,), torch.nan, dtype=torch.float64)
        for site in round.present.nonzero().flatten().tolist():
            others = torch.cat([rows[torch.arange(n) != site] for rows in self.seen])
            others = others[others.isfinite().all(dim=1)]
            if len(others) > 2 * COMPONENTS:
                energies[site] = energy(self.seen[-1][site], others)
        return Detection(energies, compare_with_others(energies, round.present, DAGMM_LEAST) > DAGMM_APART)


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
    for _ in range(DAGMM_STEPS):
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


@dataclass
class TrustedRoot:
    """A detector by minus the cosine to the trusted site's update; flagged at 0 and above (FLTrust's weight 0).

    Source: Cao, Fang, Liu and Gong, FLTrust, NDSS 2021: trust is ReLU of the cosine to the update that the server
    trains on a clean root set of its own. Here a site known to be honest replaces that set, and is not judged.
    """

    site: int
    name: str = "trusted root"

    def see(self, round: MonitoredRound) -> Detection[Tensor]:
        """Return cosines of the round."""
        n = len(round.updates)
        if not round.present[self.site]:
            return Detection.unknown(n)
        root = round.updates[self.site].double()
        lengths = torch.stack([row.double().norm() for row in round.updates]) * root.norm()
        inner = torch.stack([row.double() @ root for row in round.updates])
        cosines = torch.where(lengths > 0, inner / lengths.where(lengths > 0, 1.0), 0.0)
        judged = round.present & (torch.arange(n) != self.site)
        return Detection((-cosines).where(judged, torch.nan), judged & (cosines <= 0))


@dataclass
class ChallengeImages:
    """A detector by the loss of a site's model on its challenge images, minus the mean of the others' models on them.

    A site that trained on its images lowers their loss more than others do, so an honest site is below 0. Flagged at
    0 and above.

    Source: Recasens et al. 2024 (FRIDA, arXiv 2410.05020), who detect free riders by membership inference; by the
    loss, as Yeom et al. 2018. Challenge images are a few of the training images that a site enrolled: it has to show
    them to the server, which a hospital may not do. The threshold is ours.
    """

    name: str = "challenge images"

    def see(self, round: MonitoredRound) -> Detection[Tensor]:
        """Return losses of the round."""
        if round.challenge is None:
            return Detection.unknown(len(round.updates))
        others = round.present[:, None] & ~torch.eye(len(round.updates), dtype=torch.bool)
        mean = round.challenge.where(others, torch.nan).nanmean(dim=0)
        above = (round.challenge.diagonal() - mean).where(round.present, torch.nan)
        return Detection(above, above >= 0)


@dataclass
class GuardDetector:
    """The guard's evidence and verdicts on the monitored rounds, whatever the run itself does with them.

    Flagged: there is a verdict. Suspicion: the evidence, log odds that the site does not work.

    Args:
        rounds: of the federation.

    Source: docs/guard.md.
    """

    rounds: int = 100
    name: str = "guard"
    history: History | None = field(default=None, repr=False)

    def see(self, round: MonitoredRound) -> Detection[Tensor]:
        """Apply the guard's rules to the round."""
        n = len(round.updates)
        guard = Guard(GuardSettings("on", "show"), Enrolled.nothing(n), rounds=self.rounds)
        reports = Reports(round.images, round.present)
        self.history, _ = guard.admit(self.history or History.empty(n), round.updates, reports, round.last_step)
        evidence = self.history.evidence
        return Detection(evidence.log_odds, evidence.against)


DETECTORS: Catalogue[Callable[[], RoundDetector]] = Catalogue(
    "detectors", {}, callable, "a function or class that makes a fedmerit_lab.detection.detector.RoundDetector"
)


def others_detectors() -> dict[str, RoundDetector]:
    """Return new detectors of other packages, by name."""
    return {name: make() for name, make in DETECTORS.items()}


def all_detectors(trusted: int) -> list[RoundDetector]:
    """Return new detectors for one federation; ``trusted`` is the row of a site that is known to be honest."""
    return [
        GuardDetector(), StdDagmm(), TrustedRoot(trusted), EvolvingWeights(), PredictedUpdates(), ChallengeImages(),
        *others_detectors().values(),
    ]  # fmt: skip
