"""What cannot be used is refused on the server, reply by reply; the command line is tested in tests/cli."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from chains import verify
from good_replies import SITES, good_reply, tiny_plan
from measured import rows
from one_in import one_in
from refusals import contents
from stepping import Stepped as Federation

from fedmerit.errors import RunFailed
from fedmerit.methods.fedavg import FedAvg
from fedmerit.schema.inspection import check_countersigned, check_evaluated, check_reply
from fedmerit.schema.messages import ClosingReceipt, Evaluated, Evaluation, Failure, Purpose, Reply
from fedmerit.schema.results import read_results
from fedmerit.schema.scores import SERVER_SPLIT, Overlap, Surface

# The server, reply by reply


Answer = Reply | Failure


def federate(
    run: Path, spoil: Callable[[Reply], Answer | None], rounds: tuple[int, ...], method: str = "fedce"
) -> Path:
    """Three rounds; in the ``rounds`` given Birch sends what ``spoil`` makes of its reply, or nothing for `None`."""
    federation = Federation(tiny_plan(method), SITES, run)
    while federation.training:
        answers: dict[str, Answer | None] = {site: good_reply(federation, site) for site in SITES}
        if federation.round in rounds:
            answers["Birch"] = spoil(good_reply(federation, "Birch"))
        federation.take({site: answer for site, answer in answers.items() if answer is not None})
    while federation.work:
        if federation.finished:
            federation.take({site: ClosingReceipt(federation.config.rounds) for site in SITES})
            continue
        asked = federation.tasks()
        models = len(next(iter(asked.values())).mixtures)
        overlaps = ((Overlap("000", "prostate", 5, 2, 1),),) * models
        federation.take({site: Evaluated(federation.round, overlaps, torch.zeros(models, 0)) for site in asked})
    assert federation.finished
    return run


def with_first_entry(value: float) -> Callable[[Reply], Reply]:
    def spoil(reply: Reply) -> Reply:
        update = reply.update.clone()
        update[0] = value
        return replace(reply, update=update)

    return spoil


def with_buffers(change: Callable[[str, torch.Tensor], torch.Tensor]) -> Callable[[Reply], Reply]:
    return lambda reply: replace(reply, buffers={name: change(name, value) for name, value in reply.buffers.items()})


def with_values(**values: Any) -> Callable[[Reply], Reply]:
    return lambda reply: replace(reply, values={**reply.values, **values})


def with_parts(**parts: Any) -> Callable[[Reply], Reply]:
    return lambda reply: replace(reply, **parts)


SPOILED_REPLIES: Mapping[str, tuple[Callable[[Reply], Answer | None], str]] = {
    "NaN in the update": (with_first_entry(float("nan")), "NaN"),
    "update too short": (lambda reply: replace(reply, update=reply.update[:-1]), "shape"),
    "update in double precision": (lambda reply: replace(reply, update=reply.update.double()), "float64"),
    "further buffers": (
        lambda reply: replace(reply, buffers={**reply.buffers, "more": torch.zeros(1)}),
        "buffers of other names",
    ),
    "buffers of another shape": (with_buffers(lambda name, value: value.reshape(-1)[:1].repeat(9)), "buffers of other"),
    "num_samples 0": (with_parts(num_samples=0), "num_samples 0"),
    "num_samples a text": (with_parts(num_samples="11"), "num_samples 11"),
    "num_samples of a country": (with_parts(num_samples=2**40), "num_samples 1099511627776"),
    "value not asked for": (with_values(loyalty=1.0), "'loyalty'"),
    "minus_error of a million": (with_values(minus_error=1e6), "minus_error"),
    "cosine beyond 1": (with_values(cosine=1.5), "cosine 1.5"),
    "reply of an earlier round": (lambda reply: replace(reply, round=reply.round - 1), "reply of round 0 in round 1"),
    "failure at the site": (lambda reply: Failure("out of memory"), "out of memory"),
    "no reply": (lambda reply: None, "no reply"),
}


@pytest.fixture(scope="module")
def sat_out(tmp_path_factory):
    """The run in which Birch took no part in round 1."""
    run = tmp_path_factory.mktemp("server") / "run"
    return federate(run, lambda reply: Failure("sat out"), rounds=(1,))


@pytest.mark.parametrize("spoiled", one_in(2, SPOILED_REPLIES))
def test_spoiled_reply_is_rejected_and_the_others_go_on(tmp_path, sat_out, assert_same_model, spoiled):
    spoil, word = SPOILED_REPLIES[spoiled]
    run = federate(tmp_path / "run", spoil, rounds=(1,))

    records = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    assert verify(run / "ledger.jsonl") == 3
    assert [list(record["rejected"]) for record in records] == [[], ["Birch"], []]
    assert word in records[1]["rejected"]["Birch"]
    assert records[1]["participants"] == ["Alder", "Cedar"]
    results = read_results(run)
    rejected = results[results["quantity"] == "rejected"]
    assert list(zip(rejected["round"], rejected["site"], rejected["value"], strict=True)) == [(1, "Birch", 1.0)]
    birch = results[(results["round"] == 1) & (results["site"] == "Birch")]
    assert sorted(birch["quantity"]) == ["rejected", "weight"]
    assert birch.set_index("quantity")["value"]["weight"] == 0

    assert_same_model(sat_out / "models/global.pt", run / "models/global.pt")
    assert rows(sat_out) == rows(run)
    model = [json.loads(line)["model"] for line in (sat_out / "ledger.jsonl").read_text().splitlines()]
    assert [record["model"] for record in records] == model


def test_site_rejected_in_every_round_changes_nothing(tmp_path, assert_same_model):
    runs = [
        federate(tmp_path / str(number) / "run", spoil, rounds=(0, 1, 2))
        for number, spoil in enumerate([with_first_entry(float("nan")), lambda reply: None])
    ]
    assert_same_model(*(run / "models/global.pt" for run in runs))
    assert rows(runs[0]) == rows(runs[1])


def test_all_rejected_ends_the_run_with_every_reason(tmp_path):
    federation = Federation(tiny_plan(), SITES, tmp_path)
    federation.take({site: good_reply(federation, site) for site in SITES})
    before = contents(tmp_path)
    answers = {"Alder": replace(good_reply(federation, "Alder"), num_samples=0), "Birch": Failure("out of memory")}
    with pytest.raises(RunFailed, match="round 1") as caught:
        federation.take(answers)
    for word in ("Alder: num_samples 0", "Birch: out of memory", "Cedar: no reply"):
        assert word in str(caught.value)
    assert contents(tmp_path) == before


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("overlaps", "words"),
    [
        (tuple(Overlap(str(case), "prostate", 5, 2, 1) for case in range(20_000)), "overlaps of 20000 cases"),
        ((Overlap("9" * 200_000, "prostate", 5, 2, 1),), "no position in the split"),
        ((Overlap("0", "prostate", 5, 2, 1, patient="Mustermann"),), "whose patient is no number"),
        ((Overlap("\N{ARABIC-INDIC DIGIT ONE}", "prostate", 5, 2, 1),), "no position in the split"),
        (tuple(Overlap(case, "prostate", 5, 2, 1) for case in ("0", "00", "000")), "overlaps of a case twice"),
    ],
    ids=["20,000 overlaps", "200,000 digits", "a name", "digits of another script", "one case under three names"],
)
def test_more_overlaps_than_a_split_has_or_longer_cases(overlaps, words):
    one = Evaluated(FINAL.round, (overlaps,), torch.zeros(1, 0))
    assert words in str(check_evaluated(one, FINAL, ("prostate",)))


@pytest.mark.parametrize(
    ("scored", "overlap", "fits"),
    [
        (False, Overlap.of_score("000", "prostate", 1.0), False),
        (False, Overlap("000", "prostate", 0, 0, 0), True),
        (True, Overlap.of_score("000", "prostate", 1.0), True),
        (True, Overlap.of_score("000", "prostate", NAN), False),
        (True, Overlap("000", "prostate", 5, 2, 1), False),
        (True, Overlap("000", "prostate", 5, 2, 1, score=0.9), False),
    ],
)
def test_sites_with_images_count_voxels_and_scripts_give_scores(scored, overlap, fits):
    """A site claimed a Dice of 1 beside counts of nothing."""
    reply = Reply(0, torch.zeros(3), {}, 5, (overlap,))
    assert (check_reply(reply, 0, torch.zeros(3), {}, ("prostate",), FedAvg(), scored=scored) is None) == fits
    trained = replace(reply, overlaps=(), trained_overlaps=(overlap,))
    assert check_reply(trained, 0, torch.zeros(3), {}, ("prostate",), FedAvg(), scored=scored)
    answer = Evaluated(FINAL.round, ((overlap,),), torch.zeros(1, 0))
    assert (check_evaluated(answer, FINAL, ("prostate",), scored) is None) == fits


@pytest.mark.parametrize("log", ["a" * 63, "A" * 64, "g" * 64, "a" * 65, 7, None])
def test_word_of_a_log_that_is_no_digest(log):
    one = Evaluated(FINAL.round, ((),), torch.zeros(1, 0), log=log)
    assert check_evaluated(one, FINAL, ("prostate",))
    assert check_evaluated(replace(one, log="a" * 64), FINAL, ("prostate",)) is None


FINAL = Evaluation(
    4, "testing", torch.zeros(1, 5), torch.eye(1).double(), ({},), torch.eye(1).double(), purpose=Purpose.FINAL
)


@pytest.mark.parametrize("counts", [(5, 2, 1), (0, 2, 1), (0, 2, 0), (0, 0, 2), (0, 0, 0)])
@pytest.mark.parametrize(("hd95", "nsd"), [(1.5, 0.5), (None, 0.0), (None, None)])
def test_surfaces_are_there_where_prediction_and_reference_are(counts, hd95, nsd):
    """HD95 needs both, NSD one of them, which makes it 0."""
    overlap = Overlap("000", "prostate", *counts, Surface("mm", hd95, nsd))
    predicted, there = counts[0] + counts[1] > 0, counts[0] + counts[2] > 0
    fits = {True: {True: (1.5, 0.5), False: (None, 0.0)}, False: {True: (None, 0.0), False: (None, None)}}
    fault = check_evaluated(Evaluated(4, ((overlap,),), torch.zeros(1, 0)), FINAL, ("prostate",))
    assert (fault is None) == (fits[predicted][there] == (hd95, nsd))


@pytest.mark.parametrize(
    "surface",
    [
        *(Surface("mm", value, 0.5) for value in (NAN, INF, -1.0, 1e9, True, "far", None, [1.0])),
        *(Surface("px", 1.0, value) for value in (NAN, 1.01, -0.1, True, "all", None)),
        Surface("cm", 1.0, 0.5),
        {"unit": "mm", "hd95": 1.0, "nsd": 0.5},
    ],
    ids=repr,
)
def test_distances_that_are_none_reject_the_evaluation(surface):
    answer = Evaluated(4, ((Overlap("000", "prostate", 5, 2, 1, surface),),), torch.zeros(1, 0))
    assert "distances of surfaces" in str(check_evaluated(answer, FINAL, ("prostate",)))


def test_distances_that_nobody_asked_for_reject_the_answer(tmp_path, sat_out):
    overlap = Overlap("000", "prostate", 5, 2, 1, Surface("mm", 1.0, 0.5))
    answer = Evaluated(4, ((overlap,),), torch.zeros(1, 0))
    assert check_evaluated(answer, FINAL, ("prostate",)) is None
    assert check_evaluated(answer, replace(FINAL, purpose=Purpose.ROUND), ("prostate",))
    assert rows(federate(tmp_path / "run", with_parts(overlaps=(overlap,)), rounds=(1,))) == rows(sat_out)


def test_a_countersignature_is_one_of_the_round_that_was_closed():
    assert check_countersigned(ClosingReceipt(3), 3) is None
    assert check_countersigned(ClosingReceipt(2), 3) == "countersignature of round 2 in round 3"
    assert check_countersigned(Failure("asleep"), 3) == "asleep"


# Evaluations


LABELS = ("disc", "cup")


def asked(models: int = 2, bins: int = 3) -> Evaluation:
    each = torch.eye(models, dtype=torch.float64)
    return Evaluation(4, SERVER_SPLIT, torch.zeros(models, 5), each, ({},) * models, each, bins)


def read_overlaps(*cases: str) -> tuple[Overlap, ...]:
    return tuple(Overlap(case, label, 5, 2, 1) for case in cases for label in LABELS)


def said(models: int = 2, bins: int = 3, **parts: Any) -> Evaluated:
    return replace(Evaluated(4, (read_overlaps("000", "001"),) * models, torch.ones(models, bins), 0.5), **parts)


def with_overlap(**parts: Any) -> Evaluated:
    """A bad overlap, in the answer of the second model alone."""
    first, *others = read_overlaps("000", "001")
    return said(overlaps=((first, *others), (replace(first, **parts), *others)))


@pytest.mark.parametrize(
    ("task", "answer"),
    [
        (asked(), said()),
        (asked(models=1, bins=0), said(models=1, bins=0)),
        (asked(bins=1), said(bins=1, losses=torch.zeros(2, 1))),
        (asked(), said(overlaps=((), ()))),
        (asked(), with_overlap(true_positives=0, false_positives=0, false_negatives=6)),
        (asked(), said(losses=torch.full((2, 3), 1e6, dtype=torch.float64))),
    ],
)
def test_evaluation_that_can_be_used(task, answer):
    assert check_evaluated(answer, task, LABELS) is None


SPOILED_EVALUATIONS: Mapping[str, tuple[object, str]] = {
    "a failure": (Failure("out of memory"), "out of memory"),
    "nothing": (None, "no answer"),
    "a reply": (Reply(4, torch.zeros(5), {}, 5, ()), "no answer to what was asked (Reply)"),
    "an earlier round": (said(round=3), "evaluation of round 3 in round 4"),
    "a model too many": (said(models=3), "3 models, expected 2"),
    "other cases for one model": (
        said(overlaps=(read_overlaps("000", "001"), read_overlaps("000", "002"))),
        "other cases",
    ),
    "an unknown label": (with_overlap(label="bladder"), "another label"),
    "a name for a case": (with_overlap(case="Doe, Jane"), "no position"),
    "a case twice": (said(overlaps=(read_overlaps("000", "000"),) * 2), "a case twice"),
    "a label left out": (said(overlaps=(read_overlaps("000", "001")[:-1],) * 2), "some of its labels"),
    "another reference": (with_overlap(false_negatives=2), "another reference"),
    "more voxels than can be": (with_overlap(false_positives=2**60), "no counts"),
    "a negative count": (with_overlap(false_positives=-1), "no counts"),
    "NaN for a count": (with_overlap(false_negatives=float("nan")), "no counts"),
    "True for a count": (with_overlap(true_positives=True), "no counts"),
    "a bin too few": (said(bins=2), "losses of shape (2, 2), expected (2, 3)"),
    "losses of a model too many": (said(losses=torch.ones(3, 3)), "losses of shape (3, 3)"),
    "NaN in the losses": (said(losses=torch.tensor([[1.0, 1, 1], [1, float("nan"), 1]])), "losses that are no counts"),
    "losses beyond counting": (said(losses=torch.full((2, 3), 1e30)), "losses that are no counts"),
    "losses of more images": (said(losses=torch.tensor([[1.0, 1, 1], [1, 2, 1]])), "losses of more images"),
    "negative losses": (said(losses=torch.tensor([[1.0, 1, 1], [1, -0.5, 1]])), "losses that are no counts"),
}


@pytest.mark.parametrize("spoiled", SPOILED_EVALUATIONS)
def test_evaluation_that_cannot_be_used(spoiled):
    answer, words = SPOILED_EVALUATIONS[spoiled]
    assert words in str(check_evaluated(answer, asked(), LABELS))


RECEIVED = (Overlap("000", "disc", 5, 2, 1), Overlap("000", "cup", 3, 0, 3))
GOOD = (Overlap("000", "disc", 4, 0, 2), Overlap("000", "cup", 6, 1, 0))


@pytest.mark.parametrize(
    ("trained", "words"),
    [
        (GOOD, None),
        ((), None),
        (GOOD[:1], "some of its labels"),
        ((replace(GOOD[0], true_positives=5), GOOD[1]), "another reference"),
        ((replace(GOOD[0], case="001"), replace(GOOD[1], case="001")), "other cases"),
    ],
)
def test_overlaps_of_a_trained_model_are_of_the_same_references(trained, words):
    reply = Reply(0, torch.zeros(3), {}, 5, RECEIVED, trained_overlaps=trained)
    fault = check_reply(reply, 0, torch.zeros(3), {}, ("disc", "cup"), FedAvg())
    assert (fault is None) if words is None else (fault is not None and words in fault)
