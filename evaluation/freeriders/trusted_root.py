"""FLTrust's root of trust: which updates point where that of a site points that is trusted."""

from dataclasses import dataclass

import torch

from evaluation.freeriders.watched import Said, WatchedRound


@dataclass
class TrustedRoot:
    """Suspicion: minus the cosine to the trusted site's update; flagged at 0 and above, where FLTrust gives no weight.

    Source: Cao, Fang, Liu and Gong, FLTrust, NDSS 2021: trust is ReLU of the cosine to the update that the server
    trains on a clean root set of its own. Here a site known to be honest stands for that set, and is not judged.
    """

    site: int
    name: str = "trusted root"

    def see(self, round: WatchedRound) -> Said:
        """Cosines of the round."""
        n = len(round.updates)
        if not round.present[self.site]:
            return Said.nothing(n)
        root = round.updates[self.site].double()
        lengths = torch.stack([row.double().norm() for row in round.updates]) * root.norm()
        inner = torch.stack([row.double() @ root for row in round.updates])
        cosines = torch.where(lengths > 0, inner / lengths.where(lengths > 0, 1.0), 0.0)
        judged = round.present & (torch.arange(n) != self.site)
        return Said((-cosines).where(judged, torch.nan), judged & (cosines <= 0))
