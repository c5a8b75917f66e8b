"""What may leave a site: the list, the gate that holds messages against it, and a patient's name that must not."""

import errno
import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from nvflare.apis.dxo import from_shareable
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fedmerit.contract import flat
from fedmerit.contract.method import DECIMALS
from fedmerit.engines import runs
from fedmerit.engines.nvflare.egress import EgressFilter
from fedmerit.engines.nvflare.executor import ERRORS
from fedmerit.engines.nvflare.translation import answer_to_model, model_to_evaluated, model_to_reply
from fedmerit.evidence.ledger import Ledger
from fedmerit.files import DISK_FULL
from fedmerit.schema.configuration.run import make_configuration
from fedmerit.schema.configuration.settings import TASKS
from fedmerit.schema.egress_list import (
    LARGEST_MB,
    LISTED,
    MOST_ENTRIES,
    OTHER_REASON,
    Withheld,
    clear_answer,
    require_model,
)
from fedmerit.schema.messages import REASONS, Evaluated, Failure, Importance, Reply, describe_failure, round_answer
from fedmerit.schema.results import read_results
from fedmerit.schema.scores import Overlap, Surface
from fedmerit.schema.survey import TOO_FEW
from fedmerit.trainers.factory import initial_network

PATIENT = "Mueller_19450213"
OVERLAP = {"case": "0", "label": "prostate", "true_positives": 3, "false_positives": 1, "false_negatives": 0}

SURFACE = {"unit": "mm", "hd95": 1.23456789, "nsd": None}
SLICES = {"patients": [0, 7, *[0] * 10], "voxels": []}  # of a survey
SURVEY = {"patients": 7, "slices": 70, "tallies": {"slices": SLICES}, "floor": 6}


@pytest.fixture(scope="module")
def network():
    config = make_configuration(
        "fedce", "prostate", 1, 0, TASKS["prostate"], {"architecture": "unet", "width": 4, "depth": 2}
    )
    return initial_network(config.network, 0)


@pytest.fixture
def reply(network):
    return Reply(
        round=2,
        update=flat.get_parameters(network) / 7,
        buffers=flat.get_buffers(network),
        num_samples=12,
        overlaps=(Overlap(**OVERLAP),),
        values={"cosine": 0.123456789, "minus_error": 0.25},
        train_loss=0.987654321,
        seconds=1.5,
        trained_overlaps=(Overlap(**OVERLAP),),
    )


def leave(answer, network, decimals=DECIMALS, **planted):
    """An answer through the gate, as NVFlare has it done; ``planted`` is put beside its parts."""
    model = answer_to_model(answer, network)
    model.meta |= planted
    return EgressFilter(decimals).process(FLModelUtils.to_shareable(model), FLContext())


def test_every_field_of_an_answer_is_listed():
    parts = {field.name for kind in (Reply, Evaluated, Importance) for field in fields(kind)} - {"round"} | {
        "countersigned",
        "enrolment",
        "failure",
        "model",
        "survey",
    }
    assert parts == set(LISTED)
    told = (Path(__file__).parents[3] / "docs/privacy.md").read_text()
    assert [name for name in LISTED if f"`{name}`" not in told] == []


def test_honest_answers_pass_as_they_are(reply, network):
    reply = round_answer(reply)
    back = model_to_reply(FLModelUtils.from_shareable(leave(reply, network)), network)
    assert isinstance(back, Reply)
    assert np.array_equal(back.update, reply.update)
    assert {name: value for name, value in vars(back).items() if name not in ("update", "buffers")} == {
        name: value for name, value in vars(reply).items() if name not in ("update", "buffers")
    }
    assert all(np.array_equal(back.buffers[name], value) for name, value in reply.buffers.items())
    overlaps = (Overlap(**OVERLAP), Overlap(**OVERLAP, surface=Surface("mm", 1.25, 0.5)))
    evaluated = Evaluated(3, (overlaps, overlaps), torch.ones(2, 4, dtype=torch.float64), 0.5)
    back = model_to_evaluated(FLModelUtils.from_shareable(leave(evaluated, network)), network)
    assert isinstance(back, Evaluated)
    assert (back.round, back.overlaps, back.losses.tolist()) == (3, evaluated.overlaps, evaluated.losses.tolist())


def test_numbers_are_rounded(reply, network):
    model = FLModelUtils.from_shareable(leave(reply, network, decimals=2))
    assert model.meta["values"] == {"cosine": 0.12, "minus_error": 0.25}
    assert (model.meta["train_loss"], model.meta["seconds"]) == (0.99, 1.5)
    assert (round_answer(reply).values["cosine"], round_answer(reply).train_loss) == (0.123457, 0.987654)


def test_surfaces_leave_as_two_rounded_numbers():
    """Nothing beside them."""
    sent = [[OVERLAP | {"surface": SURFACE | {"patient": PATIENT}}, OVERLAP]]
    ((one, older),) = clear_answer({}, {"overlaps": sent}, decimals=2)[1]["overlaps"]
    assert one["surface"] == {"unit": "mm", "hd95": 1.23, "nsd": None}
    assert older["surface"] is None


def test_a_survey_passes_above_the_floor_of_the_site(reply, network):
    model = FLModelUtils.from_shareable(leave(reply, network, survey=SURVEY))
    assert model.meta["survey"] == SURVEY
    with pytest.raises(Withheld, match="fewer than 8 patients"):
        clear_answer({}, {"survey": SURVEY}, least=8)
    with pytest.raises(Withheld, match="survey: a number of fewer than 7 patients"):  # all shown are 7
        clear_answer({}, {"survey": SURVEY}, least=7)


def test_what_is_not_listed_is_left_out(reply, network):
    left = leave(reply, network, patients=[PATIENT], **{PATIENT: 1.0})
    assert PATIENT not in repr(left)
    assert set(from_shareable(left).meta) <= set(LISTED)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("buffers", {PATIENT + " ": np.zeros(1, np.float32)}),
        ("buffers", {"mean": np.array([PATIENT])}),
        ("num_samples", PATIENT),
        ("num_samples", True),
        ("overlaps", [OVERLAP | {"case": PATIENT}]),
        ("overlaps", [OVERLAP | {"patient": PATIENT}]),
        ("overlaps", [OVERLAP | {"label": f"{PATIENT} prostate"}]),
        ("trained_overlaps", [{"case": "0"}]),
        ("overlaps", [[OVERLAP | {"surface": SURFACE | {"unit": PATIENT}}]]),
        ("overlaps", [[OVERLAP | {"surface": SURFACE | {"nsd": PATIENT}}]]),
        ("overlaps", [[OVERLAP | {"surface": {"unit": "mm"}}]]),
        ("values", {PATIENT: 1.0}),
        ("values", {"cosine": PATIENT}),
        ("pairs", {"available": {f"{PATIENT} 1": 1.0}}),
        ("pairs", {PATIENT: {"A": 1.0}}),
        ("pairs", {"available": {"A": PATIENT}}),
        ("increases", [PATIENT]),
        ("images", PATIENT),
        ("train_loss", PATIENT),
        ("seconds", None),
        ("losses", [[0.5]]),
        ("survey", SURVEY | {PATIENT: 7}),
        ("survey", SURVEY | {"tallies": {PATIENT: SLICES}}),
        ("survey", SURVEY | {"tallies": {f"volume {PATIENT} 1": SLICES}}),
        ("survey", SURVEY | {"tallies": {"slices": SLICES | {"patients": [7]}}}),
        ("survey", SURVEY | {"tallies": {"slices": SLICES | {"patients": [4, 7, *[0] * 10]}}}),
        ("survey", SURVEY | {"patients": 4}),
    ],
)
def test_a_part_of_another_kind_is_withheld_without_a_word_of_it(reply, network, name, value):
    with pytest.raises(Withheld) as refused:
        leave(reply, network, **{name: value})
    assert "Mueller" not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize(
    "update",
    [
        {"a": np.zeros(3, np.float64)},
        {"a b": np.zeros(3, np.float32)},
        {"a": [1.0]},
        {"a": np.zeros((LARGEST_MB + 1) << 18, np.float32)},
    ],
    ids=["float64", "name", "no array", "too large"],
)
def test_an_update_of_another_kind_is_withheld(update):
    with pytest.raises(Withheld):
        clear_answer(update, {})


def test_a_model_for_a_peer_passes_as_it_is_or_not_at_all(network):
    model = {name: value.numpy() for name, value in flat.named(network, flat.get_parameters(network)).items()}
    buffers = {name: value.numpy() for name, value in flat.get_buffers(network).items()}
    require_model(model, buffers)
    half = np.zeros(LARGEST_MB << 17, np.float32)
    require_model({"a": half}, {"b": half})
    others = [
        ({"a": np.zeros(3, np.float64)}, {}),
        ({"a": PATIENT}, {}),
        ({PATIENT + " ": np.zeros(1, np.float32)}, {}),
        (model, buffers | {"mean": np.array([PATIENT])}),
        (model, {3: np.zeros(1, np.float32)}),
        ({"a": half}, {"b": half, "c": np.zeros(1, np.float32)}),
        (dict.fromkeys(map(str, range(MOST_ENTRIES + 1)), np.zeros(0, np.float32)), {}),
    ]
    for parameters, statistics in others:
        with pytest.raises(Withheld) as refused:
            require_model(parameters, statistics)
        assert "Mueller" not in str(refused.value)


def test_reasons_are_those_of_the_list(network):
    assert describe_failure(OSError(errno.ENOSPC, "full", PATIENT)).reason == DISK_FULL
    for reason in (*REASONS, TOO_FEW, describe_failure(ValueError(PATIENT)).reason):
        assert FLModelUtils.from_shareable(leave(Failure(reason), network)).meta["failure"] == reason
    told = FLModelUtils.from_shareable(leave(Failure(f"/data/{PATIENT}.npy: not readable"), network))
    assert told.meta["failure"] == OTHER_REASON


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


def test_that_a_closing_was_noted_leaves_as_a_yes_and_nothing_else():
    assert clear_answer({}, {"countersigned": True})[1] == {"countersigned": True}
    with pytest.raises(Withheld, match="instead of a yes"):
        clear_answer({}, {"countersigned": "a patient's name"})
