"""How many numbers the training of a network holds, estimated: what its memory goes by."""

import math
from collections.abc import Sequence

from fedmerit.configuration.run import RunConfiguration
from fedmerit.trainers.monai_trainer.networks import build_network
from fedmerit.trainers.monai_trainer.prediction import EVALUATION_BATCH

MAPS = 40  # feature maps of the first level's size that training holds per image; measured at widths 16 and 32


def count_parameters(config: RunConfiguration) -> int:
    """How many the network has."""
    return sum(parameter.numel() for parameter in build_network(config.network).parameters())


def count_feature_maps(config: RunConfiguration, image_size: Sequence[int]) -> float:
    """Numbers in the feature maps of one batch of images of that size, or of the network's patches."""
    images = max(config.training.batch_size, EVALUATION_BATCH / 2)  # training holds what evaluation lets go
    return MAPS * config.network.width * math.prod(config.network.patch or image_size) * images
