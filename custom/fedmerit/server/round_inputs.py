"""The inputs that the outcome of a round follows from: the ledger holds them, and verification recomputes the outcome.

Vectors are not there, only their inner products: no weight, contribution or verdict depends on more of them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedmerit.contract.method import CandidateResults, PatientResults, Reports
from fedmerit.guard.work import Measurements
from fedmerit.schema.messages import Evaluated
from fedmerit.schema.ratings import rate
from fedmerit.schema.records import InputsRecord, Matrix, RatingRecord

SERVER = "(server)"  # who rates models on the server's own images
ROUNDING = 1e-5  # of a mean of numbers that leave a site with six decimals
CANDIDATES, LEAVE_ONE_OUT = "candidates", "leave_one_out"  # what is rated


@dataclass(frozen=True)
class Rating:
    """A rater's evaluation of k models."""

    dice: tuple[float | None, ...]  # (k,) mean Dice, 0 to 1; None: of no case
    cases: tuple[int, ...]  # (k,) of how many cases
    losses: Tensor  # (k, bins) images by soft Dice loss
    soft: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.float64))  # (k, c) soft Dice of each
    # case, mean over labels; dice is their mean then; (0, 0): counts were measured
    patients: tuple[int, ...] = ()  # (c,) number of each case's patient, from 0

    @property
    def scores(self) -> Tensor:
        """The mean Dice (k,), float64; NaN: of no case."""
        return torch.tensor([math.nan if one is None else one for one in self.dice], dtype=torch.float64)

    @classmethod
    def of(cls, answer: Evaluated, soft: bool = False) -> "Rating":
        """Return the rating that an answer with overlaps of k models gives; ``soft``: their scores are soft Dice."""
        return cls._read(rate(answer, soft), answer.losses.double())

    @classmethod
    def _read(cls, record: RatingRecord, losses: Tensor) -> "Rating":
        soft = torch.tensor(record.soft, dtype=torch.float64) if record.soft else torch.zeros(0, 0, dtype=torch.float64)
        return cls(tuple(record.dice), tuple(record.cases), losses, soft, tuple(record.patients))

    @property
    def by_patient(self) -> Tensor:
        """(k, patients) soft Dice, mean over each patient's cases."""
        places = torch.tensor(self.patients, dtype=torch.long)
        counts = torch.bincount(places).double()
        return torch.zeros(len(self.soft), len(counts), dtype=torch.float64).index_add_(1, places, self.soft) / counts

    @classmethod
    def from_record(cls, record: RatingRecord) -> "Rating":
        """Return the rating that a ledger record holds; ValueError if its lists do not fit each other."""
        if len(record.cases) != len(record.dice) or (record.losses and len(record.losses) != len(record.dice)):
            raise ValueError(f"rates {len(record.dice)} models, and has cases of {len(record.cases)}")
        losses = record.losses or [[]] * len(record.dice)
        found = cls._read(record, torch.tensor(losses, dtype=torch.float64))
        if not record.soft:
            return found
        cases = len(record.patients)
        if len(record.soft) != len(record.dice) or any(len(row) != cases for row in record.soft):
            raise ValueError(f"has soft Dice of other models or cases than {len(record.dice)} and {cases}")
        if record.cases != [cases] * len(record.dice) or {*record.patients} != {*range(len({*record.patients}))}:
            raise ValueError(f"has soft Dice of {cases} cases, expected {record.cases[0]}, of patients from 0 on")
        if not torch.allclose(found.soft.mean(dim=1), found.scores, rtol=0, atol=ROUNDING):
            raise ValueError("has a Dice that is not the mean of its soft Dice of the cases")
        return found


Ratings = Mapping[str, Rating]  # by who gave it: a site, or `SERVER`


def pool_ratings(ratings: Ratings, sites: Sequence[str] = ()) -> CandidateResults:
    """Pool the images of all raters into one validation set; a model without a Dice gets 0.

    Of soft Dice, each of ``sites`` is rated by the patients of all others.
    """
    dice = torch.stack([one.scores.nan_to_num(nan=0.0) for one in ratings.values()])  # of no case: without weight
    cases = torch.tensor([one.cases for one in ratings.values()], dtype=torch.float64)
    losses = torch.stack([one.losses for one in ratings.values()]).sum(dim=0)
    found = CandidateResults((dice * cases).sum(dim=0) / cases.sum(dim=0).clamp(min=1), losses)
    if not any(one.patients for one in ratings.values()):
        return found
    utilities = stack_patients(ratings, sites)
    if SERVER in ratings:
        voice = torch.ones(len(sites), 1, dtype=torch.float64)
    else:
        counts = utilities[0].isfinite().sum(dim=1).double().expand(len(sites), -1)
        voice = counts * (1 - torch.eye(len(sites), dtype=torch.float64))
        voice = voice / voice.sum(dim=1, keepdim=True).clamp(min=1)
    return replace(found, patients=PatientResults(utilities, voice, torch.zeros(voice.shape[1], dtype=torch.float64)))


def stack_patients(ratings: Ratings, sites: Sequence[str]) -> Tensor:
    """Return (k, R, K) `PatientResults.utilities` of the server's rating, R = 1, or of those of ``sites``, R = n."""
    found = [ratings[SERVER]] if SERVER in ratings else [ratings.get(site) for site in sites]
    by_patient = [one.by_patient if one else torch.zeros(0, 0) for one in found]
    most, models = max(part.shape[1] for part in by_patient), max(map(len, by_patient))
    stacked = torch.full((models, len(found), most), torch.nan, dtype=torch.float64)
    for place, part in enumerate(by_patient):
        stacked[: len(part), place, : part.shape[1]] = part
    return stacked


@dataclass(frozen=True)
class RoundInputs:
    """The inputs of one round of n sites."""

    reports: Reports  # as they came: counts, values, pairs and products
    size: int  # d, of an update; 0: the server does not see them
    parts: Tensor | None = None  # (k, n, n) `Reports.parts` of the admitted updates; None: the method needs none
    measured: Measurements | None = None  # what the guard measured; None: nothing
    ratings: Mapping[str, Ratings] = field(default_factory=dict)  # by what was rated
    importance: Tensor | None = None  # (H,) of neurons, measured before the round; None: it was not

    def to_record(self, sites: Sequence[str]) -> dict[str, Any]:
        """Return the ledger's form of the inputs, by the names of ``sites``."""
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
            "rests": {} if measured is None or measured.rests is None else pairs(measured.rests, upper),
            "ratings": {
                what: {by: _rating_record(one) for by, one in those.items()} for what, those in self.ratings.items()
            },
            "importance": [] if self.importance is None else self.importance.tolist(),
        }
        return {name: value for name, value in found.items() if value or name in ("size", "counts")}

    @classmethod
    def from_record(cls, record: InputsRecord, sites: Sequence[str], participants: Sequence[str]) -> "RoundInputs":
        """Read the inputs of ``sites``, of which the ``participants`` took part, from a ledger record.

        Raises:
            ValueError: the record has a number of another site, or lacks one.
        """
        places = {*sites}
        if sorted(record.counts) != sorted(participants):
            raise ValueError(f"counts are of {', '.join(record.counts)}, the participants of the round are others")

        def numbers(values: Mapping[str, float], default: float) -> list[float]:
            if strangers := values.keys() - places:
                raise ValueError(f"has a number of {min(strangers)}, which is no site of the run")
            return [values.get(site, default) for site in sites]

        def vector(values: Mapping[str, float], default: float = torch.nan) -> Tensor:
            return torch.tensor(numbers(values, default), dtype=torch.float64)

        def matrix(rows: Matrix, default: float = torch.nan) -> Tensor:
            numbers(dict.fromkeys(rows, 0.0), default)
            full = [numbers(rows.get(site, {}), default) for site in sites]
            return torch.tensor(full, dtype=torch.float64).view(len(sites), len(sites))

        def symmetric(rows: Matrix) -> Tensor:
            upper = matrix(rows, 0.0)
            return upper.triu() + upper.triu(1).T

        reports = Reports(
            vector(record.counts, 0.0),
            torch.tensor([site in record.counts for site in sites]),
            {name: vector(values) for name, values in record.values.items()},
            products=symmetric(record.products),
            pairs={name: matrix(rows) for name, rows in record.pairs.items()},
        )
        found = cls(
            reports,
            record.size,
            torch.stack([symmetric(part) for part in record.parts]) if record.parts else None,
            ratings={
                what: {by: Rating.from_record(one) for by, one in those.items()}
                for what, those in record.ratings.items()
            },
            importance=torch.tensor(record.importance, dtype=torch.float64) if record.importance else None,
        )
        if not record.scores:
            return found
        there = reports.present[:, None] & reports.present
        scores = symmetric(record.scores).where(there, torch.nan)
        rests = symmetric(record.rests) if record.rests else None
        return replace(found, measured=Measurements(record.size, scores, rests))


def _by_site(sites: Sequence[str], values: Tensor) -> dict[str, float]:
    """Return the exact values by site, without those that are NaN."""
    return {site: float(value) for site, value in zip(sites, values.tolist(), strict=True) if value == value}


def _rating_record(rating: Rating) -> dict[str, Any]:
    losses = {"losses": rating.losses.tolist()} if rating.losses.numel() else {}
    soft = {"soft": rating.soft.tolist(), "patients": list(rating.patients)} if rating.patients else {}
    return {"dice": list(rating.dice), "cases": list(rating.cases), **losses, **soft}
