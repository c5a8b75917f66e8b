"""The matrix of cross-site tests beside results.csv: its Dice are those of the tests there."""

import json

import pytest
from result_rows import CASES, measured, row

from fedmerit.errors import BadInput
from fedmerit.federation.recorder import CROSS_SITE
from fedmerit.verification.measurements import compare_matrix
from fedmerit.verification.results import read_tables

OTHER = {"0": (1, 1, 1, 0.5)}
EMPTY = None  # Dice of a case that is empty in both
TESTS = [*measured(1, "A", "testing"), *measured(1, "B", "testing", OTHER)]  # means .625 and .5
ON_OTHERS = {  # by model, and case at a site
    "A": {"A/0": 0.75, "A/1": 0.5, "B/0": 0.25},
    "B": {"A/0": EMPTY, "A/1": 0.5, "B/0": 0.5},
}
UNION = [
    row(1, model, "dice", dice, split="union", case=case, label="disc")
    for model, cases in ON_OTHERS.items()
    for case, dice in cases.items()
]
FOR_ALL = {"A": {"SRV_global": {"dice": 0.625}}, "B": {"SRV_global": {"dice": 0.5}}}
OF_EACH = {"A": {"A": {"dice": 0.625}, "B": {"dice": 0.5}}, "B": {"A": {"dice": 0.25}, "B": {"dice": 0.5}}}
ALONE = OF_EACH | {"B": {"B": {"dice": 0.5}}}  # who goes on alone tests its own


def compare(run, matrix):
    (run / CROSS_SITE).parent.mkdir(exist_ok=True)
    (run / CROSS_SITE).write_text(json.dumps(matrix))
    compare_matrix(read_tables(run), run)


@pytest.mark.parametrize(("matrix", "more"), [(FOR_ALL, []), (OF_EACH, UNION), (ALONE, UNION)])
def test_means_are_those_of_the_tests(written, matrix, more):
    compare(written([*TESTS, *more]), matrix)


def test_a_run_may_have_none(written):
    compare_matrix(read_tables(written(TESTS)), written([]))


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        (FOR_ALL | {"B": {"SRV_global": {"dice": 0.9}}}, "Dice of SRV_global at B is 0.9, .*results.csv gives 0.5"),
        (OF_EACH | {"B": OF_EACH["B"] | {"A": {"dice": 0.9}}}, "Dice of A at B is 0.9, .*results.csv gives 0.25"),
        (OF_EACH | {"B": OF_EACH["B"] | {"Z": {"dice": 0.9}}}, "Dice of Z at B is 0.9, .*results.csv gives nan"),
        ({"A": FOR_ALL["A"]}, "B is in it, or in the tests of .*results.csv, and not in both"),
        (FOR_ALL | {"Z": FOR_ALL["A"]}, "Z is in it, or in the tests of .*results.csv, and not in both"),
        (["A"], "no matrix of Dice by site and model"),
        ({"A": 0.5, "B": 0.5}, "no matrix of Dice by site and model"),
        ({"A": {"A": 0.5}, "B": {"B": {}}}, "no matrix of Dice by site and model"),
        ({"A": {"A": {"dice": "0.5"}}, "B": {}}, "no matrix of Dice by site and model"),
    ],
)
def test_another_matrix_is_named(written, matrix, words):
    with pytest.raises(BadInput, match=rf"cross_val_results\.json: {words}; take the file from whom it was sent"):
        compare(written([*TESTS, *UNION]), matrix)


def test_of_several_labels_the_mean_over_them_is_a_cases(written):
    """Labels .75 and .5 of case 0, .5 alone of case 1: (.625 + .5) / 2; as if labels counted alike it were .583."""
    counts = {"dice": 0.5, "true_positives": 1, "false_positives": 1, "false_negatives": 1}
    labels = [row(1, "A", name, value, split="testing", case="0", label="cup") for name, value in counts.items()]
    compare(written([*TESTS, *labels]), FOR_ALL | {"A": {"SRV_global": {"dice": 0.5625}}})
    assert CASES["1"][-1] == 0.5
