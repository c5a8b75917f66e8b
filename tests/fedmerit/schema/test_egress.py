"""What may leave a site: the declared fields, in their forms, and nothing else; a patient's name must not."""

import errno
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from message_samples import ANSWERED, MESSAGES, TASKS, is_same
from pretending import NETWORK

import fedmerit.schema
from fedmerit.ciphertexts import Ciphertexts
from fedmerit.engines import runs
from fedmerit.engines.nvflare.executor import ERRORS
from fedmerit.evidence.ledger import Ledger
from fedmerit.reasons import DISK_FULL
from fedmerit.schema.codec import decode, encode
from fedmerit.schema.egress import LARGEST_MB, MOST_ENTRIES, Withheld, clear_message, list_fields
from fedmerit.schema.messages import ANSWERS, OTHER_REASON, REASONS, Failure, PeerModel, describe_failure, rounded
from fedmerit.schema.results import read_results
from fedmerit.schema.scores import Overlap

PATIENT = "Mueller_19450213"
LEAVING = {name: message for name, message in MESSAGES.items() if name not in TASKS}


def cleared(message, **gate):
    return decode(*clear_message(*encode(message, NETWORK), **gate), NETWORK, (*ANSWERS, PeerModel))


def test_declared_fields_are_those_that_people_have_approved():
    """A new field of an answer leaves no site before somebody has added its line to this file."""
    approved = Path(fedmerit.schema.__path__[0]) / "egress_approved.txt"
    assert list_fields() == approved.read_text().splitlines()


@pytest.mark.parametrize("name", LEAVING)
def test_honest_message_passes_unchanged(name):
    message = LEAVING[name] if isinstance(LEAVING[name], PeerModel) else rounded(LEAVING[name])
    assert is_same(cleared(message), message)


@pytest.mark.parametrize("name", TASKS)
def test_message_that_is_no_answer_is_withheld(name):
    with pytest.raises(Withheld, match="no kind that may leave"):
        clear_message(*encode(TASKS[name], NETWORK))


def holders(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a carried message with each of its keys."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from holders(value[key])


def plain(value: Any) -> Any:
    """A copy whose containers can be changed."""
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    return [plain(entry) for entry in value] if isinstance(value, list | tuple) else value


INJECTED = {
    "text": lambda old: PATIENT,
    "sentence": lambda old: f"/data/{PATIENT} 1.npy",
    "bytes": lambda old: PATIENT.encode(),
    "array": lambda old: np.array([PATIENT]),
    "list": lambda old: [old, PATIENT],
    "entry": lambda old: {**old, f"{PATIENT} 1": 1.0} if isinstance(old, dict) else {PATIENT: old},
}


@pytest.mark.parametrize("injected", INJECTED)
@pytest.mark.parametrize("name", LEAVING)
def test_patient_injected_in_any_field_leaves_no_site(name, injected):
    """At every place of every message: it is withheld without a word of it, or the patient is not in what passes.

    Only a name of a label, of a parameter or of another site looks like this text.
    """
    count = len(list(holders(carried(name))))
    for place in range(count):
        message = carried(name)
        holder, key = list(holders(message))[place]
        if key in ("params", "fields", "kind", "label") or (isinstance(holder[key], bytes) and injected == "bytes"):
            continue
        holder[key] = INJECTED[injected](holder[key])
        assert "Mueller" not in reported(**message)


def carried(name: str) -> dict[str, Any]:
    params, fields = encode(LEAVING[name], NETWORK)
    return {"params": plain(params), "fields": plain(fields)}


def reported(params: Any, fields: Any) -> str:
    """What leaves the site, or why nothing does."""
    try:
        return repr(clear_message(params, fields))
    except Withheld as error:
        return f"{error} {error.__cause__ or ''}"


def test_fields_that_are_not_declared_are_left_out():
    params, fields = encode(ANSWERED["reply"].message, NETWORK)
    passed = clear_message(params, {**fields, "patients": [PATIENT], PATIENT: 1.0})
    assert passed[1].keys() == fields.keys()


def test_numbers_are_rounded():
    reply = replace(ANSWERED["reply"].message, values={"cosine": 0.123456789}, train_loss=0.987654321)
    left = cleared(reply, decimals=2)
    assert (left.values, left.train_loss, left.seconds) == ({"cosine": 0.12}, 0.99, 1.0)


def test_scores_are_rounded_with_fewer_decimals():
    answer = ANSWERED["reply"].message
    scored = replace(answer, overlaps=(Overlap.of_score("000", "disc", 0.123456),))
    assert [rounded(scored, decimals).overlaps[0].score for decimals in (6, 2)] == [0.123456, 0.12]


def test_survey_passes_above_the_floor_of_the_site():
    survey = ANSWERED["surveyed"].message
    assert cleared(survey, least=5) == survey
    with pytest.raises(Withheld, match="fewer than 6 patients"):
        cleared(survey, least=6)
    with pytest.raises(Withheld, match="fewer than 5 patients"):
        cleared(replace(survey, patients=4))


def test_models_in_the_clear_are_withheld_if_the_site_sends_them_only_encrypted():
    for name in ("reply", "estimated"):
        with pytest.raises(Withheld, match="only encrypted"):
            cleared(ANSWERED[name].message, encrypted=True)
    locked = replace(ANSWERED["reply"].message, update=torch.empty(0), buffers={}, ciphertexts=Ciphertexts((b"x",), ()))
    assert is_same(cleared(locked, encrypted=True), locked)
    assert cleared(LEAVING["failure"], encrypted=True) == LEAVING["failure"]


@pytest.mark.parametrize(
    "update",
    [
        {"a": np.zeros(3, np.float64)},
        {"a b": np.zeros(3, np.float32)},
        {"a": [1.0]},
        {"a": np.zeros((LARGEST_MB + 1) << 18, np.float32)},
        dict.fromkeys(map(str, range(MOST_ENTRIES + 1)), np.zeros(0, np.float32)),
    ],
    ids=["float64", "name", "no array", "too large", "too many"],
)
def test_update_of_another_form_is_withheld(update):
    with pytest.raises(Withheld):
        clear_message(update, encode(ANSWERED["reply"].message, NETWORK)[1])


def test_reasons_are_those_of_the_list():
    assert describe_failure(OSError(errno.ENOSPC, "full", PATIENT)).reason == DISK_FULL
    for reason in (*REASONS, describe_failure(ValueError(PATIENT)).reason):
        assert cleared(Failure(reason)).reason == reason
    assert cleared(Failure(f"/data/{PATIENT}.npy: not readable")).reason == OTHER_REASON


@pytest.mark.slow
def test_no_patient_is_known_outside_the_site(own_sites, tmp_path):
    """Images lie under a patient's name; one is spoiled when the run has begun, so that the error names its file."""
    folder, run = own_sites / "site2", tmp_path / "run"
    lists = json.loads((folder / "datalist.json").read_text())
    (folder / PATIENT).mkdir()
    for entry in (entry for entries in lists.values() for entry in entries):
        for part in ("image", "label"):
            name = f"{PATIENT}/{Path(entry[part]).parent.name}_{Path(entry[part]).name}"
            (folder / entry[part]).rename(folder / name)
            entry[part] = name
        entry["case"] = entry["patient"] = f"{PATIENT}_{entry['case']}"
    (folder / "datalist.json").write_text(json.dumps(lists))
    runs.create(run, "fedavg", own_sites, rounds=1, settings={"architecture": "unet", "width": 4, "depth": 3})
    (folder / lists["testing"][0]["image"]).write_bytes(b"")
    runs.execute(run, lambda record: None)

    results = read_results(run)
    tested = results[(results["split"] == "testing") & (results["quantity"] == "dice")]
    assert set(tested["site"]) == {"site1", "site3"}
    assert len(Ledger(run / "ledger.jsonl").records) == 1
    files = [path for path in run.rglob("*") if path.is_file()]
    naming = {str(path.relative_to(run)) for path in files if PATIENT.encode() in path.read_bytes()}
    assert naming == {f"sites/site2/{ERRORS}", "nvflare.log"}  # the site's own; standard error of this machine
    logs = [path for path in files if path.name.endswith("log.txt") and path.parent.name == "site2"]
    assert any("its own errors.log says why" in path.read_text() for path in logs)
