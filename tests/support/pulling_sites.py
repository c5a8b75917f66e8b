"""Updates of sites that pull one way, with noise; one of them the other way."""

import torch

SITES, SIZE = 6, 2000


def updates_of(round: int) -> torch.Tensor:
    """(6, d) of a round: common pull, each site's own pull, noise; the fourth's pull is the other way."""
    fixed, random = torch.Generator().manual_seed(7), torch.Generator().manual_seed(100 + round)
    pull, own = torch.randn(SIZE, generator=fixed), 0.8 * torch.randn(SITES, SIZE, generator=fixed)
    updates = pull + own + 1.8 * torch.randn(SITES, SIZE, generator=random)
    updates[3] -= 1.2 * pull
    return 0.01 * updates
