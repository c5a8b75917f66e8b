"""S2-WEF: which entries of the model a site moves, compared with the others' and with those of the last steps."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedmerit.contract.vectors import gram
from fedmerit_lab.detection.detector import Detection, MonitoredRound, compare_with_others

STEPS = 3  # the last ones, from which an attack is simulated
LEAST = 0.02  # median absolute deviation of correlations, at least
APART = 5.0


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
            self.steps = [*self.steps, round.last_step][-STEPS:]
        n, present = len(round.updates), round.present
        similarity = correlations([*round.updates, *self.steps])
        others = present & ~torch.eye(n, dtype=torch.bool)
        deviation = 1 - similarity[:n, :n].where(others, torch.nan).nanquantile(0.5, dim=1)
        scores = [compare_with_others(deviation, present, LEAST)]
        if self.steps:
            scores.append(compare_with_others(similarity[:n, n:].amax(dim=1), present, LEAST))
        return Detection.above(torch.stack(scores).amax(dim=0), APART)


def correlations(rows: Sequence[Tensor]) -> Tensor:
    """Return (m, m) correlations of the patterns of ``rows``, (d,) each; 0 for an empty pattern."""
    patterns = torch.stack([(row.abs() > row.abs().mean()).float() for row in rows])
    patterns -= patterns.mean(dim=1, keepdim=True)
    products = gram(patterns)
    lengths = products.diagonal().clamp(min=0).sqrt()
    scale = torch.outer(lengths, lengths)
    return torch.where(scale > 0, products / scale.where(scale > 0, 1.0), 0.0)
