"""Contributions beside a ground truth in the report: values, correlations, p, and caveats."""

from itertools import combinations, permutations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from run_factory import SITES, make_run
from scipy.stats import pearsonr, spearmanr

from fedmerit.errors import BadInput
from fedmerit.schema.results import ResultsFile, Row
from fedmerit_evaluation.ground_truth import ground_truths
from fedmerit_evaluation.report.agreement import compare_with_ground_truth, permutation_p
from fedmerit_evaluation.report.assembly import build_model
from fedmerit_evaluation.report.limits import Limit
from fedmerit_evaluation.report.report import build_site_model, write_report
from fedmerit_evaluation.results.runs import combine_results, open_runs
from fedmerit_evaluation.results.views import Results

WORTH = dict(zip(SITES, (0.02, 0.05, 0.08, 0.1), strict=True))  # Dice that each adds to every coalition


def _ground_truth(folder: Path, *, sizes: tuple[int, ...] = (3, 4), seeds: tuple[int, ...] = (0, 1)) -> Path:
    folder.mkdir(parents=True)
    rows = [
        Row("x", "fedavg", seed, 3, tested, "dice", 0.5 + sum(map(WORTH.__getitem__, members)), "testing", case,
            "prostate", "+".join(members))
        for seed in seeds
        for size in sizes
        for members in combinations(SITES, size)
        for tested in SITES
        for case in ("000", "001")
    ]  # fmt: skip
    images = [Row("x", "fedavg", seed, 0, site, "num_samples", 40.0, coalition="+".join(SITES))
              for seed in seeds for site in SITES]  # fmt: skip
    ResultsFile(folder / "results.csv").append([*rows, *images])
    return folder


def _runs(root: Path) -> list[Path]:
    return [make_run(root / f"{method}-{seed}", method=method, seed=seed, rounds=4)
            for method in ("fedavg", "fedce") for seed in (0, 1)]  # fmt: skip


def test_leave_one_out_values_and_the_correlation_with_them(tmp_path: Path) -> None:
    runs = open_runs(_runs(tmp_path))
    results = combine_results(runs)
    (found,), notes = compare_with_ground_truth(runs, results, _ground_truth(tmp_path / "ground_truth"), 200)
    assert notes == []
    assert found.reference == "leave-one-out"
    for seed in (0, 1):
        assert found.values.loc[seed].to_dict() == pytest.approx({site: 100 * worth for site, worth in WORTH.items()})
    said = found.estimates["fedce", "mean contribution"]
    table = found.methods_table.frame.set_index(["Method", "Contribution"])
    row = table.loc["fedce", "mean contribution"]
    assert (row["Sites"], row["Seeds"]) == (4, 2)
    worth = list(WORTH.values())
    assert row["Pearson"] == pytest.approx(np.mean([pearsonr(worth, said.loc[seed]).statistic for seed in (0, 1)]))
    assert row["Spearman"] == pytest.approx(np.mean([spearmanr(worth, said.loc[seed]).statistic for seed in (0, 1)]))
    assert found.ranks["fedce"].mean == row["Spearman"]
    assert found.p == {"fedce": row["p, Spearman"]}
    assert list(found.ranks) == ["fedce"]  # of fedavg it is the share of training images
    assert ("any", "sample share") in table.index
    assert [limit.code for limit in found.limits] == ["few_sites"]
    assert table["Noise ceiling"].to_list() == pytest.approx([1] * len(table))  # every case says the same


def test_a_ground_truth_that_is_lost_in_its_noise_judges_nobody(tmp_path: Path) -> None:
    ground_truth = _ground_truth(tmp_path / "ground_truth")
    rows = pd.read_csv(ground_truth / "results.csv", dtype={"case": str}, keep_default_na=False)
    dice = rows["quantity"] == "dice"
    rows.loc[dice, "value"] = np.random.default_rng(0).uniform(0.3, 0.9, int(dice.sum()))
    rows.to_csv(ground_truth / "results.csv", index=False)
    runs = open_runs(_runs(tmp_path))
    (found,), _ = compare_with_ground_truth(runs, combine_results(runs), ground_truth, 50)
    assert found.methods_table.frame["Noise ceiling"].max() < 0.7
    assert "(one seed)" not in found.methods_table.caption
    assert "95 % CI over cases and seeds; noise ceiling" in found.methods_table.caption
    assert "low_noise_ceiling" in [limit.code for limit in found.limits]


def test_a_noise_ceiling_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, drawn = open_runs(_runs(tmp_path)), []
    real = ground_truths.resample
    monkeypatch.setattr(ground_truths, "resample", lambda *given: drawn.append(given) or real(*given))
    found, _ = compare_with_ground_truth(
        runs, combine_results(runs), _ground_truth(tmp_path / "ground_truth", sizes=(1, 2, 3, 4)), 20
    )
    assert [one.reference for one in found] == ["leave-one-out", "Shapley"]
    assert len(drawn) == 2


def test_p_is_the_share_of_permutations_as_far_from_0() -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(2, 1, 5))
    for name, of in (("pearson", pearsonr), ("spearman", spearmanr)):
        here = abs(of(x[0], y[0]).statistic)
        all_of_them = [abs(of(x[0], y[0, list(order)]).statistic) for order in permutations(range(5))]
        assert permutation_p(x, y, name) == pytest.approx(np.mean(np.array(all_of_them) >= here - 1e-9))
    rising = np.arange(4.0)[None]
    assert permutation_p(rising, rising, "spearman") == pytest.approx(2 / 24)
    assert np.isnan(permutation_p(rising, np.ones((1, 4)), "pearson"))
    many = np.arange(9.0)[None]
    assert permutation_p(many, many, "pearson") == pytest.approx(1e-4, abs=2e-4)


@pytest.mark.slow  # the model's agreement is tested above
def test_the_report_shows_agreement_and_its_limits(tmp_path: Path) -> None:
    ground_truth, runs = _ground_truth(tmp_path / "ground_truth", sizes=(1, 2, 3, 4)), _runs(tmp_path)
    out = write_report(runs, tmp_path / "r" / "report.html", ground_truth=ground_truth)
    page = out.read_text()
    for name in ("leave-one-out", "shapley"):
        assert f'id="table-agreement-{name}"' in page
        assert f'id="table-{name}"' in page
        assert (out.parent / "figures" / f"agreement-{name}.png").exists()
    assert "rests on 4 sites" in page
    assert "p-value can be below 0.042" in page
    table = pd.read_csv(out.parent / "tables" / "agreement-leave-one-out.csv")
    assert table["Pearson"].between(-1, 1).all()
    said = "Spearman correlation of the method&#39;s estimate with Shapley values"
    assert said in page
    counted = write_report(runs[:2], tmp_path / "fedavg.html", ground_truth=ground_truth).read_text()
    assert said not in counted  # FedAvg's is the share of training images


def test_payment_needs_five_patients_and_counts_images_of_a_patient_once(tmp_path: Path) -> None:
    ground_truth, runs = _ground_truth(tmp_path / "ground_truth"), _runs(tmp_path)[2:]

    def codes() -> list[str]:
        return [one.code for one in build_model(open_runs(runs), ground_truth).unmet]

    assert "chance" not in codes()
    for run in runs:
        rows = pd.read_csv(run / "results.csv", dtype={"case": str, "patient": str}, keep_default_na=False)
        rows.loc[(rows["split"] == "testing") & (rows["site"] == SITES[0]), "patient"] = "one"
        rows.to_csv(run / "results.csv", index=False)
    assert build_model(open_runs(runs), ground_truth).patients == 1
    assert "chance" in codes()


def test_values_that_sum_to_less_than_0_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for site in WORTH:
        monkeypatch.setitem(WORTH, site, -WORTH[site])
    runs = open_runs(_runs(tmp_path))
    (found,), _ = compare_with_ground_truth(runs, combine_results(runs), _ground_truth(tmp_path / "ground_truth"), 50)
    values = {"reference": "leave-one-out", "seeds": [0, 1]}
    assert Limit("values_sum", values=values) in found.limits


def test_a_ground_truth_that_is_none_or_of_others_is_refused(tmp_path: Path) -> None:
    runs = _runs(tmp_path)
    with pytest.raises(BadInput, match=r"--ground-truth .*no results.csv.*fedmerit value leave-one-out"):
        write_report(runs, tmp_path / "r.html", ground_truth=tmp_path)
    with pytest.raises(BadInput, match="names no coalition"):
        write_report(runs, tmp_path / "r.html", ground_truth=runs[0])
    with pytest.raises(BadInput, match=r"fedmerit value leave-one-out .*trains what is missing"):
        write_report(runs, tmp_path / "r.html", ground_truth=_ground_truth(tmp_path / "part", sizes=(4,)))
    other = make_run(tmp_path / "other", sites=("Yew", "Zelkova"))
    with pytest.raises(BadInput, match="the ground truth is of Alder"):
        write_report([other], tmp_path / "r.html", ground_truth=_ground_truth(tmp_path / "ground_truth"))
    assert not (tmp_path / "r.html").exists()


def test_hospital_sees_its_own_value(tmp_path: Path) -> None:
    model = build_site_model(open_runs(_runs(tmp_path)), "Birch", _ground_truth(tmp_path / "ground_truth"))
    assert model.hospitals[0].values == pytest.approx({"leave-one-out": 0.05})
    (row,) = model.others[model.others["quantity"].str.startswith("Value")].to_dict("records")
    assert (row["own"], row["third"]) == (pytest.approx(5.0), "middle third")
    assert np.isnan(row["median"])  # three values and their median tell too much
    assert model.agreements == ()


def test_a_site_that_never_answered_in_a_round_leaves_the_agreement_undefined(tmp_path: Path) -> None:
    runs = open_runs(_runs(tmp_path))
    rows = combine_results(runs).rows
    answered = Results(rows[(rows["site"] != SITES[-1]) | (rows["split"] == "testing")])
    (found,), _ = compare_with_ground_truth(runs, answered, _ground_truth(tmp_path / "ground_truth"), 50)
    assert found.methods_table.frame["Pearson"].isna().all()
    undefined = [name for limit in found.limits if limit.code == "undefined" for name in limit.values["estimates"]]
    assert "fedce (mean contribution)" in undefined
