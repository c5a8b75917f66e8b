import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from certificates import issue
from chains import verify

from fedmerit.errors import BadInput
from fedmerit.evidence.digests import digest, state_digest
from fedmerit.evidence.ledger import GENESIS, Ledger, RecordSignature, signature_payload
from fedmerit.evidence.signatures import Signer


@pytest.fixture
def ledger(tmp_path):
    """Three records."""
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for number in range(3):
        ledger.append({"round": number, "weights": {"Zürich": 0.1 + number, "b": 0.5}, "rejected": {}})
    return ledger


def test_each_record_carries_the_hash_of_the_one_before(ledger):
    assert verify(ledger.path) == 3
    records = ledger.records
    assert [record["round"] for record in records] == [0, 1, 2]
    assert [record["previous"] for record in records] == [GENESIS, records[0]["hash"], records[1]["hash"]]


def test_a_follower_hears_every_record_once(ledger):
    heard = []
    follow = ledger.follower(lambda record: heard.append(record["round"]))
    follow()
    follow()
    ledger.append({"round": 3})
    follow()
    assert heard == [0, 1, 2, 3]


@pytest.mark.parametrize("again", ['{"round": 7}', '{"round": 7, "why": "' + "x" * 400 + '"}'], ids=["short", "long"])
def test_a_follower_continues_where_records_were_taken_back(ledger, again):
    """As by records counted: those instead of what it heard already are not sent again."""
    heard = []
    follow = ledger.follower(lambda record: heard.append(record["round"]))
    follow()
    ledger.keep(2)
    ledger.append(json.loads(again))
    follow()
    assert heard == [0, 1, 2]
    ledger.append({"round": 8})
    follow()
    assert heard == [0, 1, 2, 8]


def test_what_a_record_and_a_follower_read_does_not_grow_with_the_chain(ledger, monkeypatch):
    monkeypatch.setattr("fedmerit.evidence.ledger.TAIL", 64)  # shorter than a record
    heard = []
    follow = ledger.follower(heard.append)
    follow()
    monkeypatch.setattr("fedmerit.evidence.ledger._lines", None)  # the whole file
    ledger.append({"round": 3})
    follow()
    assert ledger.last == heard[-1]
    assert ledger.last["round"] == 3
    assert ledger.last_hash == ledger.last["hash"] == ledger.head
    monkeypatch.undo()
    assert verify(ledger.path) == 4


def is_found(ledger, content):
    ledger.path.write_bytes(content)
    try:
        verify(ledger.path)
    except BadInput as error:
        return str(ledger.path) in str(error)
    return False


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["one a byte", "every"])
def test_one_bit_changed_anywhere_is_found(ledger, every):
    whole = ledger.path.read_bytes()
    missed = [
        (position, bit)
        for position in range(len(whole))
        for bit in (range(8) if every else [position % 8])
        if not is_found(ledger, whole[:position] + bytes([whole[position] ^ 1 << bit]) + whole[position + 1 :])
    ]
    assert not missed


def test_one_character_removed_or_put_in_anywhere_is_found(ledger):
    whole = ledger.path.read_bytes()
    inside = range(len(whole) - 1)
    assert not [at for at in inside if not is_found(ledger, whole[:at] + whole[at + 1 :])]
    assert not [at for at in inside if not is_found(ledger, whole[:at] + b" " + whole[at:])]


@pytest.mark.parametrize(
    ("order", "line"),
    [([1, 2], 1), ([0, 2], 2), ([1, 0, 2], 1), ([0, 2, 1], 2), ([0, 0, 1, 2], 2), ([0, 1, 2, 0], 4), ([0, 1, 2, 2], 4)],
)
def test_removed_reordered_and_repeated_lines_are_found(ledger, order, line):
    lines = ledger.path.read_text().splitlines(keepends=True)
    ledger.path.write_text("".join(lines[number] for number in order))
    with pytest.raises(BadInput, match=rf"ledger\.jsonl, line {line}: does not follow from the line before"):
        verify(ledger.path)


@pytest.mark.parametrize("line", ["{}\n", "[]\n", "7\n", "null\n", "\n", '{"round": 3}\n', '{"hash": 1}\n'])
def test_a_line_put_at_the_end_is_found(ledger, line):
    assert is_found(ledger, ledger.path.read_bytes() + line.encode())


def test_a_half_written_last_line_is_dropped_by_the_next_record(ledger):
    whole = ledger.path.read_bytes()
    for length in (0, 1, 40, len(whole.splitlines(keepends=True)[0]), len(whole) - 1):
        ledger.path.write_bytes(whole[:length])
        before = ledger.records
        ledger.append({"round": "next"})
        assert ledger.records[:-1] == before
        assert verify(ledger.path) == len(before) + 1


def test_threads_with_ledgers_of_their_own_append_to_one_chain(ledger):
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: Ledger(ledger.path).append({"round": number}), range(3, 40)))
    assert verify(ledger.path) == 40
    assert {record["round"] for record in ledger.records} == set(range(40))


def test_more_than_there_are_cannot_be_kept(ledger):
    before = ledger.path.read_bytes()
    with pytest.raises(BadInput, match="holds 3 records, expected 5"):
        ledger.keep(5)
    assert ledger.path.read_bytes() == before


@pytest.fixture
def signer(tmp_path):
    """A server that signs."""
    issue(tmp_path, "server")
    return Signer(tmp_path / "server.key", tmp_path / "server.crt")


def test_a_signature_is_of_one_chain_and_one_round(signer, tmp_path):
    paths = [tmp_path / name for name in ("one.jsonl", "other.jsonl")]
    for path in paths:
        for round in (0, 1):
            Ledger(path, signer).append({"round": round})
        assert verify(path, [signer.certificate]) == 2
    one, other = ([RecordSignature.parse(record["signature"]) for record in Ledger(path).records] for path in paths)
    assert one[0].chain == one[1].chain != other[0].chain
    head = Ledger(paths[0]).last["hash"]
    assert one[1].is_signed_by([signer.certificate], 1, head)
    assert not one[1].is_signed_by([signer.certificate], 2, head)
    assert not RecordSignature(other[1].chain, one[1].signature).is_signed_by([signer.certificate], 1, head)
    assert not other[1].is_signed_by([signer.certificate], 1, "0" * 64)


def test_a_chain_that_continues_as_another_is_found(signer, tmp_path):
    one, other = tmp_path / "one.jsonl", tmp_path / "other.jsonl"
    Ledger(one, signer).append({"round": 0})
    other.write_text(one.read_text())
    Ledger(one, signer).append({"round": 1})
    record = json.loads(one.read_text().splitlines()[1])
    strange = str(RecordSignature("another", signer.sign(signature_payload("another", 1, record["hash"]))))
    other.write_text(other.read_text() + json.dumps(record | {"signature": strange}) + "\n")
    with pytest.raises(BadInput, match=r"other\.jsonl, line 2: is signed for another chain than the lines before"):
        verify(other, [signer.certificate])


def test_a_chain_continues_with_a_renewed_key_and_never_back(keys, signer, tmp_path):
    path, renewed = tmp_path / "ledger.jsonl", Signer(keys / "stranger.key", keys / "stranger.crt")
    for round, by in enumerate([signer, signer, renewed]):
        Ledger(path, by).append({"round": round})
    old, new = signer.certificate, renewed.certificate
    assert verify(path, (old, new)) == 3
    for certificates, line in (((old,), 3), ((new,), 1), ((new, old), 3), ((), 1)):
        with pytest.raises(BadInput, match=f"line {line}: its signature is not the server's"):
            verify(path, certificates)
    Ledger(path, signer).append({"round": 3})
    with pytest.raises(BadInput, match="line 4: its signature is not the server's"):
        verify(path, (old, new))


@pytest.mark.parametrize("line", ["[" * 200_000, '{"a": ' + "[" * 900 + "]" * 900 + ', "hash": "0"}'])
def test_json_that_is_too_deep_is_no_record(ledger, line):
    assert is_found(ledger, ledger.path.read_bytes() + line.encode() + b"\n")


def test_a_digest_of_a_network_is_of_every_tensor_in_whatever_order():
    state = {"a": torch.zeros(2), "b": torch.ones(1, dtype=torch.int64)}
    assert state_digest(state) == state_digest(dict(reversed(state.items())))
    others = ({"a": torch.zeros(2)}, state | {"b": torch.zeros(1)}, state | {"a": torch.ones(2)}, {"c": state["a"]})
    assert state_digest(state) not in map(state_digest, others)


def test_a_digest_follows_the_vector():
    vector = torch.zeros(4)
    before = digest(vector)
    assert digest(vector) == before
    vector[1:3].add_(1)  # through a view
    assert digest(vector) != before
    assert digest(vector) == digest(torch.tensor([0.0, 1.0, 1.0, 0.0]))
    with torch.inference_mode():
        untold = torch.zeros(4)  # torch counts no changes of such
        digest(untold)
        untold += 1
        assert digest(untold) == digest(torch.ones(4))
    assert digest(torch.zeros(2, 2)) == before
