"""What a prediction and a reference share, Dice of it, and how far their surfaces lie apart."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

TOLERANCE = 2.0  # that surfaces may lie apart and agree by NSD: mm, or pixels if a photograph has no mm
UNITS = ("mm", "px")
COUNTS = ("true_positives", "false_positives", "false_negatives")


@dataclass(frozen=True)
class Surface:
    """How far the surfaces of prediction and reference lie apart, of one case and label; `surfaces` measures it."""

    unit: str  # of `UNITS`; "px" are pixels of the stored image
    hd95: float | None  # None if prediction or reference is empty
    nsd: float | None  # at `TOLERANCE`; 0 if one of them is empty, None if both are

    @property
    def quantities(self) -> dict[str, float | None]:
        """By their names in results.csv."""
        suffix = "" if self.unit == "mm" else f"_{self.unit}"
        return {f"hd95{suffix}": self.hd95, f"nsd{suffix}": self.nsd}


@dataclass(frozen=True)
class Overlap:
    """Voxels of one case and label, prediction against reference."""

    case: str  # its position in the split
    label: str
    true_positives: int
    false_positives: int
    false_negatives: int
    surface: Surface | None = None  # None: not measured, or not measurable
    patient: str = ""  # its number at the site, as `data.Case.number`; "": the case is a patient of its own
    score: float | None = None  # of a trainer that counts no voxels, instead of Dice, 0 to 1; counts are 0 then

    @classmethod
    def of_score(cls, case: str, label: str, score: float) -> "Overlap":
        """A metric of one case, 0 to 1."""
        return cls(case, label, 0, 0, 0, score=score)

    @classmethod
    def from_dict(cls, surface: Mapping[str, Any] | None, **parts: Any) -> "Overlap":
        """What `dataclasses.asdict` took apart."""
        return cls(**parts, surface=None if surface is None else Surface(**surface))

    @property
    def place(self) -> dict[str, Any]:
        """What it is of, by the columns of results.csv."""
        return {"patient": self.patient, "case": self.case, "label": self.label}

    @property
    def dice(self) -> float | None:
        """2 TP / (2 TP + FP + FN), or `score`; None if reference and prediction are both empty."""
        if self.score is not None:
            return self.score
        size = 2 * self.true_positives + self.false_positives + self.false_negatives
        return 2 * self.true_positives / size if size else None

    @property
    def scores(self) -> dict[str, float | None]:
        """Dice and what is known of surfaces, by their names in results.csv."""
        return {"dice": self.dice, **(self.surface.quantities if self.surface else {})}

    @property
    def quantities(self) -> dict[str, float | None]:
        """Scores and counts, likewise."""
        if self.score is not None:
            return self.scores
        return {**self.scores, **{name: getattr(self, name) for name in COUNTS}}


def mean_dice(*of_sites: Iterable[Overlap]) -> float:
    """Mean over the cases of all sites of the mean over labels, as in every table and by MONAI's reduction "mean".

    What is empty in both prediction and reference is left out; 0 if all is.

    Args:
        of_sites: of one site, or of several, whose cases are apart though they bear the same numbers.
    """
    cases: dict[tuple[int, str], list[float]] = {}
    for site, overlaps in enumerate(of_sites):
        for overlap in overlaps:
            if overlap.dice is not None:
                cases.setdefault((site, overlap.case), []).append(overlap.dice)
    return sum(sum(labels) / len(labels) for labels in cases.values()) / len(cases) if cases else 0.0
