"""Simulated federations whose true Dice is known: how often intervals cover it, how often verdicts are wrong.

``python tests/support/simulated_studies.py coverage``, ``folds``, ``values``, ``family``, ``pages``, ``failures`` print
the tables of docs/studies/statistics.md.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pandas as pd
from scipy.special import expit
from scipy.stats import binomtest, bootstrap, t

from fedmerit.contract.semivalues import format_spec, leave_one_out_weights
from fedmerit.schema.results import COLUMNS
from fedmerit_evaluation.ground_truth.reliability import resample, semivalue_function
from fedmerit_evaluation.report.model import FAILURE
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.statistics.family import Question, Verdict, judge
from fedmerit_evaluation.statistics.inference import SIGNIFICANCE_LEVEL, Estimate, fold_overlap, holm
from fedmerit_evaluation.statistics.intervals import ESTIMATE, contribution_intervals, dice_intervals, select_sites
from fedmerit_evaluation.statistics.ranks import ranking
from fedmerit_evaluation.statistics.resampling import CASES, Clusters, CrossedEffects

METHODS = ("fedavg", "fedce", "standalone")
USUAL = {"patient": 7.0, "patient_method": 3.0, "seed": 1.0, "seed_site": 2.5, "rest": 2.5}  # SD in points of Dice
STABLE = USUAL | {"seed": 0.3, "seed_site": 0.5, "rest": 0.7}  # trained to the end
TRUE = 0.7  # Dice of every method at every hospital
HOSPITALS = 4  # of a federation


def federations(random, number, seeds, patients, sd, *, hospitals=HOSPITALS, methods=3, moved=False, failures=False):
    """(methods, seeds, number * hospitals, patients) Dice of equal methods at equal hospitals, and who was tested.

    ``moved``: each seed tests other patients, drawn from four times as many. ``failures``: a tenth of the patients is
    22 points lower than the others.
    """
    sites, pool = number * hospitals, 4 * patients if moved else patients
    own = random.normal(0, sd["patient"], (sites, pool))
    if failures:
        failed = random.random((sites, pool)) < 0.1
        skewed = np.where(failed, random.normal(-22, 8, own.shape), random.normal(0, 4, own.shape)) + 2.2
        own = skewed * sd["patient"] / np.sqrt(0.9 * 16 + 0.1 * 64 + 0.09 * 22**2)
    by_method = own + random.normal(0, sd["patient_method"], (methods, sites, pool))
    found = np.empty((methods, seeds, sites, patients))
    who = np.empty((seeds, sites, patients), dtype=int)
    for seed in range(seeds):
        order = (
            random.permuted(np.tile(np.arange(pool), (sites, 1)), axis=1)
            if moved
            else np.tile(np.arange(pool), (sites, 1))
        )
        of_all = np.repeat(random.normal(0, sd["seed"], (methods, number)), hospitals, axis=1)[..., None]
        who[seed] = order[:, :patients]
        tested = np.take_along_axis(by_method, np.broadcast_to(who[seed], (methods, sites, patients)), axis=2)
        found[:, seed] = tested + of_all + random.normal(0, sd["seed_site"], (methods, sites, 1))
    return TRUE + (found + random.normal(0, sd["rest"], found.shape)) / 100, who


def as_cases(dice, who, methods=METHODS):
    """Of (methods, seeds, sites, patients): Dice by ``(method, seed, site, case)``."""
    method, seed, site, _ = np.indices(dice.shape)
    index = pd.DataFrame({
        "method": np.array(methods)[method.ravel()], "seed": seed.ravel(), "site": [f"h{one:03d}" for one in site.flat],
        "case": [f"{case:03d}" for case in np.broadcast_to(who, dice.shape).flat],
    })  # fmt: skip
    return pd.Series(dice.ravel(), index=pd.MultiIndex.from_frame(index))


def each(found, hospitals=HOSPITALS, methods=METHODS):
    """Cases of every federation of those that `federations` gives."""
    dice, who = found
    for start in range(0, dice.shape[2], hospitals):
        own = slice(start, start + hospitals)
        yield as_cases(dice[:, :, own], who[:, own], methods)


def coverage(seeds, patients, sd, studies=100, seed=0, hospitals=HOSPITALS, **design):
    """Percent of the 95 % intervals of Dice, gain, mean Dice and mean gain that cover the true one; median width."""
    random = np.random.default_rng([seed, seeds, patients])
    rows = []
    for cases in each(federations(random, studies, seeds, patients, sd, hospitals=hospitals, **design), hospitals):
        effects = CrossedEffects.from_cases(cases)
        for what, other in (("Dice", None), ("gain", "standalone")):
            rows += [{"what": what} | effects.interval("fedce", other, site) for site in effects.sites]
            rows.append({"what": f"mean {what}"} | effects.interval("fedce", other))
    table = pd.DataFrame(rows)
    true = table["what"].str.contains("Dice") * TRUE
    covered = (table["low"] <= true) & (true <= table["high"])
    width = 100 * (table["high"] - table["low"]).groupby(table["what"]).median()
    return (100 * covered.groupby(table["what"]).mean()).to_dict(), width.to_dict()


SETTINGS = [(1, 3), (1, 5), (2, 3), (2, 5), (3, 3), (3, 5), (3, 10), (3, 30), (5, 3), (5, 5), (5, 10), (10, 5)]


def coverage_table(studies=100) -> Iterator[str]:
    """Lines of Markdown."""
    kinds = {"usual": (USUAL, {}), "stable": (STABLE, {}), "stable, failures": (STABLE, {"failures": True}),
             "usual, moved": (USUAL, {"moved": True})}  # fmt: skip
    yield f"| hospitals | seeds x patients | {' | '.join(kinds)} |"
    yield f"|---|---|{'---|' * len(kinds)}"
    for hospitals in (4, 8, 16):
        for seeds, patients in SETTINGS if hospitals == HOSPITALS else [(2, 5), (3, 5), (5, 10)]:
            cells = []
            for sd, design in kinds.values():
                held, width = coverage(
                    seeds, patients, sd, studies * HOSPITALS // hospitals, hospitals=hospitals, **design
                )
                means = f"{held['mean Dice']:.0f}, {held['mean gain']:.0f}"
                cells.append(f"{held['Dice']:.0f}, {held['gain']:.0f} ({width['gain']:.0f}); {means}")
            yield f"| {hospitals} | {seeds} x {patients} | {' | '.join(cells)} |"


def cross_validated(random, number, seeds, patients, sd, folds, from_patients, methods=3):
    """(methods, seeds, number * hospitals, patients) Dice of equal methods, and (patients,) the fold that tests each.

    Models of a fold differ from the others' by ``from_patients``, the share of the variance of seed and hospital that
    follows from who trains: each patient moves the models that it trains, so folds that share patients move alike.
    """
    sites, fold_of = number * HOSPITALS, np.arange(patients) % folds
    trains = np.stack([(fold_of != fold) & (fold_of != (fold + 1) % folds) for fold in range(folds)])  # (folds, n)
    own = random.normal(0, sd["patient"], (sites, patients)) + random.normal(
        0, sd["patient_method"], (methods, sites, patients)
    )
    effect = random.normal(0, 1, (methods, sites, patients)) @ (trains / np.sqrt(trains.sum(axis=1, keepdims=True))).T
    found = np.empty((methods, seeds, sites, patients))
    for seed in range(seeds):
        of_all = np.repeat(random.normal(0, sd["seed"], (methods, number, folds)), HOSPITALS, axis=1)
        drawn = random.normal(0, np.sqrt(1 - from_patients) * sd["seed_site"], (methods, sites, folds))
        of_fold = of_all + drawn + np.sqrt(from_patients) * sd["seed_site"] * effect
        found[:, seed] = own + of_fold[..., fold_of]
    return TRUE + (found + random.normal(0, sd["rest"], found.shape)) / 100, fold_of


def fold_coverage(seeds, patients, sd, folds=5, from_patients=0.0, studies=100):
    """Percent of the 95 % intervals of a gain and of a mean gain that cover the true one, and their median widths.

    Two of each: over folds, as a report has them, and over patients (and seeds) as if one model tested all.
    """
    random = np.random.default_rng([11, seeds, patients, folds])
    dice, fold_of = cross_validated(random, studies, seeds, patients, sd, folds, from_patients)
    who = np.broadcast_to(np.arange(patients), dice.shape[1:])
    rows = []
    for cases in each((dice, who)):
        keys = cases.index.droplevel("method").unique()
        by_fold = Clusters({key: str(fold_of[int(key[-1])]) for key in keys}, folds)
        for over, clusters in (("folds", by_fold), ("patients", CASES)):
            effects = CrossedEffects.from_cases(cases, clusters)
            found = {"gain": [effects.interval("fedce", "standalone", site) for site in effects.sites],
                     "mean gain": [effects.interval("fedce", "standalone")]}  # fmt: skip
            rows += [{"of": (over, what)} | one for what, those in found.items() for one in those]
    table = pd.DataFrame(rows)
    covered, width = (table["low"] <= 0) & (table["high"] >= 0), 100 * (table["high"] - table["low"])
    return (100 * covered.groupby(table["of"]).mean()).to_dict(), width.groupby(table["of"]).median().to_dict()


FOLD_SETTINGS = [(1, 9), (3, 9), (1, 5), (3, 5), (1, 20), (3, 20)]  # seeds, patients of a hospital


def fold_table(studies=100) -> Iterator[str]:
    """Lines of Markdown."""
    kinds = {"usual": (USUAL, 0.0), "stable": (STABLE, 0.0), "half from patients": (USUAL, 0.5),
             "all from patients": (USUAL, 1.0)}  # fmt: skip
    yield f"| seeds x patients | {' | '.join(kinds)} |\n|---|{'---|' * len(kinds)}"
    for seeds, patients in FOLD_SETTINGS:
        cells = []
        for sd, share in kinds.values():
            held, width = fold_coverage(seeds, patients, sd, 5, share, studies)
            cells.append("; ".join(
                f"{held[over, 'gain']:.0f} ({width[over, 'gain']:.0f}), {held[over, 'mean gain']:.0f}"
                for over in ("folds", "patients")
            ))  # fmt: skip
        yield f"| {seeds} x {patients} | {' | '.join(cells)} |"


def value_coverage(seeds, patients, sd, folds=5, from_patients=0.0, studies=100, schemes=("folds", "patients")):
    """Of leave-one-out values of equal hospitals, over folds and over patients and seeds.

    Percent of the 95 % intervals that hold the true value, 0; of studies with a significant pair; median widths.
    """
    names = [f"h{site}" for site in range(HOSPITALS)]
    games = [frozenset(names), *(frozenset(names) - {name} for name in names)]
    random = np.random.default_rng([13, seeds, patients, folds])
    dice, fold_of = cross_validated(random, studies, seeds, patients, sd, folds, from_patients, methods=len(games))
    held, wrong, width = ({over: [] for over in schemes} for _ in range(3))
    for study in range(studies):
        own = dice[:, :, study * HOSPITALS : (study + 1) * HOSPITALS]
        game, seed, site, case = (one.ravel() for one in np.indices(own.shape))
        rows = pd.DataFrame({
            "run": "x", "method": "fedavg", "seed": seed, "fold": fold_of[case].astype(str), "round": 1,
            "site": np.array(names)[site], "coalition": np.array([format_spec(one) for one in games])[game],
            "split": "testing", "patient": "", "case": [f"{one:03d}" for one in case], "label": "organ",
            "quantity": "dice", "value": own.ravel(),
        })  # fmt: skip
        for over in schemes:
            value = semivalue_function(leave_one_out_weights)
            one = resample(Results(rows[COLUMNS]), value, by_fold=over == "folds").ranking
            held[over] += [*((one.low <= 0) & (one.high >= 0))]
            wrong[over].append(one.has_significant_pairs)
            width[over] += [*(100 * (one.high - one.low))]
    return tuple({over: float(how(found[over])) for over in found}
                 for how, found in ((_percent, held), (_percent, wrong), (np.median, width)))  # fmt: skip


def _percent(those):
    return 100 * np.mean(those)


def value_table(studies=100) -> Iterator[str]:
    """Lines of Markdown."""
    kinds = {"usual": (USUAL, 0.0), "stable": (STABLE, 0.0), "all from patients": (USUAL, 1.0)}
    yield f"| seeds x patients | {' | '.join(kinds)} |\n|---|{'---|' * len(kinds)}"
    for seeds, patients in FOLD_SETTINGS:
        cells = []
        for sd, share in kinds.values():
            held, wrong, width = value_coverage(seeds, patients, sd, 5, share, studies)
            cells.append("; ".join(f"{held[over]:.0f} ({width[over]:.1f}), {wrong[over]:.0f}" for over in held))
        yield f"| {seeds} x {patients} | {' | '.join(cells)} |"


def wrong_verdicts(seeds, patients, sd, hospitals, studies=100, **design):
    """Percent of federations of equal hospitals with any significant gain or loss."""
    random = np.random.default_rng([7, seeds, patients, hospitals])
    found = []
    for cases in each(federations(random, studies, seeds, patients, sd, hospitals=hospitals, **design), hospitals):
        effects = CrossedEffects.from_cases(cases)
        p = [effects.interval("fedavg", "fedce", site)["p"] for site in effects.sites]
        found.append((holm(p) <= SIGNIFICANCE_LEVEL).any())
    return 100 * np.mean(found)


def wrong_fold_verdicts(seeds, patients, sd, from_patients, folds=5, studies=100):
    """Percent of cross-validated studies of equal hospitals with any significant gain or loss, and on the mean."""
    random = np.random.default_rng([12, seeds, patients, folds])
    dice, fold_of = cross_validated(random, studies, seeds, patients, sd, folds, from_patients, methods=2)
    who = np.broadcast_to(np.arange(patients), dice.shape[1:])
    wrong = []
    for cases in each((dice, who)):
        keys = cases.index.droplevel("method").unique()
        effects = CrossedEffects.from_cases(cases, Clusters({key: str(fold_of[int(key[-1])]) for key in keys}, folds))
        p = holm([effects.interval("fedavg", "fedce", site)["p"] for site in effects.sites])
        of_mean = effects.interval("fedavg", "fedce")["p"]
        wrong.append(((p <= SIGNIFICANCE_LEVEL).any(), of_mean <= SIGNIFICANCE_LEVEL))
    return tuple(map(float, 100 * np.mean(wrong, axis=0)))


def wrong_leads(seeds, patients, sd, methods, studies=50):
    """Percent of comparisons of equal methods in which some method is significantly below the best."""
    random = np.random.default_rng([8, seeds, patients, methods])
    found = []
    for _ in range(studies):
        dice, who = federations(random, 1, seeds, patients, sd, methods=methods)
        names = [f"m{number:02d}" for number in range(methods)]
        order = [names[place] for place in np.argsort(-dice.mean(axis=(1, 2, 3)))]
        table = dice_intervals(as_cases(dice, who, names), order, "standalone")
        found.append((holm(select_sites(table, "difference")["p"]) <= SIGNIFICANCE_LEVEL).any())
    return 100 * np.mean(found)


def wrong_shares(seeds, hospitals, studies=100, seed_cv=0.05, patient_cv=0.0):
    """Percent of federations of equal hospitals with any share significantly unequal, and with any significant pair.

    ``patient_cv``: a hospital's own patients, the same in all seeds, move its share by that fraction.
    """
    random = np.random.default_rng([9, seeds, hospitals])
    lasting = 1 + random.normal(0, patient_cv, (studies, 1, hospitals))
    values = lasting * (1 + random.normal(0, seed_cv, (studies, seeds, hospitals)))
    shares = values / values.sum(axis=-1, keepdims=True)
    names = [[f"m{study:03d}" for study in range(studies)], range(seeds), [f"h{site:02d}" for site in range(hospitals)]]
    index = pd.MultiIndex.from_product(names, names=["method", "seed", "site"])
    table = contribution_intervals(pd.Series(shares.ravel(), index=index))
    corrected = table["p"].groupby(level="method").transform(holm)
    unequal = (corrected <= SIGNIFICANCE_LEVEL).groupby(level="method").any()
    pairs = [ranking(names[2], one[..., None]).has_significant_pairs for one in shares]
    return 100 * unequal.mean(), 100 * np.mean(pairs)


def wrong_pages(
    seeds, patients, sd, hospitals=HOSPITALS, methods=3, studies=100, *, folds=0, patient_cv=0.0, failing=0.0
):
    """Percent of report pages on equal hospitals and methods with any wrong verdict, by question and "any".

    ``patient_cv``: a hospital's own patients, the same in all seeds, move its contribution by that fraction, as seeds
    do by 5 %. ``failing``: that part of the patients fails, of each method others.
    """
    random = np.random.default_rng([15, seeds, patients, hospitals, methods, folds, int(100 * patient_cv)])
    names = ["fedce", "standalone", *(f"other{number}" for number in range(methods - 2))]
    found = Counter()
    for _ in range(studies):
        dice, fold_of = (
            cross_validated(random, hospitals // HOSPITALS, seeds, patients, sd, folds, 0.0, methods)
            if folds
            else (federations(random, 1, seeds, patients, sd, hospitals=hospitals, methods=methods)[0], None)
        )
        fails = random.random((methods, 1, hospitals, patients)) < failing
        dice = np.where(fails, dice * random.uniform(0, 0.5, dice.shape), dice)
        lasting = 1 + random.normal(0, patient_cv, (max(folds, 1), 1, hospitals))
        worth = lasting * (1 + random.normal(0, 0.05, (max(folds, 1), seeds, hospitals)))
        shares = (worth / worth.sum(axis=-1, keepdims=True)).mean(axis=1) if folds else None
        wrong = {one.question for one in judge(page_comparisons(dice, names, fold_of, shares)) if one.sign}
        found.update([*map(str, wrong), *["any"] * bool(wrong)])
    return {question: 100 * number / studies for question, number in found.items()}


def page_comparisons(dice, names, fold_of=None, shares=None):
    """The comparisons of a page on (methods, seeds, hospitals, patients) Dice, as `collect_verdicts` makes them.

    The report judges the first method; the second is local training. ``shares``: (folds, hospitals).
    """
    cases = as_cases(dice, np.broadcast_to(np.arange(dice.shape[-1]), dice.shape[1:]), names)
    clusters = CASES
    if fold_of is not None:
        keys = cases.index.droplevel("method").unique()
        clusters = Clusters({key: str(fold_of[int(key[-1])]) for key in keys}, int(fold_of.max()) + 1)
    effects = CrossedEffects.from_cases(cases, clusters)

    def compare(question, subject, method, other, site=None):
        found = effects.interval(method, other, site)
        return Verdict(question, subject, other, Estimate(*(found[name] for name in ESTIMATE)))

    primary, local = names[:2]
    yield compare(Question.MEAN_GAIN, primary, primary, local)
    for site in effects.sites:
        yield compare(Question.GAIN, site, primary, local, site)
    for method, other in combinations(names, 2):
        if (method, other) != (primary, local):
            yield compare(Question.METHODS, method, method, other)
    failed = dice.mean(axis=1) < FAILURE
    fewer, more = int((failed[1] & ~failed[0]).sum()), int((failed[0] & ~failed[1]).sum())
    if fewer + more:
        difference = Estimate((fewer - more) / failed[0].size, p=binomtest(fewer, fewer + more).pvalue)
        yield Verdict(Question.FAILURES, primary, local, difference, smallest_p=min(1.0, 2 * 0.5 ** (fewer + more)))
    for site in [] if shares is None else range(shares.shape[1]):
        above = shares[:, site] - 1 / shares.shape[1]
        error = fold_overlap(len(above)) * above.std(ddof=1) / np.sqrt(len(above))
        p = float(2 * t.sf(abs(above.mean()) / error, len(above) - 1))
        yield Verdict(Question.SHARE, effects.sites[site], "an equal share", Estimate(above.mean(), p=p))


PAGES = {  # seeds, patients, SD, hospitals, methods, and the further design
    "stable, 3 x 5": (3, 5, STABLE, 4, 3, {}),
    "usual, 3 x 5": (3, 5, USUAL, 4, 3, {}),
    "stable, 3 x 5, patients move shares": (3, 5, STABLE, 4, 3, {"patient_cv": 0.05}),
    "stable, 5 x 10, patients move shares": (5, 10, STABLE, 4, 3, {"patient_cv": 0.05}),
    "stable, 5 x 10, 8 hospitals, 5 methods": (5, 10, STABLE, 8, 5, {}),
    "stable, 3 x 5, 4 % fail": (3, 5, STABLE, 4, 3, {"failing": 0.04}),
    "stable, 3 x 20, 10 % fail": (3, 20, STABLE, 4, 3, {"failing": 0.10}),
    "usual, 5 folds, 3 x 10, patients move shares": (3, 10, USUAL, 4, 3, {"folds": 5, "patient_cv": 0.05}),
}


def page_table(studies=100) -> Iterator[str]:
    """Lines of Markdown."""
    questions = [
        "any",
        *map(str, (Question.MEAN_GAIN, Question.GAIN, Question.METHODS, Question.FAILURES, Question.SHARE)),
    ]
    yield f"| page | {' | '.join(questions)} |\n|---|{'---|' * len(questions)}"
    for name, (*design, more) in PAGES.items():
        wrong = wrong_pages(*design, studies, **more)
        yield f"| {name} | {' | '.join(f'{wrong.get(question, 0):.1f}' for question in questions)} |"


def family_table(studies=100) -> Iterator[str]:
    """Lines of Markdown."""
    yield "| gains: hospitals | 2 x 5 | 3 x 5 | 3 x 30 | 5 x 5 | 10 x 5 |\n|---|---|---|---|---|---|"
    for name, sd in (("usual", USUAL), ("stable", STABLE)):
        for hospitals in (4, 8, 16):
            cells = [wrong_verdicts(seeds, patients, sd, hospitals, studies)
                     for seeds, patients in ((2, 5), (3, 5), (3, 30), (5, 5), (10, 5))]  # fmt: skip
            yield f"| {name}, {hospitals} | {' | '.join(f'{one:.0f}' for one in cells)} |"
    yield "| gains over 5 folds (any, mean) | 1 x 9 | 3 x 9 | 3 x 20 |\n|---|---|---|---|"
    for name, share in (("none from patients", 0.0), ("half", 0.5), ("all", 1.0)):
        found = [wrong_fold_verdicts(*how, USUAL, share, studies=200) for how in ((1, 9), (3, 9), (3, 20))]
        yield f"| {name} | {' | '.join(f'{one:.0f}, {mean:.0f}' for one, mean in found)} |"
    yield "| shares (any unequal, any pair): hospitals | 2 seeds | 3 | 5 | 10 |\n|---|---|---|---|---|"
    for name, patient_cv in (("seeds", 0.0), ("patients as much as seeds", 0.05)):
        for hospitals in (4, 8, 16):
            cells = [wrong_shares(seeds, hospitals, studies, patient_cv=patient_cv) for seeds in (2, 3, 5, 10)]
            yield f"| {name}, {hospitals} | {' | '.join(f'{one:.0f}, {pair:.0f}' for one, pair in cells)} |"
    yield "| methods | 3 x 5 usual | 5 x 10 usual | 5 x 5 stable |\n|---|---|---|---|"
    for methods in (2, 5, 12, 22):
        cells = [wrong_leads(*how, methods, studies) for how in ((3, 5, USUAL), (5, 10, USUAL), (5, 5, STABLE))]
        yield f"| {methods} | {' | '.join(f'{one:.0f}' for one in cells)} |"


BY_METHOD = ("fedavg", "standalone")
SKEWED = {"patient": 0.7, "patient_method": 0.3, "seed": 0.05, "seed_site": 0.1, "rest": 0.12}  # SD of logits of Dice


def failing(random, hospitals, seeds, patients, fails):
    """(2, seeds, hospitals, patients) skewed Dice near .9 of two methods, each failing on a part of the patients.

    A failed patient's Dice is between 0 and a half of what it would be, drawn for each seed.
    """
    methods, shape = len(fails), (len(fails), seeds, hospitals, patients)
    logits = 2.4 + random.normal(0, SKEWED["patient"], (1, 1, hospitals, patients))
    logits = logits + random.normal(0, SKEWED["patient_method"], (methods, 1, hospitals, patients))
    of_all = random.normal(0, SKEWED["seed"], (methods, seeds, hospitals // HOSPITALS, 1))
    logits = logits + np.repeat(of_all, HOSPITALS, axis=2)
    logits = logits + random.normal(0, SKEWED["seed_site"], (methods, seeds, hospitals, 1))
    dice = expit(logits + random.normal(0, SKEWED["rest"], shape))
    failed = random.random((methods, 1, hospitals, patients)) < np.reshape(fails, (-1, 1, 1, 1))
    return np.where(failed, dice * random.uniform(0, 0.5, shape), dice)


def failure_coverage(patients, fails, gain, hospitals=248, seeds=3, draws=999):
    """Percent of 95 % intervals of hospitals that cover the true Dice, or gain, and that are above it.

    By Student's t, bias-corrected and accelerated (BCa) and basic bootstrap over patients' means over seeds, and by
    crossed effects as reports have them.
    """
    random = np.random.default_rng([31, seeds, patients, int(gain)])
    many = failing(random, 4 * 500, 1, 200, fails).mean(axis=(1, 2, 3))
    true = many[0] - many[1] * gain
    dice = failing(random, hospitals, seeds, patients, fails)
    of_patients = (dice[0] - dice[1] * gain).mean(axis=0)  # (hospitals, patients)
    reach = t.ppf(0.975, patients - 1) * of_patients.std(axis=1, ddof=1) / np.sqrt(patients)
    ends = {"t": (of_patients.mean(axis=1) - reach, of_patients.mean(axis=1) + reach)}
    for name, method in (("BCa", "BCa"), ("basic", "basic")):
        found = bootstrap((of_patients,), np.mean, n_resamples=draws, method=method, axis=1, rng=random)
        ends[name] = found.confidence_interval.low, found.confidence_interval.high
    who = np.broadcast_to(np.arange(patients), (seeds, hospitals, patients))
    rows = [
        effects.interval(BY_METHOD[0], BY_METHOD[1] if gain else None, site)
        for cases in each((dice, who), methods=BY_METHOD)
        for effects in [CrossedEffects.from_cases(cases)]
        for site in effects.sites
    ]
    ends["reports"] = tuple(np.array([row[end] for row in rows]) for end in ("low", "high"))
    covered = {name: 100 * np.mean((low <= true) & (true <= high)) for name, (low, high) in ends.items()}
    return covered, 100 * np.mean(ends["reports"][0] > true)


def failure_table(hospitals=248) -> Iterator[str]:
    """Lines of Markdown; hospitals are in federations of four."""
    names = ("reports", "t", "BCa", "basic")
    yield f"| seeds x patients | Dice: {', '.join(names)} | reports above the true Dice | gain: {', '.join(names)} |"
    yield "|---|---|---|---|"
    for seeds, patients in ((2, 5), (3, 3), (3, 5), (3, 10), (3, 20), (3, 40), (5, 10)):
        of_dice, above = failure_coverage(patients, (0.04, 0.04), False, hospitals, seeds)
        of_gain, _ = failure_coverage(patients, (0.02, 0.10), True, hospitals, seeds)
        dice, gain = (", ".join(f"{covered[name]:.0f}" for name in names) for covered in (of_dice, of_gain))
        yield f"| {seeds} x {patients} | {dice} | {above:.0f} | {gain} |"


if __name__ == "__main__":
    number = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    tables = {
        "pages": page_table, "coverage": coverage_table, "folds": fold_table, "values": value_table,
        "family": family_table, "failures": failure_table
    }  # fmt: skip
    for line in tables[sys.argv[1]](number):
        print(line, flush=True)
