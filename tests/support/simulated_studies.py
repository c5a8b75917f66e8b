"""Simulated federations whose true Dice is known: how often intervals cover it, how often verdicts are wrong.

``python tests/support/simulated_studies.py coverage``, ``folds`` and ``family`` print the tables of
docs/studies/statistics.md.
"""

import sys
from collections.abc import Iterator

import numpy as np
import pandas as pd

from fedmerit_evaluation.statistics.bootstrap import CASES, Clusters, bootstrap
from fedmerit_evaluation.statistics.inference import SIGNIFICANCE_LEVEL, holm, p_values
from fedmerit_evaluation.statistics.intervals import contribution_intervals, dice_intervals, select_sites
from fedmerit_evaluation.statistics.ranks import ranking

METHODS = ("fedavg", "fedce", "standalone")
USUAL = {"patient": 7.0, "patient_method": 3.0, "seed": 1.0, "seed_site": 2.5, "rest": 2.5}  # SD in points of Dice
STABLE = USUAL | {"seed": 0.3, "seed_site": 0.5, "rest": 0.7}  # trained to the end
TRUE = 0.7  # Dice of every method at every hospital
HOSPITALS = 4  # of a federation


def federations(random, number, seeds, patients, sd, *, hospitals=HOSPITALS, methods=3, moved=False, failures=False):
    """(methods, seeds, number * hospitals, patients) Dice of equal methods at equal hospitals.

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
    for seed in range(seeds):
        order = (
            random.permuted(np.tile(np.arange(pool), (sites, 1)), axis=1)
            if moved
            else np.tile(np.arange(pool), (sites, 1))
        )
        of_all = np.repeat(random.normal(0, sd["seed"], (methods, number)), hospitals, axis=1)[..., None]
        tested = np.take_along_axis(by_method, np.broadcast_to(order[:, :patients], (methods, sites, patients)), axis=2)
        found[:, seed] = tested + of_all + random.normal(0, sd["seed_site"], (methods, sites, 1))
    return TRUE + (found + random.normal(0, sd["rest"], found.shape)) / 100


def as_cases(dice, methods=METHODS):
    """Of (methods, seeds, sites, patients): Dice by ``(method, seed, site, case)``."""
    names = [list(methods[: len(dice)]), range(dice.shape[1]), [f"h{site:04d}" for site in range(dice.shape[2])],
             [f"{case:03d}" for case in range(dice.shape[3])]]  # fmt: skip
    index = pd.MultiIndex.from_product(names, names=["method", "seed", "site", "case"])
    return pd.Series(dice.ravel(), index=index)


def coverage(seeds, patients, sd, studies=100, seed=0, **design):
    """Percent of the 95 % intervals of Dice, gain, mean Dice and mean gain that cover the true one; median width."""
    dice = federations(np.random.default_rng([seed, seeds, patients]), studies, seeds, patients, sd, **design)

    def statistics(drawn):
        own, gain = drawn.of("fedce"), drawn.of("fedce") - drawn.of("standalone")
        found = {}
        for name, each in (("Dice", own), ("gain", gain)):
            found |= {(name, site): each[..., site] for site in range(each.shape[-1])}
            by_study = each.reshape(*each.shape[:-1], studies, -1).mean(axis=-1)
            found |= {(f"mean {name}", study): by_study[..., study] for study in range(studies)}
        return found

    rows = pd.DataFrame(bootstrap(as_cases(dice), statistics)).T.rename_axis(["what", "of"])
    true = (rows.index.get_level_values("what").str.contains("Dice")) * TRUE
    covered = (rows["low"] <= true) & (true <= rows["high"])
    width = 100 * (rows["high"] - rows["low"]).groupby(level="what").median()
    return (100 * covered.groupby(level="what").mean()).to_dict(), width.to_dict()


SETTINGS = [(1, 3), (1, 5), (2, 3), (2, 5), (3, 3), (3, 5), (3, 10), (3, 30), (5, 3), (5, 5), (5, 10), (10, 5)]


def coverage_table(studies=100) -> Iterator[str]:
    """Lines of Markdown."""
    kinds = {"usual": (USUAL, {}), "stable": (STABLE, {}), "stable, failures": (STABLE, {"failures": True}),
             "usual, moved": (USUAL, {"moved": True})}  # fmt: skip
    yield f"| seeds x patients | {' | '.join(f'{name}: Dice, gain (width), mean gain' for name in kinds)} |"
    yield f"|---|{'---|' * len(kinds)}"
    for seeds, patients in SETTINGS:
        cells = []
        for sd, design in kinds.values():
            held, width = coverage(seeds, patients, sd, studies, **design)
            cells.append(f"{held['Dice']:.0f}, {held['gain']:.0f} ({width['gain']:.0f}), {held['mean gain']:.0f}")
        yield f"| {seeds} x {patients} | {' | '.join(cells)} |"


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
    cases = as_cases(dice)
    keys = cases.index.droplevel("method").unique()
    by_fold = Clusters({key: str(fold_of[int(key[-1])]) for key in keys}, folds)

    def statistics(drawn):
        gain = drawn.of("fedce") - drawn.of("standalone")
        mean = gain.reshape(*gain.shape[:-1], studies, -1).mean(axis=-1)
        return {("gain", site): gain[..., site] for site in range(gain.shape[-1])} | {
            ("mean gain", study): mean[..., study] for study in range(studies)
        }

    held, width = {}, {}
    for over, clusters in (("folds", by_fold), ("patients", CASES)):
        rows = pd.DataFrame(bootstrap(cases, statistics, clusters=clusters)).T.rename_axis(["what", "of"])
        covered, wide = (rows["low"] <= 0) & (rows["high"] >= 0), 100 * (rows["high"] - rows["low"])
        for what in ("gain", "mean gain"):
            held[over, what], width[over, what] = 100 * covered[what].mean(), wide[what].median()
    return held, width


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


def wrong_verdicts(seeds, patients, sd, hospitals, studies=100, **design):
    """Percent of federations of equal hospitals with any significant gain or loss."""
    random = np.random.default_rng([7, seeds, patients, hospitals])
    dice = federations(random, studies, seeds, patients, sd, hospitals=hospitals, methods=2, **design)
    rows = pd.DataFrame(bootstrap(as_cases(dice), lambda drawn: _by_site(drawn.of("fedavg") - drawn.of("fedce")))).T
    p = p_values(rows["mean"], rows["low"], rows["high"], rows["seeds"]).reshape(studies, hospitals)
    return 100 * np.mean([(holm(one) <= SIGNIFICANCE_LEVEL).any() for one in p])


def _by_site(dice):
    return {site: dice[..., site] for site in range(dice.shape[-1])}


def wrong_leads(seeds, patients, sd, methods, studies=50):
    """Percent of comparisons of equal methods in which some method is significantly below the best."""
    random = np.random.default_rng([8, seeds, patients, methods])
    found = []
    for _ in range(studies):
        dice = federations(random, 1, seeds, patients, sd, methods=methods)
        names = [f"m{number:02d}" for number in range(methods)]
        order = [names[place] for place in np.argsort(-dice.mean(axis=(1, 2, 3)))]
        table = dice_intervals(as_cases(dice, names), order, "standalone")
        found.append((select_sites(table, "difference")["p"] <= SIGNIFICANCE_LEVEL).any())
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
    unequal = (table["p"] <= SIGNIFICANCE_LEVEL).groupby(level="method").any()
    pairs = [ranking(names[2], one[..., None]).has_significant_pairs for one in shares]
    return 100 * unequal.mean(), 100 * np.mean(pairs)


def family_table(studies=100) -> Iterator[str]:
    """Lines of Markdown."""
    yield "| gains: hospitals | 2 x 5 | 3 x 5 | 3 x 30 | 5 x 5 | 10 x 5 |\n|---|---|---|---|---|---|"
    for name, sd in (("usual", USUAL), ("stable", STABLE)):
        for hospitals in (4, 8, 16):
            cells = [wrong_verdicts(seeds, patients, sd, hospitals, studies)
                     for seeds, patients in ((2, 5), (3, 5), (3, 30), (5, 5), (10, 5))]  # fmt: skip
            yield f"| {name}, {hospitals} | {' | '.join(f'{one:.0f}' for one in cells)} |"
    yield "| shares (any unequal, any pair): hospitals | 2 seeds | 3 | 5 | 10 |\n|---|---|---|---|---|"
    for name, patient_cv in (("seeds", 0.0), ("patients as much as seeds", 0.05)):
        for hospitals in (4, 8, 16):
            cells = [wrong_shares(seeds, hospitals, studies, patient_cv=patient_cv) for seeds in (2, 3, 5, 10)]
            yield f"| {name}, {hospitals} | {' | '.join(f'{one:.0f}, {pair:.0f}' for one, pair in cells)} |"
    yield "| methods | 3 x 5 usual | 5 x 10 usual | 5 x 5 stable |\n|---|---|---|---|"
    for methods in (2, 5, 12, 22):
        cells = [wrong_leads(*how, methods, studies) for how in ((3, 5, USUAL), (5, 10, USUAL), (5, 5, STABLE))]
        yield f"| {methods} | {' | '.join(f'{one:.0f}' for one in cells)} |"


if __name__ == "__main__":
    number = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    tables = {"coverage": coverage_table, "folds": fold_table, "family": family_table}
    for line in tables[sys.argv[1]](number):
        print(line, flush=True)
