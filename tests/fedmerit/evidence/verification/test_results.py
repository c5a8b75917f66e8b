"""results.csv against the ledger, and rows that no run writes."""

import csv
import json
from itertools import product
from pathlib import Path

import pytest
from ledger_records import round_records
from result_rows import CASES, measured, row

from fedmerit.errors import BadInput
from fedmerit.evidence.verification.chains import RunFiles
from fedmerit.evidence.verification.results import (
    compare_with_ledger,
    read_overlaps,
    read_table,
    require_no_added_rows,
    require_same_run,
)
from fedmerit.schema.results import ROUND_SPLITS, ResultsFile, Row, read_results, rows_digest
from fedmerit.schema.scores import Overlap

RECORDS = [
    {"round": 0, "weights": {"A": 0.25, "B": 0.75}, "contributions": {"A": None}, "validation_dice": {"A": 0.625}},
    {"round": 1, "weights": {"A": 1.0}},
]
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


def compare(run, records):
    """Compare a table with records, whose digests of rows are the table's if they name none."""
    table = read_table(run)
    with table.path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["split"] in ROUND_SPLITS]
    digests = [rows_digest(row for row in rows if int(row["round"]) == record["round"]) for record in records]
    contents = [{"rows": digest} | record for record, digest in zip(records, digests, strict=True)]
    compare_with_ledger(RunFiles(run, round_records(contents)), table)


@pytest.mark.parametrize(
    ("rows", "records", "words"),
    [
        ([row(0, "A", "weight", 0.26), *ROWS[1:]], RECORDS, "weight of A in round 0 is 0.26, the ledger has 0.25"),
        (ROWS[1:], RECORDS, "weight of A in round 0 is None, the ledger has 0.25"),
        (
            [*(one for one in ROWS if one.quantity != "contribution"), row(0, "A", "contribution", 0.1)],
            RECORDS,
            "contribution of A in round 0 is 0.1, the ledger has None",
        ),
        (ROWS, [RECORDS[0] | {"validation_dice": {"A": 0.6}}], "mean validation dice of A in round 0 is 0.625, the"),
        (ROWS, [RECORDS[0] | {"validation_dice": {"B": 0.6}}], "mean validation dice of B in round 0 is None, the"),
        ([*ROWS, row(0, "C", "weight", 0.1)], RECORDS, "has a weight of C in round 0, which the ledger has not"),
        ([*ROWS, row(3, "A", "weight", 0.1)], RECORDS, "has a weight of A in round 3, which the ledger has not"),
    ],
)
def test_a_table_that_says_something_else_is_found(written, rows, records, words):
    run = written(rows)
    with pytest.raises(BadInput) as found:
        compare(run, records)
    assert str(found.value).startswith(f"{run / 'results.csv'}: {words}")


def test_counts_are_read_by_round_split_and_site(written):
    union = row(0, "A", "dice", 0.6, split="union", case="0", label="disc")  # of which nobody counts voxels
    empty = {"0": (0, 0, 0, None)}
    rows = [*measured(0, "A", "validation"), *measured(1, "B", "testing", empty), union]
    assert read_overlaps(read_results(written(rows)), Path("results.csv")) == {
        (0, "validation", "A"): [Overlap("0", "disc", 3, 1, 1), Overlap("1", "disc", 1, 0, 2)],
        (1, "testing", "B"): [Overlap("0", "disc", 0, 0, 0)],
    }


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (row(0, "A", "weight", 0.9), "has weight of A in round 0 twice; expected one row of each"),
        (
            row(0, "A", "dice", 0.99, split="validation", case="0", label="disc"),
            "has dice of A in round 0, validation case 0, disc twice",
        ),
        (
            Row("run", "fedavg", 0, 0, "C", "weight", 0.0),
            "holds rows of method fedavg and fedce, expected those of one",
        ),
        (Row("run", "fedce", 1, 0, "C", "weight", 0.0), "holds rows of seed 0 and 1, expected those of one run"),
    ],
)
def test_what_stands_there_twice_or_is_of_another_run_is_named(written, more, words):
    run = written([*ROWS, more])
    with pytest.raises(BadInput) as found:
        read_table(run)
    assert str(found.value).startswith(f"{run / 'results.csv'}: {words}")


@pytest.mark.parametrize("split", ["validation", "testing", "testing_best"])
@pytest.mark.parametrize("gone", ["dice", "true_positives", "false_negatives"])
def test_dice_without_its_voxels_is_named(written, split, gone):
    rows = [row for row in measured(1, "A", split) if row.quantity != gone]
    with pytest.raises(BadInput, match=rf"A in round 1, {split} case 0, disc: lacks {gone}; expected dice and the vox"):
        read_overlaps(read_results(written(rows)), Path("results.csv"))


@pytest.mark.parametrize("case", [(3, 1, 1, 0.76), (3, 1, 1, None), (0, 0, 0, 1.0)])
def test_dice_that_is_not_of_its_voxels_is_named(written, case):
    results = read_results(written(measured(0, "A", "validation", {"0": case})))
    with pytest.raises(
        BadInput, match=r"results\.csv: dice of A in round 0, validation case 0, disc, is .*; its voxels"
    ):
        read_overlaps(results, Path("results.csv"))


# What else a record has

GUARDED = {
    "round": 0,
    "participants": ["A", "B"],
    "rejected": {"C": "asleep", "(a stranger)": "not asked"},
    "flagged": ["B"],
    "updates": {"A": "u", "B": "u"},
    "weights": {"A": 0.5, "B": 0.5},
    "guard": {
        "bounds": {"clipped": {"A": 0.123457}, "counted_images": {"B": 7.0}},
        "evidence": {"B": 9.25},
        "verdicts": ["B"],
        "enrolled": {"A": {"cases": {"validation": 2, "testing": 1}, "slices": {"training": 9}}},
    },
}
SEEN = {
    "A": {"clipped": 0.1234567, "evidence": 0, "verdict": 0, "flagged": 0, "num_samples": 9, "counted_images": 9},
    "B": {"clipped": 1, "evidence": 9.25, "verdict": 1, "flagged": 1, "num_samples": 8, "counted_images": 7},
}


def guarded(change=None, record=GUARDED):
    """Rows of `GUARDED`, and it; ``change`` by site and quantity, None: gone."""
    whole = {(site, name): value for site, those in SEEN.items() for name, value in those.items()}
    whole |= {(site, name): value for site in SEEN for name, value in {"weight": 0.5, "repeated": 1}.items()}
    whole |= {("C", "rejected"): 1, ("C", "weight"): 0} | (change or {})
    rows = [row(0, site, name, value) for (site, name), value in whole.items() if value is not None]
    return [*rows, *measured(0, "A", "validation")], [record | {"validation_dice": {"A": 0.625}}]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({("B", "verdict"): 0}, "verdict of B in round 0 is 0.0, the ledger has 1.0"),
        ({("A", "verdict"): 1}, "verdict of A in round 0 is 1.0, the ledger has 0.0"),
        ({("B", "evidence"): 1}, "evidence of B in round 0 is 1.0, the ledger has 9.25"),
        ({("A", "clipped"): 0.2}, "clipped of A in round 0 is 0.2, the ledger has 0.123457"),
        ({("B", "clipped"): 0.5}, "clipped of B in round 0 is 0.5, the ledger has None"),
        ({("B", "reward_group_share"): 0.5}, "reward_group_share of B in round 0 is 0.5, the ledger has None"),
        ({("B", "counted_images"): 8}, "counted_images of B in round 0 is 8.0, the ledger has 7.0"),
        ({("B", "flagged"): 0}, "flagged of B in round 0 is 0.0, the ledger has 1.0"),
        ({("A", "flagged"): 1}, "flagged of A in round 0 is 1.0, the ledger has 0.0"),
        ({("B", "repeated"): 0}, "repeated of B in round 0 is 0.0, the ledger has 1.0"),
        ({("A", "num_samples"): 90}, "num_samples of A in round 0 is 90.0, the ledger has 9"),
        ({("C", "rejected"): None}, "rejected of C in round 0 is None, the ledger has 1.0"),
        ({("B", "rejected"): 1}, "rejected of B in round 0 is 1.0, the ledger has None"),
    ],
)
def test_what_a_table_says_of_a_site_otherwise_than_its_record_is_found(written, change, words):
    rows, records = guarded(change)
    run = written(rows)
    with pytest.raises(BadInput) as found:
        compare(run, records)
    assert str(found.value) == f"{run / 'results.csv'}: {words}"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (measured(0, "B", "validation"), "has a mean validation dice of B in round 0, which the ledger has not"),
        ([row(0, "C", "contribution", 0.5)], "has a contribution of C in round 0, which the ledger has not"),
        (measured(0, "A", "testing"), "has 2 testing cases of A in round 0; it enrolled 1, as the ledger has it"),
    ],
)
def test_what_is_put_in_is_found(written, more, words):
    rows, records = guarded()
    with pytest.raises(BadInput, match=words):
        compare(written([*rows, *more]), [records[0] | {"contributions": {}}])


def test_rows_of_a_round_are_those_that_the_ledger_has_a_digest_of(written):
    rows = [*guarded()[0], row(0, "A", "norm", 0.25), row(0, "A", "agreement", 0.5, coalition="B")]
    records = [guarded()[1][0] | {"rows": rows_digest(map(vars, rows))}]
    later = [*measured(0, "A", "testing", {"0": CASES["0"]}), *measured(1, "A", "validation")]  # once rounds are over
    machines = [row(0, "A", "seconds", 3.0)]
    path = written([*rows, *later, *machines]) / "results.csv"
    compare(path.parent, records)
    whole = path.read_text()
    for one, other in (("norm,0.25", "norm,0.26"), ("A,B,,,,,agreement,0.5\n", "A,B,,,,,agreement,0.6\n")):
        assert one in whole
        path.write_text(whole.replace(one, other))
        with pytest.raises(BadInput, match="rows of round 0 are not those that the ledger has a digest of"):
            compare(path.parent, records)


SITES = ["A", "B", "C"]
TWO_ROUNDS = round_records(
    [
        {"round": 0, "participants": ["A", "B"], "rejected": {"Z": "not a site that was asked"}},
        {"round": 1, "participants": ["A", "B"], "rejected": {"C": "late"}},
    ]
)
COUNTED = {"dice": 0.75, "true_positives": 3, "false_positives": 1, "false_negatives": 1}


def a_row(round, site, quantity, value=0.5, **columns):
    return Row("run", "fedce", 0, round, site, quantity, value, **columns)


def all_measured(round, split, site="A", **more):
    quantities = COUNTED | {"hd95": 2.0, "nsd": 0.5}
    return [
        a_row(round, site, name, value, split=split, case="0", label="disc", **more)
        for name, value in quantities.items()
    ]


FINISHED = [split + name for split, name in product(("validation_", "testing_"), ("given", "local_only", "selected"))]
ALL_ROWS = [
    *(a_row(round, site, name) for round in (0, 1) for site in "AB" for name in ("weight", "reputation")),
    a_row(1, "A", "agreement", coalition="B"), a_row(1, "C", "rejected", 1), *all_measured(0, "validation"),
    *all_measured(1, "validation_trained"), *all_measured(2, "validation"), *all_measured(1, "testing"),
    *(a_row(1, "A", name, split="union", case="A/0", label="disc") for name in ("dice", "hd95_px", "nsd_px")),
    a_row(1, "A", "bytes_received", 9, split="testing"), a_row(1, "C", "rejected", 1, split="testing"),
    *all_measured(0, "testing_best"), *(one for split in FINISHED for one in all_measured(1, split)),
    a_row(1, "A", "final_model_choice", 2, split="testing_selected")
]  # fmt: skip


@pytest.fixture
def table(tmp_path):
    def read(*rows):
        ResultsFile(tmp_path / "results.csv").append(rows)
        return read_table(tmp_path)

    return read


def test_all_that_a_run_writes_may_stand_there(table):
    require_no_added_rows(RunFiles(Path(), TWO_ROUNDS, sites=SITES), table(*ALL_ROWS))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        *(([a_row(2, "A", name, 1)], f"{name} of A in round 2, which") for name in ("weight", "verdict", "rejected")),
        ([a_row(2, "A", "weight", split="validation")], "weight of A in round 2, validation, which"),
        ([a_row(-1, "A", "weight")], "weight of A in round -1, which"),
        ([a_row(2, "A", "agreement", coalition="B")], "agreement of A in round 2, which"),
        (all_measured(3, "validation"), "dice of A in round 3, validation, which"),
        (all_measured(2, "validation_trained"), "dice of A in round 2, validation_trained, which"),
        (all_measured(0, "testing"), "dice of A in round 0, testing, which"),
        (all_measured(1, "testing", coalition="A+B"), "dice of A in round 1, testing, which"),
        (all_measured(1, "testing_best"), "dice of A in round 1, testing_best, which"),  # it is of round 0
        (all_measured(1, "testing_other"), "dice of A in round 1, testing_other, which"),
        ([a_row(0, "A", "dice", split="union", case="A/0", label="disc")], "dice of A in round 0, union, which"),
        (all_measured(1, "testing", site="Z"), "dice of Z in round 1, testing; the run has no such site"),
        ([a_row(0, "Z", "reputation")], "reputation of Z in round 0; the run has no such site"),
    ],
)
def test_what_no_run_writes_is_named(table, more, words):
    one = table(*ALL_ROWS, *more)
    with pytest.raises(BadInput) as found:
        require_no_added_rows(RunFiles(Path(), TWO_ROUNDS, sites=SITES), one)
    assert str(found.value).startswith(f"{one.path}: has {words}")


def test_method_and_seed_are_those_of_the_run(table, tmp_path):
    one, files = table(*ALL_ROWS), RunFiles(tmp_path)
    require_same_run(files, one.path, one.rows)  # nobody says which
    for said, words in (
        ({"method": "fedce", "seed": 0}, None),
        ({"seed": 0}, None),
        ({"method": "fedavg", "seed": 0}, "is of method fedce, .*run.json of fedavg"),
        ({"method": "fedce", "seed": 7}, "is of seed 0, .*run.json of 7"),
    ):
        (tmp_path / "run.json").write_text(json.dumps(said))
        if words is None:
            require_same_run(files, one.path, one.rows)
        else:
            with pytest.raises(BadInput, match=rf"results\.csv: {words}"):
                require_same_run(files, one.path, one.rows)
