"""What the guard bounded, in the report of all and in that for one hospital."""

import pandas as pd
from run_factory import SITES, add_rows, make_run

from fedmerit.schema.results import Row
from fedmerit_evaluation.figures.tables import DASH
from fedmerit_evaluation.report.all_sites import write_report
from fedmerit_evaluation.report.one_site import write_site_report

ROUNDS = 4


def rows(quantity, values):
    """Of the first site, by round; the others are not bounded."""
    return [
        Row("run", "fedce", 0, number, site, quantity, value if site == SITES[0] else 1.0)
        for number, value in enumerate(values)
        for site in SITES
    ]


def test_a_bounded_hospital_is_told_of_every_bound_and_of_no_median(tmp_path):
    run = make_run(tmp_path / "run", rounds=ROUNDS, plan={"guard": {"guard": "on", "on_verdict": "withhold"}})
    verdicts = [Row("run", "fedce", 0, number, site, "verdict", 0.0) for number in range(ROUNDS) for site in SITES]
    add_rows(run, [*verdicts, *rows("clipped", [1, 0.25, 0.5, 1]), *rows("reward_group_share", [1, 1, 1, 0.5])])
    page = write_report([run]).read_text()
    bounds = pd.read_csv(run / "tables" / "bounds.csv")
    assert bounds[["Site", "Rounds", "Least [%]"]].values.tolist() == [[SITES[0], f"1{DASH}2", 25], [SITES[0], "3", 50]]
    assert bounds["What"].to_list() == ["update", "reward"]
    assert page.count("median norm") == page.count("near copies of updates") == 1  # once for all rows
    assert "outliers among the raters" not in page

    own = write_site_report([run], SITES[0])
    told = pd.read_csv(own.parent / "report-files" / "tables" / "own-bounds.csv")
    assert told["Rounds"].astype(str).to_list() == [f"1{DASH}2", "3"]
    assert not [name for name in told if "Lowest" in name]
    other = write_site_report([run], SITES[1])
    assert not (other.parent / "report-files" / "tables" / "own-bounds.csv").exists()


def test_without_a_guard_nothing_is_bounded(tmp_path):
    run = make_run(tmp_path / "run", rounds=ROUNDS)
    add_rows(run, rows("clipped", [0.5] * ROUNDS))
    write_report([run])
    assert not (run / "tables" / "bounds.csv").exists()
