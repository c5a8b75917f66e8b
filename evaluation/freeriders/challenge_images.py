"""Membership of challenge images: whether a site's model knows images that the site says it trained on."""

from dataclasses import dataclass

import torch

from evaluation.freeriders.watched import Said, WatchedRound


@dataclass
class ChallengeImages:
    """Suspicion: the loss of a site's model on its own challenge images, above the mean of the others' models on them.

    A site that trained on its images lowers their loss more than others do: below 0. Flagged at 0 and above.

    Source: Recasens et al. 2024 (FRIDA, arXiv 2410.05020), who tell riders by membership inference; by the loss, as
    Yeom et al. 2018. Challenge images are a few of the training images that a site enrolled: it has to show them to
    whoever asks, which a hospital may not do. The threshold is ours.
    """

    name: str = "challenge images"

    def see(self, round: WatchedRound) -> Said:
        """Losses of the round."""
        if round.challenge is None:
            return Said.nothing(len(round.updates))
        others = round.present[:, None] & ~torch.eye(len(round.updates), dtype=torch.bool)
        of_others = round.challenge.where(others, torch.nan).nanmean(dim=0)
        above = (round.challenge.diagonal() - of_others).where(round.present, torch.nan)
        return Said(above, above >= 0)
