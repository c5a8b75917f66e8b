"""DP-SGD at a site (Abadi et al. 2016), with patients as units: Opacus clips, adds up and scales the gradients.

A step draws each patient with probability q, and of each drawn one up to ``dp_slices`` samples. Its gradient is that of
only its samples' loss, since a soft Dice over a batch would let a patient act on the gradients of others.

Draws and noise are a ChaCha20 key stream of (seed, site, round): with a secret of the site nobody else can subtract the
noise, and a run repeats, as do the drawn steps of an audit. Each noise is half the sum of four normal numbers,
against attacks on floating-point numbers (Holohan and Braghin 2021).
"""

import hashlib
from collections.abc import Callable, Iterator

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray
from torch import Tensor, nn

from fedmerit.schema.configuration.settings import Privacy
from fedmerit.trainers.monai.samples import Samples
from fedmerit.trainers.privacy_budget import Mechanism, load_opacus

load_opacus()
from opacus.optimizers import DPOptimizer  # noqa: E402

SUMMED = 4  # normal numbers in the noise of an entry


class KeyStream:
    """A stream of random numbers that follow from a key; without it they cannot be distinguished from noise.

    Args:
        key: a text.
    """

    def __init__(self, key: str):
        secret = hashlib.sha256(key.encode()).digest()
        self._bytes = Cipher(algorithms.ChaCha20(secret, bytes(16)), mode=None).encryptor()

    def uniform(self, count: int) -> NDArray[np.float64]:
        """Return the next ``count`` numbers, in (0, 1)."""
        whole = np.frombuffer(self._bytes.update(bytes(8 * count)), dtype="<u8")
        return ((whole >> np.uint64(12)).astype(np.float64) + 0.5) / 2.0**52

    def normal(self, count: int) -> NDArray[np.float64]:
        """Return the next ``count`` standard normal numbers (Box and Muller 1958)."""
        first, second = self.uniform(2 * (-(-count // 2))).reshape(2, -1)
        radius, angle = np.sqrt(-2 * np.log(first)), 2 * np.pi * second
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


class _NoisyOptimizer(DPOptimizer):
    """An optimizer of Opacus whose noise is of a `KeyStream`."""

    noise: KeyStream

    def add_noise(self) -> None:
        """Set the gradient of each parameter to the sum of clipped ones, and noise."""
        for parameter in self.params:
            normal = self.noise.normal(SUMMED * parameter.numel()).reshape(SUMMED, -1).sum(axis=0)
            normal *= self.noise_multiplier * self.max_grad_norm / np.sqrt(SUMMED)
            noise = torch.from_numpy(normal).to(parameter).view_as(parameter)
            parameter.grad = parameter.summed_grad + noise


class PrivateTraining:
    """A training of a round by DP-SGD.

    Args:
        samples: the site's training images.
        privacy: clipping length and samples of a patient.
        mechanism: noise and probability of a draw.
        key: of the random numbers: seed, site with its secret, round, number of the training.
    """

    def __init__(self, samples: Samples, privacy: Privacy, mechanism: Mechanism, key: str):
        self.privacy, self.mechanism, self._key = privacy, mechanism, key
        places: dict[str, list[int]] = {}
        for place, (case, _) in enumerate(samples.index):
            places.setdefault(case.patient, []).append(place)
        self._patients = {patient: places[patient] for patient in sorted(places)}
        self._drawn: list[int] = []  # samples of each drawn patient in the step

    def draw_places(self) -> Iterator[Tensor]:
        """Yield, without end, the places (batch,) of each step's samples, patient by patient; () if none is drawn."""
        step = 0
        while True:
            step += 1
            chosen = [self._draw(step, patient) for patient in self._patients]
            chosen = [places for places in chosen if places]
            self._drawn = [len(places) for places in chosen]
            yield torch.tensor([place for places in chosen for place in places], dtype=torch.long)

    def _draw(self, step: int, patient: str) -> list[int]:
        """Return the places of a patient's samples in a step, in order; none if the patient is not drawn."""
        places, stream = self._patients[patient], KeyStream(f"{self._key}/draw {step} {patient}")
        if stream.uniform(1)[0] >= self.mechanism.rate:
            return []
        order = np.argsort(stream.uniform(len(places)), kind="stable")
        return sorted(places[number] for number in order[: self.privacy.dp_slices])

    def add_gradients(
        self,
        step: int,
        optimizer: torch.optim.Optimizer,
        loss: Callable[[Tensor, Tensor], Tensor],
        images: Tensor,
        masks: Tensor,
    ) -> None:
        """Give the parameters the noisy mean gradient of the patients that `draw_places` drew last.

        Args:
            step: number of the step, from 1.
            optimizer: of the parameters; it takes no step here.
            loss: of images and masks.
            images: (batch, ...) of the drawn places.
            masks: likewise.
        """
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        gradients: list[list[Tensor]] = []
        pairs = zip(torch.split(images, self._drawn), torch.split(masks, self._drawn), strict=True)
        for of_patient in pairs if self._drawn else ():
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss(*of_patient))
            gradients.append([_finite_gradient(parameter) for parameter in parameters])
        for place, parameter in enumerate(parameters):
            rows = [of_patient[place] for of_patient in gradients]
            parameter.grad_sample = torch.stack(rows) if rows else parameter.new_zeros(0, *parameter.shape)
        noisy = _NoisyOptimizer(
            optimizer,
            noise_multiplier=self.mechanism.noise,
            max_grad_norm=self.privacy.dp_clip,
            expected_batch_size=self.mechanism.rate * len(self._patients),
        )
        noisy.noise = KeyStream(f"{self._key}/noise {step}")
        noisy.pre_step()
        for parameter in parameters:
            parameter.grad_sample = parameter.summed_grad = None


def _finite_gradient(parameter: nn.Parameter) -> Tensor:
    """Return a copy of the gradient; what is not finite, which no clipping would bound, is 0."""
    if parameter.grad is None:
        return torch.zeros_like(parameter)
    return parameter.grad.detach().nan_to_num(0.0, 0.0, 0.0)
