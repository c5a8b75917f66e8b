"""What no honest party signed is contradicted, or not shown with how far it could have moved a weight.

Runs are signed, guarded, and of three hospitals, each its own organisation; all their logs are given.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ledger_records import beside_the_servers_word
from signed_runs import HOST, KIT_SITES, closed_again, examined, kit_signer, lines_of, log_of, rewritten, rows_again

import fedmerit.server.run_guard as run_guard
from fedmerit.errors import BadInput
from fedmerit.evidence.signatures import Trust
from fedmerit.evidence.verification.run import examine_run, verify_run
from fedmerit.server.round_inputs import LEAVE_ONE_OUT, SERVER, Rating
from fedmerit.site.enrolment import OPENING


def last_weights(run):
    return lines_of(run / "ledger.jsonl")[-1]["weights"]


def invent_ratings(federation):
    """The server has no images, and says that without site3 all would be lost."""
    guard = federation.run_guard
    guard.measures, guard.config = True, replace(guard.config, guard=replace(guard.config.guard, rate_every=2))
    guard.guard = guard._guard()

    def leave_one_out(outcome, received, admission, replies, clock):
        candidates = guard.leave_one_out_models(federation.now().round, outcome, admission, received)
        if candidates is None:
            return replies
        yield from ()
        dice = tuple(0.05 if number == 2 else 0.95 for number in range(len(candidates.mixtures)))
        empty = torch.zeros(len(dice), 0, dtype=torch.float64)
        ratings = {SERVER: Rating(dice, (4,) * len(dice), empty)}
        guard.take_leave_one_out(admission, ratings)
        return replace(replies, ratings={**replies.ratings, LEAVE_ONE_OUT: ratings})

    object.__setattr__(federation.evaluator, "leave_one_out", leave_one_out)


def test_honest_run_leaves_only_open_what_nobody_but_the_server_has(honest, kits, fedmerit):
    run = honest("fedce")
    found = examined(run, kits)
    assert found.faults == ()
    assert beside_the_servers_word(found) == ()
    assert {question.kind for question in found.unproven} >= {"scores unproven"}
    about_weights = [question for question in found.unproven if question.kind != "statistics unproven"]
    assert all(0 <= question.moved.weight <= 1 for question in about_weights)
    options = [word for site in KIT_SITES for word in ("--site-log", log_of(run, site))]
    reported = fedmerit("verify", run, "--certificate", kits / "site1/startup/rootCA.pem", *options)
    assert reported.exit_code == 3
    assert f"could have moved a weight by up to {found.moved.weight:.3f}" in reported.stdout


def test_ratings_on_images_that_the_plan_does_not_name_convict_the_server(made, kits, fedmerit):
    run = made(spoil=invent_ratings)
    found = examined(run, kits)
    (fault,) = [one for one in found.faults if one.kind == "server images"]
    assert found.attribute(fault) == "the server's signature convicts the server"
    reported = fedmerit("verify", run)
    assert reported.exit_code == 1
    assert "the plan, whose digest every site's log has, names none: the server invented them" in reported.stderr


def test_organisation_is_that_of_the_certificate(made, honest, kits, monkeypatch):
    """The server says that two rivals are one organisation, so that they share one reward."""
    read = run_guard.read_organisation
    monkeypatch.setattr(
        run_guard,
        "read_organisation",
        lambda one, site, root: "organisation Trust" if site in ("site1", "site2") else read(one, site, root),
    )
    run = made()
    assert last_weights(run)["site3"] > last_weights(honest("fedce"))["site3"]
    found = examined(run, kits)
    faults = [one for one in found.faults if one.kind == "organisation"]
    assert {(one.site, one.found, one.expected) for one in faults} == {
        (site, "organisation Trust", f"organisation {site}") for site in ("site1", "site2")
    }
    assert found.attribute(faults[0]) == "the server's signature convicts the server"
    assert "outcome" in {one.kind for one in found.faults}


@pytest.mark.parametrize("method", ["fedavg", pytest.param("fedce", marks=pytest.mark.slow)])
def test_shared_cases_that_only_the_server_saw_are_not_shown(made, honest, kits, monkeypatch, method):
    """The number is at least what the lie moved. No site opens what it enrolled."""
    before = last_weights(honest(method))
    monkeypatch.setattr(
        run_guard,
        "find_shared_cases",
        lambda fingerprints: [
            [one != other and {one, other} == {0, 1} for other in range(3)] for one in range(len(fingerprints))
        ],
    )
    monkeypatch.setattr(run_guard, "count_once", lambda fingerprints: [0.5, 0.5, 1.0])
    run = made(method)
    for site in KIT_SITES:
        (log_of(run, site).parent / OPENING).unlink()
    gained = last_weights(run)["site3"] - before["site3"]
    found = examined(run, kits)
    assert found.faults == ()
    questions = {one.kind: one for one in found.unproven if one.kind in ("sharing unproven", "duplicates unproven")}
    assert "site1 and site2" in str(questions["sharing unproven"])
    assert "site1, site2" in str(questions["duplicates unproven"])
    assert gained > 0.05
    assert max(one.moved.weight for one in questions.values()) >= gained - 1e-9


@pytest.fixture(scope="module")
def lossy(made):
    """A run whose server takes nothing of site1 after round 0."""
    return made("fedavg", lost=[("site1", 1), ("site1", 2)])


def test_signed_answers_that_the_ledger_lacks_are_a_contradiction(lossy, kits, fedmerit):
    assert "site1" not in last_weights(lossy)
    found = examined(lossy, kits)
    left_out = [one for one in found.faults if one.kind == "answer left out"]
    assert [(one.site, one.round) for one in left_out] == [("site1", 1), ("site1", 2)]
    assert "site1, in its log, signed the contrary" in found.attribute(left_out[0])
    assert fedmerit("verify", lossy, "--site-log", log_of(lossy, "site1")).exit_code == 1


def test_without_its_log_a_site_is_the_servers_word(lossy, kits):
    found = examined(lossy, kits, ("site2", "site3"))
    assert found.faults == ()
    (question,) = [one for one in found.unproven if one.kind == "logs missing"]
    assert (question.site, question.moved.site) == ("site1", "site1")
    assert found.moved.weight == pytest.approx(1.0)


def test_site_that_rewrote_its_log_is_convicted_by_its_signature(honest, kits, tmp_path):
    """Its signature in the ledger is on another log: what that has against the server does not count."""
    run = Path(shutil.copytree(honest("fedavg"), tmp_path / "run"))

    def change(lines):
        for line in lines:
            if line["work"] == "train" and line["round"] == 1:
                line["update"] = "11" * 32

    rewritten(log_of(run, "site1"), change, kit_signer(kits, "site1"))
    found = examined(run, kits)
    kinds = [one.kind for one in found.faults]
    assert kinds.index("cut log") < kinds.index("other update")
    for kind, words in (("cut log", "convicts site1"), ("other update", "the log of site1 does not count")):
        (fault,) = [one for one in found.faults if one.kind == kind][:1]
        assert words in found.attribute(fault)


def test_every_contradiction_is_found(honest, kits, tmp_path):
    copy = Path(shutil.copytree(honest("fedavg"), tmp_path / "copy"))

    def change(lines):
        for line in lines[:2]:
            line["weights"]["site2"] += 0.125
        rows_again(copy, lines)

    rewritten(copy / "ledger.jsonl", change, kit_signer(kits, HOST))
    closed_again(copy, kit_signer(kits, HOST))
    (copy / "run.json").write_text(json.dumps(json.loads((copy / "run.json").read_text()) | {"seed": 5}))
    found = examine_run(copy, (), Trust(kits / "site1/startup/rootCA.pem"))
    outcomes = [(one.round, one.site) for one in found.faults if one.kind == "outcome" and one.quantity == "weights"]
    assert outcomes == [(0, "site2"), (1, "site2")]
    assert {"result", "changed file", "not of the plan"} <= {one.kind for one in found.faults}
    changed = next(one for one in found.faults if one.kind == "changed file")
    assert found.attribute(changed) == "no signature convicts anybody: anybody with the run folder could have done it"
    with pytest.raises(BadInput) as error:
        verify_run(copy, (), Trust(kits / "site1/startup/rootCA.pem"))
    assert len(error.value.findings) == len(found.faults)
