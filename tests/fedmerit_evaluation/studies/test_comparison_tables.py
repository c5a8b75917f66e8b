"""The tables of a comparison against numbers computed explicitly."""

import pandas as pd
import pytest

from fedmerit.schema.results import COLUMNS
from fedmerit_evaluation.figures.tables import DASH
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.studies.comparison import comparison_tables as tables
from fedmerit_evaluation.studies.comparison import gains, transfer


def dice(method, seed, site, values, *, split="testing", label="prostate", number=4):
    """Rows of a site's Dice, one per case; ``values`` maps cases to Dice."""
    blank = dict.fromkeys(COLUMNS, "")
    row = {"run": "run", "method": method, "seed": seed, "round": number, "site": site}
    return [
        blank | row | {"split": split, "case": case, "label": label, "quantity": "dice", "value": value}
        for case, value in values.items()
    ]


def long(*parts):
    return Results(pd.DataFrame([row for part in parts for row in part], columns=COLUMNS).astype({"value": float}))


def cells(table):
    rows, columns = table.shape
    return [[table.cell(row, column) for column in range(columns)] for row in range(rows)]


# Three sites A, B, C; a site's Dice is the mean over its cases.
TWO_SEEDS = (
    *(dice("fedavg", 0, site, {"000": value}) for site, value in (("A", 0.80), ("B", 0.70), ("C", 0.60))),
    *(dice("fedavg", 1, site, {"000": value}) for site, value in (("A", 0.84), ("B", 0.70), ("C", 0.70))),
    dice("fedce", 0, "A", {"000": 0.9, "001": 0.7, "002": None}),  # 0.8: an empty case does not count
    dice("fedce", 0, "B", {"000": 0.9}),
    dice("fedce", 0, "C", {"000": 0.7}),
    *(dice("fedce", 1, site, {"000": 0.8}) for site in "ABC"),
)


def test_tables_1_and_6_explicitly():
    one, six = tables(long(*TWO_SEEDS), ["fedce", "fedavg"], [0, 1])
    assert (one.name, six.name) == ("table1", "table6")
    assert "Table 1 of Jiang et al. 2023" in one.caption
    assert "Table 6 of Jiang et al. 2023" in six.caption
    assert one.headings == six.headings == ["Method", "A", "B", "C", "Avg.", "Std."]
    # fedavg: 82, 70, 65: mean 72.333, deviations 9.667, -2.333, -7.333, squares sum to 152.667, / 2, root 8.737
    assert cells(one) == [
        ["fedce", "80.00", "85.00", "75.00", "80.00", "5.00"],
        ["fedavg", "82.00", "70.00", "65.00", "72.33", "8.74"],
    ]
    # over seeds: 80 and 84 differ by 4, so by 4 / sqrt(2) = 2.83; 60 and 70 by 7.07
    assert cells(six) == [
        ["fedce", "80.00 ± 0.00", "85.00 ± 7.07", "75.00 ± 7.07", "80.00", "5.00"],
        ["fedavg", "82.00 ± 2.83", "70.00 ± 0.00", "65.00 ± 7.07", "72.33", "8.74"],
    ]


def test_a_site_missing_in_one_run_is_empty_and_so_are_its_means():
    one, six = tables(long(*TWO_SEEDS[:5], *TWO_SEEDS[6:]), ["fedavg", "fedce"], [0, 1])
    assert cells(one)[0] == ["fedavg", "82.00", "70.00", DASH, DASH, DASH]
    assert cells(six)[0] == ["fedavg", "82.00 ± 2.83", "70.00 ± 0.00", DASH, DASH, DASH]
    assert cells(one)[1][-1] == "5.00"


def test_one_table_for_each_label():
    rows = [
        dice("fedavg", 0, site, {"000": value}, label=label)
        for site in "AB"
        for label, value in (("disc", 0.9), ("cup", 0.5 + 0.1 * (site == "B")))
    ]
    found = tables(long(*rows), ["fedavg"], [0])
    assert [table.name for table in found] == ["table1-disc", "table6-disc", "table1-cup", "table6-cup"]
    assert "of the disc" in found[0].caption
    assert cells(found[0]) == [["fedavg", "90.00", "90.00", "90.00", "0.00"]]
    assert cells(found[2]) == [["fedavg", "50.00", "60.00", "55.00", "7.07"]]


def test_surfaces_follow_in_tables_of_their_own():
    rows = [
        {**row, "quantity": quantity, "value": value}
        for site, numbers in (("A", (4.0, 0.5)), ("B", (6.0, 0.7)))
        for quantity, value in zip(("dice", "hd95", "nsd"), (0.8, *numbers), strict=True)
        for row in dice("fedavg", 0, site, {"000": 0.8})
    ]
    *_, hd95, nsd = tables(long(rows), ["fedavg"], [0])
    assert (hd95.name, nsd.name) == ("hd95", "nsd")
    assert hd95.caption.startswith("HD95 [mm] on each site's test split")
    assert hd95.caption.endswith("; none for cases with an empty prediction or reference")
    assert "have none" not in nsd.caption  # which counts them 0
    assert cells(hd95) == [["fedavg", "4.00", "6.00", "5.00", "1.41"]]
    assert cells(nsd) == [["fedavg", "50.00", "70.00", "60.00", "14.14"]]


def union(method, seed, site, values, label="prostate"):
    return dice(method, seed, site, values, split="union", label=label)


def test_union_explicitly():
    """The mean over cases, not over sites: B has two of the three."""
    rows = [
        *(dice("standalone", 0, site, {"000": 0.9}) for site in "AB"),
        *(dice("fedavg", 0, site, {"000": 0.5}) for site in "AB"),
        union("standalone", 0, "A", {"A/000": 0.9, "B/000": 0.3, "B/001": 0.3}),
        union("standalone", 0, "B", {"A/000": 0.6, "B/000": 0.8, "B/001": None}),
    ]
    assert long(*rows).union.complete.to_dict() == pytest.approx(
        {("standalone", 0, "A"): 0.5, ("standalone", 0, "B"): 0.7}
    )
    *_, table = tables(long(*rows), ["fedavg", "standalone"], [0])
    assert table.name == "union"
    assert cells(table) == [["standalone", "50.00", "70.00", "60.00", "14.14"]]


def test_union_without_the_cases_of_a_site_is_none():
    rows = [
        *(dice("standalone", 0, site, {"000": 0.9}) for site in "AB"),
        union("standalone", 0, "A", {"A/000": 0.9}),
        union("standalone", 0, "B", {"A/000": 0.6, "B/000": 0.8}),
    ]
    *_, table = tables(long(*rows), ["standalone"], [0])
    assert cells(table) == [["standalone", DASH, "70.00", DASH, DASH]]


def transferred(method, seed, site, values):
    """Rows of the bytes that a site sends, and receives, in its rounds."""
    row = dict.fromkeys(COLUMNS, "") | {"run": "run", "method": method, "seed": seed, "site": site}
    names = ("bytes_sent", "bytes_received")
    return [
        row | {"round": number, "quantity": name, "value": value}
        for number, value in enumerate(values)
        for name in names
    ]


# A site's last validation is of the round after the test's; that of round 4 is of a model that was trained on.
WITH_LOCAL = (
    *(dice("standalone", seed, site, {"000": 0.50}) for seed in (0, 1) for site in "AB"),
    *(dice("standalone", seed, site, {"000": 0.70}, split="validation", number=5) for seed in (0, 1) for site in "AB"),
    *(dice("fedavg", seed, "A", {"000": 0.80, "001": 0.60}) for seed in (0, 1)),
    *(dice("fedavg", seed, "A", {"000": 0.10}, split="validation", number=4) for seed in (0, 1)),
    dice("fedavg", 0, "A", {"000": 0.70}, split="validation", number=5),
    dice("fedavg", 1, "A", {"000": 1.00}, split="validation", number=5),
    *(dice("fedavg", seed, "B", {"000": 0.40}) for seed in (0, 1)),
    *(dice("fedavg", seed, "B", {"000": 0.70}, split="validation", number=5) for seed in (0, 1)),
    *(transferred("standalone", seed, site, [0, 0]) for seed in (0, 1) for site in "AB"),
    *(transferred("fedavg", seed, site, [1e6, 2e6]) for seed in (0, 1) for site in "AB"),
    *(transferred("pooled", seed, site, [1e6, 2e6]) for seed in (0, 1) for site in "AB"),  # images moved before
)


def test_gains_are_those_of_test_cases():
    results = long(*WITH_LOCAL)
    above = gains(results, ["standalone", "fedavg"])
    assert list(above.index) == ["fedavg"]
    # A: (.8 + .6) / 2 = .7, only .5; B: .4. Validation cases, by which final models are selected, do not count
    assert above.loc["fedavg"].to_list() == pytest.approx([20.0, -10.0])
    assert transfer(results).to_dict() == pytest.approx({"standalone": 0.0, "fedavg": 3.0})
    *_, table = tables(results, ["standalone", "fedavg"], [0, 1])
    assert table.name == "gains"
    assert table.headings == ["Method", "A", "B", "Mean", "Lowest", "Transfer [MB]"]
    assert cells(table) == [["fedavg", "20.00", "\N{MINUS SIGN}10.00", "5.00", "\N{MINUS SIGN}10.00", "3.0"]]
