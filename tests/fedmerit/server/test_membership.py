"""A site that joins a run later: its history begins then, nothing of the others changes, and the records verify."""

from dataclasses import replace

import pytest
import torch
from ledger_records import round_record
from one_in import one_in
from pretending import SITES, answers, tiny_plan
from stepping import Stepped as Federation

from fedmerit.evidence.verification.run import verify_run
from fedmerit.files import write_json
from fedmerit.methods.registry import METHODS
from fedmerit.schema.configuration.run import describe
from fedmerit.schema.results import read_results
from fedmerit.server.checkpoint import read_checkpoint
from fedmerit.server.membership import departures

FIRST, LATE = ("Alder", "Cedar"), "Birch"


def play(federation, rounds):
    """Until so many rounds are complete; all of them: to the end."""
    while federation.work and (federation.round < rounds or rounds >= federation.config.rounds):
        federation.take(answers(federation))


def joined_run(plan, run, then=SITES):
    federation = Federation(plan, FIRST, run)
    play(federation, 2)
    before = read_checkpoint(run)
    federation = Federation(plan, then, run)
    return federation, before


OF_ROUNDS = ("steps", "gains", "patients")  # of a state, whose rows are rounds or raters


def known_of(state, place, sites):
    """What a method's state holds of the site at a place."""
    tensors = {name: one for name, one in state.items() if isinstance(one, torch.Tensor) and one.ndim}
    by_site = {name: one for name, one in tensors.items() if len(one) == sites and name not in OF_ROUNDS}
    return {name: one[place].flatten()[: sites - 1] for name, one in by_site.items()}


@pytest.mark.parametrize("guard", [pytest.param("off", marks=pytest.mark.slow), "on"])
@pytest.mark.parametrize("method", one_in(9, [name for name in METHODS if name != "krum"]))
def test_a_site_joins_from_the_next_round_on(tmp_path, method, guard):
    plan = tiny_plan(method, rounds=4, guard=guard)
    federation, before = joined_run(plan, tmp_path)
    assert federation.sites == list(SITES)
    for site in FIRST:  # what is known of them did not change
        now = known_of(vars(federation.state), SITES.index(site), 3)
        for name, value in known_of(before["state"], FIRST.index(site), 2).items():
            assert torch.equal(now[name][: len(value)].nan_to_num(9), value.nan_to_num(9)), name
    write_json(tmp_path / "run.json", describe(tmp_path.name, plan, federation.sites, "sim"))
    play(federation, 4)
    records = federation.recorder.ledger.records
    assert [record.get("joined") for record in records] == [None, None, [LATE], None]
    assert [LATE in record["participants"] for record in records] == [False, False, True, True]
    rows = read_results(tmp_path).query(f"site == '{LATE}' and quantity == 'contribution'")
    assert set(rows["round"]) <= {2, 3}
    assert verify_run(tmp_path).records == 4


def test_a_joining_site_begins_with_the_servers_model_or_the_mean(tmp_path):
    federation, before = joined_run(tiny_plan("rffl", rounds=4), tmp_path)
    mean = before["models"].double().mean(dim=0).float()
    assert torch.equal(federation.tasks()[LATE].parameters, mean)
    assert torch.equal(federation.state.models[SITES.index(LATE)], mean)


def test_verify_recomputes_the_weight_of_a_site_that_joins(tmp_path):
    federation, _ = joined_run(plan := tiny_plan("cgsv", rounds=3, guard="on"), tmp_path)
    write_json(tmp_path / "run.json", describe(tmp_path.name, plan, federation.sites, "sim"))
    play(federation, 3)
    assert federation.recorder.ledger.records[2]["weights"][LATE] == 0  # no reputation yet
    assert verify_run(tmp_path).records == 3


def test_a_join_is_not_forgotten_by_a_crash_before_its_round_ends(tmp_path):
    plan = tiny_plan("fedavg", rounds=4, guard="on")
    federation, _ = joined_run(plan, tmp_path)
    assert federation.joined == [LATE]
    federation.take_note("resumed")
    federation.take(answers(federation))  # enrolment: a checkpoint is written
    again = Federation(plan, SITES, tmp_path)
    assert again.joined == [LATE]
    again.take_note("resumed")  # who said it does not know whether a record has it
    play(again, 3)
    again.take_note("resumed")
    play(again, 4)
    records = again.recorder.ledger.records
    assert records[2]["joined"] == [LATE]
    assert [record.get("notes") for record in records] == [None, None, ["resumed"], None]


@pytest.mark.parametrize(
    ("method", "settings", "why"),
    [("fedsac", {"contributions": [0.5, 0.5]}, "contributions"), ("fedavg", {"keep": True}, "keeps the updates")],
)
def test_where_no_site_can_join_the_run_continues_without_and_says_why(tmp_path, method, settings, why):
    keep = settings.pop("keep", False)
    plan = replace(tiny_plan(method, rounds=4, **settings), keep_updates=keep)
    federation, _ = joined_run(plan, tmp_path)
    assert federation.sites == list(FIRST)
    play(federation, 4)
    notes = federation.recorder.ledger.records[2]["notes"]
    assert notes[0].startswith(f"{LATE} cannot join the run: ")
    assert why in notes[0]


@pytest.mark.parametrize("method", ["fedavg", "fedce", "cgsv"])
def test_a_site_that_leaves_is_not_asked_and_its_record_stays(tmp_path, method):
    plan = tiny_plan(method, rounds=4, guard="on")
    federation = Federation(plan, SITES, tmp_path)
    write_json(tmp_path / "run.json", describe(tmp_path.name, plan, federation.sites, "sim"))
    play(federation, 2)
    federation.gone = frozenset([LATE])  # while it is asked once more
    federation.take({site: one for site, one in answers(federation).items() if site != LATE})
    assert LATE not in federation.tasks()
    again = Federation(plan, SITES, tmp_path)
    again.gone = frozenset([LATE])
    play(again, 4)
    records = again.recorder.ledger.records
    known = [record["weights"][LATE] for record in records[:2]]
    assert [set(record.get("left", ())) for record in records] == [set(), set(), {LATE}, set()]
    assert records[2]["left"][LATE]["rounds"] == 2
    assert records[2]["left"][LATE]["weight"] == sum(known) / 2
    assert [record["rejected"] for record in records] == [{}, {}, {LATE: "no reply"}, {}]
    assert verify_run(tmp_path).records == 4
    rows = read_results(tmp_path).query(f"site == '{LATE}' and split == ''")
    assert 3 not in set(rows["round"])


def test_departures_of_a_site_are_recorded_once_until_it_is_back():
    present = {"participants": ["A"], "weights": {"A": 0.25}}
    rounds = [round_record(round=number, contributions={"A": 0.5}, **present) for number in range(2)]
    left = departures(rounds, ["A"])
    assert left["A"].content() == {"rounds": 2, "weight": 0.25, "contribution": 0.5}
    rounds.append(round_record(round=2, left=left))
    assert departures(rounds, ["A"]) == {}
    rounds.append(round_record(round=3, contributions={"A": None}, **present))
    assert departures(rounds, ["A"])["A"].rounds == 3
    assert departures([], ["B"])["B"].content() == {"rounds": 0}
