"""run.json and model.json that say something else than what was run."""

import json
import shutil

import pytest
from ledger_records import sentences
from signed_runs import closed_again, lines_of, log_of, rewritten, untold

from fedmerit.errors import BadInput
from fedmerit.evidence.ledger import GENESIS
from fedmerit.evidence.verification.run import verify_run
from fedmerit.files import record_hash


@pytest.fixture
def run(trained, tmp_path):
    """A copy of a run that its sites did not hear the end of."""
    run = shutil.copytree(trained(), tmp_path / "run")
    untold(run)
    return run


def edited(file, *path, value):
    content = json.loads(file.read_text())
    place = content
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    file.write_text(json.dumps(content))
    return content


@pytest.mark.parametrize(
    ("file", "path", "value", "words"),
    [
        ("run.json", ("plan", "seed"), 7, "its plan is not that which .*ledger.jsonl, line 1, names"),
        ("run.json", ("method",), "krum", "method is not what the run's plan has"),
        ("run.json", ("training", "lr"), 0.5, "training is not what the run's plan has"),
        ("run.json", ("fold",), 1, "fold is not what the run's plan has"),
        ("run.json", ("image_size",), [512, 512], "image_size is not what the run's plan has"),
        ("run.json", ("labels",), ["cup"], "labels is not what the run's plan has"),
        ("run.json", ("estimates",), False, "estimates is not what the run's plan has"),
        ("run.json", ("undefined",), ["contribution"], "undefined is not what the run's plan has"),
        ("models/model.json", ("labels",), ["cup"], "labels is not what the run's plan has"),
    ],
)
def test_server_that_edits_what_was_run_and_closes_again_contradicts_its_ledger(run, file, path, value, words):
    edited(run / file, *path, value=value)
    closed_again(run)
    with pytest.raises(BadInput, match=f"{file}: {words}"):
        verify_run(run)


def test_server_that_writes_its_ledger_to_fit_contradicts_the_sites(run):
    plan = edited(run / "run.json", "plan", "seed", value=7)["plan"]
    edited(run / "run.json", "seed", value=7)
    results = run / "results.csv"
    results.write_text(results.read_text().replace(",fedce,0,", ",fedce,7,"))
    rewritten(run / "ledger.jsonl", lambda lines: lines[0].update(plan=record_hash(plan)))
    heads = [GENESIS, *(record["hash"] for record in lines_of(run / "ledger.jsonl"))]
    rewritten(log_of(run), lambda lines: [one.update(ledger=heads[one["round"]]) for one in lines])
    closed_again(run)
    verify_run(run)
    with pytest.raises(
        BadInput, match=r"site_log\.jsonl, line 1: site2 trained by another plan than .*run\.json holds"
    ):
        verify_run(run, [log_of(run)])


def test_a_run_json_without_a_plan_is_missed_where_the_ledger_names_one(run):
    (run / "run.json").rename(run / "kept")
    closed_again(run)
    with pytest.raises(BadInput, match=r"run\.json: file not found; .*ledger\.jsonl, line 1, names its plan"):
        verify_run(run)
    content = json.loads((run / "kept").read_text())
    del content["plan"]
    (run / "run.json").write_text(json.dumps(content))
    closed_again(run)
    with pytest.raises(BadInput, match=r"run\.json: lacks plan; expected what"):
        verify_run(run)


def test_a_plan_that_changes_on_the_way_is_reported(run):
    rewritten(log_of(run), lambda lines: lines[1].update(plan="ab" * 32))
    closed_again(run)
    reported = " ".join(sentences(verify_run(run, [log_of(run)])))
    assert f"to the end: {log_of(run)}, line 2, names another" in reported


@pytest.mark.parametrize("content", ["[]", '{"preprocessing": {}}'])
def test_a_model_json_of_something_else_is_found(run, content):
    file = run / "models/model.json"
    given = json.loads(content)
    file.write_text(content if isinstance(given, list) else json.dumps(json.loads(file.read_text()) | {"more": 1}))
    closed_again(run)
    with pytest.raises(BadInput, match=r"model\.json: holds (something else than the run's plan|no JSON object)"):
        verify_run(run)


def test_what_says_nothing_of_a_plan_is_named(run):
    rewritten(log_of(run), lambda lines: [one.pop("plan", None) for one in lines])
    closed_again(run)
    reported = sentences(verify_run(run, [log_of(run)]))
    assert f"that site2 trained by the plan in {run / 'run.json'}: their logs name none" in reported
