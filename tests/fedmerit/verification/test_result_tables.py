"""results.csv beside a ledger and a site's log: weights, contributions, Dice and counts have to be theirs.

Of site A in round 0, TP 3, FP 1, FN 1 on case 0 make a Dice of 2*3 / (2*3 + 1 + 1) = 0.75, and TP 1, FP 0, FN 2 on
case 1 one of 2/4 = 0.5: the mean is 0.625.
"""

import hashlib
import json
from pathlib import Path

import pytest

from fedmerit.errors import BadInput
from fedmerit.records.results import ResultsFile, Row, read_results
from fedmerit.training.overlaps import Overlap
from fedmerit.verification.result_tables import compare_answers, compare_tables, overlaps_of

CASES = {"0": (3, 1, 1, 0.75), "1": (1, 0, 2, 0.5)}
RECORDS = [
    {"round": 0, "weights": {"A": 0.25, "B": 0.75}, "contributions": {"A": None}, "validation_dice": {"A": 0.625}},
    {"round": 1, "weights": {"A": 1.0}},
]


def row(round, site, quantity, value, **columns):
    return Row("run", "fedce", 0, round, site, quantity, value, **columns)


def measured(round, site, split, cases=CASES):
    for case, (tp, fp, fn, dice) in cases.items():
        counts = {"true_positives": tp, "false_positives": fp, "false_negatives": fn}
        for quantity, value in ({"dice": dice} | counts).items():
            yield row(round, site, quantity, value, split=split, case=case, label="disc")


ROWS = [
    row(0, "A", "weight", 0.25),
    row(0, "B", "weight", 0.75),
    row(0, "A", "contribution", None),
    row(0, "B", "weight", 0.5, coalition="A"),  # of another run within the run: nobody's
    *measured(0, "A", "validation"),
    row(1, "A", "weight", 1.0),
    row(1, "B", "weight", 0.0),
    row(2, "B", "weight", 0.5),  # of a round that a crash cut short
]


@pytest.fixture
def written(tmp_path):
    def write(rows):
        ResultsFile(tmp_path / "results.csv").append(rows)
        return tmp_path

    return write


def test_tables_that_agree(written):
    compare_tables(written(ROWS), RECORDS)


@pytest.mark.parametrize(
    ("rows", "records", "words"),
    [
        ([row(0, "A", "weight", 0.26), *ROWS[1:]], RECORDS, "weight of A in round 0 is 0.26, the ledger has 0.25"),
        (ROWS[1:], RECORDS, "weight of A in round 0 is None, the ledger has 0.25"),
        (
            [*ROWS, row(0, "A", "contribution", 0.1)],
            RECORDS,
            "contribution of A in round 0 is 0.1, the ledger has None",
        ),
        (ROWS, [RECORDS[0] | {"validation_dice": {"A": 0.6}}], "mean validation dice of A in round 0 is 0.625, the"),
        (ROWS, [RECORDS[0] | {"validation_dice": {"B": 0.6}}], "mean validation dice of B in round 0 is 0.0, the"),
        ([*ROWS, row(0, "C", "weight", 0.1)], RECORDS, "has a weight of C in round 0, which the ledger has not"),
        ([*ROWS, row(3, "A", "weight", 0.1)], RECORDS, "has a weight of A in round 3, which the ledger has not"),
    ],
)
def test_a_table_that_says_something_else_is_found(written, rows, records, words):
    run = written(rows)
    with pytest.raises(BadInput) as found:
        compare_tables(run, records)
    assert str(found.value).startswith(f"{run / 'results.csv'}: {words}")


def test_counts_are_read_by_round_split_and_site(written):
    union = row(0, "A", "dice", 0.6, split="union", case="0", label="disc")  # of which nobody counts voxels
    empty = {"0": (0, 0, 0, None)}
    rows = [*measured(0, "A", "validation"), *measured(1, "B", "testing", empty), union]
    assert overlaps_of(read_results(written(rows)), Path("results.csv")) == {
        (0, "validation", "A"): [Overlap("0", "disc", 3, 1, 1), Overlap("1", "disc", 1, 0, 2)],
        (1, "testing", "B"): [Overlap("0", "disc", 0, 0, 0)],
    }


@pytest.mark.parametrize("case", [(3, 1, 1, 0.76), (3, 1, 1, None), (0, 0, 0, 1.0)])
def test_dice_that_is_not_of_its_voxels_is_named(written, case):
    results = read_results(written(measured(0, "A", "validation", {"0": case})))
    with pytest.raises(
        BadInput, match=r"results\.csv: dice of A in round 0, validation case 0, disc, is .*; its voxels"
    ):
        overlaps_of(results, Path("results.csv"))


@pytest.mark.parametrize("count", [1.5, -1, float("inf"), None])
def test_counts_that_are_no_counts_are_named(written, count):
    results = read_results(written(measured(0, "A", "validation", {"0": (3, count, 1, 0.75)})))
    with pytest.raises(
        BadInput, match=r"results\.csv: A in round 0, validation case 0, disc: true_positives 3, false_pos"
    ):
        overlaps_of(results, Path("results.csv"))


def digest(cases):
    """As a site's log has it: case, label and counts, in order."""
    counts = sorted([case, "disc", tp, fp, fn] for case, (tp, fp, fn, _) in cases.items())
    return hashlib.sha256(json.dumps(counts).encode()).hexdigest()


def answered(round, work, *said, **more):
    return {"work": work, "round": round, "overlaps": list(said), **more}


FINAL = {"0": (2, 0, 0, 1.0)}
OWN = [  # of a run of two rounds; in round 2 come the validation and the test of what the run ended with
    answered(0, "train", digest(CASES)),
    answered(1, "train", digest(FINAL)),
    answered(2, "evaluate", "of another model", digest(FINAL), split="validation"),
    answered(2, "evaluate", digest(CASES), split="testing"),
    {"work": "lend", "round": 1},
]
OF_ROUNDS = [
    *measured(0, "A", "validation"),
    *measured(1, "A", "validation", FINAL),
    *measured(2, "A", "validation", FINAL),
    *measured(1, "A", "testing"),  # results.csv has the final test in the last round
]


def test_a_sites_own_measurements_are_counted(written, own_log):
    run = written(OF_ROUNDS)
    assert compare_answers(run, 2, own_log("A", *OWN), taken=[0, 1]) == 4
    assert compare_answers(run, 2, own_log("A", *OWN), taken=[1]) == 3
    assert compare_answers(run, 2, own_log("A", *OWN[:1]), taken=[0, 1]) == 1  # the log is silent on the others
    assert compare_answers(run, 2, own_log("B", *OWN), taken=[0, 1]) == 0


@pytest.mark.parametrize(
    ("place", "told", "words"),
    [
        (0, answered(0, "train", digest(FINAL)), "validation measurements of A in round 0"),
        (3, answered(2, "evaluate", digest(FINAL), split="testing"), "testing measurements of A in round 1"),
    ],
)
def test_measurements_that_the_site_did_not_answer_are_found(written, own_log, place, told, words):
    entries = [told if number == place else entry for number, entry in enumerate(OWN)]
    with pytest.raises(BadInput, match=rf"results\.csv: {words} are not what it answered, by A\.jsonl"):
        compare_answers(written(OF_ROUNDS), 2, own_log("A", *entries), taken=[0, 1])
