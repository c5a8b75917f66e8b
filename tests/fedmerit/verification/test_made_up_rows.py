"""Rows beside those of a run of two rounds of A, B and C, of whom no record has more of C than that it was rejected."""

import json
from itertools import product

import pytest

from fedmerit.errors import BadInput
from fedmerit.records.results import ResultsFile, Row
from fedmerit.verification.results import read_tables, require_no_added_rows, require_same_run

SITES = ["A", "B", "C"]
RECORDS = [
    {"round": 0, "participants": ["A", "B"], "rejected": {"Z": "not a site that was asked"}},
    {"round": 1, "participants": ["A", "B"], "rejected": {"C": "late"}},
]
COUNTED = {"dice": 0.75, "true_positives": 3, "false_positives": 1, "false_negatives": 1}


def row(round, site, quantity, value=0.5, **columns):
    return Row("run", "fedce", 0, round, site, quantity, value, **columns)


def measured(round, split, site="A", **more):
    quantities = COUNTED | {"hd95": 2.0, "nsd": 0.5}
    return [
        row(round, site, name, value, split=split, case="0", label="disc", **more) for name, value in quantities.items()
    ]


FINISHED = [split + name for split, name in product(("validation_", "testing_"), ("given", "local_only", "selected"))]
ROWS = [
    *(row(round, site, name) for round in (0, 1) for site in "AB" for name in ("weight", "reputation")),
    row(1, "A", "agreement", coalition="B"),
    row(1, "C", "rejected", 1),
    *measured(0, "validation"),
    *measured(1, "validation_trained"),
    *measured(2, "validation"),
    *measured(1, "testing"),
    *(row(1, "A", name, split="union", case="A/0", label="disc") for name in ("dice", "hd95_px", "nsd_px")),
    row(1, "A", "bytes_received", 9, split="testing"),
    row(1, "C", "rejected", 1, split="testing"),
    *measured(0, "testing_best"),
    *(one for split in FINISHED for one in measured(1, split)),
    row(1, "A", "final_model_choice", 2, split="testing_selected"),
]


@pytest.fixture
def table(tmp_path):
    def read(*rows):
        ResultsFile(tmp_path / "results.csv").append(rows)
        return read_tables(tmp_path)

    return read


def test_all_that_a_run_writes_may_stand_there(table):
    require_no_added_rows(table(*ROWS), RECORDS, SITES)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        *(([row(2, "A", name)], f"{name} of A in round 2, which") for name in ("weight", "contribution", "reputation")),
        *(([row(2, "A", name, 1)], f"{name} of A in round 2, which") for name in ("verdict", "flagged", "rejected")),
        ([row(2, "A", "weight", split="validation")], "weight of A in round 2, validation, which"),
        ([row(-1, "A", "weight")], "weight of A in round -1, which"),
        ([row(2, "A", "agreement", coalition="B")], "agreement of A in round 2, which"),
        (measured(3, "validation"), "dice of A in round 3, validation, which"),
        (measured(2, "validation_trained"), "dice of A in round 2, validation_trained, which"),
        (measured(2, "testing"), "dice of A in round 2, testing, which"),
        (measured(0, "testing"), "dice of A in round 0, testing, which"),
        (measured(1, "testing", coalition="A+B"), "dice of A in round 1, testing, which"),
        (measured(1, "testing_best"), "dice of A in round 1, testing_best, which"),  # it is of round 0
        (measured(0, "testing_given"), "dice of A in round 0, testing_given, which"),
        (measured(1, "testing_other"), "dice of A in round 1, testing_other, which"),
        ([row(0, "A", "dice", split="union", case="A/0", label="disc")], "dice of A in round 0, union, which"),
        (measured(1, "testing", site="Z"), "dice of Z in round 1, testing; the run has no such site"),
        ([row(0, "Z", "reputation")], "reputation of Z in round 0; the run has no such site"),
    ],
)
def test_what_no_run_writes_is_named(table, more, words):
    one = table(*ROWS, *more)
    with pytest.raises(BadInput) as found:
        require_no_added_rows(one, RECORDS, SITES)
    assert str(found.value).startswith(f"{one.path}: has {words}")


@pytest.mark.parametrize("round", [2, -1])
def test_the_best_round_is_one_of_the_run(table, round):
    one = table(*measured(round, "testing_best"))
    with pytest.raises(
        BadInput, match=f"has dice of A in round {round}, testing_best, which no run of 2 rounds writes"
    ):
        require_no_added_rows(one, RECORDS, SITES)


def test_method_and_seed_are_those_of_the_run(table, tmp_path):
    one = table(*ROWS)
    require_same_run(one, tmp_path)  # nobody says which
    for said, words in (
        ({"method": "fedce", "seed": 0}, None),
        ({"seed": 0}, None),
        ({"method": "fedavg", "seed": 0}, "is of method fedce, .*run.json of fedavg"),
        ({"method": "fedce", "seed": 7}, "is of seed 0, .*run.json of 7"),
    ):
        (tmp_path / "run.json").write_text(json.dumps(said))
        if words is None:
            require_same_run(one, tmp_path)
        else:
            with pytest.raises(BadInput, match=rf"results\.csv: {words}"):
                require_same_run(one, tmp_path)
