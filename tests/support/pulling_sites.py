"""Updates of sites that pull one way, with noise, in part the round's; one of them the other way."""

import torch

SITES, SIZE = 6, 2000


def updates_of(round: int) -> torch.Tensor:
    """(6, d) of a round: common pull, each site's own pull, noise; the fourth's pull is the other way.

    A quarter of the noise is the round's, which every other site has with the other sign.
    """
    fixed, random = torch.Generator().manual_seed(7), torch.Generator().manual_seed(100 + round)
    pull, own = torch.randn(SIZE, generator=fixed), 0.8 * torch.randn(SITES, SIZE, generator=fixed)
    signs = torch.where(torch.arange(SITES) % 2 == 0, 0.5, -0.5)
    noise = 0.75**0.5 * torch.randn(SITES, SIZE, generator=random) + signs[:, None] * torch.randn(
        SIZE, generator=random
    )
    updates = pull + own + 1.8 * noise
    updates[3] -= 1.2 * pull
    return 0.01 * updates
