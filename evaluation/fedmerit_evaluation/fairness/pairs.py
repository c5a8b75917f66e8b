"""Pairs of vectors over sites that fairness compares, and the measures of each pair."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd

from fedmerit_evaluation.fairness import measures
from fedmerit_evaluation.fairness.measures import Measure
from fedmerit_evaluation.ground_truth.ground_truths import Reference
from fedmerit_evaluation.ground_truth.semivalues import EMPTY_COALITION, FloatArray, normalise, parse_coalition
from fedmerit_evaluation.results.dice import RUN
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.statistics.site_dice import SiteDice

Estimates = Mapping[str, Mapping[str, pd.DataFrame]]  # by method, by name: seeds x sites

TRAINED = "trained by "  # prefix of a coalition among the methods

DICE: Mapping[str, Measure] = {
    "mean": Measure("Mean", lambda dice, _: measures.mean(dice), (0, 100)),
    "std": Measure("Std", lambda dice, _: measures.std(dice), (0, 100)),
    "worst": Measure("Worst", lambda dice, _: measures.worst(dice), (0, 100)),
}
LINEAR = {name: measures.CORRELATIONS[name] for name in ("pearson", "pearson_p")}
RANKS = {name: measures.CORRELATIONS[name] for name in ("spearman", "kendall")}
EUCLIDEAN = {"euclidean": Measure("Euclidean", measures.euclidean, (0, np.inf))}
COSINE = {"cosine": Measure("Cosine", measures.cosine, (-1, 1))}
DISTANCES = LINEAR | EUCLIDEAN | COSINE
GAINS: Mapping[str, Measure] = {
    "mean_gain": Measure("MCG", measures.mean_gain, (-100, 100)),
    "gain_spread": Measure("CGS", measures.gain_spread, (0, np.inf)),
    "share_worse_off": Measure("Share worse than local", measures.share_worse_off, (0, 1)),
    "share_within_bounds": Measure("BCF", measures.share_within_bounds, (0, 1)),
}
MEASURES = {**DICE, **DISTANCES, **RANKS, **GAINS}


class Key(NamedTuple):
    """A measure: its table and method, and the estimate of contributions if it is about one."""

    table: str
    method: str
    estimate: str
    measure: str


@dataclass(frozen=True)
class Pair:
    """Two vectors (..., s, n), their names, and the measures of them."""

    table: str
    method: str
    estimate: str
    x: FloatArray
    y: FloatArray
    names: tuple[str, str]
    measures: Mapping[str, Measure]
    shared: bool = False  # whether the measures are of the vectors' shares

    def values(self) -> Iterator[tuple[Key, FloatArray]]:
        """Every measure, (..., s)."""
        x, y = (_shares(self.x), _shares(self.y)) if self.shared else (self.x, self.y)
        for name, measure in self.measures.items():
            yield Key(self.table, self.method, self.estimate, name), measure.of(x, y)

    def reason(self, name: str, place: int) -> str:
        """Why a measure of observed vectors (s, n) is undefined in a seed; "" if it is defined."""
        vectors = self.x[place], self.y[place]
        reason = measures.explain_undefined(name, *vectors, self.names)
        for vector, what in zip(vectors, self.names, strict=True):
            if not reason and self.shared and np.isnan(normalise(vector)).any():
                return f"{what} sums to 0 or less, so there are no shares"
        return reason


@dataclass(frozen=True)
class Compared:
    """The data of the pairs, except the Dice."""

    methods: Mapping[str, str]  # the method of each label
    standalone: str | None  # the label of local training
    estimates: Estimates
    references: Sequence[Reference]
    unpaired_seeds: Mapping[str, Collection[int]] = field(
        default_factory=dict
    )  # by label, seeds with other test cases than local training

    def pairs(self, dice: SiteDice) -> Iterator[Pair]:
        """The pairs, Dice in percent."""
        final = {label: 100 * dice.of(label) for label in self.methods if label in dice.methods}
        for label, own in final.items():
            yield Pair("dice", label, "", own, own, ("Dice", "Dice"), DICE)
        for label, own in final.items():
            if self.standalone in final and label != self.standalone:
                base, unpaired_seeds = final[str(self.standalone)], self.unpaired_seeds.get(label, ())
                names = (f"Dice of {self.standalone}{' on the same cases' * bool(unpaired_seeds)}", "Dice")
                compared = ~np.isin(dice.seeds, list(unpaired_seeds))[:, None]
                for table, those in {"performance": DISTANCES, "performance-ranks": RANKS, "gains": GAINS}.items():
                    yield Pair(table, label, "", np.where(compared, base, np.nan), own, names, those)
        values = _values(dice, self.references)
        for label, own in final.items():
            for estimate, by_seed in self.estimates.get(label, {}).items():
                known = by_seed.reindex(index=dice.seeds, columns=dice.sites).to_numpy(dtype=np.float64)
                estimated = np.broadcast_to(known, own.shape)
                for reference, value in values.items():
                    names = (f"{reference} value", estimate)
                    table = reference.lower()
                    yield Pair(table, label, estimate, value, estimated, names, LINEAR)
                    yield Pair(table, label, estimate, value, estimated, names, EUCLIDEAN, shared=True)
                    yield Pair(table, label, estimate, value, estimated, names, COSINE)
                    yield Pair(f"{table}-ranks", label, estimate, value, estimated, names, RANKS)
                yield Pair("rewards", label, estimate, estimated, own, (estimate, "Dice"), LINEAR | RANKS)


def collect_estimates(results: Results, methods: Mapping[str, str]) -> dict[str, dict[str, pd.DataFrame]]:
    """Estimated contributions of each method: label to name of the estimate to seeds x sites.

    The share of training images for FedAvg; for others the weights and the contributions, means over rounds, if the
    method has them.

    Args:
        results: of all runs, labels in column ``method``.
    """
    images = results.rounds.of("num_samples").groupby(level=RUN).max()
    shares = images.div(images.sum(axis=1), axis=0).stack()
    estimated = results.rounds.contributions
    found: dict[str, dict[str, pd.DataFrame]] = {}
    for label, method in methods.items():
        columns = {"sample share": shares}
        if method != "fedavg":
            names = {"mean weight": "mean_weight", "mean contribution": "mean_contribution"}
            columns = {name: estimated[column] for name, column in names.items() if column in estimated}
        found[label] = {}
        for name, column in columns.items():
            known = column[column.index.get_level_values("method") == label].dropna()
            if not known.empty:
                found[label][name] = pd.DataFrame(known.droplevel("method").unstack("site"))
    return found


def _values(dice: SiteDice, references: Sequence[Reference]) -> dict[str, FloatArray]:
    """(..., s, n) values of the sites by the coalitions among the methods, points of Dice; NaN: not known."""
    utilities = {
        parse_coalition(text.removeprefix(TRAINED)): 100 * dice.of(text).mean(axis=-1)
        for text in dice.methods
        if text.startswith(TRAINED)
    }
    shape = dice.dice.shape[:-2]
    utilities[EMPTY_COALITION] = np.zeros(shape)
    found = {}
    for reference in references:
        found[reference.name] = np.full((*shape, len(dice.sites)), np.nan)
        for place, seed in enumerate(dice.seeds):
            if seed in reference.parts:
                game = {one: utilities[one][..., place].ravel() for one in reference.parts[seed]}
                found[reference.name][..., place, :] = reference.values(seed, game).T
    return found


def _shares(vectors: FloatArray) -> FloatArray:
    """(..., n) `normalised` over the last axis."""
    return np.moveaxis(normalise(np.moveaxis(vectors, -1, 0)), 0, -1)
