"""With kept updates and opened enrolments, nothing rests on the server's word, and its lies are contradicted.

Runs are signed, guarded, and of three hospitals; all their logs are given.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from one_in import one_in
from signed_runs import KIT_SITES, examined, lines_of, log_of

import fedmerit.server.recorder as recorder
import fedmerit.server.run_guard as run_guard
import fedmerit.server.server as server_half
from fedmerit.contract.vectors import gram
from fedmerit.errors import BadInput
from fedmerit.guard.work import Known
from fedmerit.schema.configuration.requirements import UPDATES
from fedmerit.schema.configuration.run import read_plan
from fedmerit.server.observation import read_kept_rounds
from fedmerit.site.enrolment import OPENING
from fedmerit.tensor_files import load_tensors

PAYING = {"keep": True, "norm": "group"}  # a run that pays; statistics of BatchNorm are not shown
RATED = {**PAYING, "share": True, "rate_every": 1}


def faults_of(run, kits, sites=KIT_SITES):
    """By kind, the first contradiction, and whose signature convicts whom."""
    found = examined(run, kits, sites)
    return {fault.kind: found.attribute(fault) for fault in reversed(found.faults)}


def verify(fedmerit, run, kits, *more):
    options = [word for site in KIT_SITES for word in ("--site-log", log_of(run, site))]
    return fedmerit("verify", run, "--certificate", kits / "site1/startup/rootCA.pem", *options, *more)


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("fedavg", {"values": ("multi_round",)}),
        ("fedce", RATED),
        ("innovation", {"aside": True}),
        pytest.param("fedce", {**RATED, "aside": True}, marks=pytest.mark.slow),
        pytest.param("cgsv", {}, marks=pytest.mark.slow),
        pytest.param("shapfed", {}, marks=pytest.mark.slow),
        pytest.param("standalone", {"values": ("local_only",)}, marks=pytest.mark.slow),
    ],
)
def test_honest_run_that_keeps_updates_shows_all(honest, kits, method, more):
    found = examined(honest(method, **{**PAYING, **more}), kits)
    assert found.faults == ()
    assert [str(one) for one in found.unproven if one.kind != "models no sums"] == []


def test_payment_of_a_guarded_run_rests_on_nobodys_word(honest, kits, fedmerit, tmp_path):
    run = Path(shutil.copytree(honest("fedavg", **PAYING, values=("multi_round",)), tmp_path / "run"))
    shown = verify(fedmerit, run, kits)
    assert shown.exit_code == 0, shown.stdout
    assert shown.stdout.splitlines()[-1] == "all is shown"
    paid = fedmerit("value", "payout", run, "--budget", 1000, "--draws", 20)
    assert paid.exit_code == 0
    again = fedmerit("verify", run, "--payout", run / "payout/payout.json")
    assert "recomputed from its runs" in again.stdout


def test_without_its_opening_a_sites_cases_are_the_servers_word(honest, kits, tmp_path):
    run = Path(shutil.copytree(honest("fedce", **RATED), tmp_path / "run"))
    (log_of(run, "site2").parent / OPENING).unlink()
    found = examined(run, kits)
    assert (found.faults, [one.kind for one in found.unproven]) == ((), ["sharing unproven"])


def test_opening_that_is_not_of_the_commitment_opens_nothing(honest, kits, tmp_path):
    run = Path(shutil.copytree(honest("fedce", **RATED), tmp_path / "run"))
    path = log_of(run, "site2").parent / OPENING
    ((fingerprint, opening),) = json.loads(path.read_text()).items()
    path.write_text(json.dumps({fingerprint: {**opening, "cases": [*opening["cases"][:-1], "0" * 32]}}))
    assert [one.kind for one in examined(run, kits).unproven] == ["sharing unproven"]


def test_no_file_of_the_server_has_the_digests_that_a_site_keeps(honest):
    run = honest("fedce", **RATED)
    ((opening,),) = [json.loads((log_of(run, "site2").parent / OPENING).read_text()).values()]
    files = [path for path in run.rglob("*") if path.is_file() and "sites" not in path.relative_to(run).parts]
    for digest in (*opening["cases"], opening["seal"]):
        assert not any(digest.encode() in path.read_bytes() for path in files)


def test_shared_cases_that_the_server_invents_convict_it(made, kits, monkeypatch):
    monkeypatch.setattr(
        run_guard,
        "find_shared_cases",
        lambda cases: [[one != other and {one, other} == {0, 1} for other in range(3)] for one in range(len(cases))],
    )
    monkeypatch.setattr(run_guard, "count_once", lambda cases: [0.5, 0.5, 1.0])
    found = examined(made("fedavg", **PAYING), kits)
    assert {(one.site, one.quantity) for one in found.faults} == {
        (site, quantity) for site in ("site1", "site2") for quantity in ("cases shared", "images")
    }
    assert found.attribute(found.faults[0]) == "the server's signature convicts the server"


def test_scores_that_the_server_invents_convict_it(made, kits, monkeypatch):
    measure = Known.measure
    with monkeypatch.context() as lying:

        def lie(known, *arguments):
            known, scores = measure(known, *arguments)
            scores[0, 1:] = scores[1:, 0] = 1e-3
            return known, scores

        lying.setattr(Known, "measure", lie)
        run = made("fedavg", **PAYING)
    assert faults_of(run, kits)["measured otherwise"] == "the server's signature convicts the server"


@pytest.mark.parametrize("rated", one_in(2, ["recorded", "others"]))
def test_rating_of_other_models_is_word_against_word(made, kits, rated):
    """The server has sites rate the friend's model instead of the model without it; it may keep the right one."""

    def spoil(federation):
        evaluator = federation.evaluator
        tasks = type(evaluator)._tasks

        def make_tasks(candidates, *arguments):
            honest = tasks(evaluator, candidates, *arguments)
            models = candidates.models.clone()
            models[2] += 0.5
            lying = tasks(evaluator, replace(candidates, models=models), *arguments)
            return lambda row: (honest if federation.is_right else lying)(row)

        rate = type(evaluator)._rate

        def keep_right(what, make_task, replies, admission, clock):
            federation.is_right = False
            ratings, replies = yield from rate(evaluator, what, make_task, replies, admission, clock)
            if rated == "recorded":
                federation.is_right = True
                right = {by: make_task(federation.sites.index(by)) for by in ratings}
                replies = replace(replies, rated={**replies.rated, what: right})
            return ratings, replies

        object.__setattr__(evaluator, "_tasks", make_tasks)
        object.__setattr__(evaluator, "_rate", keep_right)

    found = faults_of(made("fedce", spoil, **RATED), kits)
    both = "the server, in the ledger and site1, in its log, signed the contrary: one of the two lies"
    assert found == {"other models rated": both}


def swap(monkeypatch, keeps):
    """The server takes twice the update of site1; of what came it has the digest."""
    stack, write = server_half.stack_replies, server_half.keep_round

    def stacked(replies, *arguments):
        updates, reports = stack(replies, *arguments)
        came = updates.clone()
        updates[0] *= 2
        stacked.came = came
        return updates, replace(reports, products=gram(updates))

    monkeypatch.setattr(server_half, "stack_replies", stacked)
    if keeps == "what came":
        monkeypatch.setattr(
            server_half, "keep_round", lambda run, kept, rated: write(run, replace(kept, sent=stacked.came), rated)
        )


@pytest.mark.parametrize(
    ("keeps", "kind", "words"),
    [
        ("what came", "measured otherwise", "the server's signature convicts the server"),
        ("what it took", "kept", "no signature convicts anybody: anybody with the run folder could have done it"),
    ],
)
def test_update_that_the_server_swaps_is_contradicted_without_any_log(made, kits, monkeypatch, keeps, kind, words):
    with monkeypatch.context() as lying:
        swap(lying, keeps)
        run = made("fedavg", **PAYING)
    assert faults_of(run, kits, ())[kind] == words
    assert "reported" in faults_of(run, kits)  # by the log of site1


def test_model_that_the_server_makes_by_other_weights_convicts_it(made, kits):
    def spoil(federation):
        advance = federation.models.advance

        def favour(round, outcome, admission, replies):
            advance(round, replace(outcome, models=outcome.models + 0.1 * admission.updates[0]), admission, replies)

        federation.models.advance = favour

    assert faults_of(made("fedavg", spoil, **PAYING), kits, ())["model of weights"] == (
        "the server's signature convicts the server"
    )


def test_kept_round_that_was_changed_is_no_evidence(honest, kits, tmp_path):
    run = Path(shutil.copytree(honest("fedce", **RATED), tmp_path / "run"))
    path = run / UPDATES / "round_00001.pt"
    content = {**load_tensors(path)}
    content["sent"] = content["sent"].clone()
    content["sent"][1, 0] += 1
    path.unlink()  # its tensors are mapped from it
    torch.save(content, path)
    found = examined(run, kits)
    assert {one.kind for one in found.faults} == {"kept"}
    assert found.attribute(found.faults[0]).startswith("no signature convicts anybody")


def test_kept_round_that_is_missing_leaves_all_open(honest, kits, tmp_path):
    run = Path(shutil.copytree(honest("fedce", **RATED), tmp_path / "run"))
    (run / UPDATES / "round_00002.pt").unlink()
    kinds = {one.kind for one in examined(run, kits).unproven}
    assert kinds >= {"updates unread", "scores unproven", "rated models unproven"}


def test_values_of_other_coalitions_are_contradicted(made, kits, monkeypatch):
    """The server names two coalitions' models after each other: sites log no coalitions."""
    observed = recorder.observed_rows

    def exchanged(head, observer, sites, coalitions, answers, fold=None):
        order = [0, 2, 1, *range(3, len(coalitions))]
        return observed(head, observer, sites, coalitions[order], answers, fold)

    with monkeypatch.context() as lying:
        lying.setattr(recorder, "observed_rows", exchanged)
        run = made("fedavg", **PAYING, values=("multi_round",))
    both = "the server, in the closing record and site1, in its log, signed the contrary: one of the two lies"
    assert faults_of(run, kits) == {"values": both}


@pytest.mark.parametrize("how", one_in(2, ["without those of a site", "of an observer that no plan has"]))
def test_values_that_no_answer_gives_are_contradicted(made, kits, monkeypatch, how):
    """Rows of another observer, made of true answers, would decide a payout; so would rows that are left out."""
    observed = recorder.observed_rows

    def changed(head, observer, sites, coalitions, answers, fold=None):
        if how == "without those of a site":
            return observed(head, observer, sites, coalitions, {"site2": answers["site2"]}, fold)
        more = observed(head, "one_round", sites, coalitions, answers, fold)
        return [*observed(head, observer, sites, coalitions, answers, fold), *more]

    with monkeypatch.context() as lying:
        lying.setattr(recorder, "observed_rows", changed)
        run = made("fedavg", **PAYING, values=("multi_round",))
    assert {one.kind for one in examined(run, kits).faults} - {"values left out"} == {"values"}


def test_kept_rounds_name_the_tasks_of_raters(honest):
    run = honest("fedce", **RATED)
    rounds = list(read_kept_rounds(run, read_plan(run)))
    assert sorted(rounds[0].rated) == ["leave_one_out"]
    assert {one["round"] for one in lines_of(run / "ledger.jsonl")} == {kept.view.round for kept in rounds}


@pytest.mark.parametrize(
    "change",
    one_in(
        3,
        [
            lambda kept: kept.update(rated={"leave_one_out": {"task": {}, "statistics": {}}}),
            lambda kept: kept.update(rated=[]),
            lambda kept: kept.update(rated={}),
            lambda kept: kept["rated"]["leave_one_out"]["statistics"].pop("site2"),
            lambda kept: kept.update(sent=kept["sent"][:1]),
            lambda kept: kept.update(sent="updates"),
            lambda kept: kept.update(sent=kept["sent"].double() + 1e-12),
            lambda kept: kept.update(received=kept["received"].double()[None, None]),
            lambda kept: kept.pop("after"),
            lambda kept: kept.update(after=kept["after"].clone().fill_(float("nan"))),
        ],
    ),
)
def test_damaged_kept_round_shows_nothing_and_ends_no_verification(honest, kits, tmp_path, change):
    run = Path(shutil.copytree(honest("fedce", **RATED), tmp_path / "run"))
    path = run / UPDATES / "round_00000.pt"
    content = {**load_tensors(path)}
    change(content)
    path.unlink()  # its tensors are mapped from it
    torch.save(content, path)
    found = examined(run, kits)
    assert {one.kind for one in found.faults} <= {"kept"}
    assert found.faults or {one.kind for one in found.unproven} >= {"updates unread", "scores unproven"}


def test_models_rated_on_another_split_are_contradicted(made, kits):
    """The sites rate the right models, but on validation cases, which the method would not count."""

    def spoil(federation):
        evaluator = federation.evaluator
        tasks = type(evaluator)._tasks

        def on_validation(candidates, admission, split, *weights):
            return tasks(evaluator, candidates, admission, "validation", *weights)

        object.__setattr__(evaluator, "_tasks", on_validation)

    kinds = {one.kind for one in examined(made("fedce", spoil, **RATED, aside=True), kits).faults}
    assert kinds == {"other models rated"}


def written_otherwise(change, round=1):
    """A server that writes a round into its ledger otherwise than it was, from the start: all heads are of that."""

    def spoil(federation):
        append = federation.recorder.ledger.append

        def write(record):
            changed = json.loads(json.dumps(record))
            if changed["round"] == round:
                change(changed)
            return append(changed)

        federation.recorder.ledger.append = write

    return spoil


@pytest.mark.parametrize(
    "case",
    one_in(
        3,
        [
            (lambda record: record["inputs"]["scores"]["site1"].update(site2=0.5), {"measured otherwise"}, set()),
            (lambda record: record.update(of=4), {"planned rounds"}, set()),
            (lambda record: record["inputs"]["values"].pop("cosine"), {"reported"}, set()),
            (lambda record: record["rejected"].update(site1="late"), set(), {"absence unproven"}),
            (lambda record: record["inputs"].update(size=3), set(), {"updates unread"}),
        ],
    ),
)
def test_record_that_the_server_writes_otherwise_never_shows_all(made, kits, case):
    change, faults, questions = case
    found = examined(made("fedce", written_otherwise(change), **RATED), kits)
    assert {one.kind for one in found.faults} >= faults
    assert {one.kind for one in found.unproven} >= questions
    assert bool(found.faults) == bool(faults)


def leaves(content, path=(), kind=()):
    """By kind of place, with all sites alike, the first number or text of a record that stands there."""
    if isinstance(content, dict | list):
        items = content.items() if isinstance(content, dict) else enumerate(content)
        found = {}
        for name, inner in items:
            alike = "#" if isinstance(name, int) or name in KIT_SITES else name
            found = leaves(inner, (*path, name), (*kind, alike)) | found
        return found
    return {} if content is None or kind[0] in ("previous", "hash", "signature") else {kind: path}


def another(value):
    """A value of the same type."""
    if isinstance(value, str):
        return ("1" if value.startswith("0") else "0") + value[1:]
    return value + 1 if isinstance(value, int) else 1.25 * value + 0.01


@pytest.mark.slow
@pytest.mark.parametrize(("method", "more"), [("fedce", RATED), ("innovation", {**PAYING, "aside": True})])
@pytest.mark.parametrize("round", [0, 1])
def test_no_number_of_a_record_can_be_written_otherwise(made, honest, kits, method, more, round):
    """Whatever a record holds, a server that writes another value from the start is not shown to be right."""
    record = lines_of(honest(method, **more) / "ledger.jsonl")[round]
    shown = []
    for path in leaves(record).values():

        def change(lines, path=path):
            *folders, name = path
            for folder in folders:
                lines = lines[folder]
            lines[name] = another(lines[name])

        run = made(method, written_otherwise(change, round), **more)
        try:
            found = examined(run, kits)
        except BadInput:  # no record at all
            continue
        shown += [] if found.faults or found.unproven else [path]
    assert shown == []
