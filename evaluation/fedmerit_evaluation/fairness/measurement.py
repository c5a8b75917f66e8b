"""Fairness of finished runs: Tables 2 and 3 of Jiang et al. 2023 and measures of other papers, with 95 % CIs.

Every measure is computed per seed from the runs of that seed; its mean and sample standard deviation (ddof 1) are over
seeds, its CI over cases and seeds by `fedmerit_evaluation.statistics.bootstrap`. Dice is a percentage here.

The errors of few patients and seeds bias spreads, distances, extremes and correlations of Dice, and draws add them once
more: such intervals cover the true number in as few as 0 % of studies (docs/studies/statistics.md). So only means over
sites, correlations with contributions and measures corrected for these errors have one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fedmerit_evaluation.fairness.measures import MIN_CORRELATED, FloatArray
from fedmerit_evaluation.fairness.pairs import MEASURES, TRAINED, Compared, Estimates, Key, Pair, collect_estimates
from fedmerit_evaluation.figures.tables import DASH, MINUS, Table
from fedmerit_evaluation.ground_truth.ground_truths import GroundTruth, Reference
from fedmerit_evaluation.results.dice import MIN_CASES_TO_RESAMPLE, OWN, RUN, UNION, Tested
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.statistics.bootstrap import DRAWS, LEVEL, Clusters
from fedmerit_evaluation.statistics.crossed_effects import CrossedEffects
from fedmerit_evaluation.statistics.error_correction import corrected_correlation, corrected_std, mean_error_covariance
from fedmerit_evaluation.statistics.inference import Estimate
from fedmerit_evaluation.statistics.site_dice import SiteDice, bootstrap, observed

PAPER = "Jiang et al. 2023"
DECIMALS = 2
CORRECTED = "corrected"  # table of measures without estimation error
MEANS = ("mean", "mean_gain")  # over sites: errors do not bias them
CORRELATED = ("pearson", "spearman", "kendall")
ERRORS = "the errors of few patients and seeds"
BIASED = f"; numbers without an interval are biased by {ERRORS}, spreads upward"
P_OVER_SEEDS = "p: p-value over seeds, twice the mean of the seeds' p-values, at most 1 (Vovk and Wang 2020)"


@dataclass(frozen=True)
class Fairness:
    """The fairness of some methods."""

    measured: pd.DataFrame  # one row per measure: the fields of Key, then mean, std, low, high, seeds, note
    tables: list[Table]  # the same, for readers
    estimates: Estimates  # contributions by the methods


def measure(
    results: Results,
    methods: Mapping[str, str],
    *,
    standalone: str | None = None,
    ground_truth: GroundTruth | None = None,
    split: str = OWN,
    draws: int = DRAWS,
    seed: int = 0,
) -> Fairness:
    """Every measure that the results allow.

    Args:
        results: of all runs, labels in column ``method``; at most one run for each label and seed.
        standalone: the label of local training, for performance fairness and gains.
        ground_truth: trained coalitions of the same sites, for collaboration fairness.
        split: the cases that Dice is of: each site's own (``testing``), or all sites' (``union``).

    Raises:
        BadInput: there is no test case.
    """
    cases = _cases(results.plain, split)
    unpaired = _find_unpaired_seeds((results.union if split == UNION else results.dice).tested, standalone)
    if ground_truth is not None:
        trained = ground_truth.trained.coalition_results.dice.cases
        trained = trained[
            trained.index.get_level_values("seed").isin(results.rows["seed"])
        ]  # no other seeds are sampled
        cases = pd.concat([cases, trained.rename(index=lambda text: f"{TRAINED}{text}", level="method")])
    references = [] if ground_truth is None else ground_truth.references
    estimates = collect_estimates(results, methods)
    compared = Compared(methods, standalone, estimates, references, unpaired)

    clusters = results.dice.clusters
    errors = _error_covariances(cases, clusters, [label for label in methods if label not in unpaired], standalone)

    def measures(dice: SiteDice) -> dict[Key, FloatArray]:
        found = {key: value for pair in compared.pairs(dice) for key, value in pair.values()}
        return found | _corrected(dice, errors, standalone)

    summary = bootstrap(cases, measures, draws, seed, lambda key: MEASURES[key.measure].bounds, clusters)
    few = results.dice.small_samples
    for key in summary:
        if few or not _has_interval(key):
            summary[key] |= {"low": np.nan, "high": np.nan}
        if key.table == CORRECTED:  # of means over seeds
            summary[key]["std"] = np.nan
    seen = observed(cases)
    why = {key: reason for pair in compared.pairs(seen) for key, reason in _reasons(pair, seen)}
    table = pd.DataFrame(
        [{**key._asdict(), **numbers, "note": why.get(key, "")} for key, numbers in summary.items()],
        columns=[*Key._fields, "mean", "std", "low", "high", "seeds", "note"],
    )
    noise_ceilings = {} if ground_truth is None else ground_truth.noise_ceilings
    captions = _captions(standalone, split, len(seen.seeds), few, references, noise_ceilings)
    tables = [_shown(str(name), captions[str(name)], rows) for name, rows in table.groupby("table", sort=False)]
    return Fairness(table, tables, estimates)


def _has_interval(key: Key) -> bool:
    """Whether a measure is free of the errors' bias, so that intervals cover the true number; a p-value has none."""
    return key.table == CORRECTED or key.measure in MEANS or bool(key.estimate and key.measure in CORRELATED)


def _error_covariances(
    cases: pd.Series, clusters: Clusters, labels: Sequence[str], base: str | None
) -> dict[tuple[str, str], float]:
    """Mean error (co)variances of Dice [points²], by two labels: each with itself, and with local training."""
    own = cases[cases.index.isin(labels, level="method")]
    if own.empty:
        return {}
    effects = CrossedEffects.of(own, clusters)
    pairs = {(label, other) for label in effects.methods for other in (label, base) if other in effects.methods}
    return {pair: 100**2 * mean_error_covariance(effects, *pair) for pair in sorted(pairs)}


def _corrected(dice: SiteDice, errors: Mapping[tuple[str, str], float], base: str | None) -> dict[Key, FloatArray]:
    """Std, CGS and Pearson of means over seeds, without estimation error; in draws the error is there twice."""
    times = 1 if dice.drawn is None else 2
    means = {
        label: np.stack(
            [dice.over_seeds(100 * dice.of(label)[..., place]) for place in range(len(dice.sites))], axis=-1
        )
        for label, other in errors
        if label == other
    }
    found = dict[Key, FloatArray]()
    for label, own in means.items():
        variance = times * errors[label, label]
        found[Key(CORRECTED, label, "", "std")] = corrected_std(own, variance)
        if base in means and label != base:
            local, shared = times * errors[base, base], times * errors[label, base]
            gain = corrected_std(own - means[base], variance + local - 2 * shared)
            found[Key(CORRECTED, label, "", "gain_spread")] = gain
            if len(dice.sites) >= MIN_CORRELATED:
                correlation = corrected_correlation(means[base], own, (local, variance, shared))
                found[Key(CORRECTED, label, "", "pearson")] = 100 * correlation
    return {key: np.broadcast_to(value[..., None], dice.dice.shape[:-2]) for key, value in found.items()}


def _cases(results: Results, split: str) -> pd.Series:
    """Dice of every case; on the union only of runs in which all sites tested: others have other cases."""
    if split != UNION:
        return results.dice.cases
    cases = results.union.cases
    runs = results.union.complete.notna().groupby(level=RUN).all()
    frame = cases.reset_index().merge(runs[runs].index.to_frame(index=False), on=RUN)
    return frame.set_index(list(cases.index.names)).iloc[:, 0]


def _find_unpaired_seeds(tested: Tested, standalone: str | None) -> dict[str, set[int]]:
    """By label, the seeds in which a site was tested on other cases than with ``standalone``."""
    unpaired: dict[str, set[int]] = {}
    for (method, seed), sites in tested.items():
        local = tested.get((str(standalone), seed), {})
        if any(local.get(site, own) != own for site, own in sites.items()):
            unpaired.setdefault(method, set()).add(seed)
    return unpaired


def _reasons(pair: Pair, seen: SiteDice) -> Iterator[tuple[Key, str]]:
    """Why measures of observed vectors are undefined, in those seeds that the method ran."""
    ran = np.flatnonzero(np.isfinite(seen.of(pair.method)).any(axis=-1)).tolist()
    for key, value in pair.values():
        reasons = {seen.seeds[slot]: pair.reason(key.measure, slot) for slot in ran if np.isnan(value[slot])}
        if len(reasons) == len(ran) and len(set(reasons.values())) == 1:
            yield key, next(iter(reasons.values()))
        elif reasons:
            yield key, "; ".join(f"seed {number}: {reason}" for number, reason in reasons.items())


def _captions(
    standalone: str | None,
    split: str,
    seeds: int,
    few: Sequence[str],
    references: Sequence[Reference],
    noise_ceilings: Mapping[str, Estimate],
) -> dict[str, str]:
    """The captions of the tables; without intervals if some sites have too few cases."""
    where = "on each site's test split" if split == "testing" else f"on the {split} of the test splits"
    over = " and seeds" if seeds > 1 else ""
    interval = f"{100 * LEVEL:g} % confidence interval, Student's t over cases{over}"
    if few:
        interval = f"no confidence interval: fewer than {MIN_CASES_TO_RESAMPLE} test patients at {', '.join(few)}"
    performance = f"Performance fairness, Dice of {standalone} and of the method {where}"
    chance = f"; {P_OVER_SEEDS}" if seeds > 1 else ""
    captions = {
        "dice": f"Dice [%] over sites, {where}{BIASED}",
        "performance": f"{performance} (as Table 2 of {PAPER}): 100 x Pearson, distance in points{chance}",
        "performance-ranks": f"{performance}: correlation of ranks",
        "gains": f"Collaboration gain, points of Dice over {standalone} {where} "
        "(MCG and CGS of CYCle); share of the sites worse than with local training, and of those within the bounds of "
        f"Definition 1 of FedSAC (BCF){BIASED}",
        CORRECTED: f"Dice {where}, means over seeds: Std"
        + f", and CGS and 100 x Pearson with {standalone}" * (standalone is not None)
        + f", corrected for {ERRORS}",
        "rewards": f"Estimated contributions and Dice {where} (100 x Pearson as Table 7 of CGSV){chance}",
    }
    for reference in references:
        about = f"Collaboration fairness, {reference.name} values and estimated contributions"
        sampled = f"; {reference.sampled}, not part of the intervals" if reference.sampled else ""
        noise_ceiling = noise_ceilings[reference.name]
        over = "test patients" if len(reference.parts) == 1 else "test patients and seeds"
        noise_level = (
            ""
            if np.isnan(noise_ceiling.mean)
            else f" (noise ceiling, over {over}: {100 * noise_ceiling.mean:.0f} "
            f"[95 % CI {100 * noise_ceiling.low:.0f}, {100 * noise_ceiling.high:.0f}])"
        )
        shown = f"100 x Pearson{noise_level}, distance of shares{sampled}"
        captions[reference.name.lower()] = f"{about} (as Table 3 of {PAPER}): {shown}{chance}{BIASED}"
        captions[f"{reference.name.lower()}-ranks"] = f"{about}: correlation of ranks{sampled}"
    over_seeds = "; " + "mean ± std over seeds, " * (seeds > 1)
    none = f"no confidence interval: biased by {ERRORS}"
    ends = {name: none if name.startswith("performance") else interval for name in captions}
    return {name: f"{caption}{over_seeds}{ends[name]}" for name, caption in captions.items()}


def _shown(name: str, caption: str, rows: pd.DataFrame) -> Table:
    """The measures of one table, a row for each method and estimate, with its seeds; each followed by any CI."""
    lines = list(dict.fromkeys(zip(rows["method"], rows["estimate"], strict=True)))
    texts = {"Method": [method for method, _ in lines]}
    if rows["estimate"].any():
        texts["Contribution"] = [estimate for _, estimate in lines]
    seeds = rows.groupby(["method", "estimate"])["seeds"].max()  # its counterpart may have fewer
    texts["Seeds"] = [str(int(seeds[line])) for line in lines]
    frame, spread = pd.DataFrame(texts), pd.DataFrame(texts)
    for key, part in rows.groupby("measure", sort=False):
        part, heading = part.set_index(["method", "estimate"]).reindex(lines), MEASURES[str(key)].heading
        if key == "pearson_p":
            # of several seeds twice their mean, at most 1 (Vovk and Wang 2020)
            p_values = part["mean"].where(part["seeds"] <= 1, np.minimum(2 * part["mean"], 1))
            frame[heading] = spread[heading] = [DASH if np.isnan(p) else f"{p:.2g}" for p in p_values]
            continue
        frame[heading], spread[heading] = part["mean"].to_numpy(), part["std"].to_numpy()
        if not _has_interval(Key(name, "", str(lines[0][1]), str(key))):
            continue
        intervals = [
            DASH if np.isnan(low) else f"{low:.{DECIMALS}f} to {high:.{DECIMALS}f}".replace("-", MINUS)
            for low, high in zip(part["low"], part["high"], strict=True)
        ]
        frame[f"{heading}, {100 * LEVEL:g} % CI"] = spread[f"{heading}, {100 * LEVEL:g} % CI"] = intervals
    return Table(f"fairness-{name}", caption, frame, spread=spread, decimals=DECIMALS)
