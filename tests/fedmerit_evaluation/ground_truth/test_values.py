"""Tables of values against numbers worked out explicitly from small tables of coalitions."""

import numpy as np
import pandas as pd
import pytest

from fedmerit.contract.semivalues import SampledValues
from fedmerit.errors import BadInput
from fedmerit.schema.results import COLUMNS
from fedmerit_evaluation.figures.tables import csv_text
from fedmerit_evaluation.ground_truth import value_tables
from fedmerit_evaluation.results.views import Results

IMAGES = {"A": 10, "B": 30, "C": 60}
SITE_DICE = {  # of each coalition's model on the cases of A, B, C; means over them: the utilities below
    "A+B+C": (0.9, 0.8, 0.7),  # 0.8
    "A+B": (0.8, 0.6, 0.4),  # 0.6
    "A+C": (0.8, 0.7, 0.6),  # 0.7
    "B+C": (0.7, 0.8, 0.9),  # 0.8
    "A": (0.5, 0.3, 0.1),  # 0.3
    "B": (0.3, 0.5, 0.1),  # 0.3
    "C": (0.5, 0.5, 0.5),  # 0.5
}
LEAVE_ONE_OUT = ("A+B+C", "A+B", "A+C", "B+C")


def rows_of(coalition, seed, site, dice, label="prostate"):
    """Two cases whose mean is ``dice``."""
    head = {"run": f"{coalition}_seed{seed}", "method": "fedavg", "seed": seed, "round": 4, "site": site}
    head |= {"coalition": coalition, "split": "testing", "label": label, "quantity": "dice"}
    return [head | {"case": "a", "value": dice - 0.05}, head | {"case": "b", "value": dice + 0.05}]


def images_of(coalition, seed):
    head = {"run": f"{coalition}_seed{seed}", "method": "fedavg", "seed": seed, "round": 0, "coalition": coalition}
    head |= {"split": "", "case": "", "label": "", "quantity": "num_samples"}
    return [head | {"site": site, "value": float(IMAGES[site])} for site in coalition.split("+")]


def results(coalitions=SITE_DICE, seeds=(0,), labels=("prostate",), plus=0.0):
    """``plus`` is added to the Dice of the second label, 0.03 to that of A+B+C with seed 1."""
    rows = []
    for seed in seeds:
        for coalition in coalitions:
            rows += images_of(coalition, seed)
            for number, label in enumerate(labels):
                for site, dice in zip("ABC", SITE_DICE[coalition], strict=True):
                    more = plus * number + 0.03 * seed * (coalition == "A+B+C")
                    rows += rows_of(coalition, seed, site, dice + more, label)
    return Results(pd.DataFrame(rows).assign(fold="", patient="")[COLUMNS])


def column(table, heading):
    return table.frame.set_index(table.headings[0])[heading]


def spread(table, heading):
    return table.spread.set_index(table.headings[0])[heading]


def test_leave_one_out_explicitly():
    table, loses = value_tables.leave_one_out_tables(results(LEAVE_ONE_OUT))
    assert column(table, "Dice without it [%]").to_dict() == pytest.approx(
        {"A": 80, "B": 70, "C": 60, value_tables.ALL_SITES: 80}
    )
    assert column(table, "Drop [points]").iloc[:3].to_dict() == pytest.approx({"A": 0, "B": 10, "C": 20})
    assert pd.isna(column(table, "Drop [points]")[value_tables.ALL_SITES])
    shares = column(table, "Performance contribution [%]")
    assert shares.iloc[:3].to_dict() == pytest.approx({"A": 0, "B": 100 / 3, "C": 200 / 3})
    assert column(table, "Sample contribution [%]").iloc[:3].to_dict() == pytest.approx({"A": 10, "B": 30, "C": 60})
    assert column(table, "Training images").iloc[:3].to_dict() == IMAGES
    by_site = loses.frame.set_index("Without")
    assert by_site.loc["A"].to_dict() == pytest.approx({"A": 20, "B": 0, "C": -20})  # 90-70, 80-80, 70-90
    assert by_site.loc["B"].to_dict() == pytest.approx({"A": 10, "B": 10, "C": 10})
    assert by_site.loc["C"].to_dict() == pytest.approx({"A": 10, "B": 20, "C": 30})


def test_a_label_that_a_site_never_shows_has_no_drop_and_the_others_have():
    two = results(LEAVE_ONE_OUT, labels=("disc", "cup"))
    two.rows.loc[(two.rows["site"] == "B") & (two.rows["label"] == "cup"), "value"] = float("nan")
    table, _ = value_tables.leave_one_out_tables(two)
    assert column(table, "Drop, cup [points]").isna().all()
    for heading in ("Drop, disc [points]", "Drop [points]"):
        assert column(table, heading).iloc[:3].to_list() == pytest.approx([0, 10, 20])


def test_a_site_without_any_dice_is_reported():
    """Nothing is to be trained that would change it."""
    empty = results(LEAVE_ONE_OUT)
    empty.rows.loc[empty.rows["site"] == "B", "value"] = float("nan")
    with pytest.raises(BadInput, match="a site without Dice: its predictions and references are empty"):
        value_tables.leave_one_out_tables(empty)


def test_means_and_deviations_over_two_seeds():
    """With seed 1 the Dice of all together is 3 points higher, and so is every drop."""
    table, loses = value_tables.leave_one_out_tables(results(LEAVE_ONE_OUT, seeds=(0, 1)))
    deviation = 3 / 2**0.5  # of a sample of two, 3 apart
    assert column(table, "Drop [points]").iloc[:3].to_list() == pytest.approx([1.5, 11.5, 21.5])
    assert spread(table, "Drop [points]").iloc[:3].to_list() == pytest.approx([deviation] * 3)
    assert spread(table, "Dice without it [%]")[value_tables.ALL_SITES] == pytest.approx(deviation)
    assert spread(table, "Training images").isna().all()
    assert column(table, "Performance contribution [%]").iloc[:3].to_list() == pytest.approx(
        [100 * drop / 34.5 for drop in (1.5, 11.5, 21.5)]
    )
    assert "2 seeds" in table.caption
    assert "Drop [points], std over seeds" in csv_text(table)
    assert loses.frame.set_index("Without").loc["A"].to_dict() == pytest.approx({"A": 21.5, "B": 1.5, "C": -18.5})
    assert "seeds" not in value_tables.leave_one_out_tables(results(LEAVE_ONE_OUT))[0].caption


@pytest.mark.parametrize(
    ("of", "there", "named"),
    [
        (value_tables.leave_one_out_tables, ("A+B+C", "A+B", "B+C"), "coalition A+C"),
        (value_tables.leave_one_out_tables, ("A+B", "A+C", "B+C"), "coalition A+B+C"),
        (value_tables.shapley_tables, [one for one in SITE_DICE if one not in ("A", "C")], "coalitions A, C"),
    ],
)
def test_a_missing_coalition_is_named_and_what_to_do(of, there, named):
    with pytest.raises(BadInput, match="the same command trains the missing ones") as error:
        of(results(there, seeds=(0, 2)))
    assert f"seed 0: {named}; seed 2: {named}" in str(error.value)


def test_no_shares_of_a_loss():
    """All are better off without A, by more than B and C bring: there is nothing to share."""
    harmful = results(LEAVE_ONE_OUT).rows
    harmful.loc[(harmful["coalition"] == "B+C") & (harmful["quantity"] == "dice"), "value"] += 0.1
    harmful.loc[(harmful["coalition"] == "A+B") & (harmful["quantity"] == "dice"), "value"] += 0.2
    table, _ = value_tables.leave_one_out_tables(Results(harmful))
    assert column(table, "Drop [points]").iloc[:3].to_list() == pytest.approx([-10, 10, 0], abs=1e-9)
    assert column(table, "Performance contribution [%]").isna().all()
    assert column(table, "Sample contribution [%]").iloc[:3].to_list() == pytest.approx([10, 30, 60])
    harmful.loc[(harmful["coalition"] == "A+B") & (harmful["quantity"] == "dice"), "value"] += 0.1
    table, _ = value_tables.leave_one_out_tables(Results(harmful))
    assert column(table, "Drop [points]").iloc[:3].to_list() == pytest.approx([-10, 10, -10])
    assert column(table, "Performance contribution [%]").isna().all()


def test_shapley_explicitly():
    """v = 0, A .3, B .3, C .5, AB .6, AC .7, BC .8, ABC .8."""
    table, coalitions = value_tables.shapley_tables(results())
    assert column(table, "Shapley [points]").to_dict() == pytest.approx(
        {  # marginals to nobody, to each other site, to both others; in 2, 1, 1 and 2 of the 6 orders
            "A": 100 * (2 * 0.3 + (0.6 - 0.3) + (0.7 - 0.5) + 2 * (0.8 - 0.8)) / 6,
            "B": 100 * (2 * 0.3 + (0.6 - 0.3) + (0.8 - 0.5) + 2 * (0.8 - 0.7)) / 6,
            "C": 100 * (2 * 0.5 + (0.7 - 0.3) + (0.8 - 0.3) + 2 * (0.8 - 0.6)) / 6,
        }
    )
    assert column(table, "Shapley [points]").sum() == pytest.approx(80)
    assert column(table, "Banzhaf [points]").to_dict() == pytest.approx(
        {  # each of four coalitions alike
            "A": 100 * (0.3 + 0.3 + 0.2 + 0.0) / 4,
            "B": 100 * (0.3 + 0.3 + 0.3 + 0.1) / 4,
            "C": 100 * (0.5 + 0.4 + 0.5 + 0.2) / 4,
        }
    )
    assert column(table, "Leave-one-out [points]").to_list() == pytest.approx([0, 10, 20], abs=1e-9)
    assert column(table, "Leave-one-out share [%]").to_list() == pytest.approx([0, 100 / 3, 200 / 3], abs=1e-9)
    assert column(table, "Shapley share [%]").to_list() == pytest.approx(
        (100 * column(table, "Shapley [points]") / 80).to_list()
    )
    assert column(table, "Sample contribution [%]").to_list() == pytest.approx([10, 30, 60])
    assert "7 coalitions" in table.caption
    assert column(coalitions, "Dice [%]").to_dict() == pytest.approx(
        {"A+B+C": 80, "A+B": 60, "A+C": 70, "B+C": 80, "A": 30, "B": 30, "C": 50}
    )


def test_sampled_values_with_their_errors():
    estimates = {
        seed: SampledValues(["A", "B"], np.array(shares) / 100, np.array(errors) / 100, [()] * count, (), "")
        for seed, shares, errors, count in ((0, [10.0, 30.0], [1.0, 2.0], 20), (1, [14.0, 26.0], [3.0, 2.0], 40))
    }
    (table,) = value_tables.sampled_tables(["B", "A"], estimates)
    assert column(table, "Shapley [points]").to_dict() == pytest.approx({"A": 12, "B": 28})
    assert column(table, "Standard error [points]").to_dict() == pytest.approx({"A": 2, "B": 2})
    assert column(table, "Shapley share [%]").to_dict() == pytest.approx({"A": 30, "B": 70})
    assert spread(table, "Shapley [points]").to_list() == pytest.approx([8**0.5, 8**0.5])
    assert "20, 40 sampled permutations" in table.caption
