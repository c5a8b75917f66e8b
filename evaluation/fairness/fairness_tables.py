"""Tables of fairness of finished runs: Tables 2 and 3 of Jiang et al. 2023 and what other papers ask, with intervals.

Every figure is taken seed by seed, with what other runs of the same seed say; its mean and sample standard deviation
(ddof 1) are over seeds, its interval is `evaluation.bootstrap`'s. Dice is a percentage here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from evaluation.bootstrap import DRAWS, LEVEL, SiteDice, bootstrap, observed
from evaluation.compare import PAPER, UNION, union_dice
from evaluation.fairness import fairness
from evaluation.fairness.fairness import Figure
from evaluation.formats import DASH, MINUS, Table
from evaluation.tables import RUN, case_dice, contributions, per_round
from evaluation.truth.games import NOBODY, FloatArray, coalition_dice, normalised
from evaluation.truth.ground_truths import Truth

Estimates = Mapping[str, Mapping[str, pd.DataFrame]]  # by method, by name: seeds x sites

TRAINED = "trained by "  # stands before a coalition where methods stand

DICE: Mapping[str, Figure] = {
    "mean": Figure("Mean", lambda dice, _: fairness.mean(dice)),
    "std": Figure("Std", lambda dice, _: fairness.std(dice)),
    "worst": Figure("Worst", lambda dice, _: fairness.worst(dice)),
}
LINEAR = {name: fairness.CORRELATIONS[name] for name in ("pearson", "pearson_p")}
RANKS = {name: fairness.CORRELATIONS[name] for name in ("spearman", "kendall")}
EUCLIDEAN = {"euclidean": Figure("Euclidean", fairness.euclidean)}
COSINE = {"cosine": Figure("Cosine", fairness.cosine)}
DISTANCES = LINEAR | EUCLIDEAN | COSINE
GAINS: Mapping[str, Figure] = {
    "mean_gain": Figure("MCG", fairness.mean_gain),
    "gain_spread": Figure("CGS", fairness.gain_spread),
    "losers": Figure("Losers", fairness.losers),
    "bounded": Figure("BCF", fairness.bounded),
}
HEADINGS = {name: figure.heading for name, figure in {**DICE, **DISTANCES, **RANKS, **GAINS}.items()}
DECIMALS = 2


class Key(NamedTuple):
    """Which figure: of which table and method, and by which estimate of contributions where it is about one."""

    table: str
    method: str
    estimate: str
    figure: str


@dataclass(frozen=True)
class Fairness:
    """What there is to say of the fairness of some methods."""

    figures: pd.DataFrame  # one row per figure: the fields of Key, then mean, std, low, high, seeds, note
    tables: list[Table]  # the same, to be read


@dataclass(frozen=True)
class _Pair:
    """Two vectors (..., s, n), what they are, and the figures of them."""

    table: str
    method: str
    estimate: str
    x: FloatArray
    y: FloatArray
    names: tuple[str, str]
    figures: Mapping[str, Figure]
    shared: bool = False  # whether the figures are of the vectors' shares

    def values(self) -> Iterator[tuple[Key, FloatArray]]:
        """Every figure, (..., s)."""
        x, y = (_shares(self.x), _shares(self.y)) if self.shared else (self.x, self.y)
        for name, figure in self.figures.items():
            yield Key(self.table, self.method, self.estimate, name), figure.of(x, y)

    def reason(self, name: str, slot: int) -> str:
        """Why a figure of observed vectors (s, n) is undefined in a slot; nothing where it is defined."""
        vectors = self.x[slot], self.y[slot]
        reason = fairness.undefined(name, *vectors, self.names)
        for vector, what in zip(vectors, self.names, strict=True):
            if not reason and self.shared and np.isnan(normalised(vector)).any():
                return f"{what} sums to 0 or less, so that there are no shares"
        return reason


def estimates_of(results: pd.DataFrame, methods: Mapping[str, str]) -> dict[str, dict[str, pd.DataFrame]]:
    """What each method says that sites contributed: label to name of the estimate to seeds x sites.

    The share of training images for FedAvg; for others the weights and the contributions, means over rounds, as far
    as the method has them.

    Args:
        results: rows of all runs, labels in column ``method``.
        methods: the method of each label.
    """
    images = per_round(results, "num_samples").groupby(level=RUN).max()
    shares = images.div(images.sum(axis=1), axis=0).stack()
    said = contributions(results)
    found: dict[str, dict[str, pd.DataFrame]] = {}
    for label, method in methods.items():
        columns = {"sample share": shares}
        if method != "fedavg":
            names = {"mean weight": "mean_weight", "mean contribution": "mean_contribution"}
            columns = {name: said[column] for name, column in names.items() if column in said}
        found[label] = {}
        for name, column in columns.items():
            known = column[column.index.get_level_values("method") == label].dropna()
            if not known.empty:
                found[label][name] = pd.DataFrame(known.droplevel("method").unstack("site"))
    return found


def measure(
    results: pd.DataFrame,
    methods: Mapping[str, str],
    *,
    alone: str | None = None,
    truth: pd.DataFrame | None = None,
    truths: Sequence[Truth] = (),
    split: str = "testing",
    draws: int = DRAWS,
    seed: int = 0,
    level: float = LEVEL,
) -> Fairness:
    """Every figure that the results allow.

    Args:
        results: rows of all runs, labels in column ``method``; at most one run for each label and seed.
        methods: the method of each label.
        alone: the label of training alone, for performance fairness and gains.
        truth: rows of trained coalitions of the same sites, for collaboration fairness.
        truths: what they make the sites worth.
        split: the cases that Dice is of: each site's own (``testing``), or all sites' (``union``).
        draws: of the bootstrap.
        seed: of the bootstrap.
        level: of the intervals, 0 to 1.

    Raises:
        BadInput: there is no test case, or an argument is out of range.
    """
    cases = case_dice(results.astype({"method": str}), split).mean(axis=1)
    if split == UNION:  # a run whose sites did not all test has the Dice of other cases
        runs = union_dice(results.astype({"method": str})).notna().groupby(level=RUN).all()
        frame = cases.reset_index().merge(runs[runs].index.to_frame(index=False), on=RUN)
        cases = frame.set_index(list(cases.index.names)).iloc[:, 0]
    if truth is not None:
        trained = coalition_dice(truth).mean(axis=1)
        cases = pd.concat([cases, trained.rename(index=lambda text: f"{TRAINED}{text}", level="method")])
    estimates = estimates_of(results, methods)

    def pairs(dice: SiteDice) -> list[_Pair]:
        return list(_pairs(dice, methods, alone, estimates, truths))

    def figures(dice: SiteDice) -> dict[Key, FloatArray]:
        return {key: value for pair in pairs(dice) for key, value in pair.values()}

    summary = bootstrap(cases, figures, draws=draws, seed=seed, level=level)
    for key in summary:
        if key.figure == "pearson_p":  # it is about chance already
            summary[key] |= {"low": np.nan, "high": np.nan}
    seen = observed(cases)
    why = {key: reason for pair in pairs(seen) for key, reason in _reasons(pair, seen)}
    table = pd.DataFrame(
        [{**key._asdict(), **numbers, "note": why.get(key, "")} for key, numbers in summary.items()],
        columns=[*Key._fields, "mean", "std", "low", "high", "seeds", "note"],
    )
    captions = _captions(alone, split, len(seen.seeds), level, truths)
    ran = {label: len(set(results.loc[results["method"] == label, "seed"])) for label in methods}
    tables = [
        _shown(str(name), captions[str(name)], rows, ran, level) for name, rows in table.groupby("table", sort=False)
    ]
    return Fairness(table, tables)


def _pairs(
    dice: SiteDice,
    methods: Mapping[str, str],
    alone: str | None,
    estimates: Estimates,
    truths: Sequence[Truth],
) -> Iterator[_Pair]:
    """What is compared with what, Dice in percent."""
    final = {label: 100 * dice.of(label) for label in methods if label in dice.methods}
    for label, own in final.items():
        yield _Pair("dice", label, "", own, own, ("Dice", "Dice"), DICE)
    for label, own in final.items():
        if alone in final and label != alone:
            names = (f"Dice of {alone}", "Dice")
            for table, those in {"performance": DISTANCES, "performance-ranks": RANKS, "gains": GAINS}.items():
                yield _Pair(table, label, "", final[str(alone)], own, names, those)
    values = _values(dice, truths)
    for label, own in final.items():
        for estimate, by_seed in estimates.get(label, {}).items():
            said = by_seed.reindex(index=dice.seeds, columns=dice.sites).to_numpy(dtype=np.float64)[dice.seed]
            for truth, value in values.items():
                names = (f"{truth} value", estimate)
                table = truth.lower()
                yield _Pair(table, label, estimate, value, said, names, LINEAR)
                yield _Pair(table, label, estimate, value, said, names, EUCLIDEAN, shared=True)
                yield _Pair(table, label, estimate, value, said, names, COSINE)
                yield _Pair(f"{table}-ranks", label, estimate, value, said, names, RANKS)
            yield _Pair("rewards", label, estimate, said, own, (estimate, "Dice"), LINEAR | RANKS)


def _values(dice: SiteDice, truths: Sequence[Truth]) -> dict[str, FloatArray]:
    """(..., s, n) points of Dice: what each site is worth by the coalitions among the methods; NaN where not known."""
    utilities = {
        frozenset(text.removeprefix(TRAINED).split("+")): 100 * dice.of(text).mean(axis=-1)
        for text in dice.methods
        if text.startswith(TRAINED)
    }
    utilities[NOBODY] = np.zeros(dice.seed.shape)
    found = {}
    for truth in truths:
        found[truth.name] = np.full((*dice.seed.shape, len(dice.sites)), np.nan)
        for place, seed in enumerate(dice.seeds):
            if seed in truth.parts:
                slots = dice.seed == place
                game = {one: utilities[one][slots] for one in truth.parts[seed]}
                found[truth.name][slots] = truth.values(seed, game).T
    return found


def _shares(vectors: FloatArray) -> FloatArray:
    """(..., n) `normalised` over the last axis."""
    return np.moveaxis(normalised(np.moveaxis(vectors, -1, 0)), 0, -1)


def _reasons(pair: _Pair, seen: SiteDice) -> Iterator[tuple[Key, str]]:
    """Why figures of observed vectors are undefined, in those seeds that the method ran."""
    ran = np.flatnonzero(np.isfinite(seen.of(pair.method)).any(axis=-1)).tolist()
    for key, value in pair.values():
        reasons = {seen.seeds[slot]: pair.reason(key.figure, slot) for slot in ran if np.isnan(value[slot])}
        if len(reasons) == len(ran) and len(set(reasons.values())) == 1:
            yield key, next(iter(reasons.values()))
        elif reasons:
            yield key, "; ".join(f"seed {number}: {reason}" for number, reason in reasons.items())


def _captions(alone: str | None, split: str, seeds: int, level: float, truths: Sequence[Truth]) -> dict[str, str]:
    """What stands above each table."""
    where = "on each site's test split" if split == "testing" else f"on the {split} of the test splits"
    over = "seeds and cases" if seeds > 1 else "cases"
    end = f"; {'mean ± std over seeds, ' * (seeds > 1)}{100 * level:g} % interval from resampled {over}"
    performance = f"Performance fairness, Dice of {alone} and of the method {where}"
    captions = {
        "dice": f"Dice [%] over sites, {where}",
        "performance": f"{performance} (as Table 2 of {PAPER}): 100 x Pearson, distance in points",
        "performance-ranks": f"{performance}: correlation of ranks",
        "gains": f"Collaboration gain, points of Dice over {alone} {where} (MCG and CGS of CYCle); share of the sites "
        "worse off than alone, and of those within the bounds of Definition 1 of FedSAC (BCF)",
        "rewards": f"What the method says of contributions, and its Dice {where} (100 x Pearson as Table 7 of CGSV)",
    }
    for truth in truths:
        about = f"Collaboration fairness, {truth.name} values and what the method says of contributions"
        sampled = f"; {truth.sampled}, which no interval holds" if truth.sampled else ""
        captions[truth.name.lower()] = f"{about} (as Table 3 of {PAPER}): 100 x Pearson, distance of shares{sampled}"
        captions[f"{truth.name.lower()}-ranks"] = f"{about}: correlation of ranks{sampled}"
    return {name: f"{caption}{end}" for name, caption in captions.items()}


def _shown(name: str, caption: str, rows: pd.DataFrame, ran: Mapping[str, int], level: float) -> Table:
    """The figures of one table, a row for each method and estimate, each figure followed by its interval."""
    lines = list(dict.fromkeys(zip(rows["method"], rows["estimate"], strict=True)))
    texts = {"Method": [method for method, _ in lines]}
    if rows["estimate"].any():
        texts["Contribution"] = [estimate for _, estimate in lines]
    texts["Seeds"] = [str(ran[method]) for method, _ in lines]
    frame, spread = pd.DataFrame(texts), pd.DataFrame(texts)
    for figure, part in rows.groupby("figure", sort=False):
        part, heading = part.set_index(["method", "estimate"]).reindex(lines), HEADINGS[str(figure)]
        if figure == "pearson_p":
            frame[heading] = spread[heading] = [DASH if np.isnan(p) else f"{p:.2g}" for p in part["mean"]]
            continue
        frame[heading], spread[heading] = part["mean"].to_numpy(), part["std"].to_numpy()
        intervals = [_interval(low, high) for low, high in zip(part["low"], part["high"], strict=True)]
        frame[f"{heading}, {100 * level:g} %"] = spread[f"{heading}, {100 * level:g} %"] = intervals
    return Table(f"fairness-{name}", caption, frame, spread=spread, decimals=DECIMALS)


def _interval(low: float, high: float) -> str:
    return DASH if np.isnan(low) else f"{low:.{DECIMALS}f} to {high:.{DECIMALS}f}".replace("-", MINUS)
