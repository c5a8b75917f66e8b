"""The comparisons that a report judges, from results: one family, of which all of its sentences take their verdicts."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from scipy.stats import binomtest

from fedmerit_evaluation.report.agreement import MAX_EXACT_PERMUTATIONS, SAMPLED, Agreement
from fedmerit_evaluation.results.views import STANDALONE, Dice, Results
from fedmerit_evaluation.statistics.family import Question, Verdict, judge
from fedmerit_evaluation.statistics.inference import MIN_CASES, MIN_SEEDS, ONE_SEED, Estimate, SampleSize
from fedmerit_evaluation.statistics.intervals import ESTIMATE, estimates, select_methods, select_sites
from fedmerit_evaluation.statistics.ranks import Ranking

FAILURE = 0.5  # Dice of a patient below which a segmentation has failed
EQUAL_SHARE = "an equal share"
ONE_SPLIT = "shares of one split do not show what other patients would give"
CHANCE = "too few seeds or test patients"


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
        why = "" if results.repeats == "folds" else ONE_SEED if math.isnan(share.low) else ONE_SPLIT
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
