"""Measures with their intervals, notes and tables, of results made for them; `test_from_runs` has those of runs."""

import math

import numpy as np
import pytest
from made_results import SITES, made_dice
from simulated_fairness import as_results, coverage
from simulated_studies import USUAL, as_cases, federations

from fedmerit_evaluation.fairness.measurement import measure
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.statistics.resampling import CASES, Clusters, CrossedEffects

METHODS = {name: name for name in ("standalone", "fedce")}
FEW = 20


def _rows(found):
    return found.measured.set_index(["table", "method", "measure"])


def test_measure_equal_seeds_have_no_width():
    """Dice 60, 70, 80 only and 70, 70, 95 together: gains 10, 0 and 15 points."""
    results = made_dice({"standalone": (0.6, 0.7, 0.8), "fedce": (0.7, 0.7, 0.95)}, noise=0.0, seeds=2)
    rows = _rows(measure(results, METHODS, standalone="standalone", draws=FEW))
    expected = {
        ("dice", "fedce", "mean"): 235 / 3,
        ("dice", "fedce", "std"): math.sqrt(((70 - 235 / 3) ** 2 * 2 + (95 - 235 / 3) ** 2) / 2),
        ("dice", "fedce", "worst"): 70,
        ("gains", "fedce", "mean_gain"): 25 / 3,
        ("gains", "fedce", "gain_spread"): math.sqrt(((5 / 3) ** 2 + (25 / 3) ** 2 + (20 / 3) ** 2) / 2),
        ("gains", "fedce", "share_worse_off"): 0,
        ("gains", "fedce", "share_within_bounds"): 2 / 3,  # the second site is where it was, not above
        ("performance", "fedce", "euclidean"): math.sqrt(10**2 + 15**2),
        ("performance", "fedce", "pearson"): 100 * 250 / math.sqrt(200 * 1250 / 3),
    }
    for name, table in {"std": "dice", "gain_spread": "gains", "pearson": "performance"}.items():
        expected["corrected", "fedce", name] = expected[table, "fedce", name]  # no case differs from another
    for key, value in expected.items():
        row = rows.loc[key]
        assert row["mean"] == pytest.approx(value), key
        covered = key[0] == "corrected" or key[2] in ("mean", "mean_gain")
        assert row[["low", "high"]].to_list() == pytest.approx([value if covered else math.nan] * 2, nan_ok=True), key
        spread = math.nan if key[0] == "corrected" else 0
        assert (row["std"], row["seeds"], row["note"]) == (pytest.approx(spread, abs=1e-9, nan_ok=True), 2, "")
    assert not {"performance", "gains"} & set(rows.xs("standalone", level="method").index.get_level_values("table"))


def test_measure_skips_other_test_cases():
    """Of seed 1, the last site's; of seed 0 there are the numbers of before."""
    results = made_dice({"standalone": (0.6, 0.7, 0.8), "fedce": (0.7, 0.7, 0.95)}, noise=0.0, seeds=2)
    rows = results.rows
    other = (rows["method"] == "fedce") & (rows["seed"] == 1) & (rows["site"] == SITES[-1])
    marked = Results(rows.assign(case=rows["case"] + other.map({True: "@b", False: ""})))
    found = _rows(measure(marked, METHODS, standalone="standalone", draws=FEW))
    for key in (("gains", "fedce", "mean_gain"), ("performance", "fedce", "pearson")):
        assert found.loc[key, "seeds"] == 1
        assert found.loc[key, "note"] == "seed 1: Dice of standalone on the same cases is missing"
    assert found.loc[("gains", "fedce", "mean_gain"), "mean"] == pytest.approx(25 / 3)
    assert found.loc[("dice", "fedce", "mean"), "seeds"] == 2


def test_tables_have_row_per_method():
    results = made_dice({"standalone": (0.6, 0.7, 0.8), "fedce": (0.7, 0.7, 0.95)}, noise=0.0, seeds=2)
    found = measure(results, METHODS, standalone="standalone", draws=20)
    tables = {table.name: table for table in found.tables}
    assert list(tables) == ["fairness-dice", "fairness-performance", "fairness-performance-ranks", "fairness-gains",
                            "fairness-corrected"]  # fmt: skip
    gains = tables["fairness-gains"]
    assert gains.headings == ["Method", "Seeds", "MCG", "MCG, 95 % CI", "CGS", "Share worse than local", "BCF"]
    assert [gains.cell(0, place) for place in range(4)] == ["fedce", "2", "8.33 ± 0.00", "8.33 to 8.33"]
    assert "Dice over standalone on each site's test split" in " ".join(gains.caption.split())
    assert gains.caption.endswith("mean ± std over seeds, 95 % confidence interval, Student's t over cases and seeds")
    assert "p-value over seeds, twice the mean" in tables["fairness-performance"].caption
    assert "numbers without an interval are biased" in gains.caption
    performance = tables["fairness-performance"]
    assert performance.headings == ["Method", "Seeds", "Pearson", "p", "Euclidean", "Cosine"]
    assert performance.caption.endswith("no confidence interval: biased by the errors of few patients and seeds")
    assert "Std, 95 % CI" in tables["fairness-corrected"].headings
    ranks = tables["fairness-performance-ranks"]
    assert ranks.cell(0, ranks.headings.index("Spearman")) == "0.87 ± 0.00"  # of 1 2 3 and 1.5 1.5 3: sqrt(3) / 2
    dice = measure(made_dice({"fedce": (0.7, 0.7, 0.95)}, noise=0.0, seeds=1), {"fedce": "fedce"}, draws=FEW)
    assert [table.name for table in dice.tables] == ["fairness-dice", "fairness-corrected"]
    assert dice.tables[0].caption.endswith("spreads upward; 95 % confidence interval, Student's t over cases")


@pytest.mark.parametrize(("kept", "enough"), [(2, False), (3, True)])
def test_measure_small_sample_has_no_interval(kept, enough):
    results = made_dice({"standalone": (0.6, 0.7, 0.8), "fedce": (0.7, 0.7, 0.95)}, noise=0.02, seeds=2)
    rows = results.rows
    few = (rows["site"] == SITES[1]) & (rows["seed"] == 1) & ~rows["case"].isin([f"{case:03d}" for case in range(kept)])
    found = measure(Results(rows[~few]), METHODS, standalone="standalone", draws=FEW)
    assert found.measured["mean"].notna().all()
    covered = found.measured["measure"].isin(["mean", "mean_gain"]) | (found.measured["table"] == "corrected")
    for end in ("low", "high"):
        assert (found.measured[end].notna() == (covered & enough)).all()
    why = f"mean ± std over seeds, no confidence interval: fewer than 3 test patients at {SITES[1]}"
    with_interval = [table for table in found.tables if "performance" not in table.name]
    assert all(table.caption.endswith(why) != enough for table in with_interval)


@pytest.mark.parametrize(
    ("seeds", "shared"), [(3, 0.0), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((1, 7.0), (3, 7.0)))]
)
def test_error_covariance_equals_simulated(seeds, shared):
    """Variance of the means of two methods over five patients and the seeds, and their covariance."""
    random = np.random.default_rng(seeds)
    patients = random.normal(0, shared, (1, 1, 4000, 5))
    both = patients + random.normal(0, 3, (2, 1, 4000, 5)) + random.normal(0, 2.5, (2, seeds, 4000, 1))
    both = both + random.normal(0, 2.5, (2, seeds, 4000, 5))
    found = _found_errors(both, np.broadcast_to(np.arange(5), both.shape[1:]))
    of_seeds = 2.5**2 / seeds if seeds > 1 else 0.0
    expected = (shared**2 + 9) / 5 + of_seeds + 2.5**2 / 5 / seeds, shared**2 / 5
    assert found == pytest.approx(expected, rel=0.06, abs=0.06)


@pytest.mark.parametrize(
    ("seeds", "folds"), [(1, 0), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((3, 5), (3, 0)))]
)
def test_error_covariance_clusters_images(seeds, folds):
    """Of five images of each of five patients: 25 independent images would have an error variance of 2, not 10."""
    random = np.random.default_rng(seeds)
    patients = random.normal(0, 7, (1, 1, 1000, 5))
    images = np.repeat(patients, 5, axis=-1) + random.normal(0, 2, (2, 1, 1000, 25))
    both = np.repeat(images, seeds, axis=1)
    of = {(seed, f"h{site:03d}", f"{case:03d}"): f"p{case // 5}"
          for seed in range(seeds) for site in range(100) for case in range(25)}  # fmt: skip
    found = _found_errors(both, np.broadcast_to(np.arange(25), both.shape[1:]), Clusters(of, folds))
    assert images.mean(axis=-1).var(axis=-1).mean() == pytest.approx(found[0], rel=0.06)
    assert found == pytest.approx((49 / 5 + 4 / 25, 49 / 5), rel=0.06)


@pytest.mark.slow
def test_error_covariance_with_moved_split_equals_simulated():
    """Three seeds that draw five of 20 patients at random, and one drawn model of each seed and hospital."""
    dice, who = federations(np.random.default_rng(0), 1000, 3, 5, USUAL | {"seed": 0.0}, methods=2, moved=True)
    found = _found_errors(100 * dice, who)
    assert found[0] == pytest.approx(100**2 * dice.mean(axis=(1, 3)).var(axis=-1).mean(), rel=0.06)
    assert found[1] == pytest.approx(100**2 * np.cov(dice.mean(axis=(1, 3)))[0, 1], rel=0.1)


def _found_errors(dice, who, clusters=CASES, sites=100):
    """Error variance of a method, and its covariance with another's, of (2, seeds, sites, patients) Dice."""
    found = []
    for start in range(0, dice.shape[2], sites):
        part = slice(start, start + sites)
        effects = CrossedEffects.from_cases(as_cases(dice[:, :, part], who[:, part], ("a", "b")), clusters)
        found.append([effects.error_covariance("a", other) for other in "ab"])
    return np.mean(found, axis=0)


@pytest.mark.slow
@pytest.mark.parametrize(("hospitals", "rho"), [(8, 0.9), (4, 0.0)])
def test_corrected_measures_equal_true_spread(hospitals, rho):
    """Of SD 3 in ground truth: 4.9 was shown, and of four hospitals uncorrelated in ground truth a Pearson of 37."""
    random, found, held = np.random.default_rng(hospitals), [], []
    for _ in range(50):
        x, y = random.normal(size=(2, hospitals))
        x = (x - x.mean()) / x.std(ddof=1)
        y = y - y.mean() - x * (x @ (y - y.mean())) / (x @ x)
        true = 3 * np.stack([x, rho * x + np.sqrt(1 - rho**2) * y / y.std(ddof=1)])
        dice, who = federations(random, 1, 3, 5, USUAL, hospitals=hospitals, methods=2)
        cases = as_cases(dice + true[:, None, :, None] / 100, who, ("standalone", "fedce"))
        measured = _rows(measure(as_results(cases), METHODS, standalone="standalone", draws=300))
        shown = measured.loc["corrected", "fedce"]
        found.append(
            (shown["mean"]["std"] ** 2, shown["mean"]["pearson"], measured["mean"]["performance", "fedce", "pearson"])
        )
        held.append(shown["low"]["std"] - 1e-9 <= 3 <= shown["high"]["std"])
    variance, corrected, plain = np.nanmean(found, axis=0)
    assert variance == pytest.approx(9, abs=4)  # no variance below 0 is shown, which adds to the mean
    assert abs(corrected - 100 * rho) < abs(plain - 100 * rho)
    assert np.mean(held) >= 0.9


@pytest.mark.slow
def test_measure_biased_numbers_have_no_interval():
    """Eight equal hospitals: draws of Std and CGS hold the true 0 in hardly any study."""
    held, _ = coverage(8, 3, 5, USUAL, 0, 30)
    assert held[[(False, "mean"), (False, "mean_gain"), (True, "std"), (True, "gain_spread")]].min() >= 90
    assert held[[(False, "std"), (False, "gain_spread"), (False, "worst")]].max() <= 60
