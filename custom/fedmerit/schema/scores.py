"""The scores that a trainer gives for one case and label, and the names of a site's splits.

Trainers compute these scores; site, server, ledger and reports use them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fedmerit.schema.rules import About, Choice, Count, Declared, Number, Text

SPLITS = ("training", "validation", "testing")
SERVER_SPLIT = "server_validation"  # training patients set aside for the server; most sites have none
UNION = "union"  # the test cases of all sites, with the model that a site ends with
BEST = "testing_best"  # test cases with the models of the round of the best validation Dice
EVALUATED = (*SPLITS[1:], SERVER_SPLIT)  # the splits on which a site may evaluate models of the server
TOLERANCE = 2.0  # at which NSD counts surfaces as equal: mm, or pixels if a photograph has no mm
UNITS = ("mm", "px")
COUNTS = ("true_positives", "false_positives", "false_negatives")
FARTHEST = 1e6  # mm or pixels between two surfaces
Share = Annotated[float, Number(0, 1)]
Voxels = Annotated[int, Count()]


@dataclass(frozen=True)
class Surface(Declared):
    """A pair of distances between the surfaces of prediction and reference, of one case and label."""

    unit: Annotated[str, Choice(UNITS), About("Unit of the distance; px are pixels of the stored image.")]
    hd95: Annotated[Annotated[float, Number(0, FARTHEST)] | None, About("None if prediction or reference is empty.")]
    nsd: Annotated[
        Share | None, About(f"At {TOLERANCE:g} mm or px; 0 if prediction or reference is empty, none if both are.")
    ]

    @property
    def quantities(self) -> dict[str, float | None]:
        """The distances by their names in results.csv."""
        suffix = "" if self.unit == "mm" else f"_{self.unit}"
        return {f"hd95{suffix}": self.hd95, f"nsd{suffix}": self.nsd}


@dataclass(frozen=True)
class Overlap(Declared):
    """A comparison of prediction and reference for one case and label, in voxels."""

    case: Annotated[str, Text(r"[0-9]{1,6}", "a position in the split"), About("Position of the case in the split.")]
    label: Annotated[str, Text(r"[\w.\-]{1,120}", "a name"), About("Label of the task.")]
    true_positives: Annotated[Voxels, About("Voxels in prediction and reference.", "voxels")]
    false_positives: Annotated[Voxels, About("Voxels only in the prediction.", "voxels")]
    false_negatives: Annotated[Voxels, About("Voxels only in the reference.", "voxels")]
    surface: Annotated[Surface | None, About("Distances of surfaces; none if not measured or not measurable.")] = None
    patient: Annotated[
        str,
        Text(r"([0-9]{1,6})?", "a number"),
        About("Number of the patient at the site; empty if the case is a patient of its own."),
    ] = ""
    score: Annotated[
        Share | None, About("Score of a trainer that counts no voxels, instead of Dice; all counts are 0 then.")
    ] = None

    @classmethod
    def of_score(cls, case: str, label: str, score: float) -> "Overlap":
        """Return the result of a case that has a score in [0, 1] and no counts of voxels."""
        return cls(case, label, 0, 0, 0, score=score)

    @classmethod
    def from_dict(cls, surface: Mapping[str, Any] | None, **parts: Any) -> "Overlap":
        """Return the overlap that `dataclasses.asdict` made a dictionary of."""
        return cls(**parts, surface=None if surface is None else Surface(**surface))

    @property
    def place(self) -> dict[str, Any]:
        """The patient, case and label by the columns of results.csv."""
        return {"patient": self.patient, "case": self.case, "label": self.label}

    @property
    def dice(self) -> float | None:
        """The Dice, 2 TP / (2 TP + FP + FN), or ``score``; None if reference and prediction are both empty."""
        if self.score is not None:
            return self.score
        size = 2 * self.true_positives + self.false_positives + self.false_negatives
        return 2 * self.true_positives / size if size else None

    @property
    def scores(self) -> dict[str, float | None]:
        """The Dice and the measured distances of surfaces by their names in results.csv."""
        return {"dice": self.dice, **(self.surface.quantities if self.surface else {})}

    @property
    def quantities(self) -> dict[str, float | None]:
        """The scores and counts of voxels by their names in results.csv."""
        if self.score is not None:
            return self.scores
        return {**self.scores, **{name: getattr(self, name) for name in COUNTS}}


def mean_dice(*sites: Iterable[Overlap]) -> float | None:
    """Return the mean over cases of the mean Dice over labels, as MONAI's reduction "mean" does.

    Args:
        sites: the overlaps of each site; equal case numbers at two sites are two cases.

    Returns:
        Mean Dice in [0, 1]. Cases and labels that are empty in prediction and reference are left out; None if all are,
        or there are none.
    """
    cases: dict[tuple[int, str], list[float]] = {}
    for site, overlaps in enumerate(sites):
        for overlap in overlaps:
            if overlap.dice is not None:
                cases.setdefault((site, overlap.case), []).append(overlap.dice)
    return sum(sum(labels) / len(labels) for labels in cases.values()) / len(cases) if cases else None
