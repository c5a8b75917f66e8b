"""Measurements in results.csv: against sites' logs, and against the matrix of cross-site tests."""

import hashlib
import json
from contextlib import nullcontext
from pathlib import Path

import pytest
from ledger_records import round_record, round_records
from result_rows import CASES, measured, row

from fedmerit.errors import BadInput
from fedmerit.evidence.closing_record import CROSS_SITE
from fedmerit.evidence.verification.chains import RunFiles
from fedmerit.evidence.verification.results import compare_matrix, compare_with_log, read_table


def answers(run, log, taken):
    records = [round_record(round=round, of=2, participants=[log.site] * (round in taken)) for round in (0, 1)]
    compared, questions = compare_with_log(RunFiles(run, records, sites=["A", "B"]), read_table(run), log)
    return compared, list(map(str, questions))


def digest(cases):
    """As a site's log has it: case, label and counts, in order."""
    counts = sorted([case, "disc", "", tp, fp, fn] for case, (tp, fp, fn, _) in cases.items())
    return hashlib.sha256(json.dumps(counts).encode()).hexdigest()


def answered(round, work, *said, **more):
    return {"work": work, "round": round, "overlaps": list(said), **more}


FINAL = {"0": (2, 0, 0, 1.0)}
OWN = [  # of a run of two rounds; in round 2 come the validation and the test of what the run ended with
    answered(0, "train", digest(CASES)),
    answered(1, "train", digest(FINAL)),
    answered(2, "evaluate", "of another model", digest(FINAL), split="validation"),
    answered(2, "evaluate", digest(CASES), split="testing"),
    {"work": "gave", "round": 1},
]
OF_ROUNDS = [
    *measured(0, "A", "validation"),
    *measured(1, "A", "validation", FINAL),
    *measured(2, "A", "validation", FINAL),
    *measured(1, "A", "testing"),  # results.csv has the final test in the last round
]


def test_what_a_site_refused_is_not_asked_after_where_all_that_it_answered_is_there(written, own_log):
    others = [row for split in ("validation_given", "testing_given") for row in measured(1, "B", split)]
    refused = {"work": "refused", "round": 2, "reason": "asked to evaluate more models"}
    run = written([*OF_ROUNDS, *others])
    own = [
        entry if "of another model" not in str(entry) else answered(2, "evaluate", digest(FINAL), split="validation")
        for entry in OWN
    ]
    assert answers(run, own_log("A", *own, refused), [0, 1]) == (4, [])
    further = answered(2, "evaluate", "of a model that it chose among", split="testing")
    reported = "why testing_given measurements of A in round 1 are not in results.csv: by its log it answered"
    assert answers(run, own_log("A", *own, further), [0, 1]) == (4, [reported])


def test_a_sites_own_measurements_are_counted(written, own_log):
    run = written(OF_ROUNDS)
    assert answers(run, own_log("A", *OWN), [0, 1]) == (4, [])
    assert answers(run, own_log("A", *OWN), [1]) == (3, [])
    assert answers(run, own_log("B", *OWN), []) == (
        0,
        [f"why {what} of B in round {round} are not in results.csv: by its log it answered" for what, round in FINALLY],
    )


FINALLY = (("validation measurements", 2), ("testing measurements", 1))


def test_what_one_is_silent_on_is_reported(written, own_log):
    run = written(OF_ROUNDS)
    silent = [f"that {what} of A in round {round} are its own: its log has none" for what, round in FINALLY]
    assert answers(run, own_log("A", *OWN[:2]), [0, 1]) == (2, silent)


def test_measurements_of_a_round_that_are_left_out_are_found(written, own_log):
    run = written([row for row in OF_ROUNDS if row.round])
    with pytest.raises(
        BadInput, match=r"results\.csv: lacks validation measurements of A in round 0; A\.jsonl has what"
    ):
        answers(run, own_log("A", *OWN), [0, 1])


@pytest.mark.parametrize(
    ("place", "reported", "words"),
    [
        (0, answered(0, "train", digest(FINAL)), "validation measurements of A in round 0"),
        (3, answered(2, "evaluate", digest(FINAL), split="testing"), "testing measurements of A in round 1"),
    ],
)
def test_measurements_that_the_site_did_not_answer_are_found(written, own_log, place, reported, words):
    entries = [reported if number == place else entry for number, entry in enumerate(OWN)]
    with pytest.raises(BadInput, match=rf"results\.csv: {words} are not what it answered, by A\.jsonl"):
        answers(written(OF_ROUNDS), own_log("A", *entries), [0, 1])


def test_images_are_as_many_as_the_site_said(written, own_log):
    """A server that has a hospital count for more, or for less, than it said."""
    run = written(
        [*OF_ROUNDS, row(0, "A", "num_samples", 9), row(1, "A", "num_samples", 90), row(1, "B", "num_samples", 5)]
    )
    reported = [entry | {"images": 9} if entry["work"] == "train" else entry for entry in OWN]
    with pytest.raises(BadInput, match=r"results\.csv: num_samples of A in round 1 is 90, A\.jsonl has 9"):
        answers(run, own_log("A", *reported), [0, 1])
    assert answers(run, own_log("A", *reported), [0])[0] == 3  # of a round in which it had no part nothing is reported


@pytest.mark.parametrize(("epsilon", "is_found"), [(1.0, True), (3.501, False)])  # a gate may round it
def test_spent_epsilon_is_what_the_site_accounted_for(epsilon, is_found, written, own_log):
    privacy = {"noise": 1.0, "rate": 0.5, "steps": 4, "delta": 0.001, "epsilon": 3.5}
    logged = [entry | {"privacy": privacy} if entry["work"] == "train" else entry for entry in OWN]
    logged = [{name: value for name, value in entry.items() if name != "images"} for entry in logged]
    words = r"results\.csv: epsilon of A in round 0 is 1, A\.jsonl has 3\.5"
    with pytest.raises(BadInput, match=words) if is_found else nullcontext():
        answers(written([*OF_ROUNDS, row(0, "A", "epsilon", epsilon)]), own_log("A", *logged), [0])


def of_tests(received, *cases):
    return answered(2, "evaluate", *map(digest, cases), split="testing", received=received)


BY_NOW = round_records(
    [
        {"round": 0, "of": 2, "began": {"A": "initial"}, "model": "first"},
        {"round": 1, "of": 2, "began": {"A": "of A"}, "model": "last"},
    ]
)
ONE = [of_tests("last", CASES), of_tests("of A", FINAL)]  # of one model for all, and of the best round's
OF_EACH = [of_tests("last", CASES, FINAL), of_tests("first", FINAL, CASES)]  # of models of A and B, likewise
FINISHING = of_tests("last", CASES, FINAL, FINAL)  # and what it makes of it


@pytest.mark.parametrize(
    ("site", "log", "split", "right", "wrong"),
    [
        ("A", ONE, "testing", CASES, FINAL),
        ("B", ONE, "testing", CASES, FINAL),
        ("A", ONE, "testing_best", FINAL, CASES),
        ("A", [*ONE, FINISHING], "testing", CASES, FINAL),
        ("A", OF_EACH, "testing", CASES, FINAL),
        ("B", OF_EACH, "testing", FINAL, CASES),
        ("A", OF_EACH, "testing_best", FINAL, CASES),
        ("B", OF_EACH, "testing_best", CASES, FINAL),
    ],
)
def test_measurements_of_another_model_that_the_site_tested_are_found(written, own_log, site, log, split, right, wrong):
    own, files = own_log(site, *log), RunFiles(Path(), BY_NOW, sites=["A", "B"])
    run = written(measured(1, site, split, right))
    assert compare_with_log(files, read_table(run), own)[0] == 1
    (run / "results.csv").unlink()
    table = read_table(written(measured(1, site, split, wrong)))
    with pytest.raises(BadInput, match=rf"{split} measurements of {site} in round 1 are not what it answered"):
        compare_with_log(files, table, own)


@pytest.mark.parametrize(
    ("records", "log", "sites"),
    [
        (BY_NOW[:1], ONE, ["A", "B"]),  # the last record is not there
        ([record.model_copy(update={"model": "unseen"}) for record in BY_NOW], ONE, ["A", "B"]),
        (BY_NOW, OF_EACH, ["A", "B", "C"]),
        (BY_NOW, OF_EACH, ["B", "C"]),
        (BY_NOW, [*OF_EACH, FINISHING], ["A", "B"]),  # which of the two is the test
    ],
)
def test_where_no_digest_tells_the_models_apart_it_is_any_that_the_site_tested(written, own_log, records, log, sites):
    for cases in (CASES, FINAL):
        table = read_table(written(measured(1, "A", "testing", cases)))
        assert compare_with_log(RunFiles(Path(), records, sites=sites), table, own_log("A", *log))[0] == 1
        table.path.unlink()


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
SINGLE = OF_EACH | {"B": {"B": {"dice": 0.5}}}  # who continues locally tests its own


def compare(run, matrix):
    (run / CROSS_SITE).parent.mkdir(exist_ok=True)
    (run / CROSS_SITE).write_text(json.dumps(matrix))
    compare_matrix(RunFiles(run), read_table(run))


@pytest.mark.parametrize(("matrix", "more"), [(FOR_ALL, []), (OF_EACH, UNION), (SINGLE, UNION)])
def test_means_are_those_of_the_tests(written, matrix, more):
    compare(written([*TESTS, *more]), matrix)


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
    with pytest.raises(BadInput, match=rf"cross_val_results\.json: {words}; take the file from somebody who got it"):
        compare(written([*TESTS, *UNION]), matrix)
