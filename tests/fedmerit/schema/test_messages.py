"""Messages by their declarations: each arrives as it was sent, and none passes with a field that breaks its rules."""

from collections.abc import Iterator
from dataclasses import is_dataclass, replace
from typing import Any

import pytest
import torch
from message_samples import ANSWERED, BUFFERS, EVALUATION, FINAL, MESSAGES, METHOD, MODEL, TASKS, bad_values, is_same
from pretending import NETWORK, generator, over_the_wire

from fedmerit.engines.nvflare.translation import (
    message_to_model,
    model_to_answer,
    model_to_task,
    peer_to_shareable,
    shareable_to_peer,
)
from fedmerit.errors import BadInput, MemoryLost
from fedmerit.schema.codec import KINDS, decode, encode
from fedmerit.schema.expected import check_evaluated, check_reply
from fedmerit.schema.messages import (
    ANSWERS,
    WORK,
    Evaluated,
    Evaluation,
    Failure,
    PeerModel,
    Purpose,
    Reply,
    SparseUpdate,
    Task,
    payload_bytes,
)
from fedmerit.schema.rules import About, Part, parts_of
from fedmerit.schema.scores import Overlap, Surface

Place = tuple[str | int, ...]


def places(parts: tuple[Part, ...], value: Any, place: Place = ()) -> Iterator[tuple[Place, Part, Any]]:
    """Every field of a message and every item below, with its declaration and value."""
    for part in parts:
        yield from _below(part, getattr(value, part.name), (*place, part.name))


def _below(part: Part, value: Any, place: Place) -> Iterator[tuple[Place, Part, Any]]:
    yield place, part, value
    if value is None or isinstance(value, torch.Tensor):
        return
    if part.parts:
        yield from places(part.parts, value, place)
    elif part.item and part.marks and part.item.base is torch.Tensor and not part.item.marks:
        return  # BatchNorm statistics are one value
    elif part.item:
        entries = value.items() if part.key else enumerate(value)
        for key, entry in entries:
            yield from _below(part.item, entry, (*place, key))


def put(value: Any, place: Place, new: Any) -> Any:
    """The value with another one at a place below."""
    if not place:
        return new
    first, rest = place[0], place[1:]
    if is_dataclass(value):
        return replace(value, **{first: put(getattr(value, first), rest, new)})
    if isinstance(value, tuple):
        return (*value[:first], put(value[first], rest, new), *value[first + 1 :])
    return {**value, first: put(value[first], rest, new)}


SPOILED = [
    pytest.param(name, place, part, value, id=f"{name}.{'.'.join(map(str, place))}")
    for name, sample in ANSWERED.items()
    if name not in ("surveyed", "peer")
    for place, part, value in places(parts_of(type(sample.message)), sample.message)
]


def test_samples_cover_every_kind_of_message():
    assert {type(message) for message in MESSAGES.values()} == set(KINDS.values())


@pytest.mark.parametrize("kind", KINDS.values())
def test_every_field_has_a_rule_and_a_sentence(kind):
    for part in parts_of(kind):
        assert part.mark(About), f"{kind.__name__}.{part.name}"
        assert part.mark(About).text.endswith(".")
        assert part.words() or part.item or part.parts or part.name == "purpose"


@pytest.mark.parametrize("name", MESSAGES)
def test_message_arrives_bit_for_bit(name):
    message = MESSAGES[name]
    if isinstance(message, PeerModel):
        arrived = shareable_to_peer(peer_to_shareable(message, NETWORK), NETWORK)
    else:
        read = model_to_task if isinstance(message, WORK) else model_to_answer
        arrived = read(over_the_wire(message_to_model(message, NETWORK, 9)), NETWORK)
    assert is_same(arrived, message)
    assert payload_bytes(arrived) == payload_bytes(message)


@pytest.mark.parametrize("name", ANSWERED)
def test_valid_answer_passes_its_check(name):
    assert ANSWERED[name].check(ANSWERED[name].message) is None


@pytest.mark.parametrize(("name", "place", "part", "value"), SPOILED)
def test_answer_with_a_field_that_breaks_its_rule_is_refused(name, place, part, value):
    """Whatever the field; the reason is one line that begins with the message and names the field."""
    for bad in bad_values(part, value):
        spoiled = put(ANSWERED[name].message, place, bad)
        fault = ANSWERED[name].check(spoiled)
        assert fault, f"{place}: {bad!r:.80}"
        assert fault.isprintable()
        assert fault.startswith(type(spoiled).__name__)
        assert len(fault) < 400


@pytest.mark.parametrize("name", ANSWERED)
@pytest.mark.parametrize("other", [None, 3, Failure("asleep"), EVALUATION, Reply(4, torch.zeros(5), {}, 5, ())])
def test_answer_of_another_kind_is_refused(name, other):
    if name == "peer" or (isinstance(other, Reply) and name.startswith("reply")):
        return
    fault = ANSWERED[name].check(other)
    assert fault == "asleep" if isinstance(other, Failure) and name != "surveyed" else fault


@pytest.mark.parametrize("name", MESSAGES)
def test_message_that_lacks_a_field_cannot_be_read(name):
    message = MESSAGES[name]
    for part in parts_of(type(message)):
        params, content = encode(message, NETWORK)
        if part.name in content:
            del content[part.name]
            with pytest.raises(BadInput, match=f"{type(message).__name__} lacks {part.name}"):
                decode(params, content, NETWORK, (type(message),))


def read_or_fault(params: Any, content: Any, kind: Any) -> Any:
    try:
        return decode(params, content, NETWORK, (kind,))
    except BadInput as error:
        return str(error) if str(error).isprintable() else error


@pytest.mark.parametrize("name", MESSAGES)
def test_message_with_a_carried_value_of_another_type_cannot_be_read_or_is_refused(name):
    message = MESSAGES[name]
    for part in parts_of(type(message)):
        for bad in (object(), {1: 2}, [[3]], {"a\nb": 1.0}, "\n", float("nan"), b"x", {1, 2}):
            params, content = encode(message, NETWORK)
            if part.name not in content:
                continue
            read = read_or_fault(params, {**content, part.name: bad}, type(message))
            fits = isinstance(read, str) or name in TASKS or is_same(read, message)
            assert fits or ANSWERED[name].check(read)


@pytest.mark.parametrize("content", [None, 3, {}, {"kind": "Mallory"}, {"kind": ["Reply"]}, {"kind": None}])
def test_message_of_no_kind_cannot_be_read(content):
    with pytest.raises(BadInput, match="no message of a kind"):
        decode({}, content, NETWORK, ANSWERS)


def test_a_model_instead_of_an_update_is_a_failure():
    model = message_to_model(ANSWERED["reply"].message, NETWORK)
    model.params_type = "FULL"
    assert model_to_answer(model, NETWORK) == Failure("a model instead of an update")


# Rules between fields


def overlaps(*cases: str, **parts: Any) -> tuple[Overlap, ...]:
    return tuple(replace(Overlap(case, "prostate", 5, 2, 1), **parts) for case in cases)


@pytest.mark.parametrize(
    ("results", "words"),
    [
        (overlaps("0", "00"), "a case twice"),
        (overlaps(*map(str, range(20_000))), "20000 cases"),
        (overlaps("0", label="bladder"), "another label"),
        (overlaps("0", score=0.5), "expected counts of voxels"),
    ],
)
def test_overlaps_that_are_no_split_of_this_task_are_refused(results, words):
    answer = Evaluated(2, (results,), torch.zeros(1, 3))
    assert words in check_evaluated(answer, FINAL, ("prostate",))


def test_a_case_without_one_of_its_labels_is_refused():
    answer = Evaluated(2, (overlaps("0"),), torch.zeros(1, 3))
    assert "only some of its labels" in check_evaluated(answer, FINAL, ("prostate", "bladder"))


@pytest.mark.parametrize(
    ("scored", "overlap", "fits"),
    [
        (False, Overlap.of_score("000", "prostate", 1.0), False),
        (False, Overlap("000", "prostate", 0, 0, 0), True),
        (True, Overlap.of_score("000", "prostate", 1.0), True),
        (True, Overlap("000", "prostate", 5, 2, 1), False),
        (True, Overlap("000", "prostate", 5, 2, 1, score=0.9), False),
    ],
)
def test_sites_with_images_count_voxels_and_scripts_give_scores(scored, overlap, fits):
    answer = Evaluated(2, ((overlap,),), torch.zeros(1, 3))
    assert (check_evaluated(answer, FINAL, ("prostate",), scored) is None) == fits
    reply = Reply(2, MODEL, BUFFERS, 5, (overlap,))
    assert (check_reply(reply, 2, MODEL, BUFFERS, ("prostate",), METHOD, scored=scored) is None) == fits


@pytest.mark.parametrize("counts", [(5, 2, 1), (0, 2, 1), (0, 2, 0), (0, 0, 2), (0, 0, 0)])
@pytest.mark.parametrize(("hd95", "nsd"), [(1.5, 0.5), (None, 0.0), (None, None)])
def test_surfaces_are_there_exactly_if_prediction_and_reference_are(counts, hd95, nsd):
    """HD95 needs both, NSD one of them, which makes it 0."""
    overlap = Overlap("000", "prostate", *counts, Surface("mm", hd95, nsd))
    predicted, exists = counts[0] + counts[1] > 0, counts[0] + counts[2] > 0
    fits = {True: {True: (1.5, 0.5), False: (None, 0.0)}, False: {True: (None, 0.0), False: (None, None)}}
    answer = Evaluated(2, ((overlap,),), torch.zeros(1, 3))
    assert (check_evaluated(answer, FINAL, ("prostate",)) is None) == (fits[predicted][exists] == (hd95, nsd))
    assert check_evaluated(answer, replace(FINAL, purpose=Purpose.ROUND), ("prostate",))  # nobody asked for surfaces


@pytest.mark.parametrize(
    ("trained", "words"),
    [
        (overlaps("000", true_positives=4, false_negatives=2), None),
        ((), None),
        (overlaps("000", true_positives=6), "another reference"),
        (overlaps("001"), "other cases"),
    ],
)
def test_overlaps_of_a_trained_model_are_of_the_same_references(trained, words):
    reply = Reply(2, MODEL, BUFFERS, 5, overlaps("000"), trained_overlaps=trained)
    fault = check_reply(reply, 2, MODEL, BUFFERS, ("prostate",), METHOD)
    assert fault is None if words is None else words in fault


EACH = torch.eye(2, dtype=torch.float64)
TWO = Evaluation(2, "testing", torch.zeros(2, 5), EACH, ({}, {}), EACH, 3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, None),
        ({"losses": torch.full((2, 3), 1e6)}, None),
        ({"overlaps": ((), ())}, None),
        ({"overlaps": (overlaps("0"), overlaps("1"))}, "other cases"),
        ({"overlaps": (overlaps("0"), overlaps("0", false_negatives=2))}, "another reference"),
        ({"overlaps": (overlaps("0"),) * 3}, "3 models, expected 2"),
        ({"losses": torch.ones(2, 2)}, r"shape (2, 2) and torch.float32, expected (2, 3)"),
        ({"losses": torch.full((2, 3), -0.5)}, "no counts"),
        ({"losses": torch.tensor([[1.0, 1, 1], [1, 2, 1]])}, "losses of more images"),
        ({"choice": 1}, "expected at most 0"),
        ({"buffers": {"mean": torch.zeros(1)}}, "other names"),
    ],
)
def test_results_of_several_models_are_of_the_same_images(change, words):
    answer = replace(Evaluated(2, (overlaps("0"),) * 2, torch.ones(2, 3)), **change)
    fault = check_evaluated(answer, TWO, ("prostate",))
    assert fault is None if words is None else words in fault


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"fingerprint": ("ab" * 16,)}, "1 digests for 2 cases"),
        ({"slices": {"training": 1, "validation": 9, "testing": 9, "server_validation": 9}}, "fewer slices than cases"),
        ({"cases": {"training": 2}}, "1 names"),
    ],
)
def test_an_enrolment_that_contradicts_itself_is_refused(change, words):
    sample = ANSWERED["enrolment"]
    assert words in sample.check(replace(sample.message, **change))


# Payload and sparse updates


@pytest.mark.parametrize("index", [-1, -5, 5, 2**31 - 1])
def test_sparse_update_with_an_index_outside_of_the_model_is_lost_memory(index):
    update = SparseUpdate(torch.tensor([0, index], dtype=torch.int32), torch.tensor([9.0, 9.0]))
    with pytest.raises(MemoryLost, match="the model of the round before"):
        update.apply(torch.zeros(5))


@pytest.mark.parametrize("size", [1, 2, 1000, 1001])
@pytest.mark.parametrize("part", [0.0, 0.01, 0.3, 0.5, 0.7, 1.0])
def test_sparse_update_gives_the_model_bit_for_bit_or_is_no_smaller(size, part):
    random = generator(size)
    previous = torch.randn(size, generator=random)
    model = previous.clone()
    chosen = torch.randperm(size, generator=random)[: round(part * size)]
    model[chosen] += torch.randn(len(chosen), generator=random) * torch.logspace(-6, 6, len(chosen))
    changed, kept = model != previous, previous.clone()
    sparse = SparseUpdate.between(changed, model)
    if sparse is None:
        assert int(changed.sum()) * 2 >= size
        return
    assert (sparse.indices.dtype, sparse.values.dtype) == (torch.int32, torch.float32)
    assert len(sparse.indices) == len(sparse.values) == int(changed.sum())
    assert torch.equal(sparse.apply(previous).view(torch.int32), model.view(torch.int32))
    assert torch.equal(previous, kept)


def test_payload_counts_models_statistics_and_bits():
    buffers = {"mean": torch.zeros(3), "steps": torch.tensor(4)}  # 12 + 8 bytes
    assert payload_bytes(Task(0, torch.zeros(100), buffers)) == 420
    assert payload_bytes(Task(0, torch.zeros(100), buffers, neurons=torch.ones(9, dtype=torch.bool))) == 422
    assert payload_bytes(Reply(0, torch.zeros(100), buffers, 5, overlaps("0"))) == 420
    assert payload_bytes(Evaluation(0, "testing", torch.zeros(2, 100), EACH, (buffers, buffers), EACH, bins=10)) == 840
    assert payload_bytes(MESSAGES["task"]) == 4 * 3 * len(MODEL) + 2 * sum(map(_bytes, BUFFERS.values())) + 2 + 4


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
