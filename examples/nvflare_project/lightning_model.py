"""The network as a LightningModule."""

import torch
from model import Net
from pytorch_lightning import LightningModule
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits


class LitNet(LightningModule):
    """`Net`, its loss and its Dice."""

    def __init__(self) -> None:
        super().__init__()
        self.network = Net()

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """The loss of a batch."""
        pictures, masks = batch
        return binary_cross_entropy_with_logits(self.network(pictures), masks)

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        """Log the Dice of a batch."""
        pictures, masks = batch
        found = self.network(pictures) > 0
        dice = 2 * (found * masks).sum() / (found.sum() + masks.sum()).clamp(min=1)
        self.log("dice", dice, batch_size=len(pictures))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=1e-2)
