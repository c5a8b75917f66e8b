"""The network of the project; server and sites import it."""

from torch import Tensor, nn


class Net(nn.Module):
    """A network that turns images (batch, 1, h, w) into logits (batch, 1, h, w)."""

    def __init__(self, width: int = 4):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.last = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        """Compute the logits of ``images``."""
        logits: Tensor = self.last(self.first(images))
        return logits
