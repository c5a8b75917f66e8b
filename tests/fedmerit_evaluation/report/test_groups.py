"""Dice by group of patients: means, gaps, floors, and what differences would reveal."""

import numpy as np
import pandas as pd
import pytest
from run_factory import SITES, add_rows, make_run, make_sites, prepare_again

from fedmerit.files import read_json, write_json
from fedmerit.schema.results import Row, read_results
from fedmerit.schema.site_folder import open_sites
from fedmerit_evaluation.report.groups import FLOOR, compare_groups, shown_groups
from fedmerit_evaluation.report.report import write_report
from fedmerit_evaluation.results.views import Dice


def dice(patients, gap=0.1, seeds=3, random=None):
    """Test Dice of these numbers of patients of groups F and M by site; M is ``gap`` lower."""
    random = random or np.random.default_rng(0)
    moved = {
        (site, number): 0.8 - gap * (number >= women) + random.normal(0, 0.03)
        for site, (women, men) in patients.items()
        for number in range(women + men)
    }
    rows = [
        ("fedavg", seed, site, 9, "testing", f"{number:03d}", "organ", "dice", value + random.normal(0, 0.01),
         f"{number:03d}", "")
        for seed in range(seeds)
        for (site, number), value in moved.items()
    ]  # fmt: skip
    names = ["method", "seed", "site", "round", "split", "case", "label", "quantity", "value", "patient", "fold"]
    group_of = {
        (site, f"{number:03d}"): "F" if number < women else "M"
        for site, (women, men) in patients.items()
        for number in range(women + men)
    }
    return Dice(pd.DataFrame(rows, columns=names)), {"sex": group_of}


def test_compare_groups_means_and_gaps_are_those_of_the_cases():
    found, groups = dice({"A": (8, 6), "B": (5, 7)})
    table = compare_groups(found, "fedavg", groups)
    of_case = [groups["sex"][site, case] for _, _, site, case in found.cases.index]
    means = found.cases.groupby(of_case).mean()
    assert table["patients"].to_dict() == {("sex", "F"): 13, ("sex", "M"): 13}
    assert table["mean"].to_numpy() == pytest.approx(means[["F", "M"]].to_numpy())
    gap = means["F"] - means["M"]
    assert table["gap"].to_numpy() == pytest.approx([gap, -gap])
    assert (table["gap_low"] < table["gap"]).all()
    assert (table["gap"] < table["gap_high"]).all()
    assert table.loc[("sex", "F"), "gap_low"] > 0


def test_compare_groups_of_few_patients_are_not_shown():
    assert compare_groups(*_with_method({"A": (8, 4)})).empty
    table = compare_groups(*_with_method({"A": (8, 6), "B": (9, 2)}))
    assert table["patients"].to_dict() == {("sex", "F"): 8, ("sex", "M"): 6}  # B's women would show its two men


def _with_method(patients):
    found, groups = dice(patients)
    return found, "fedavg", groups


@pytest.mark.parametrize("seed", range(20))
def test_shown_groups_no_difference_is_of_few_patients(seed):
    random = np.random.default_rng(seed)
    groups = {
        (site, str(number)): str(random.choice(["", "a", "b", "c", "d"], p=[0.1, 0.4, 0.3, 0.1, 0.1]))
        for site in "ABC"
        for number in range(random.integers(3, 30))
    }
    shown = shown_groups(groups)
    for site in "ABC":
        ours = [group for patient, group in shown.items() if patient[0] == site]
        left = sum(patient[0] == site for patient in groups) - len(ours)
        assert left == 0 or left >= FLOOR or not ours
        assert all(ours.count(group) >= FLOOR for group in set(ours))


@pytest.mark.slow
def test_compare_groups_intervals_hold_the_gap():
    """95 % intervals of 100 studies hold the true gap in 88 to 100."""
    random = np.random.default_rng(7)
    held = 0
    for _ in range(100):
        found, groups = dice({"A": (6, 6), "B": (5, 9)}, gap=0.05, random=random)
        row = compare_groups(found, "fedavg", groups).loc["sex", "F"]
        held += row["gap_low"] <= 0.05 <= row["gap_high"]
    assert 88 <= held <= 100


@pytest.mark.slow
def test_report_groups_are_those_of_the_site_folders_of_the_run(tmp_path):
    """Also in the report for one hospital; folders that were prepared otherwise since are not of its patients."""
    sites = make_sites(tmp_path / "sites")
    for site in SITES:
        file = sites / site / "datalist.json"
        lists = read_json(file)
        lists |= {"testing": lists["testing"] + lists["training"], "training": []}
        for number, entry in enumerate(lists["testing"]):
            entry["groups"] = {"sex": "FM"[number % 2]}
        write_json(file, lists)
    folders = open_sites(sites)
    run = make_run(tmp_path / "run", site_digests={one.name: one.digest for one in folders})
    numbers = {site.name: [case.number for case in site.cases("testing")] for site in folders}
    results = read_results(run)
    tested = results["split"] == "testing"
    results = results[~tested]
    rows = [
        Row("run", "fedce", 0, 11, site, "dice", 0.8 - 0.1 * (place % 2), "testing", f"{place:03d}", "prostate",
            patient=number)
        for site, of_site in numbers.items()
        for place, number in enumerate(of_site)
    ]  # fmt: skip
    results.to_csv(run / "results.csv", index=False)
    add_rows(run, rows)
    write_report([run], tmp_path / "all" / "report.html", sites=sites, images=False)
    table = pd.read_csv(tmp_path / "all" / "tables" / "groups.csv")
    assert table["Group"].tolist() == ["F", "M"]
    assert table["Patients"].tolist() == [20, 20]
    assert table["Gap [points]"].tolist() == pytest.approx([10, -10])
    write_report([run], tmp_path / "one" / "report.html", site=SITES[0], sites=sites, images=False)
    assert pd.read_csv(tmp_path / "one" / "report-files" / "tables" / "groups.csv")["Patients"].tolist() == [5, 5]
    prepare_again(sites / SITES[0])
    write_report([run], tmp_path / "all" / "report.html", sites=sites, images=False)
    assert pd.read_csv(tmp_path / "all" / "tables" / "groups.csv")["Patients"].tolist() == [15, 15]
