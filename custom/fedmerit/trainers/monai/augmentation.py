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
BIAS_VALUES = (BIAS_DEGREE + 1) * (BIAS_DEGREE + 2) // 2  # coefficients of them


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

    What is drawn is small, drawn on the CPU, and sent to the images' device at once. On a GPU every image is
    transformed and chance selects from the results, so that all steps are the same work and none waits for what the
    GPU has computed; the CPU transforms only those that chance selects.

    Args:
        augmentation: what may happen.
        seed: of all draws, as of `make_generator`.
        device: where the batches lie.
    """

    def __init__(self, augmentation: Augmentation, seed: int | str, device: torch.device):
        self.augmentation = augmentation
        self.draws = make_generator(seed)
        self.noise = make_generator(seed, device)  # the one draw of an image's size
        self.transforms_all = device.type != "cpu"  # or only the images that chance selects

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
        return self.transform(images, masks, *self.draw(images))

    def draw(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return what `transform` needs of chance for a batch, where it lies: (batch, numbers) in [0, 1).

        If all images are transformed, also the noise of theirs.
        """
        recipe, batch = self.augmentation, len(images)
        widths = [1, 1, 1, 2, 2, 2]  # whether to flip; whether to move, rotation, scale, translation, shear
        for chance, values in (
            (recipe.noise, 1),
            (recipe.blur, 2),
            (recipe.bias, BIAS_VALUES),
            (recipe.gamma, 1),
            (recipe.scaling, 1),
            (recipe.shift, 1),
        ):
            widths += [1, values] if chance else []
        numbers = torch.cat([torch.rand((batch, width), generator=self.draws) for width in widths], dim=1)
        there = numbers.to(images.device, non_blocking=True)
        return (there, self._draw_noise(images)) if self.transforms_all and recipe.noise else (there,)

    def _draw_noise(self, images: Tensor) -> Tensor:
        return torch.randn(images.shape, generator=self.noise, device=images.device)

    def transform(
        self, images: Tensor, masks: Tensor, draws: Tensor, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return images and masks transformed as ``draws`` says, of `draw`, on their device.

        ``noise`` has the shape of the images; None: it is drawn, of those that get some.
        """
        if images.ndim == 5:
            flat_noise = None if noise is None else noise.flatten(1, 2)
            moved = self.transform(images.flatten(1, 2), masks.flatten(1, 2), draws, flat_noise)
            return moved[0].view_as(images), moved[1].view_as(masks)
        recipe, columns, of_all = self.augmentation, _Columns(draws), self.transforms_all

        def change(chance: Chance | None, values: int, changed: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
            """Return the images with those that chance selects changed by ``values`` numbers each."""
            if chance is None:
                return images
            chosen = _Chosen(columns.take(1)[:, 0] < chance.probability, of_all)
            drawn = columns.uniform(values, *chance.range)
            return chosen.put(images, changed(chosen.get(images), chosen.get(drawn))) if chosen else images

        def add_noise(part: Tensor, deviation: Tensor) -> Tensor:
            return part + _per_image(deviation) * (self._draw_noise(part) if noise is None else noise)

        images, masks = self._flip(images, masks, columns)
        images, masks = self._move(images, masks, columns)
        images = change(recipe.noise, 1, add_noise)
        reach = blur_reach(recipe.blur.range[1]) if recipe.blur and of_all else None
        images = change(recipe.blur, 2, lambda part, deviation: blur_images(part, deviation, reach))
        images = change(recipe.bias, BIAS_VALUES, apply_bias_field)
        images = change(recipe.gamma, 1, adjust_gamma)
        images = change(recipe.scaling, 1, lambda part, factor: part * _per_image(factor))
        images = change(recipe.shift, 1, lambda part, offset: part + _per_image(offset))
        return images, masks

    def _flip(self, images: Tensor, masks: Tensor, columns: "_Columns") -> tuple[Tensor, Tensor]:
        chosen = _per_image(columns.take(1) < self.augmentation.flip)
        return images.flip(-1).where(chosen, images), masks.flip(-1).where(chosen, masks)

    def _move(self, images: Tensor, masks: Tensor, columns: "_Columns") -> tuple[Tensor, Tensor]:
        recipe, (h, w) = self.augmentation.affine, images.shape[-2:]
        chosen = _Chosen(columns.take(1)[:, 0] < recipe.probability, self.transforms_all)
        rotation = columns.uniform(1, -recipe.rotation, recipe.rotation)
        scale = columns.uniform(2, 1 - recipe.scale, 1 + recipe.scale)
        rows, across = columns.uniform(2, -recipe.translation, recipe.translation).T
        translation = torch.stack([rows * h, across * w], dim=1)
        shear = columns.uniform(2, -recipe.shear, recipe.shear)
        if not chosen:
            return images, masks
        drawn = chosen.get(rotation), chosen.get(scale), chosen.get(translation), chosen.get(shear)
        grid = sampling_grid(*drawn, (h, w))
        moved = resample(chosen.get(images), grid, "bilinear"), resample(chosen.get(masks), grid, "nearest")
        return chosen.put(images, moved[0]), chosen.put(masks, moved[1])


class _Columns:
    """The numbers that `Augmenter.draw` drew, to be taken in the same order."""

    def __init__(self, draws: Tensor):
        self._draws, self._taken = draws, 0

    def take(self, count: int) -> Tensor:
        """Return the next (batch, count), in [0, 1)."""
        start, self._taken = self._taken, self._taken + count
        return self._draws[:, start : self._taken]

    def uniform(self, count: int, low: float, high: float) -> Tensor:
        """Return the next (batch, count), from ``low`` to ``high``."""
        return low + (high - low) * self.take(count)


class _Chosen:
    """The images of a batch that chance selects: by their places, or ``of_all`` by a mask over them."""

    def __init__(self, chosen: Tensor, of_all: bool):
        self._mask = chosen
        self._places = None if of_all else chosen.nonzero().flatten()

    def __bool__(self) -> bool:
        return self._places is None or len(self._places) > 0

    def get(self, values: Tensor) -> Tensor:
        """Return what is to be changed of (batch, ...)."""
        return values if self._places is None else values[self._places]

    def put(self, images: Tensor, changed: Tensor) -> Tensor:
        """Return (batch, ...) images with ``changed``, of `get`, in place of those that are selected."""
        if self._places is None:
            return changed.where(_per_image(self._mask), images)
        return images.index_copy(0, self._places, changed)


def sampling_grid(rotation: Tensor, scale: Tensor, translation: Tensor, shear: Tensor, size: tuple[int, int]) -> Tensor:
    """Return (batch, h, w, 2) for `resample`, where ``rotation`` lies: the place each pixel's value is taken from.

    The map from a pixel's place to that, rows before columns and about the image's centre, is rotation, shear,
    translation and scale, multiplied in this order, as in MONAI's ``AffineGrid``.

    Args:
        rotation: (batch, 1) in radians.
        scale: (batch, 2).
        translation: (batch, 2) in pixels.
        shear: (batch, 2).
        size: h and w.
    """
    batch, (h, w) = len(rotation), size
    angle = rotation[:, 0]
    rotate = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], dim=1).view(batch, 2, 2)
    one, (first, second) = torch.ones_like(angle), shear.T
    shears = torch.stack([one, first, second, 1 + first * second], dim=1).view(batch, 2, 2)
    turn = rotate @ shears
    offset = (turn @ translation[:, :, None]).squeeze(2)
    matrix = turn * scale[:, None, :]
    # in units of half an image's side, columns before rows, as torch has them
    theta = rotation.new_empty(batch, 2, 3)
    theta[:, 0, 0], theta[:, 0, 1], theta[:, 0, 2] = matrix[:, 1, 1], matrix[:, 1, 0] * h / w, offset[:, 1] * 2 / w
    theta[:, 1, 0], theta[:, 1, 1], theta[:, 1, 2] = matrix[:, 0, 1] * w / h, matrix[:, 0, 0], offset[:, 0] * 2 / h
    return functional.affine_grid(theta, [batch, 1, h, w], align_corners=False)


def resample(images: Tensor, grid: Tensor, mode: str) -> Tensor:
    """Return images (batch, channels, h, w) at a `sampling_grid`; beyond their border is what lies at it."""
    return functional.grid_sample(images, grid, mode=mode, padding_mode="border", align_corners=False)


def blur_reach(deviation: float) -> int:
    """Return the taps on either side of a kernel of this standard deviation in pixels."""
    return max(1, math.ceil(4 * deviation))


def blur_images(images: Tensor, deviation: Tensor, reach: int | None = None) -> Tensor:
    """Return blurred images (batch, channels, h, w).

    Args:
        images: of which each channel is blurred alike.
        deviation: (batch, 2) in pixels by axis, where the images lie.
        reach: taps on either side; None: as many as the largest deviation needs, which waits for it on a GPU.
    """
    radius = blur_reach(float(deviation.max())) if reach is None else reach
    places = torch.arange(-radius, radius + 1, device=images.device) + 0.0
    edges = torch.stack([places - 0.5, places + 0.5]) / (math.sqrt(2) * deviation[:, :, None, None])
    kernels = (edges[:, :, 1].erf() - edges[:, :, 0].erf()) / 2  # (batch, 2, taps): of each tap the whole pixel's mass
    kernels = kernels / kernels.sum(dim=2, keepdim=True)
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
        coefficients: (batch, (D+1)(D+2)/2) of P_i(row) P_j(column), i = 0 ... D, j = 0 ... i.
    """
    matrix = coefficients.new_zeros(len(images), BIAS_DEGREE + 1, BIAS_DEGREE + 1)
    first, second = torch.tril_indices(BIAS_DEGREE + 1, BIAS_DEGREE + 1, device=images.device)
    matrix[:, first, second] = coefficients
    rows, columns = (_legendre(side, images.device) for side in images.shape[-2:])
    field = torch.einsum("ih,bij,jw->bhw", rows, matrix, columns)
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
    """Return images (batch, channels, h, w) to the power ``gamma`` (batch, 1), within each one's range."""
    low = images.amin(dim=(1, 2, 3), keepdim=True)
    extent = images.amax(dim=(1, 2, 3), keepdim=True) - low
    return ((images - low) / (extent + 1e-7)) ** _per_image(gamma) * extent + low


def _per_image(values: Tensor) -> Tensor:
    """Return a value an image (batch, 1, 1, 1), to be combined with images."""
    return values.view(-1, 1, 1, 1)
