"""`fedmerit fairness` on synthetic runs: its numbers against those of the parts, its files, what it says is missing."""

import math
import shutil

import numpy as np
import pandas as pd
import pytest
from games_reference import subsets
from run_factory import SITES, add_rows, make_run
from typer.testing import CliRunner

from fedmerit.contract import semivalues
from fedmerit.contract.semivalues import Sampling
from fedmerit.errors import BadInput
from fedmerit.schema.results import ResultsFile, Row
from fedmerit_cli.main import app
from fedmerit_evaluation.fairness import measures
from fedmerit_evaluation.fairness.measurement import measure_runs
from fedmerit_evaluation.ground_truth.ground_truths import coalition_utilities, write_sampling
from fedmerit_evaluation.results.runs import combine_results, open_runs
from fedmerit_evaluation.results.views import Results

METHODS = {"standalone": 0.7, "fedavg": 0.8, "fedce": 0.85}
DRAWS = 50
LEFT_OUT = [frozenset(SITES), *(frozenset(SITES) - {site} for site in SITES)]
EVERY = [one for one in subsets(SITES) if one]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """Runs of three methods and two seeds, as `compare` leaves them: never change them."""
    folder = tmp_path_factory.mktemp("compared")
    for method, level in METHODS.items():
        for seed in (0, 1):
            make_run(folder / f"{method}_seed{seed}", method=method, seed=seed, rounds=4, level=level)
    return folder


def make_ground_truth(folder, coalitions=EVERY, seeds=(0, 1), sites=SITES, labels=("prostate",)):
    """A folder of ground truth: Dice of coalitions on five cases of every site."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for seed in seeds:
        for one in coalitions:
            random = np.random.default_rng([seed, *map(sites.index, sorted(one))])
            merit = sum(0.04 * (1 + sites.index(site)) for site in one)
            rows += [
                Row("run", "fedavg", seed, 3, site, "dice", 0.4 + merit + random.normal(0, 0.01), "testing",
                    f"{case:03d}", label, semivalues.format_spec(one))
                for site in sites for case in range(5) for label in labels
            ]  # fmt: skip
    ResultsFile(folder / "results.csv").append(rows)
    return folder


def command(*arguments):
    return CliRunner().invoke(app, ["fairness", *map(str, arguments), "--draws", str(DRAWS)], env={"COLUMNS": "250"})


def measured(found, table, method, name, estimate=""):
    rows = found.measured.set_index(["table", "method", "estimate", "measure"])
    return rows.loc[table, method, estimate, name]


def dice_of(out, method):
    """Seeds x sites, in percent."""
    results = combine_results(open_runs([out / f"{method}_seed{seed}" for seed in (0, 1)]))
    return 100 * results.dice.by_site.to_numpy()


def coalitions_in(folder):
    return Results(pd.read_csv(folder / "results.csv", dtype={"case": str}))


def test_measures_are_means_over_seeds(out, tmp_path):
    reference = make_ground_truth(tmp_path / "reference")
    found, notes = measure_runs([out], ground_truth=reference, draws=DRAWS)
    assert notes == []
    single, final = dice_of(out, "standalone"), dice_of(out, "fedce")
    vectors = {
        ("dice", "mean"): final.mean(axis=1), ("dice", "std"): final.std(axis=1, ddof=1),
        ("dice", "worst"): final.min(axis=1),
        ("performance", "pearson"): measures.pearson(single, final),
        ("performance", "pearson_p"): measures.pearson_p(single, final),
        ("performance", "euclidean"): measures.euclidean(single, final),
        ("performance", "cosine"): measures.cosine(single, final),
        ("performance-ranks", "spearman"): measures.spearman(single, final),
        ("performance-ranks", "kendall"): measures.kendall(single, final),
        ("gains", "mean_gain"): (final - single).mean(axis=1),
        ("gains", "gain_spread"): (final - single).std(axis=1, ddof=1),
        ("gains", "share_worse_off"): (final < single).mean(axis=1),
        ("gains", "share_within_bounds"): measures.share_within_bounds(single, final),
    }  # fmt: skip
    for (table, name), values in vectors.items():
        row = measured(found, table, "fedce", name)
        assert row["mean"] == pytest.approx(values.mean()), name
        assert row["std"] == pytest.approx(values.std(ddof=1)), name
        assert row["seeds"] == 2
        assert row["low"] <= row["high"] if name in ("mean", "mean_gain") else math.isnan(row["low"])


@pytest.mark.parametrize(
    ("reference", "value"), [("leave-one-out", semivalues.leave_one_out), ("Shapley", semivalues.shapley)]
)
def test_collaboration_fairness_uses_values_of_same_seed(out, tmp_path, reference, value):
    folder = make_ground_truth(tmp_path / "reference")
    found, _ = measure_runs([out], ground_truth=folder, draws=DRAWS)
    utilities = coalition_utilities(coalitions_in(folder))
    values = np.stack([value(utilities[seed]) for seed in (0, 1)])
    said = combine_results(open_runs(sorted(out.glob("*_seed*")))).rounds.contributions
    for method, estimate, column in (
        ("fedce", "mean weight", "mean_weight"),
        ("fedce", "mean contribution", "mean_contribution"),
        ("fedavg", "sample share", "num_samples"),
    ):
        vectors = said[column].unstack("site").xs(method, level="method").to_numpy()
        shares = [np.stack([semivalues.normalise(row) for row in rows]) for rows in (values, vectors)]
        expected = {
            "pearson": measures.pearson(values, vectors),
            "pearson_p": measures.pearson_p(values, vectors),
            "euclidean": measures.euclidean(*shares),
            "cosine": measures.cosine(values, vectors),
        }
        for name, numbers in expected.items():
            row = measured(found, reference.lower(), method, name, estimate)
            assert row["mean"] == pytest.approx(numbers.mean()), (method, name)
        row = measured(found, f"{reference.lower()}-ranks", method, "kendall", estimate)
        assert row["mean"] == pytest.approx(measures.kendall(values, vectors).mean())
        row = measured(found, "rewards", method, "pearson", estimate)
        assert row["mean"] == pytest.approx(measures.pearson(vectors, dice_of(out, method)).mean())
    assert set(found.measured.query("method == 'fedavg' and estimate != ''")["estimate"]) == {"sample share"}
    assert "standalone" not in set(found.measured.query("estimate != ''")["method"])


def test_fairness_command_prints_and_writes_tables(out, tmp_path):
    result = command(out, "--ground-truth", make_ground_truth(tmp_path / "reference"), "--out", tmp_path / "tables")
    assert result.exit_code == 0, result.output
    names = [
        "corrected", "dice", "gains", "leave-one-out", "leave-one-out-ranks", "performance", "performance-ranks",
        "rewards"
    ]  # fmt: skip
    names += ["shapley", "shapley-ranks"]
    written = sorted(path.name for path in (tmp_path / "tables").iterdir())
    assert written == sorted(
        [f"fairness-{name}.{kind}" for name in names for kind in ("csv", "tex")] + ["fairness.csv", "notes.txt"]
    )
    for words in ("Table 2 of Jiang et al. 2023", "Table 3 of Jiang et al. 2023", "MCG and CGS of CYCle", "Kendall"):
        assert words in " ".join(result.output.split())
    table = pd.read_csv(tmp_path / "tables/fairness-performance.csv").set_index("Method")
    expected = measures.pearson(dice_of(out, "standalone"), dice_of(out, "fedavg"))
    assert table.loc["fedavg", "Pearson"] == pytest.approx(expected.mean())
    assert table.loc["fedavg", "Pearson, std over seeds"] == pytest.approx(expected.std(ddof=1))
    assert "Pearson, 95 % CI" not in table
    values = pd.read_csv(tmp_path / "tables/fairness-shapley.csv")
    assert values["Pearson, 95 % CI"].str.contains(" to ").all()
    assert "Euclidean, 95 % CI" not in values
    assert f"{expected.mean():.2f} ± {expected.std(ddof=1):.2f}".replace("-", "\N{MINUS SIGN}") in result.output
    assert (tmp_path / "tables/fairness-shapley.tex").read_text().count(r"\\") == 1 + 1 + 2
    assert (tmp_path / "tables/notes.txt").read_text() == ""
    everything = pd.read_csv(tmp_path / "tables/fairness.csv")
    assert {"table", "method", "estimate", "measure", "mean", "std", "low", "high", "seeds", "note"} == set(everything)


def test_measure_runs_names_missing_runs(out):
    result = command(out / "fedavg_seed0", out / "fedce_seed0")
    assert result.exit_code == 0, result.output
    assert "seed 0: no run of local training" in result.stderr
    assert "`fedmerit run --method standalone --sites SITES --rounds 4 --seed 0 --out RUN`" in result.stderr
    assert "`fedmerit value leave-one-out" in result.stderr
    assert "Table 2" not in result.stdout


def test_measure_runs_leaves_out_unfinished(out, tmp_path):
    shutil.copytree(out, tmp_path / "out")
    make_run(tmp_path / "out" / "cgsv_seed0", method="cgsv", rounds=4, done=2)
    found, notes = measure_runs([tmp_path / "out"], draws=DRAWS)
    assert "cgsv" not in set(found.measured["method"])
    path = tmp_path / "out" / "cgsv_seed0"
    assert notes[0] == f"{path}: not finished, left out; `fedmerit run --resume --out {path}` resumes it"
    result = command(path)
    assert result.exit_code == 2
    assert f"--resume --out {path}" in result.stderr


def sampled_ground_truth(folder, of, most=6):
    """A folder of ground truth with the coalitions only that sampling asks for, and its rule by seed."""
    whole = coalition_utilities(coalitions_in(of))
    rules = {
        seed: Sampling(tuple(SITES), seed=seed, truncation=0.001, precision=0, fewest=2, most=most) for seed in whole
    }
    asked = {one for seed, rule in rules.items() for one in rule.estimate(whole[seed]).coefficients}
    make_ground_truth(folder, [one for one in EVERY if one in asked])
    write_sampling(folder, rules[0])
    return folder, rules, whole


def test_measure_runs_accepts_sampled_shapley(out, tmp_path):
    folder, rules, whole = sampled_ground_truth(tmp_path / "sampled", make_ground_truth(tmp_path / "whole"))
    assert len(coalition_utilities(coalitions_in(folder))[0]) < 1 + len(EVERY)
    found, notes = measure_runs([out], ground_truth=folder, draws=DRAWS)
    estimates = {seed: rule.estimate(whole[seed]) for seed, rule in rules.items()}
    values = np.stack([estimates[seed].values for seed in (0, 1)])
    said = (
        combine_results(open_runs(sorted(out.glob("*_seed*"))))
        .rounds.contributions["mean_contribution"]
        .unstack("site")
    )
    expected = measures.pearson(values, said.xs("fedce", level="method").to_numpy())
    row = measured(found, "shapley", "fedce", "pearson", "mean contribution")
    assert row["mean"] == pytest.approx(expected.mean())
    assert row["low"] < row["high"]
    for seed, estimate in estimates.items():
        error = 100 * estimate.standard_errors[0]
        reported = [note for note in notes if f"Shapley, seed {seed}: estimates from 6 sampled permutations" in note]
        assert f"Alder {100 * estimate.values[0]:.2f} (standard error {error:.2f})" in reported[0]
    (table,) = [table for table in found.tables if table.name == "fairness-shapley"]
    assert "from 6, 6 sampled permutations, with standard errors up to" in table.caption


def test_measure_runs_chooses_standalone(out, tmp_path):
    fast = make_run(tmp_path / "fast_seed0", method="standalone", rounds=2, level=0.6)
    seed0 = [out / "fedavg_seed0", out / "standalone_seed0"]
    with pytest.raises(
        BadInput, match=r"standalone \(rounds=4\), standalone \(rounds=2\): local training .*--standalone"
    ):
        measure_runs([*seed0, fast], draws=DRAWS)
    by_label, _ = measure_runs([*seed0, fast], ["standalone (rounds=2)"], draws=DRAWS)
    by_folder, _ = measure_runs(seed0, [str(fast)], draws=DRAWS)
    assert by_label.measured["mean"].to_list() == pytest.approx(by_folder.measured["mean"].to_list(), nan_ok=True)
    gain = measured(by_label, "gains", "standalone (rounds=4)", "mean_gain")["mean"]
    assert gain == pytest.approx(
        measured(by_label, "dice", "standalone (rounds=4)", "mean")["mean"]
        - measured(by_label, "dice", "standalone (rounds=2)", "mean")["mean"]
    )
    with pytest.raises(BadInput, match="--standalone fedprix: neither a run folder nor a label"):
        measure_runs(seed0, ["fedprix"])


def test_measure_runs_accepts_union_split(out, tmp_path):
    """One model for all has the same Dice everywhere: no correlation, and the reason reported."""
    shutil.copytree(out / "fedavg_seed0", tmp_path / "fedavg_seed0")
    shutil.copytree(out / "standalone_seed0", tmp_path / "standalone_seed0")
    for method in ("fedavg", "standalone"):
        add_rows(
            tmp_path / f"{method}_seed0",
            [
                Row("run", method, 0, 3, site, "dice", 0.5 + 0.1 * place * (method == "standalone") + 0.01 * case,
                    "union", f"{tested}/{case:03d}", "prostate")
                for place, site in enumerate(SITES) for tested in SITES for case in range(5)
            ],
        )  # fmt: skip
    found, notes = measure_runs([tmp_path], split="union", draws=DRAWS)
    assert measured(found, "dice", "standalone", "worst")["mean"] == pytest.approx(52)
    assert measured(found, "gains", "fedavg", "mean_gain")["mean"] == pytest.approx(-15)
    row = measured(found, "performance", "fedavg", "pearson")
    assert math.isnan(row["mean"])
    assert row["note"] == "Dice is the same for all sites"
    assert "fairness-performance: pearson, pearson_p undefined for fedavg: Dice is the same for all sites" in notes
    assert any(note.startswith("fedavg: all sites have one model") and "last_round=own" in note for note in notes)
    assert command(tmp_path, "--split", "union").exit_code == 0
    results = tmp_path / "standalone_seed0" / "results.csv"  # Birch did not answer the final test
    lines = results.read_text().splitlines(keepends=True)
    results.write_text(
        "".join(line for line in lines if "union,,Birch/" not in line and ",Birch,,testing," not in line)
    )
    found, notes = measure_runs([tmp_path], split="union", draws=DRAWS)
    assert set(found.measured["method"]) == {"fedavg"}
    assert any("no test Dice from Birch" in note for note in notes)
    with pytest.raises(BadInput, match="--split union: no run was tested on it"):
        measure_runs([out], split="union")


def test_measure_runs_accepts_one_label(tmp_path):
    labels = ("disc", "cup")
    for method in ("standalone", "fedavg"):
        make_run(tmp_path / f"{method}_seed0", method=method, rounds=2, labels=labels)
    reference = make_ground_truth(tmp_path / "reference", LEFT_OUT, seeds=(0,), labels=labels)
    both, cup = (
        measure_runs([tmp_path / "fedavg_seed0"], ground_truth=reference, label=name, draws=DRAWS)[0]
        for name in (None, "cup")
    )
    results = combine_results(open_runs([tmp_path / "fedavg_seed0"]))
    expected = results.rows.query("split == 'testing' and label == 'cup' and quantity == 'dice'")["value"].mean()
    assert measured(cup, "dice", "fedavg", "mean")["mean"] == pytest.approx(100 * expected)
    assert measured(both, "dice", "fedavg", "mean")["mean"] != pytest.approx(100 * expected)
    with pytest.raises(BadInput, match="--label 'rim': unknown; expected one of cup, disc"):
        measure_runs([tmp_path / "fedavg_seed0"], label="rim")


def test_measure_runs_of_two_sites_notes_missing_correlation(tmp_path):
    for method in ("standalone", "fedavg"):
        make_run(tmp_path / f"{method}_seed0", method=method, rounds=2, sites=SITES[:2])
    result = command(tmp_path)
    assert result.exit_code == 0, result.output
    assert (
        "note: fairness-performance: pearson, pearson_p undefined for fedavg: 2 sites; a correlation takes 3"
        in result.stderr
    )
    found, _ = measure_runs([tmp_path], draws=DRAWS)
    assert math.isfinite(measured(found, "performance", "fedavg", "euclidean")["mean"])
    assert math.isnan(measured(found, "performance", "fedavg", "pearson")["low"])


def test_measure_runs_rejects_folder_without_run(out, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(
        BadInput, match=r"not a run folder: no run.json; `fedmerit run --method METHOD --sites SITES --out .*empty`"
    ):
        measure_runs([empty])
    with pytest.raises(BadInput, match=r"it holds run folders: give .*fedavg_seed0, .*fedavg_seed1"):
        open_runs([out])
