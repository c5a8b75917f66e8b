"""The assembly of a report's model from runs: what is shown of them, in numbers and codes, and what is judged.

The comparisons that a report judges are one family, of which all of its sentences take their verdicts.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd
from scipy.stats import binomtest

from fedmerit.evidence.closing_record import OBSERVED
from fedmerit.schema.scores import BEST
from fedmerit_evaluation.figures.tables import HEADINGS, UNITS
from fedmerit_evaluation.report.agreement import MAX_EXACT_PERMUTATIONS, SAMPLED, Agreement, compare_with_ground_truth
from fedmerit_evaluation.report.flags import Flags, collect_flags
from fedmerit_evaluation.report.limits import list_limits
from fedmerit_evaluation.report.model import (
    FAILURE,
    NONE,
    QUANTITIES,
    SHARE_DECIMALS,
    UNKNOWN,
    Condition,
    Hospital,
    ObservedValues,
    ReportModel,
    Study,
    Training,
    surface_columns,
)
from fedmerit_evaluation.report.words import join_words
from fedmerit_evaluation.results.runs import Run, combine_results, has_same_training
from fedmerit_evaluation.results.views import OWN, POOLED, RUN, STANDALONE, SURFACES, Dice, Results
from fedmerit_evaluation.statistics.family import Question, Verdict, judge
from fedmerit_evaluation.statistics.inference import MIN_CASES, MIN_FOLDS, MIN_SEEDS, ONE_SEED, Estimate, SampleSize
from fedmerit_evaluation.statistics.intervals import ESTIMATE, estimates, select_methods, select_sites
from fedmerit_evaluation.statistics.ranks import Ranking
from fedmerit_evaluation.valuation.valued_runs import observed_estimators, units, value_runs

KINDS = {STANDALONE: "local", POOLED: "pooled"}  # of training, by method; others are federated
SAME = 1e-6  # shares that differ by less, relative to the largest, are the same
DRAWS = 200  # for the values of observed runs
EQUAL_SHARE = "an equal share"
ONE_SPLIT = "shares of one split do not show what other patients would give"
FEW_FOLDS = f"fewer than {MIN_FOLDS} folds"
CHANCE = "too few seeds or test patients"
RECEIVED = {"Received": "given", "Local": "local_only", "Final": "selected"}  # by the ends of the splits' names


def build_model(runs: Sequence[Run], ground_truth: Path | None = None, failure: float = FAILURE) -> ReportModel:
    """Return the model of a report on all hospitals.

    Args:
        runs: opened runs, on the same task and sites, labelled by `align_local_only`.
        ground_truth: folder of `fedmerit value leave-one-out` or `fedmerit value shapley`, on the same sites.
        failure: the Dice of a patient below which the segmentation counts as failed.

    Raises:
        BadInput: the ground truth is not of these runs.
    """
    honest = honest_runs(runs)
    everything = combine_results(runs)
    results = everything if len(honest) == len(runs) else combine_results(honest)
    return model_of_results(runs, results, everything, ground_truth, failure)


def model_of_results(
    runs: Sequence[Run],
    results: Results,
    everything: Results,
    ground_truth: Path | None = None,
    failure: float = FAILURE,
) -> ReportModel:
    """Return the model of a report on all hospitals from combined results.

    Args:
        runs: as of `build_model`.
        results: the results of runs without simulated attacks: Dice and verdicts are of these.
        everything: the results of all runs: rounds, flags and costs are of these.
        ground_truth: as of `build_model`.
        failure: as of `build_model`.

    Raises:
        BadInput: the ground truth is not of these runs.
    """
    honest, dice, rounds = honest_runs(runs), results.dice, everything.rounds
    agreements, ground_limits = (
        ([], []) if ground_truth is None else compare_with_ground_truth(honest, results, ground_truth)
    )
    primary = choose_method(honest, results)
    by_images = methods_by_image_count(runs)
    found, (notes, limits) = collect_flags(runs), list_limits(runs, honest, results)
    verdicts = collect_verdicts(results, primary, agreements, failure)
    hospitals = list_hospitals(honest, results, primary, agreements, found, verdicts) if primary else []
    mean_gains = [one.estimate for one in verdicts if one.question == Question.MEAN_GAIN]
    is_tested = not dice.rows.empty
    model = ReportModel(
        site="",
        study=_study(runs, results),
        number_of_sites=len(runs[0].sites),
        trainings=tuple(_trainings(runs, primary)),
        hospitals=tuple(hospitals),
        primary=primary,
        is_ambiguous=has_ambiguous_baseline(honest),
        counts_images=primary in by_images,
        unmet=(),
        sample=sample_size(results),
        verdicts=verdicts,
        failure=failure,
        flags=found,
        settings=tuple((run.label, _settings(run)) for run in runs),
        intervals=dice.intervals,
        cases=dice.cases if is_tested else pd.Series(dtype=float),
        curves=rounds.validation,
        contributions=averaged(rounds.contributions) if not rounds.contributions.empty else NONE,
        costs=averaged(rounds.costs) if not rounds.costs.empty else NONE,
        rounds={name: rounds.of(name) for name in QUANTITIES if not rounds.of(name).isna().all(axis=None)},
        notes=notes,
        limits=[*limits, *(limit for one in agreements for limit in one.limits), *ground_limits],
        mean_gain=next(iter(mean_gains), UNKNOWN),
        sample_of_gain=sample_size(results, methods=[primary or "", STANDALONE]),
        comparison=dice.comparison if is_tested else None,
        ends=select_sites(rounds.intervals, "contribution"),
        cross_site={name: averaged(matrix) for name, matrix in results.union.cross_site.items()} if is_tested else {},
        by_images=by_images,
        best_round=_best_round(results.rows),
        final_models=_final_models(results.rows),
        agreements=agreements,
        observed=_observed_values(runs),
        flagged_sites=_flagged_sites(results),
    )
    if is_tested:
        fewest = dice.sites["patients"].groupby(level=["method", "site"], observed=True).min()
        changes = dice.surface_changes
        model = replace(
            model,
            tested=averaged(dice.sites).assign(fewest_patients=fewest),
            failures=dice.failures(failure),
            all_failures=dice.failures(failure, ["method"]),
            labels=_labels(dice) if dice.labels.shape[1] > 1 else NONE,
            surface_means=_surface_means(dice.sites),
            surface_changes=changes if select_sites(dice.intervals, "gain")["mean"].notna().any() else NONE,
        )
    same = _same_quantities(model.rounds)
    return replace(model, same_quantities=same, unmet=tuple(_judge_payment(model)))


def honest_runs(runs: Sequence[Run]) -> list[Run]:
    """Return the runs without simulated attacks, or all if there is no other."""
    return [run for run in runs if not run.attacks] or list(runs)


def choose_method(runs: Sequence[Run], results: Results) -> str | None:
    """Return the method that a report judges: the first that estimates contributions, else the first federated one.

    Shares of training images are no estimate. None: no run is federated.
    """
    labels = {run.label: str(run.info["method"]) for run in runs}
    federated = [label for label in labels if labels[label] not in KINDS]
    counted = methods_by_image_count(runs)
    estimating = [label for label in federated if label not in counted and label in contribution_shares(results)]
    return next(iter([*estimating, *federated]), None)


def align_local_only(runs: Sequence[Run]) -> list[Run]:
    """Return the runs, those of local training that hospitals are compared with under the plain label of it.

    Of runs of local training with several settings these are the ones with the settings of the report's method; none
    if no run has them, or runs of several labels.
    """
    honest = honest_runs(runs)
    local = {run.label: run for run in honest if run.info["method"] == STANDALONE and not run.attacks}
    if not local or STANDALONE in local:
        return list(runs)
    matching = list(local)
    if len(local) > 1:
        method = choose_method(honest, combine_results(honest))
        chosen = [run for run in honest if run.label == method][:1]
        matching = [label for label, run in local.items() if any(has_same_training(run, other) for other in chosen)]
    return [replace(run, label=STANDALONE) if matching == [run.label] else run for run in runs]


def has_ambiguous_baseline(runs: Sequence[Run]) -> bool:
    """Return whether there are runs of local training among those of `align_local_only`, but none to compare with."""
    labels = {run.label for run in runs if run.info["method"] == STANDALONE and not run.attacks}
    return bool(labels) and STANDALONE not in labels


def list_hospitals(
    runs: Sequence[Run],
    results: Results,
    method: str,
    agreements: Sequence[Agreement],
    flags: Flags,
    verdicts: Sequence[Verdict],
) -> list[Hospital]:
    """Return the hospitals with one method, by name; the runs have no simulated attacks."""
    dice, sites = results.dice, runs[0].sites
    local = pd.Series(dtype=float)
    if not dice.rows.empty and STANDALONE in dice.by_site.index.get_level_values("method"):
        local = pd.Series(pd.DataFrame(dice.by_site.loc[STANDALONE]).mean())
    federated, gain = (_select_method(select_sites(dice.intervals, name), method) for name in ("dice", "gain"))
    surfaces = _surfaces(results, method)
    shares = contribution_shares(results).get(method, {})
    gain_of, share_of = (
        {one.subject: one for one in verdicts if one.question == of} for of in (Question.GAIN, Question.SHARE)
    )
    gain = {name: replace(one, p=gain_of[name].estimate.p) for name, one in gain.items() if name in gain_of}
    shares = {name: replace(one, p=share_of[name].estimate.p) for name, one in shares.items()}
    hospitals = []
    for site in sites:
        server_flags, of_guard = flags.of(method, site)
        tested = site in federated and not math.isnan(federated[site].mean)
        has_local = not math.isnan(local.get(site, math.nan))
        no_local = "ambiguous" if has_ambiguous_baseline(runs) else "no_local"
        hospitals.append(
            Hospital(
                name=site,
                local=float(local.get(site, math.nan)),
                federated=federated.get(site, UNKNOWN),
                surfaces=surfaces.get(site, {}),
                gain=gain.get(site, UNKNOWN),
                sample=sample_size(results, site, [method, STANDALONE]),
                lacking="untested" if not tested else "no_seed" if has_local else no_local,
                share=shares.get(site, UNKNOWN),
                equal=round(1 / len(shares or sites), SHARE_DECIMALS),
                share_seeds=count_share_seeds(results).get(method, 0),
                counts_images=method in methods_by_image_count(runs),
                values={one.reference: float(one.values[site].mean()) / 100 for one in agreements},
                detectable=gain_of[site].detectable if site in gain_of else math.nan,
                share_untested=share_of[site].insufficient_data if site in share_of else "",
                flags=server_flags,
                verdicts=of_guard,
                needs_review=bool(server_flags) or any(one.lifted is None for one in of_guard),
            )
        )
    return hospitals


def count_share_seeds(results: Results) -> dict[str, int]:
    """Return, by method, the number of seeds of its `contribution_shares`."""
    seeds = results.rounds.share_intervals["seeds"].groupby(level="method").max()
    return {str(method): int(number) for method, number in seeds.items()}


def methods_by_image_count(runs: Sequence[Run]) -> list[str]:
    """Return the labels of the runs whose method declares that its contributions are shares of training images."""
    return list(dict.fromkeys(run.label for run in runs if run.counts_images))


def image_shares(results: Results, quantity: str) -> "pd.Series[bool]":
    """Return whether all positive numbers of a round are the same multiple of the training images.

    The index is ``(method, seed or fold, round)``, without rounds in which only one number is positive (such as the
    one update that Krum takes).
    """
    rounds = results.rounds if results.folds is None else results.rounds.over_folds  # images differ by fold
    images, table = rounds.of("num_samples"), rounds.of(quantity)
    ratio = table.where(table > 0) / images.reindex(table.index)
    ratio = ratio[ratio.notna().sum(axis=1) != 1]
    return pd.Series(ratio.max(axis=1) - ratio.min(axis=1) <= SAME * ratio.max(axis=1))


def averaged(table: pd.DataFrame) -> pd.DataFrame:
    """Return the mean over seeds, ``(method, site)`` x columns; counts stay whole if they are the same in all."""
    mean = table.groupby(level=["method", "site"], observed=True).mean()
    whole = [name for name in table.select_dtypes("integer") if (mean[name] % 1 == 0).all()]
    return mean.astype(dict.fromkeys(whole, int))


def training_days(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return the first and the last day on which the runs were started: one if they are the same, () if unknown."""
    days = sorted({str(run.info["started"])[:10] for run in runs if run.info.get("started")})
    return tuple(dict.fromkeys((days[0], days[-1]))) if days else ()


def _study(runs: Sequence[Run], results: Results) -> Study:
    info, is_tested = runs[0].info, not results.dice.rows.empty
    return Study(
        task=str(info["task"]) if "task" in info else "",
        labels=tuple(map(str, info.get("labels", ()))),
        sites=tuple(runs[0].sites),
        runs=len(runs),
        rounds=tuple(dict.fromkeys(run.rounds for run in runs)),
        seeds=tuple(dict.fromkeys(run.seed for run in runs)),
        days=training_days(runs),
        seeds_tested=results.dice.rows["seed"].nunique() if is_tested else 0,
        folds=results.dice.clusters.folds if is_tested else 0,
        repeats=results.repeats,
    )


def _trainings(runs: Sequence[Run], primary: str | None) -> Iterator[Training]:
    for run in {run.label: run for run in runs}.values():
        kind = KINDS.get(str(run.info["method"]), "federated")
        yield Training(run.label, kind, run.label == primary, bool(run.attacks))


def _settings(run: Run) -> dict[str, Any]:
    """Return run.json, each setting once: its configuration repeats all but the network."""
    shown = {name: value for name, value in run.info.items() if name not in ("plan", "settings")}
    return shown | {"network": run.info.get("plan", {}).get("network", {})}


def _judge_payment(model: ReportModel) -> Iterator[Condition]:
    """Yield the conditions of payment by the method's estimate that are not met."""
    if model.primary is None:
        return
    without = [one.name for one in model.hospitals if math.isnan(one.share.mean)]
    if model.counts_images or without:
        yield Condition("no_estimate", join_words(without) if model.shares and not model.counts_images else "")
        return
    if model.share_seeds < MIN_SEEDS:
        yield Condition("one_seed")
    elif any(one.share_untested for one in model.hospitals):
        yield Condition("one_split")
    elif not any(one.share_sign for one in model.hospitals):
        yield Condition("no_order")
    compared = model.verdicts_on(Question.AGREEMENT)
    if not compared:
        yield Condition("no_ground_truth")
    for one in compared:
        if one.insufficient_data == CHANCE:
            yield Condition("chance", one.other)
        elif one.sign < 1:
            yield Condition("disagreement" if one.sign else "no_agreement", one.other)


def _labels(dice: Dice) -> pd.DataFrame:
    surfaces = {
        f"{label}, {HEADINGS[name]}": table[label] * UNITS.get(name, 1.0)
        for label in dice.labels
        for name, table in dice.label_surfaces.items()
    }
    return averaged((100 * dice.labels).assign(**surfaces))


def _surfaces(results: Results, method: str) -> dict[str, dict[str, float]]:
    """Return, by site, HD95 and NSD of a method by their headings, means over seeds."""
    if results.dice.rows.empty:
        return {}
    sites = averaged(results.dice.sites)
    own = sites[sites.index.get_level_values("method") == method].droplevel("method")
    table = pd.DataFrame(surface_columns(own)).dropna(axis=1, how="all").T
    return {str(site): {str(name): float(value) for name, value in column.items()} for site, column in table.items()}


def _surface_means(sites: pd.DataFrame) -> pd.DataFrame:
    runs = sites[[name for name in SURFACES if name in sites]].groupby(level=RUN).mean()
    return runs.groupby(level="method").mean()


def _select_method(table: pd.DataFrame, method: str) -> dict[str, Estimate]:
    return estimates(table[table.index.get_level_values("method") == method].droplevel("method"))


def _same_quantities(rounds: Mapping[str, pd.DataFrame]) -> dict[str, list[str]]:
    """Return the recorded quantities of rounds, each with those that are the same numbers."""
    seen: dict[str, list[str]] = {}
    for quantity, table in rounds.items():
        same = [other for other in seen if table.equals(rounds[other])]
        if same:
            seen[same[0]].append(quantity)
        else:
            seen[quantity] = []
    return seen


def _best_round(rows: pd.DataFrame) -> pd.DataFrame:
    """Return means over sites in the last and the best round, a row per run; if they are the same round, it is both."""
    best = _by_site(rows, BEST)
    if best.empty:
        return NONE
    chosen = rows[(rows["split"] == BEST) & (rows["quantity"] == "dice")].groupby(RUN, observed=True)["round"].first()
    last, best = (table.groupby(level=RUN, observed=True).mean() for table in (_by_site(rows, OWN), best))
    both = {"Last round": last, "Best round": best.reindex(last.index).fillna(last)}
    shown = {f"{when}, {name}": table[name] for name in best if name in last for when, table in both.items()}
    return pd.DataFrame(shown | {"Round": chosen.reindex(last.index)})


def _final_models(rows: pd.DataFrame) -> pd.DataFrame:
    """Return Dice and surfaces of the models of final model selection, by heading."""
    tested = {name: _by_site(rows, f"testing_{end}") for name, end in RECEIVED.items()}
    if tested["Final"].empty:
        return NONE
    validated = {name: _by_site(rows, f"validation_{end}") for name, end in RECEIVED.items()}
    dice = HEADINGS["dice"]
    columns = {f"{name}, {dice}": table[dice] for name, table in tested.items() if dice in table}
    columns |= {f"{name}, validation {dice}": table[dice] for name, table in validated.items() if dice in table}
    columns |= {f"{name}, {other}": tested[name][other] for other in tested["Final"] if other != dice
                for name in tested if other in tested[name]}  # fmt: skip
    return pd.DataFrame(columns).groupby(level=["method", "site"], observed=True).mean()


def _by_site(rows: pd.DataFrame, split: str) -> pd.DataFrame:
    """Return ``(method, seed, site)`` x Dice and surfaces by heading: means over cases of means over labels."""
    dice = Dice(rows, split)
    if dice.rows.empty:
        return NONE
    return pd.DataFrame({HEADINGS["dice"]: 100 * dice.sites["dice"], **surface_columns(dice.sites)})


def _observed_values(runs: Sequence[Run]) -> ObservedValues:
    """Return the values of methods whose runs were all observed."""
    rankings, named_units = dict[str, Ranking](), dict[str, str]()
    labels = list(dict.fromkeys(run.label for run in runs))
    for label in labels:
        folders = [run.path for run in runs if run.label == label and run.tested]
        if not folders or not all((folder / OBSERVED).exists() for folder in folders):
            continue
        if specs := observed_estimators(folders):
            valued = value_runs(folders, specs, DRAWS)
            names = {spec: spec if len(labels) == 1 else f"{label}: {spec}" for spec in specs}
            rankings |= {names[spec]: one for spec, one in valued.shown.items()}
            named_units |= {names[spec]: unit for spec, unit in units(valued).items()}
    return ObservedValues(rankings, named_units)


def _flagged_sites(results: Results) -> list[str]:
    """Return the sites that the method or the server flagged in any round of any run."""
    is_positive = (results.rows["quantity"] == "flagged") & (results.rows["value"] > 0)
    return sorted(map(str, results.rows.loc[is_positive, "site"].unique()))


def collect_verdicts(
    results: Results, primary: str | None, agreements: Sequence[Agreement] = (), failure: float = FAILURE
) -> list[Verdict]:
    """Return the verdicts on the method of a report, and on the differences between methods.

    Args:
        results: of runs without simulated attacks.
        primary: the label of the method; None: no run is federated.
        agreements: with each ground truth.
        failure: the Dice below which a patient counts as failed.
    """
    comparisons = [*_compare_methods(results, primary)]
    if primary is not None:
        comparisons += _compare_with_local(results, primary, failure)
        comparisons += _compare_shares(results, primary)
        comparisons += _compare_values(results, primary, agreements)
    return judge(comparisons)


def sample_size(results: Results, site: str | None = None, methods: Collection[str] | None = None) -> SampleSize:
    """Return the sample behind a comparison: the fewest test patients of a seed, and the seeds tested alike.

    A seed in which a site has no Dice of a method, or methods were tested on different cases, does not count.

    Args:
        results: the results of all runs.
        site: the site whose Dice is compared; None: all sites.
        methods: the methods that are compared, those that were tested; None: all.
    """
    if results.dice.rows.empty:
        return SampleSize(0, 0)
    runs = {run: sites for run, sites in results.dice.tested_patients.items() if methods is None or run[0] in methods}
    compared = {tested for sites in runs.values() for tested in sites if site in (None, tested)}
    if not compared:
        return SampleSize(0, 0)
    seeds: dict[str, set[int]] = {method: set() for method, _ in runs}
    for (method, seed), sites in runs.items():
        if compared <= sites.keys():
            seeds[method].add(seed)
    return SampleSize(
        min(patients for sites in runs.values() for tested, patients in sites.items() if tested in compared),
        len(set.intersection(*seeds.values()) - results.dice.mismatched_seeds(site, methods)),
        folds=results.dice.clusters.folds,
    )


def contribution_shares(results: Results) -> dict[str, dict[str, Estimate]]:
    """Return, by method and site, the share of the sum of all sites' contributions, mean over seeds.

    Contributions are means over rounds. Methods are left out that make no estimate or the same for all, or whose
    estimates sum to 0 or less in any seed. CIs are over seeds (Student's t); one seed has none. p is that of an equal
    share, as if the patients of the split were no chance.
    """
    table = results.rounds.share_intervals
    shares: dict[str, dict[str, Estimate]] = {}
    methods, sites = (map(str, table.index.get_level_values(level)) for level in ("method", "of"))
    for method, site, (_, row) in zip(methods, sites, table.iterrows(), strict=True):
        names = ESTIMATE if row["seeds"] > 1 else ESTIMATE[:1]
        shares.setdefault(method, {})[site] = Estimate(*(float(row[name]) for name in names))
    return shares


def _compare_with_local(results: Results, primary: str, failure: float) -> Iterator[Verdict]:
    """Yield the comparisons of a method with local training: mean, hospitals and failures."""
    table, pair = results.dice.intervals, [primary, STANDALONE]
    why = sample_size(results, methods=pair).insufficient_data
    mean = estimates(select_methods(table, "mean_gain")).get(primary)
    if mean is not None and not math.isnan(mean.mean):
        yield Verdict(Question.MEAN_GAIN, primary, STANDALONE, mean, why)
    gains = select_sites(table, "gain").dropna(subset="mean")
    of_method = gains[gains.index.get_level_values("method") == primary].droplevel("method")
    for site, gain in estimates(of_method).items():
        yield Verdict(Question.GAIN, site, STANDALONE, gain, sample_size(results, site, pair).insufficient_data)
    yield from _compare_failures(results.dice, primary, failure, why)


def _compare_failures(dice: Dice, primary: str, failure: float, why: str) -> Iterator[Verdict]:
    """Yield the paired exact test (McNemar 1947) of as many failed patients with a method as with local training."""
    if dice.rows.empty:
        return
    failed = dice.by_patient < failure
    methods = failed.index.get_level_values("method")
    if not {primary, STANDALONE} <= set(methods):
        return
    local, federated = failed.xs(STANDALONE, level="method").align(failed.xs(primary, level="method"), join="inner")
    fewer, more = int((local & ~federated).sum()), int((federated & ~local).sum())
    if fewer + more:
        test = binomtest(fewer, fewer + more)
        difference = Estimate((fewer - more) / len(local), p=float(test.pvalue))
        smallest = min(1.0, 2 * 0.5 ** (fewer + more))
        yield Verdict(Question.FAILURES, primary, STANDALONE, difference, why, smallest)


def _compare_methods(results: Results, primary: str | None) -> Iterator[Verdict]:
    """Yield the comparisons of every two methods, except of the report's with local training."""
    differences = select_sites(results.dice.intervals, "difference")
    for (method, other), row in zip(differences.index, differences[ESTIMATE].itertuples(index=False), strict=True):
        pair = str(method), str(other)
        if set(pair) != {primary, STANDALONE}:
            yield Verdict(Question.METHODS, *pair, Estimate(*row), sample_size(results, methods=pair).insufficient_data)


def _compare_shares(results: Results, primary: str) -> Iterator[Verdict]:
    """Yield the comparisons of shares with an equal one."""
    shares = contribution_shares(results).get(primary, {})
    for site, share in shares.items():
        has_folds = results.repeats == "folds"
        why = "" if has_folds else ONE_SPLIT
        if math.isnan(share.low):
            why = FEW_FOLDS if has_folds else ONE_SEED
        equal = 1 / len(shares)
        ends = {end: getattr(share, end) - equal for end in ("mean", "low", "high")}
        yield Verdict(Question.SHARE, site, EQUAL_SHARE, replace(share, **ends), why)


def _compare_values(results: Results, primary: str, agreements: Sequence[Agreement]) -> Iterator[Verdict]:
    """Yield the comparisons of every two hospitals' values, and the agreement of the method's estimate with all."""
    patients = 0 if results.dice.rows.empty else int(results.dice.patients.min())
    for one in agreements:
        if one.ranking is not None:
            yield from _compare_pairs(one.ranking, one.reference)
        if primary in one.ranks:
            ranks = one.ranks[primary]
            # The CI over cases and seeds, with the hospitals fixed, has to exclude 0, too: of few hospitals half of all
            # random orders pass only that.
            p = one.p[primary] if ranks.excludes(0) else 1.0
            why = CHANCE if len(one.values) < MIN_SEEDS or 0 < patients < MIN_CASES else ""
            sites = one.values.shape[1]
            smallest = 2 / (math.factorial(sites) if sites <= MAX_EXACT_PERMUTATIONS else SAMPLED + 1)
            yield Verdict(Question.AGREEMENT, primary, one.reference, replace(ranks, p=p), why, smallest)


def _compare_pairs(order: Ranking, reference: str) -> Iterator[Verdict]:
    """Yield the comparisons of every two hospitals' values."""
    for first, second in combinations(range(len(order.sites)), 2):
        difference = Estimate(float(order.value[first] - order.value[second]), p=float(order.pair_p[first, second]))
        pair = order.sites[first], order.sites[second]
        yield Verdict(Question.VALUE, *pair, difference, order.insufficient_data, reference=reference)
