"""The tables of a report on all sites, from runs and results made for them."""

import math
from pathlib import Path

import pandas as pd
import pytest
from made_results import made_dice, made_results, made_rounds, made_runs
from parsed_page import Page
from run_factory import SITES, make_run

from fedmerit_evaluation.figures.tables import Table
from fedmerit_evaluation.report.all_sites import write_report
from fedmerit_evaluation.report.all_sites_tables import report_tables
from fedmerit_evaluation.results.views import Results

LEVELS = {"standalone": (0.6, 0.7, 0.8), "fedavg": (0.7, 0.7, 0.67), "fedce": (0.8, 0.7, 0.9)}


def _tables(results: Results) -> dict[str, Table]:
    runs = made_runs(results, Path("nowhere"))
    return report_tables(runs, results, runs, results)


@pytest.fixture(scope="module")
def of_dice() -> dict[str, Table]:
    """Of three methods with the same Dice in every case of a site."""
    return _tables(made_dice(LEVELS, noise=0.0))


def test_methods_come_by_mean_dice_with_their_ranks(of_dice: dict[str, Table]) -> None:
    assert list(of_dice) == ["methods", "comparison", "dice", "gains"]
    table = of_dice["methods"].frame.set_index("Method")
    assert list(table.index) == ["fedce", "standalone", "fedavg"]
    assert table["Mean Dice [%]"].to_list() == pytest.approx([80, 70, 69])
    assert table["Rank"].to_list() == [1, 2, 3]
    assert table["Worst site [%]"].to_list() == pytest.approx([70, 60, 67])
    gains = table["Mean gain over local training [points]"]
    assert gains.to_list() == pytest.approx([10, math.nan, -1], nan_ok=True)


def test_the_best_of_each_column_is_bold_and_of_spreads_the_lowest(of_dice: dict[str, Table]) -> None:
    table = of_dice["comparison"]
    assert list(table.frame) == ["Method", "Alder", "Birch", "Cedar", "Mean", "Std", "Worst"]
    assert table.frame.set_index("Method").loc["fedce"].to_list() == pytest.approx([80, 70, 90, 80, 10, 70])
    bold = [[name for place, name in enumerate(table.frame) if table.is_best(row, place)] for row in range(3)]
    assert bold == [["Birch"], ["Birch", "Std"], ["Alder", "Birch", "Cedar", "Mean", "Worst"]]


def test_captions_say_what_intervals_are_over(of_dice: dict[str, Table]) -> None:
    one = _tables(made_dice(LEVELS, noise=0.0, seeds=1))
    for name in ("methods", "dice", "gains"):
        assert of_dice[name].caption.endswith("; in brackets the 95 % confidence interval over cases and seeds")
        assert one[name].caption.endswith("; in brackets the 95 % confidence interval over cases (one seed)")


def test_one_method_alone_is_no_best() -> None:
    table = _tables(made_dice({"fedce": LEVELS["fedce"]}, noise=0.0))["comparison"]
    assert not any(table.is_best(0, place) for place in range(table.shape[1]))


def test_gains_by_site_with_their_mean_and_lowest(of_dice: dict[str, Table]) -> None:
    table = of_dice["gains"].frame.set_index("Method")
    assert table.loc["fedce"].to_list() == pytest.approx([20, 0, 10, 10, 0], abs=1e-9)
    assert table.loc["fedavg"].to_list() == pytest.approx([10, 0, -13, -1, -13], abs=1e-9)


def test_too_few_cases_have_no_rank_and_the_table_says_why() -> None:
    table = _tables(made_dice(LEVELS, noise=0.0, cases=4))["methods"]
    assert set(table.frame["Rank"]) == {"too few test patients"}


def test_contributions_with_their_range_of_ranks() -> None:
    said = {"fedce": [(0.4, 0.2), (0.3, 0.3), (0.1, 0.1)]}
    tables = _tables(made_results(made_rounds("contribution", said), ["fedce"]))
    assert list(tables) == ["contributions"]
    table = tables["contributions"]
    frame = table.frame.set_index("Site")
    assert frame["Contribution, mean [own unit]"].to_list() == pytest.approx([0.3, 0.3, 0.1])
    assert frame["Share of contribution [%]"].to_list() == pytest.approx(
        [(50 + 100 / 3) / 2, (37.5 + 50) / 2, (12.5 + 50 / 3) / 2]
    )
    assert frame["Rank"].to_list() == ["1 to 3", "1 to 2", "2 to 3"]
    # Alder's is .2 to .4 over the two seeds, 12.7 standard errors; the others had the same in both
    assert table.cell(0, table.headings.index("Contribution, mean [own unit]")).startswith("0.300 [\N{MINUS SIGN}0.9")
    assert table.cell(1, table.headings.index("Contribution, mean [own unit]")) == "0.300"


def test_costs_are_means_over_seeds() -> None:
    rounds = [
        *made_rounds("seconds", {"fedce": [(2.0, 4.0), (1.0, 1.0), (5.0, 5.0)]}),
        *made_rounds("bytes_sent", {"fedce": [(3e6,) * 2, (2e6,) * 2, (1e6,) * 2]}),
    ]
    table = _tables(made_results(rounds, ["fedce"]))["costs"].frame.set_index("Site")
    assert table["Seconds per round"].to_list() == [3.0, 1.0, 5.0]
    assert table["Sent per round [MB]"].to_list() == pytest.approx([3.0, 2.0, 1.0])


@pytest.mark.slow
def test_surfaces_stand_beside_dice_where_they_were_measured(tmp_path: Path) -> None:
    """One run has none."""
    runs = [make_run(tmp_path / method, method=method, rounds=2, labels=("disc", "cup"), surfaces=method == "fedce")
            for method in ("fedavg", "fedce")]  # fmt: skip
    page = write_report(runs, images=False).read_text()
    sites = pd.read_csv(tmp_path / "tables" / "dice.csv").set_index(["Method", "Site"]).sort_index()
    fedce = sites.loc["fedce"]
    assert fedce["HD95 [mm]"].to_list() == pytest.approx((20 - 0.2 * fedce["Dice [%]"]).to_list())
    assert fedce["NSD at 2 mm [%]"].to_list() == pytest.approx(fedce["Dice [%]"].to_list())
    assert sites.loc["fedavg", "HD95 [mm]"].isna().all()
    methods = pd.read_csv(tmp_path / "tables" / "methods.csv").set_index("Method")
    assert methods.loc["fedce", "HD95 [mm]"] == pytest.approx(fedce["HD95 [mm]"].mean())
    labels = pd.read_csv(tmp_path / "tables" / "labels.csv").set_index(["Method", "Site"])
    assert labels.loc[("fedce", "Alder"), "cup, HD95 [mm]"] == pytest.approx(
        20 - 0.2 * labels.loc[("fedce", "Alder"), "cup"]
    )
    assert "Federated, HD95 [mm]" not in pd.read_csv(tmp_path / "tables" / "benefit.csv")  # of fedavg, which has none
    newer = write_report(runs[1:], tmp_path / "newer" / "report.html", images=False)
    first = pd.read_csv(newer.parent / "tables" / "benefit.csv").set_index("Hospital")
    assert first["Federated, HD95 [mm]"].to_list() == pytest.approx(fedce["HD95 [mm]"].to_list())
    assert first["Federated, NSD at 2 mm [%]"].to_list() == pytest.approx(fedce["Dice [%]"].to_list())
    assert "HD95 and NSD are not known for" in page
    alone = make_run(tmp_path / "standalone", method="standalone", rounds=2, labels=("disc", "cup"), surfaces=True)
    write_report([alone, runs[1]], tmp_path / "gained" / "report.html", images=False)
    gained, changed = (pd.read_csv(tmp_path / "gained" / "tables" / f"{name}.csv").set_index("Method")
                       for name in ("gains", "surface_changes"))  # fmt: skip
    assert changed["HD95 [mm]"].to_list() == pytest.approx([-0.2 * gained.loc["fedce", site] for site in SITES])
    older = write_report(runs[:1], tmp_path / "older" / "report.html", images=False).read_text()
    assert "HD95 [" not in older


def test_a_run_of_one_site(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", method="standalone", sites=("Alder",))
    heading, row = Page(write_report([run]).read_text()).tables["table-comparison"]
    assert row[heading.index("Std")] == "\N{EN DASH}"
