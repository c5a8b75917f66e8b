"""Fairness of finished runs: Tables 2 and 3 of Jiang et al. 2023 and measures of other papers, with 95 % CIs.

Every measure is of a pair of vectors over sites, and is computed per seed from the runs of that seed; its mean and
sample standard deviation (ddof 1) are over seeds, its interval over cases and seeds by
`fedmerit_evaluation.statistics.resampling.bootstrap`. Dice is a percentage here.

The errors of few patients and seeds bias spreads, distances, extremes and correlations of Dice, and draws add them once
more: such intervals cover the true number in as few as 0 % of studies (docs/studies/statistics.md). So only means over
sites, correlations with contributions and measures corrected for these errors have one.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from fedmerit.contract.semivalues import EMPTY_COALITION, FloatArray, normalise, parse_coalition
from fedmerit.errors import BadInput, require_known
from fedmerit.files import write_text
from fedmerit.schema.results import read_results
from fedmerit.schema.scores import UNION
from fedmerit_data.tables import write_csv
from fedmerit_evaluation.fairness import measures
from fedmerit_evaluation.fairness.measures import CONSTANT, MIN_CORRELATED, Measure
from fedmerit_evaluation.figures.tables import DASH, MINUS, Table, write_tables
from fedmerit_evaluation.ground_truth.ground_truths import (
    GroundTruth,
    Reference,
    list_preparation_differences,
    open_ground_truths,
)
from fedmerit_evaluation.results.runs import Run, combine_results, open_runs
from fedmerit_evaluation.results.views import MIN_CASES_TO_RESAMPLE, OWN, RUN, STANDALONE, Dice, Results, Tested
from fedmerit_evaluation.statistics.inference import Estimate
from fedmerit_evaluation.statistics.resampling import (
    DRAWS,
    LEVEL,
    Clusters,
    CrossedEffects,
    SiteDice,
    bootstrap,
    corrected_correlation,
    corrected_std,
    observed_dice,
)

Estimates = Mapping[str, Mapping[str, pd.DataFrame]]  # by method, by name: seeds x sites

TRAINED = "trained by "  # prefix of a coalition among the methods

DICE: Mapping[str, Measure] = {
    "mean": Measure("Mean", lambda dice, _: measures.mean(dice), (0, 100)),
    "std": Measure("Std per seed", lambda dice, _: measures.std(dice), (0, 100)),
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
    """A pair of vectors (..., s, n), their names, and the measures of them."""

    table: str
    method: str
    estimate: str
    x: FloatArray
    y: FloatArray
    names: tuple[str, str]
    measures: Mapping[str, Measure]
    shared: bool = False  # whether the measures are of the vectors' shares

    def values(self) -> Iterator[tuple[Key, FloatArray]]:
        """Yield every measure, (..., s)."""
        x, y = (_shares(self.x), _shares(self.y)) if self.shared else (self.x, self.y)
        for name, measure in self.measures.items():
            yield Key(self.table, self.method, self.estimate, name), measure.of(x, y)

    def reason(self, name: str, place: int) -> str:
        """Explain why a measure of observed vectors (s, n) is undefined in a seed; "" if it is defined."""
        vectors = self.x[place], self.y[place]
        reason = measures.explain_undefined(name, *vectors, self.names)
        for vector, what in zip(vectors, self.names, strict=True):
            if not reason and self.shared and np.isnan(normalise(vector)).any():
                return f"{what} sums to 0 or less, so there are no shares"
        return reason


@dataclass(frozen=True)
class Compared:
    """The data of the pairs, except the Dice."""

    methods: Mapping[str, bool]  # by label, whether the method's contributions are shares of training images
    standalone: str | None  # the label of local training
    estimates: Estimates
    references: Sequence[Reference]
    unpaired_seeds: Mapping[str, Collection[int]] = field(
        default_factory=dict
    )  # by label, seeds with other test cases than local training

    def pairs(self, dice: SiteDice) -> Iterator[Pair]:
        """Yield the pairs, Dice in percent."""
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


def collect_estimates(results: Results, methods: Mapping[str, bool]) -> dict[str, dict[str, pd.DataFrame]]:
    """Return estimated contributions of each method: label to name of the estimate to seeds x sites.

    They are the share of training images for methods that count these; for others the weights and the contributions,
    means over rounds, if the method has them.

    Args:
        results: of all runs, labels in column ``method``.
        methods: whether the contributions of each label's method are shares of training images.
    """
    images = results.rounds.of("num_samples").groupby(level=RUN).max()
    shares = images.div(images.sum(axis=1), axis=0).stack()
    estimated = results.rounds.contributions
    found: dict[str, dict[str, pd.DataFrame]] = {}
    for label, counts_images in methods.items():
        columns = {"sample share": shares}
        if not counts_images:
            names = {"mean weight": "mean_weight", "mean contribution": "mean_contribution"}
            columns = {name: estimated[column] for name, column in names.items() if column in estimated}
        found[label] = {}
        for name, column in columns.items():
            known = column[column.index.get_level_values("method") == label].dropna()
            if not known.empty:
                found[label][name] = pd.DataFrame(known.droplevel("method").unstack("site"))
    return found


def _values(dice: SiteDice, references: Sequence[Reference]) -> dict[str, FloatArray]:
    """Return (..., s, n) values of the sites by the coalitions among the methods [points of Dice]; NaN: unknown."""
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
    """Return (..., n) shares of the sum over the last axis."""
    return np.moveaxis(normalise(np.moveaxis(vectors, -1, 0)), 0, -1)


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
    methods: Mapping[str, bool],
    *,
    standalone: str | None = None,
    ground_truth: GroundTruth | None = None,
    split: str = OWN,
    draws: int = DRAWS,
    seed: int = 0,
) -> Fairness:
    """Compute every measure that the results allow.

    Args:
        results: of all runs, labels in column ``method``; at most one run for each label and seed.
        methods: by label, whether the method's contributions are shares of training images.
        standalone: the label of local training, for performance fairness and gains.
        ground_truth: trained coalitions of the same sites, for collaboration fairness.
        split: the cases that Dice is of: each site's own (``testing``), or all sites' (``union``).
        draws: of the intervals.
        seed: that the draws start from.

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

    effects = CrossedEffects.from_cases(cases, clusters)
    summary = bootstrap(effects, measures, draws, seed, lambda key: MEASURES[key.measure].bounds)
    few = results.dice.small_samples
    for key in summary:
        if few or not _has_interval(key):
            summary[key] |= {"low": np.nan, "high": np.nan}
        if key.table == CORRECTED:  # of means over seeds
            summary[key]["std"] = np.nan
    seen = observed_dice(effects)
    why = {key: reason for pair in compared.pairs(seen) for key, reason in _reasons(pair, seen)}
    table = pd.DataFrame(
        [{**key._asdict(), **numbers, "note": why.get(key, "")} for key, numbers in summary.items()],
        columns=[*Key._fields, "mean", "std", "low", "high", "seeds", "note"],
    )
    noise_ceilings = {} if ground_truth is None else ground_truth.noise_ceilings
    captions = _captions(standalone, split, len(seen.seeds), few, references, noise_ceilings)
    tables = [
        _shown(str(name), captions[str(name)], rows)
        for name, rows in table.groupby("table", sort=False)
        if rows["mean"].notna().any()
    ]
    return Fairness(table, tables, estimates)


def _has_interval(key: Key) -> bool:
    """Return whether a measure is free of the errors' bias, so intervals cover the true number; a p-value has none."""
    return key.table == CORRECTED or key.measure in MEANS or bool(key.estimate and key.measure in CORRELATED)


def _error_covariances(
    cases: pd.Series, clusters: Clusters, labels: Sequence[str], base: str | None
) -> dict[tuple[str, str], float]:
    """Return mean error (co)variances of Dice [points²], by two labels: each with itself, and with local training."""
    own = cases[cases.index.isin(labels, level="method")]
    if own.empty:
        return {}
    effects = CrossedEffects.from_cases(own, clusters)
    pairs = {(label, other) for label in effects.methods for other in (label, base) if other in effects.methods}
    return {pair: 100**2 * effects.error_covariance(*pair) for pair in sorted(pairs)}


def _corrected(dice: SiteDice, errors: Mapping[tuple[str, str], float], base: str | None) -> dict[Key, FloatArray]:
    """Return Std, CGS and Pearson of means over seeds, without estimation error, which draws have twice."""
    times = 1 if dice.seed_draws is None else 2
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
    """Return the Dice of every case; on the union only of runs in which all sites tested: others have other cases."""
    if split != UNION:
        return results.dice.cases
    cases = results.union.cases
    runs = results.union.complete.notna().groupby(level=RUN).all()
    frame = cases.reset_index().merge(runs[runs].index.to_frame(index=False), on=RUN)
    return frame.set_index(list(cases.index.names)).iloc[:, 0]


def _find_unpaired_seeds(tested: Tested, standalone: str | None) -> dict[str, set[int]]:
    """Return by label the seeds in which a site was tested on other cases than with ``standalone``."""
    unpaired: dict[str, set[int]] = {}
    for (method, seed), sites in tested.items():
        local = tested.get((str(standalone), seed), {})
        if any(local.get(site, own) != own for site, own in sites.items()):
            unpaired.setdefault(method, set()).add(seed)
    return unpaired


def _reasons(pair: Pair, seen: SiteDice) -> Iterator[tuple[Key, str]]:
    """Yield why measures of observed vectors are undefined, in those seeds that the method ran."""
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
    """Return the captions of the tables; without intervals if some sites have too few cases."""
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
    """Return the measures of one table, a row for each method and estimate, each followed by any interval."""
    lines = list(dict.fromkeys(zip(rows["method"], rows["estimate"], strict=True)))
    texts = {"Method": [method for method, _ in lines]}
    if rows["estimate"].any():
        texts["Contribution"] = [estimate for _, estimate in lines]
    seeds = rows.groupby(["method", "estimate"])["seeds"].max()  # its counterpart may have fewer
    texts["Seeds"] = [str(int(seeds[line])) for line in lines]
    frame, spread = pd.DataFrame(texts), pd.DataFrame(texts)
    for key, part in rows.groupby("measure", sort=False):
        part, heading = part.set_index(["method", "estimate"]).reindex(lines), MEASURES[str(key)].heading
        heading = heading.removesuffix(" per seed") if name == CORRECTED else heading  # these are of means over seeds
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


ONE_MODEL = f"Dice {CONSTANT}"
ONE_MODEL_NOTE = (
    "all sites have one model; the papers let each train once more at the end: run it with --set last_round=own, or "
    "METHOD:last_round=own among the methods of compare"
)


def measure_runs(
    paths: Sequence[Path],
    standalone: Sequence[str] = (),
    ground_truth: Path | None = None,
    *,
    split: str = OWN,
    label: str | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> tuple[Fairness, list[str]]:
    """Compute every measure of fairness that the folders allow, and notes on what is missing.

    Args:
        paths: run folders, or folders of run folders. Unfinished runs are left out.
        standalone: the label of local training, or its run folders; none: the runs of the method standalone.
        ground_truth: a folder of trained coalitions (`fedmerit value leave-one-out`, `fedmerit value
            shapley`).
        split: ``testing``, each site's own test cases, or ``union``, those of all sites.
        label: one label; None: the mean over all.
        draws: of the intervals.
        seed: that the draws start from.

    Raises:
        BadInput: no run is finished, runs do not belong together, ``standalone`` or ``label`` names none, or the
            ground truth is not of these sites or incomplete.
    """
    folders = _folders(paths)
    beside = _folders([Path(name) for name in standalone if Path(name).is_dir()])
    known = {folder.resolve() for folder in folders}
    tested, notes = _tested([*folders, *(folder for folder in beside if folder.resolve() not in known)])
    runs = open_runs(tested)
    base = _choose_standalone(runs, [name for name in standalone if not Path(name).is_dir()], beside)
    notes += _untested_sites(runs) + _missing_local_only(runs, base)
    labels = sorted({name for run in runs for name in run.info["labels"]})
    require_known("--label", [] if label is None else [label], labels)
    results = _select_label(combine_results(runs), label)
    if Dice(results.rows, split).rows.empty:
        raise BadInput(f"--split {split}: no run was tested on it; run again to test on it")
    if results.dice.mismatched_seeds():
        notes.append(
            "runs of one seed were tested on different cases: their Dice cannot be compared, and without the cases of "
            "local training there is no performance fairness and no gain"
        )
    ground = None
    if ground_truth is None:
        notes.append(
            "collaboration fairness needs a ground truth: give --ground-truth DIR, which `fedmerit value leave-one-out "
            f"--sites {runs[0].info.get('sites_folder') or 'SITES'} --out DIR` or `fedmerit value shapley` writes"
        )
    else:
        ground = open_ground_truths(ground_truth, runs[0].sites, sorted({run.seed for run in runs}))
        ground = replace(ground, trained=_select_label(ground.trained, label))
        differences = list_preparation_differences(ground_truth, [run.site_digests for run in runs])
        notes += [f"--ground-truth {ground_truth}: {note}" for note in [*ground.notes, *differences]]
        notes += [
            f"--ground-truth {ground_truth}: {text}"
            for one in ground.references
            for text in _sampled(one, runs[0].sites, label)
        ]
    methods = {run.label: run.counts_images for run in runs}
    found = measure(results, methods, standalone=base, ground_truth=ground, split=split, draws=draws, seed=seed)
    return found, [*notes, *_undefined(found)]


def write_fairness(found: Fairness, notes: Sequence[str], out: Path) -> None:
    """Write ``fairness.csv`` (every measure, with what it lacks), each table as CSV and LaTeX, and ``notes.txt``."""
    write_csv(out / "fairness.csv", found.measured)
    write_tables(found.tables, out)
    write_text(out / "notes.txt", "".join(f"{note}\n" for note in notes))


def _folders(paths: Sequence[Path]) -> list[Path]:
    """Find run folders; in a folder that is none itself, those inside."""
    found: list[Path] = []
    for path in paths:
        inside = sorted(file.parent for file in path.glob("*/run.json"))
        found += inside if inside and not (path / "run.json").exists() else [path]
    return found


def _tested(folders: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Return the runs with test Dice, and notes on the others; `BadInput` if there is none."""
    tested, notes = [], []
    for folder in folders:
        is_run, has_results = ((folder / name).exists() for name in ("run.json", "results.csv"))
        if is_run and (not has_results or Dice(read_results(folder)).rows.empty):
            notes.append(f"{folder}: not finished, left out; `fedmerit run --resume --out {folder}` resumes it")
        else:
            tested.append(folder)  # `open_runs` rejects what is no run folder
    if folders and not tested:
        raise BadInput("; ".join(notes))
    return tested, notes


def _choose_standalone(runs: Sequence[Run], names: Sequence[str], folders: Sequence[Path]) -> str | None:
    """Return the label of local training; None if there is none and none was requested."""
    labels = dict.fromkeys(run.label for run in runs)
    if unknown := [name for name in names if name not in labels]:
        raise BadInput(f"--standalone {unknown[0]}: neither a run folder nor a label; the runs are {', '.join(labels)}")
    if names or folders:
        places = {folder.resolve() for folder in folders}
        chosen = dict.fromkeys([*names, *(run.label for run in runs if run.path.resolve() in places)])
        if not chosen:
            raise BadInput("--standalone: none of its runs is finished; `fedmerit run --resume --out RUN` resumes one")
    else:
        chosen = dict.fromkeys(run.label for run in runs if run.info["method"] == STANDALONE)
    if len(chosen) > 1:
        raise BadInput(f"{', '.join(chosen)}: local training with different settings; name one with --standalone")
    return next(iter(chosen), None)


def _untested_sites(runs: Sequence[Run]) -> list[str]:
    return [
        f"{run.path}: no test Dice from {', '.join(sorted(set(run.sites) - run.tested_sites))}, so its measures "
        f"over sites are undefined; `fedmerit evaluate {run.path} --sites SITES` tests its models, a new run makes both"
        for run in runs
        if set(run.sites) - run.tested_sites
    ]


def _missing_local_only(runs: Sequence[Run], standalone: str | None) -> list[str]:
    lacking = {run.seed for run in runs} - {run.seed for run in runs if run.label == standalone}
    info = runs[0].info
    place = info.get("sites_folder") or "SITES"  # none: a deployed run
    return [
        f"seed {seed}: no run of local training, so neither performance fairness nor gains; `fedmerit run --method "
        f"{STANDALONE} --sites {place} --rounds {info['rounds']} --seed {seed} --out RUN` makes one"
        for seed in sorted(lacking)
    ]


def _select_label(results: Results, label: str | None) -> Results:
    """Return the results with the Dice of only one label."""
    return results if label is None else Results(results.rows[results.rows["label"].isin([label, ""])])


def _sampled(reference: Reference, sites: Sequence[str], label: str | None) -> Iterator[str]:
    """Yield sampled values with their standard errors, by seed."""
    dice = "Dice" if label is None else "the mean Dice of all labels, by which permutations were drawn"
    for seed, estimate in reference.estimates.items():
        pairs = zip(sites, 100 * estimate.values, 100 * estimate.standard_errors, strict=True)
        values = ", ".join(f"{site} {value:.2f} (standard error {error:.2f})" for site, value, error in pairs)
        yield (
            f"{reference.name}, seed {seed}: estimates from {estimate.permutations} sampled permutations, in points of "
            f"{dice}: {values}"
        )


def _undefined(found: Fairness) -> list[str]:
    """Explain why measures are undefined, those with the same reason together."""
    reasons: dict[tuple[str, str], tuple[dict[str, None], dict[str, None]]] = {}
    for row in found.measured[found.measured["note"] != ""].to_dict("records"):
        names, methods = reasons.setdefault((row["table"], row["note"]), ({}, {}))
        names[row["measure"]] = methods[row["method"]] = None
    one_model = {method for (_, note), (_, methods) in reasons.items() if ONE_MODEL in note for method in methods}
    return [
        *(
            f"fairness-{table}: {', '.join(names)} undefined for {', '.join(methods)}: {note}"
            for (table, note), (names, methods) in reasons.items()
        ),
        *([f"{', '.join(sorted(one_model))}: {ONE_MODEL_NOTE}"] if one_model else []),
    ]
