"""The network of the project; server and sites import it."""

from torch import Tensor, nn


class Net(nn.Module):
    """Logits (batch, 1, h, w) of images (batch, 1, h, w)."""

    def __init__(self, width: int = 4):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.last = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        """``images`` to logits."""
        logits: Tensor = self.last(self.first(images))
        return logits
