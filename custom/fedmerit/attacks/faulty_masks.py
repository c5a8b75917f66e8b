"""Faulty masks: honest training on wrong labels."""

from dataclasses import asdict, dataclass, field
from functools import cached_property

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from fedmerit.attacks.attack import Attack
from fedmerit.parameters import parameter
from fedmerit.trainers.monai_trainer.data import Case, SiteFolder, Slices

Masks = NDArray[np.uint8]  # of one image: (labels, height, width) of 0 and 1


@dataclass(frozen=True, kw_only=True)
class FaultyMasks(Attack):
    """Trains on masks of which a share is wrong, the same ones in every round. Validation and test are left as is."""

    share: float = parameter(1.0, "of its training images that have wrong masks", above=0, high=1)

    def training_cases(self, folder: SiteFolder, random: Generator) -> tuple[Case, ...]:
        """Its cases with the masks of round(share * n) images spoiled, of one at least."""
        cases = folder.cases("training")
        index = Slices(cases).index
        chosen = random.permutation(len(index))[: max(1, round(self.share * len(index)))]
        masks = {case.name: np.array(case.label) for case in cases}
        for number in sorted(chosen):
            case, place = index[number]
            masks[case.name][place] = self.spoil(case.label[place], random)
        return tuple(_Remasked(**asdict(case), masks=masks[case.name]) for case in cases)

    def spoil(self, masks: Masks, random: Generator) -> Masks:
        """The masks of one image, wrong."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Shifted(FaultyMasks):
    """Masks moved down and right; what leaves the image is lost."""

    by: float = parameter(0.25, "how far, as a share of height and of width", above=0, below=1)

    def spoil(self, masks: Masks, random: Generator) -> Masks:
        """Shifted, with background where nothing is known."""
        down, right = (max(1, round(self.by * side)) for side in masks.shape[1:])
        shifted = np.zeros_like(masks)
        shifted[:, down:, right:] = masks[:, :-down, :-right]
        return shifted


@dataclass(frozen=True, kw_only=True)
class Inverted(FaultyMasks):
    """Foreground and background exchanged, of every label."""

    def spoil(self, masks: Masks, random: Generator) -> Masks:
        """The complement."""
        return 1 - masks


@dataclass(frozen=True, kw_only=True)
class Swapped(FaultyMasks):
    """Each label's mask given to the next label (label flipping); with only one label, `Inverted`."""

    def spoil(self, masks: Masks, random: Generator) -> Masks:
        """The planes moved on by one."""
        return np.roll(masks, 1, axis=0) if len(masks) > 1 else 1 - masks


@dataclass(frozen=True, kw_only=True)
class LabelNoise(FaultyMasks):
    """Every pixel of a mask flipped with probability ``level``: symmetric label noise (Natarajan et al. 2013)."""

    level: float = parameter(0.2, "probability that a pixel is flipped", above=0, high=1)

    def spoil(self, masks: Masks, random: Generator) -> Masks:
        """Flipped pixel by pixel, each label on its own."""
        return masks ^ (random.random(masks.shape) < self.level).astype(np.uint8)


@dataclass(frozen=True)
class _Remasked(Case):
    """A case with other masks than its file's."""

    masks: NDArray[np.uint8] = field(kw_only=True)  # (slices, labels, height, width)

    @cached_property
    def label(self) -> NDArray[np.uint8]:
        return self.masks
