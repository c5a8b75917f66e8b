"""Measures with their intervals, notes and tables, of results made for them; `test_from_runs` has those of runs."""

import math

import numpy as np
import pytest
from made_results import SITES, made_dice, made_row
from simulated_studies import USUAL, as_cases, federations

from fedmerit_evaluation.fairness.measurement import measure
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.statistics.error_correction import error_covariance

METHODS = {name: name for name in ("standalone", "fedce")}
FEW = 20


def _rows(found):
    return found.measured.set_index(["table", "method", "measure"])


def test_every_seed_has_the_same_numbers_and_the_interval_no_width():
    """Dice 60, 70, 80 alone and 70, 70, 95 together: gains 10, 0 and 15 points."""
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
        assert row[["mean", "low", "high"]].to_list() == pytest.approx([value] * 3), key
        spread = math.nan if key[0] == "corrected" else 0
        assert (row["std"], row["seeds"], row["note"]) == (pytest.approx(spread, abs=1e-9, nan_ok=True), 2, "")
    assert rows.loc[("performance", "fedce", "pearson_p"), ["low", "high"]].isna().all()  # it is about chance already
    assert not {"performance", "gains"} & set(rows.xs("standalone", level="method").index.get_level_values("table"))


def test_seeds_that_differ_are_named_in_the_note():
    results = made_dice({"standalone": (0.6, 0.6, 0.6), "fedce": (0.7, 0.75, 0.8)}, noise=0.0, seeds=1)
    rows = _rows(measure(results, METHODS, standalone="standalone", draws=FEW))
    assert rows.loc[("performance", "fedce", "pearson"), "note"] == "Dice of standalone is the same for all sites"
    more = [
        made_row("standalone", 1, 5, site, "dice", value, "testing", "000")
        for site, value in zip(SITES, (0.5, 0.6, 0.7), strict=True)
    ]
    more += [made_row("fedce", 1, 5, site, "dice", 0.8, "testing", "000") for site in SITES]
    results = made_dice({"standalone": (0.6,) * 3, "fedce": (0.7, 0.75, 0.8)}, noise=0.0, seeds=1, rounds=more)
    rows = _rows(measure(results, METHODS, standalone="standalone", draws=FEW))
    assert rows.loc[("performance", "fedce", "pearson"), "note"] == (
        "seed 0: Dice of standalone is the same for all sites; seed 1: Dice is the same for all sites"
    )


def test_a_comparison_says_how_many_seeds_it_rests_on():
    more = [made_row("fedce", 1, 5, site, "dice", 0.8, "testing", "000") for site in SITES]
    results = made_dice({"standalone": (0.6, 0.65, 0.7), "fedce": (0.7, 0.75, 0.8)}, seeds=1, rounds=more)
    tables = {table.name: table for table in measure(results, METHODS, standalone="standalone", draws=FEW).tables}
    dice, gains = tables["fairness-dice"], tables["fairness-gains"]
    seeds = {dice.cell(row, 0): dice.cell(row, 1) for row in range(2)}
    assert seeds == {"standalone": "1", "fedce": "2"}
    assert [gains.cell(0, place) for place in range(2)] == ["fedce", "1"]


def test_what_was_tested_on_other_cases_than_training_alone_is_not_compared_with_it():
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


def test_tables_have_a_row_per_method_each_number_before_its_interval():
    results = made_dice({"standalone": (0.6, 0.7, 0.8), "fedce": (0.7, 0.7, 0.95)}, noise=0.0, seeds=2)
    found = measure(results, METHODS, standalone="standalone", draws=20)
    tables = {table.name: table for table in found.tables}
    assert list(tables) == ["fairness-dice", "fairness-performance", "fairness-performance-ranks", "fairness-gains",
                            "fairness-corrected"]  # fmt: skip
    gains = tables["fairness-gains"]
    assert gains.headings[:6] == ["Method", "Seeds", "MCG", "MCG, 95 % CI", "CGS", "CGS, 95 % CI"]
    assert [gains.cell(0, place) for place in range(4)] == ["fedce", "2", "8.33 ± 0.00", "8.33 to 8.33"]
    assert "Dice over standalone on each site's test split" in " ".join(gains.caption.split())
    assert gains.caption.endswith("mean ± std over seeds, 95 % confidence interval, Student's t over cases and seeds")
    assert "p-value over seeds, twice the mean" in tables["fairness-performance"].caption
    ranks = tables["fairness-performance-ranks"]
    assert ranks.cell(0, ranks.headings.index("Spearman")) == "0.87 ± 0.00"  # of 1 2 3 and 1.5 1.5 3: sqrt(3) / 2
    dice = measure(made_dice({"fedce": (0.7, 0.7, 0.95)}, noise=0.0, seeds=1), {"fedce": "fedce"}, draws=FEW)
    assert [table.name for table in dice.tables] == ["fairness-dice", "fairness-corrected"]
    assert dice.tables[0].caption.endswith("; 95 % confidence interval, Student's t over cases")


@pytest.mark.parametrize(("kept", "enough"), [(2, False), (3, True)])
def test_where_a_site_has_too_few_cases_to_resample_there_is_no_interval(kept, enough):
    results = made_dice({"standalone": (0.6, 0.7, 0.8), "fedce": (0.7, 0.7, 0.95)}, noise=0.02, seeds=2)
    rows = results.rows
    few = (rows["site"] == SITES[1]) & (rows["seed"] == 1) & ~rows["case"].isin([f"{case:03d}" for case in range(kept)])
    found = measure(Results(rows[~few]), METHODS, standalone="standalone", draws=FEW)
    numbers = found.measured[found.measured["measure"] != "pearson_p"]
    assert numbers["mean"].notna().all()
    assert (numbers[["low", "high"]].notna() == enough).all(axis=None)
    why = f"mean ± std over seeds, no confidence interval: fewer than 3 test patients at {SITES[1]}"
    assert all(table.caption.endswith(why) != enough for table in found.tables)


def test_undefined_numbers_are_dashes():
    results = made_dice({"standalone": (0.6, 0.6, 0.6), "fedce": (0.7, 0.75, 0.8)}, noise=0.0, seeds=1)
    (table,) = (
        table
        for table in measure(results, METHODS, standalone="standalone", draws=FEW).tables
        if table.name == "fairness-performance"
    )
    shown = dict(zip(table.headings, (table.cell(0, place) for place in range(table.shape[1])), strict=True))
    dash = "\N{EN DASH}"
    assert (shown["Pearson"], shown["Pearson, 95 % CI"], shown["p"]) == (dash, dash, dash)
    assert shown["Euclidean"] == "26.93"  # of 10, 15 and 20 points


@pytest.mark.parametrize(("seeds", "shared"), [(3, 7.0), (1, 7.0), (3, 0.0)])
def test_errors_of_means_that_share_patients(seeds, shared):
    """Variance of the means of two methods over five patients and the seeds, and their covariance."""
    random = np.random.default_rng(seeds)
    patients = random.normal(0, shared, (4000, 1, 1, 5))
    both = patients + random.normal(0, 3, (4000, 2, 1, 5)) + random.normal(0, 2.5, (4000, 2, seeds, 1))
    both = both + random.normal(0, 2.5, (4000, 2, seeds, 5))
    found = np.mean([(error_covariance(x, x), error_covariance(x, y)) for x, y in both], axis=0)
    of_seeds = 2.5**2 / seeds if seeds > 1 else 0.0
    expected = (shared**2 + 9) / 5 + of_seeds + 2.5**2 / 5 / seeds, shared**2 / 5
    assert found == pytest.approx(expected, rel=0.06, abs=0.06)


@pytest.mark.slow
@pytest.mark.parametrize(("hospitals", "rho"), [(8, 0.9), (4, 0.0)])
def test_spread_and_correlation_are_those_of_the_hospitals(hospitals, rho):
    """Of SD 3 in truth: 4.9 was shown, and of four hospitals uncorrelated in truth a Pearson of 37."""
    random, found, held = np.random.default_rng(hospitals), [], []
    for _ in range(50):
        x, y = random.normal(size=(2, hospitals))
        x = (x - x.mean()) / x.std(ddof=1)
        y = y - y.mean() - x * (x @ (y - y.mean())) / (x @ x)
        true = 3 * np.stack([x, rho * x + np.sqrt(1 - rho**2) * y / y.std(ddof=1)])
        dice, who = federations(random, 1, 3, 5, USUAL, hospitals=hospitals, methods=2)
        cases = (
            as_cases(dice + true[:, None, :, None] / 100, who, ("standalone", "fedce")).rename("value").reset_index()
        )
        same = {"run": "r", "round": 1, "coalition": "", "split": "testing", "label": "prostate", "quantity": "dice"}
        rows = cases.assign(**same, fold="", patient="")
        measured = _rows(measure(Results(rows), METHODS, standalone="standalone", draws=300))
        shown = measured.loc["corrected", "fedce"]
        found.append(
            (shown["mean"]["std"] ** 2, shown["mean"]["pearson"], measured["mean"]["performance", "fedce", "pearson"])
        )
        held.append(shown["low"]["std"] - 1e-9 <= 3 <= shown["high"]["std"])
    variance, corrected, plain = np.nanmean(found, axis=0)
    assert variance == pytest.approx(9, abs=4)  # no variance below 0 is shown, which adds to the mean
    assert abs(corrected - 100 * rho) < abs(plain - 100 * rho)
    assert np.mean(held) >= 0.9
