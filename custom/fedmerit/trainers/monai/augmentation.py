"""Random transforms of a batch of images and masks, on the device where it lies.

They are MONAI's (``RandAffine``, ``RandGaussianNoise``, ``RandGaussianSmooth``, ``RandBiasField``,
``RandAdjustContrast``, ``RandScaleIntensity``, ``RandShiftIntensity``), which go image by image, done to whole batches.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from fedmerit.trainers.monai.generators import make_generator

Range = tuple[float, float]
BIAS_DEGREE = 3  # of the polynomials of a bias field


@dataclass(frozen=True)
class Chance:
    """A probability of a transform, and the range of its strength, which is uniform."""

    probability: float
    range: Range


@dataclass(frozen=True)
class Affine:
    """A map of the plane, drawn again for each image. Translation is in parts of the image's sides."""

    probability: float
    rotation: float  # radians, either way
    scale: float  # of 1, either way
    translation: float = 0.0
    shear: float = 0.0


@dataclass(frozen=True)
class Augmentation:
    """A list of what may happen to an image, in this order; masks follow the first two."""

    affine: Affine
    flip: float = 0.5  # how often left and right are exchanged
    noise: Chance | None = None  # standard deviation
    blur: Chance | None = None  # standard deviation in pixels, each axis its own
    bias: Chance | None = None  # coefficients of Legendre polynomials, of the field's logarithm
    gamma: Chance | None = None  # exponent
    scaling: Chance | None = None  # factor
    shift: Chance | None = None  # added


LIGHT = Augmentation(Affine(0.5, 0.2, 0.1), noise=Chance(0.2, (0, 0.1)), gamma=Chance(0.2, (0.7, 1.5)))
STRONG = Augmentation(
    Affine(0.7, 0.3, 0.2, translation=1 / 16, shear=0.1),
    noise=Chance(0.2, (0, 0.1)),
    blur=Chance(0.2, (0.5, 1)),
    bias=Chance(0.3, (0, 0.3)),
    gamma=Chance(0.3, (0.6, 1.7)),
    scaling=Chance(0.3, (0.75, 1.25)),
    shift=Chance(0.3, (-0.2, 0.2)),
)
AUGMENTATIONS: Mapping[str, Augmentation] = {"light": LIGHT, "strong": STRONG}  # "none": no transforms


class Augmenter:
    """An augmenter that draws and does the transforms of one round.

    What is drawn is small, and drawn on the CPU; no transform waits for a GPU to say what it has computed.

    Args:
        augmentation: what may happen.
        seed: of all draws, as of `make_generator`.
        device: where the batches lie.
    """

    def __init__(self, augmentation: Augmentation, seed: int | str, device: torch.device):
        self.augmentation = augmentation
        self.draws = make_generator(seed)
        self.noise = make_generator(seed, device)  # the one draw of an image's size

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state of the generators."""
        return {"draws": self.draws.get_state(), "noise": self.noise.get_state()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue to draw from there."""
        self.draws.set_state(state["draws"])
        self.noise.set_state(state["noise"])

    def __call__(self, images: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
        """Return images (batch, channels, h, w) and masks (batch, labels, h, w), of zeros and ones, transformed alike.

        Of patches (batch, channels, slices, h, w) all slices are transformed alike, too.
        """
        if images.ndim == 5:
            moved = self(images.flatten(1, 2), masks.flatten(1, 2))
            return moved[0].view_as(images), moved[1].view_as(masks)
        recipe = self.augmentation
        images, masks = self._flip(images, masks)
        images, masks = self._move(images, masks)
        images = self._some(images, recipe.noise, self._add_noise)
        images = self._some(images, recipe.blur, blur_images, values=2)
        images = self._some(images, recipe.bias, apply_bias_field, values=(BIAS_DEGREE + 1) * (BIAS_DEGREE + 2) // 2)
        images = self._some(images, recipe.gamma, adjust_gamma)
        images = self._some(images, recipe.scaling, lambda part, factor: part * _per_image(factor, part))
        images = self._some(images, recipe.shift, lambda part, offset: part + _per_image(offset, part))
        return images, masks

    def _flip(self, images: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
        chosen = _placed(self._chosen(len(images), self.augmentation.flip), images).view(-1, 1, 1, 1)
        return images.flip(-1).where(chosen, images), masks.flip(-1).where(chosen, masks)

    def _move(self, images: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
        recipe, batch = self.augmentation.affine, len(images)
        chosen = self._chosen(batch, recipe.probability)
        size = images.shape[-2], images.shape[-1]
        rotation = self._uniform((batch, 1), -recipe.rotation, recipe.rotation)
        scale = self._uniform((batch, 2), 1 - recipe.scale, 1 + recipe.scale)
        translation = self._uniform((batch, 2), -recipe.translation, recipe.translation) * torch.tensor(size)
        shear = self._uniform((batch, 2), -recipe.shear, recipe.shear)
        where = _placed(chosen.nonzero().flatten(), images)
        if not len(where):
            return images, masks
        drawn = (rotation[chosen], scale[chosen], translation[chosen], shear[chosen])
        grid = sampling_grid(*drawn, size, images.device)
        moved = resample(images[where], grid, "bilinear"), resample(masks[where], grid, "nearest")
        return images.index_copy(0, where, moved[0]), masks.index_copy(0, where, moved[1])

    def _some(
        self, images: Tensor, chance: Chance | None, change: Callable[[Tensor, Tensor], Tensor], values: int = 1
    ) -> Tensor:
        """Return ``images`` with those that chance selects changed by ``values`` numbers each."""
        if chance is None:
            return images
        chosen = self._chosen(len(images), chance.probability)
        drawn = self._uniform((len(images), values), *chance.range)[chosen]
        where = _placed(chosen.nonzero().flatten(), images)
        return images.index_copy(0, where, change(images[where], drawn)) if len(where) else images

    def _add_noise(self, images: Tensor, deviation: Tensor) -> Tensor:
        noise = torch.randn(images.shape, generator=self.noise, device=images.device)
        return images + _per_image(deviation, images) * noise

    def _chosen(self, batch: int, probability: float) -> Tensor:
        """Return (batch,) bool, on the CPU."""
        return torch.rand(batch, generator=self.draws) < probability

    def _uniform(self, shape: tuple[int, ...], low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(shape, generator=self.draws)


def sampling_grid(
    rotation: Tensor,
    scale: Tensor,
    translation: Tensor,
    shear: Tensor,
    size: tuple[int, int],
    device: torch.device | None = None,
) -> Tensor:
    """Return (batch, h, w, 2) for `resample`, on ``device``: where each pixel's value is taken from.

    The map from a pixel's place to that, rows before columns and about the image's centre, is rotation, shear,
    translation and scale, multiplied in this order, as in MONAI's ``AffineGrid``.

    Args:
        rotation: (batch, 1) in radians.
        scale: (batch, 2).
        translation: (batch, 2) in pixels.
        shear: (batch, 2).
        size: h and w.
        device: of the grid; None: the CPU.
    """
    batch, (h, w) = len(rotation), size
    angle = rotation[:, 0]
    rotate = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], dim=1).view(batch, 2, 2)
    one, (first, second) = torch.ones(batch), shear.T
    shears = torch.stack([one, first, second, 1 + first * second], dim=1).view(batch, 2, 2)
    turn = rotate @ shears
    offset = (turn @ translation[:, :, None]).squeeze(2)
    matrix = turn * scale[:, None, :]
    # in units of half an image's side, columns before rows, as torch has them
    theta = torch.empty(batch, 2, 3)
    theta[:, 0, 0], theta[:, 0, 1], theta[:, 0, 2] = matrix[:, 1, 1], matrix[:, 1, 0] * h / w, offset[:, 1] * 2 / w
    theta[:, 1, 0], theta[:, 1, 1], theta[:, 1, 2] = matrix[:, 0, 1] * w / h, matrix[:, 0, 0], offset[:, 0] * 2 / h
    return functional.affine_grid(theta.to(device, non_blocking=True), [batch, 1, h, w], align_corners=False)


def resample(images: Tensor, grid: Tensor, mode: str) -> Tensor:
    """Return images (batch, channels, h, w) at a `sampling_grid`; beyond their border is what lies at it."""
    return functional.grid_sample(images, grid, mode=mode, padding_mode="border", align_corners=False)


def blur_images(images: Tensor, deviation: Tensor) -> Tensor:
    """Return blur images (batch, channels, h, w); ``deviation`` (batch, 2), on the CPU, in pixels by axis."""
    radius = max(1, math.ceil(4 * float(deviation.max())))
    places = torch.arange(-radius, radius + 1) + 0.0
    edges = torch.stack([places - 0.5, places + 0.5]) / (math.sqrt(2) * deviation[:, :, None, None])
    kernels = (edges[:, :, 1].erf() - edges[:, :, 0].erf()) / 2  # (batch, 2, taps): of each tap the whole pixel's mass
    kernels = _placed(kernels / kernels.sum(dim=2, keepdim=True), images)
    batch, channels, h, w = images.shape
    rows, columns = (kernels[:, axis].repeat_interleave(channels, dim=0) for axis in (0, 1))
    flat = images.reshape(1, batch * channels, h, w)
    flat = functional.conv2d(flat, rows[:, None, :, None], padding=(radius, 0), groups=batch * channels)
    flat = functional.conv2d(flat, columns[:, None, None, :], padding=(0, radius), groups=batch * channels)
    return flat.view_as(images)


def apply_bias_field(images: Tensor, coefficients: Tensor) -> Tensor:
    """Return images (batch, channels, h, w) times a smooth field, e to a sum of products of Legendre polynomials.

    Args:
        images: of which each channel is multiplied alike.
        coefficients: (batch, (D+1)(D+2)/2) of P_i(row) P_j(column), i = 0 ... D, j = 0 ... i; on the CPU.
    """
    matrix = torch.zeros(len(images), BIAS_DEGREE + 1, BIAS_DEGREE + 1)
    first, second = torch.tril_indices(BIAS_DEGREE + 1, BIAS_DEGREE + 1)
    matrix[:, first, second] = coefficients
    rows, columns = (_legendre(side, images.device) for side in images.shape[-2:])
    field = torch.einsum("ih,bij,jw->bhw", rows, _placed(matrix, images), columns)
    return images * field.exp()[:, None]


@cache
def _legendre(side: int, device: torch.device) -> Tensor:
    """Return (D+1, side) P_0 ... P_D over [-1, 1]."""
    x = torch.linspace(-1, 1, side)
    values = [torch.ones_like(x), x]
    for k in range(1, BIAS_DEGREE):
        values.append(((2 * k + 1) * x * values[k] - k * values[k - 1]) / (k + 1))
    return torch.stack(values).to(device)


def adjust_gamma(images: Tensor, gamma: Tensor) -> Tensor:
    """Return images (batch, channels, h, w) to the power ``gamma`` (batch, 1), on the CPU, within each one's range."""
    low = images.amin(dim=(1, 2, 3), keepdim=True)
    extent = images.amax(dim=(1, 2, 3), keepdim=True) - low
    return ((images - low) / (extent + 1e-7)) ** _per_image(gamma, images) * extent + low


def _per_image(values: Tensor, images: Tensor) -> Tensor:
    return _placed(values, images).view(-1, 1, 1, 1)


def _placed(drawn: Tensor, images: Tensor) -> Tensor:
    """Return what was drawn, where ``images`` lie; a GPU does not wait for it."""
    return drawn.to(images.device, non_blocking=True)
