"""What a prediction and a reference share, and Dice of it."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Overlap:
    """Voxels of one case and label, prediction against reference."""

    case: str  # its position in the split
    label: str
    true_positives: int
    false_positives: int
    false_negatives: int

    @property
    def dice(self) -> float | None:
        """2 TP / (2 TP + FP + FN); None where reference and prediction are both empty."""
        size = 2 * self.true_positives + self.false_positives + self.false_negatives
        return 2 * self.true_positives / size if size else None


def mean_dice(overlaps: Iterable[Overlap]) -> float:
    """Mean over cases and labels, those that are empty in both left out; 0 where all are."""
    values = [overlap.dice for overlap in overlaps]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else 0.0
