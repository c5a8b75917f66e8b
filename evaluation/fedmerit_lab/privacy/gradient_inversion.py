"""Reconstruction of training images from one site's update of a round.

Optimised images whose simulated update has the direction of the site's (Geiping et al. 2020), through all steps of
local training (Dimitrov et al. 2022), and images read from a fully connected first layer (Phong et al. 2018).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedmerit.contract import flat
from fedmerit.trainers.monai.local_training import BETAS

ADAM_EPSILON = 1e-8  # torch's
Loss = Callable[[Tensor, Tensor], Tensor]
Batches = Sequence[tuple[Tensor, Tensor]]  # of each step images (batch, channels, h, w) and masks (batch, labels, h, w)


@dataclass(frozen=True)
class LocalSteps:
    """The steps of a site in a round, as an attacker with the plan can repeat them.

    Args:
        network: in training mode, without BatchNorm.
        loss: of logits and masks.
        optimizer: adam or sgd.
        rate: learning rate.
    """

    network: nn.Module
    loss: Loss
    optimizer: str
    rate: float

    def update(self, batches: Batches, smoothing: float = 0.0) -> Tensor:
        """Return (d,) trained minus received, from the network's weights, differentiable with respect to images.

        ``smoothing`` is added to Adam's denominator, in parts of the gradient's root mean square: the first step of
        Adam is the gradient's sign, which has no derivative.
        """
        start = torch.cat([weight.detach().reshape(-1) for weight in flat.trainable(self.network).values()])
        weights, first, second = start.requires_grad_(), torch.zeros_like(start), torch.zeros_like(start)
        for step, (images, masks) in enumerate(batches, start=1):
            named = flat.named(self.network, weights)  # modules with two names are not put back if weights are tied
            logits = functional_call(self.network, named, (images,), tie_weights=False)
            (gradient,) = torch.autograd.grad(self.loss(logits, masks), weights, create_graph=images.requires_grad)
            if self.optimizer == "sgd":
                weights = weights - self.rate * gradient
                continue
            first = BETAS[0] * first + (1 - BETAS[0]) * gradient
            second = BETAS[1] * second + (1 - BETAS[1]) * gradient**2
            scale = (second / (1 - BETAS[1] ** step) + 1e-30).sqrt()  # a root of 0 has no derivative
            added = ADAM_EPSILON + smoothing * float(gradient.detach().square().mean().sqrt())
            weights = weights - self.rate * first / (1 - BETAS[0] ** step) / (scale + added)
        return weights - start


@dataclass(frozen=True)
class ImageSearch:
    """A search of images: Adam of rate 0.1 on the sign of the derivative, the rate falling to a tenth thrice.

    Args:
        iterations: of the optimiser of images.
        variation: weight of the total variation beside the cosine distance.
        smoothing: as of `LocalSteps.update`.
    """

    iterations: int
    variation: float
    smoothing: float = 0.0

    def reconstruct(
        self,
        steps: LocalSteps,
        update: Tensor,
        starts: Sequence[Tensor],
        masks: Sequence[Tensor],
        span: Sequence[float],
    ) -> tuple[list[Tensor], float]:
        """Return images of every step, (batch, channels, h, w) each, and the cosine distance that they reach, 0 to 2.

        Args:
            steps: of the site.
            update: (d,) what it sent.
            starts: the first images of every step.
            masks: of every step, known to the attacker.
            span: lowest and highest intensity.
        """
        images = [start.clone().requires_grad_() for start in starts]
        optimizer = torch.optim.Adam(images, lr=0.1)
        falls = [int(self.iterations * part) for part in (3 / 8, 5 / 8, 7 / 8)]
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, falls)
        for _ in range(self.iterations):
            found = steps.update(list(zip(images, masks, strict=True)), self.smoothing)
            distance = 1 - torch.cosine_similarity(found, update, dim=0)
            rough = torch.stack([total_variation(image) for image in images]).mean()
            slopes = torch.autograd.grad(distance + self.variation * rough, images)
            for one, slope in zip(images, slopes, strict=True):
                one.grad = slope.sign()
            optimizer.step()
            schedule.step()
            for one in images:
                one.data.clamp_(span[0], span[1])
        reached = steps.update([(one.detach(), mask) for one, mask in zip(images, masks, strict=True)]).detach()
        return [image.detach() for image in images], 1 - float(torch.cosine_similarity(reached, update, dim=0))


def total_variation(images: Tensor) -> Tensor:
    """Return mean absolute difference of neighbours in rows plus that in columns."""
    return images.diff(dim=-1).abs().mean() + images.diff(dim=-2).abs().mean()


def read_first_layer(network: nn.Module, update: Tensor) -> Tensor:
    """Return (inputs,) what a fully connected first layer, ``network``'s, saw in one step of plain SGD on one image.

    The change of a row is the change of its bias times the input; of the row whose bias changed most.
    """
    changes = list(flat.named(network, update).values())
    row = int(changes[1].abs().argmax())
    return changes[0][row] / changes[1][row]
