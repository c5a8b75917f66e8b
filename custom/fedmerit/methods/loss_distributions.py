"""KL divergence of the losses of one model on two sets of images, for FedAVE."""

import torch
from torch import Tensor


def distribution(counts: Tensor, smoothing: float) -> Tensor:
    """(k, bins) shares of the images in each bin, ``smoothing`` added to every count."""
    smoothed = counts.double() + smoothing
    return smoothed / smoothed.sum(dim=1, keepdim=True)


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """(k,) KL(p ‖ q) = Σ p ln(p/q) of the rows of two (k, bins) tensors of positive shares."""
    return (p * (p / q).log()).sum(dim=1)


def sampling_divergence(images: Tensor, others: Tensor, bins: int) -> Tensor:
    """(k,) the expected KL of two samples of one distribution: (B - 1)/2 (1/n + 1/m).

    Args:
        images: (k,) n, size of one sample; less than 1 counts as 1.
        others: (k,) m, size of the other.
        bins: B, 2 or more; of one bin it is 0.
    """
    return (bins - 1) / 2 * (1 / images.clamp(min=1) + 1 / others.clamp(min=1))


def floored_divergence(own: Tensor, validation: Tensor, smoothing: float, floor: float | None) -> Tensor:
    """(k,) KL of the rows of two (k, bins) histograms, positive; a missing one counts as uniform.

    Args:
        own: images by loss, NaN if it is not known.
        validation: likewise, of the server's.
        smoothing: added to every count.
        floor: of the divergence; None: `sampling_divergence`.
    """
    own = own.nan_to_num(0.0)
    found = divergence(distribution(own, smoothing), distribution(validation, smoothing))
    if floor is not None:
        return found.clamp(min=floor)
    expected = sampling_divergence(own.sum(dim=1), validation.sum(dim=1), own.shape[1])
    return torch.maximum(found, expected.clamp(min=torch.finfo(expected.dtype).eps))  # of one bin it is 0
