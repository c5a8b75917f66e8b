"""What the outcome of a round follows from, in numbers: the ledger holds it, and `verify` computes the outcome again.

Vectors are not there, only their inner products: no weight, contribution or verdict depends on more of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat
from torch import Tensor

from fedmerit.contract.method import CandidateResults, Reports
from fedmerit.guard.work import Measurements
from fedmerit.schema.messages import Evaluated
from fedmerit.schema.scores import mean_dice

SERVER = "(server)"  # who rates models on the server's own images
CANDIDATES, LEAVE_ONE_OUT = "candidates", "leave_one_out"  # what is rated
BySite = dict[str, FiniteFloat]


@dataclass(frozen=True)
class Rating:
    """What one answer says of k models."""

    dice: tuple[float, ...]  # (k,) mean Dice, 0 to 1
    cases: tuple[int, ...]  # (k,) of how many cases
    losses: Tensor  # (k, bins) images by soft Dice loss

    @classmethod
    def of(cls, answer: Evaluated) -> "Rating":
        """Of an answer with overlaps of k models."""
        known = [{one.case for one in of_model if one.dice is not None} for of_model in answer.overlaps]
        return cls(tuple(map(mean_dice, answer.overlaps)), tuple(map(len, known)), answer.losses.double())


Ratings = Mapping[str, Rating]  # by who gave it: a site, or `SERVER`


def pool_ratings(ratings: Ratings) -> CandidateResults:
    """Of all raters' images as one validation set; 0 of a model without a Dice."""
    dice = torch.tensor([one.dice for one in ratings.values()], dtype=torch.float64)
    cases = torch.tensor([one.cases for one in ratings.values()], dtype=torch.float64)
    losses = torch.stack([one.losses for one in ratings.values()]).sum(dim=0)
    return CandidateResults((dice * cases).sum(dim=0) / cases.sum(dim=0).clamp(min=1), losses)


@dataclass(frozen=True)
class RoundInputs:
    """Of one round of n sites."""

    reports: Reports  # as they came: counts, values, pairs and products
    size: int  # d, of an update; 0: the server does not see them
    parts: Tensor | None = None  # (k, n, n) `Reports.parts` of the admitted updates; None: the method needs none
    measured: Measurements | None = None  # what the guard measured; None: nothing
    ratings: Mapping[str, Ratings] = field(default_factory=dict)  # by what was rated
    importance: Tensor | None = None  # (H,) of neurons, measured before the round; None: it was not

    def to_record(self, sites: Sequence[str]) -> dict[str, Any]:
        """As the ledger holds it, by the names of ``sites``."""
        reports, measured = self.reports, self.measured
        there = reports.present[:, None] & reports.present
        upper = torch.ones_like(there).triu() & there

        def pairs(matrix: Tensor, chosen: Tensor = there) -> dict[str, dict[str, float]]:
            rows = {
                site: _by_site(sites, row) for site, row in zip(sites, matrix.where(chosen, torch.nan), strict=True)
            }
            return {site: row for site, row in rows.items() if row}

        found = {
            "size": self.size,
            "counts": _by_site(sites, reports.num_samples.where(reports.present, torch.nan)),
            "products": {} if reports.products is None or not self.size else pairs(reports.products, upper),
            "parts": [] if self.parts is None else [pairs(part, upper) for part in self.parts],
            "values": {name: _by_site(sites, values) for name, values in reports.values.items()},
            "pairs": {name: pairs(values, torch.ones_like(there)) for name, values in reports.pairs.items()},
            "scores": {} if measured is None else pairs(measured.scores, upper),
            "ratings": {
                what: {by: _rating_record(one) for by, one in those.items()} for what, those in self.ratings.items()
            },
            "importance": [] if self.importance is None else self.importance.tolist(),
        }
        return {name: value for name, value in found.items() if value or name in ("size", "counts")}


def _by_site(sites: Sequence[str], values: Tensor) -> dict[str, float]:
    """Those that are known, exactly."""
    return {site: float(value) for site, value in zip(sites, values.tolist(), strict=True) if value == value}


def _rating_record(rating: Rating) -> dict[str, Any]:
    losses = {"losses": rating.losses.tolist()} if rating.losses.numel() else {}
    return {"dice": list(rating.dice), "cases": list(rating.cases), **losses}


STRICT = ConfigDict(extra="forbid", strict=True)
Matrix = dict[str, BySite]


class RatingRecord(BaseModel):
    """A `Rating` in the ledger."""

    model_config = STRICT
    dice: list[Annotated[float, Field(ge=0, le=1)]]
    cases: list[Annotated[int, Field(ge=0, lt=2**53)]]
    losses: list[list[FiniteFloat]] = Field(default_factory=list)

    def parse(self) -> Rating:
        """The rating; ValueError: its lists do not fit each other."""
        if len(self.cases) != len(self.dice) or (self.losses and len(self.losses) != len(self.dice)):
            raise ValueError(f"rates {len(self.dice)} models, and has cases of {len(self.cases)}")
        losses = self.losses or [[]] * len(self.dice)
        return Rating(tuple(self.dice), tuple(self.cases), torch.tensor(losses, dtype=torch.float64))


class InputsRecord(BaseModel):
    """`RoundInputs` in the ledger, by the names of sites; what a site has no number of is left out."""

    model_config = STRICT
    size: Annotated[int, Field(ge=0, lt=2**40)]
    counts: dict[str, Annotated[float, Field(ge=0, lt=2**53)]]
    products: Matrix = Field(default_factory=dict)  # upper triangle
    parts: list[Matrix] = Field(default_factory=list)  # likewise, each
    values: dict[str, BySite] = Field(default_factory=dict)
    pairs: dict[str, Matrix] = Field(default_factory=dict)
    scores: Matrix = Field(default_factory=dict)  # likewise, of what the guard measured
    ratings: dict[str, dict[str, RatingRecord]] = Field(default_factory=dict)
    importance: list[FiniteFloat] = Field(default_factory=list)

    def parse(self, sites: Sequence[str], participants: Sequence[str]) -> RoundInputs:
        """The inputs of ``sites``, of which the ``participants`` took part.

        Raises:
            ValueError: it has a number of another site, or lacks one.
        """
        places = {site: place for place, site in enumerate(sites)}
        if set(self.counts) != set(participants):
            raise ValueError(f"counts are of {', '.join(self.counts)}, the participants of the round are others")

        def vector(values: Mapping[str, float], default: float = torch.nan) -> Tensor:
            found = torch.full((len(sites),), default, dtype=torch.float64)
            for site, value in values.items():
                if site not in places:
                    raise ValueError(f"has a number of {site}, which is no site of the run")
                found[places[site]] = value
            return found

        def matrix(rows: Matrix, default: float = torch.nan) -> Tensor:
            vector(dict.fromkeys(rows, 0.0))
            return torch.stack([vector(rows.get(site, {}), default) for site in sites])

        def symmetric(rows: Matrix) -> Tensor:
            upper = matrix(rows, 0.0)
            return upper.triu() + upper.triu(1).T

        reports = Reports(
            vector(self.counts, 0.0),
            torch.tensor([site in self.counts for site in sites]),
            {name: vector(values) for name, values in self.values.items()},
            products=symmetric(self.products),
            pairs={name: matrix(rows) for name, rows in self.pairs.items()},
        )
        found = RoundInputs(
            reports,
            self.size,
            torch.stack([symmetric(part) for part in self.parts]) if self.parts else None,
            ratings={what: {by: one.parse() for by, one in those.items()} for what, those in self.ratings.items()},
            importance=torch.tensor(self.importance, dtype=torch.float64) if self.importance else None,
        )
        if not self.scores:
            return found
        there = reports.present[:, None] & reports.present
        scores = symmetric(self.scores).where(there, torch.nan)
        return replace(found, measured=Measurements(self.size, scores))
