"""FLDetector: whether a site's updates follow from its last one and from how the model moved."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedmerit_lab.detection.detector import Detection, MonitoredRound

WINDOW = 10  # rounds of a mean score
STEPS = 5  # of which the curvature is computed
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
            self.distances = [*self.distances, found / total if total > 0 else found][-WINDOW:]
        change = _mean(round.updates, round.present) - _mean(last.updates, last.present)
        if move.any():
            self.moves, self.changes = [*self.moves, move][-STEPS:], [*self.changes, change][-STEPS:]
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
