"""How sites are: what one says of its machine, and what of all that an admin is pointed at."""

import json
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.flare_api.api_spec import NoConnection

from fedmerit.engines.site_errors import keep_error
from fedmerit.errors import RunFailed
from fedmerit.reasons import ScriptAnswer
from fedmerit.trainers.training_checkpoint import PROGRESS
from fedmerit_deploy import status
from fedmerit_deploy.facts import LISTED, TAIL, SiteFacts, batch_at_work, clear_facts, count_bin, last_error
from fedmerit_deploy.status import ask_sites, judge_sites, parse_facts, places_in_round

NOW = 1000.0
FINE = {"fedmerit": "1.0", "torch": "2.1", "python": "3.11.7", "disk": 80.0, "clock": NOW + 2, "task": "prostate"}


@pytest.mark.parametrize(
    ("own", "silent", "flag"),
    [
        ({}, 5.0, None),
        ({"fedmerit": "0.9"}, 5.0, "fedmerit 0.9, others have 1.0"),
        ({"python": "3.12.1"}, 5.0, "python 3.12.1, others have 3.11.7"),
        ({"task": "fundus"}, 5.0, "task fundus, others have prostate"),
        ({"clock": NOW + 60}, 5.0, "its clock is +60 s from this one"),
        ({"clock": NOW - 31}, 5.0, "its clock is -31 s from this one"),
        ({"disk": 0.3}, 5.0, "0.3 GiB of disk free"),
        ({"memory": 0.0}, 5.0, "0.0 GiB of memory free"),
        ({"certificate": "1970-01-20"}, 5.0, "its certificate ends on 1970-01-20: `fedmerit deploy renew`"),
        ({}, 61.0, "silent for 61 s"),
        ({}, None, f"not connected since {status.in_words(900.0)}"),
    ],
)
def test_judge_sites_flags_what_needs_a_look(own, silent, flag):
    reported = {"A": FINE, "B": FINE, "C": FINE | own}
    last = {"A": 1.0, "B": 2.0} | ({"C": silent} if silent is not None else {})
    states = judge_sites({"C": 900.0}, last, reported, {}, NOW)
    assert [states[site].flags for site in "ABC"] == [[], [], [flag] if flag else []]


def test_judge_sites_accepts_hidden_facts():
    states = judge_sites({}, {"A": 1.0}, {"A": {"fedmerit": "1.0"}}, {"A": "absent in 3 of 3 rounds"}, NOW)
    assert (states["A"].clock_offset, states["A"].flags) == (None, ["absent in 3 of 3 rounds"])


def test_places_in_round_of_all_sites():
    record = {"round": 3, "participants": ["A", "B"], "rejected": {"C": "no reply"}}
    progress = {"record": record, "rounds": 40, "silent": ["B", "C"], "at_work": ["B"]}
    expected = {"A": "answered", "B": "at work", "C": "no answer yet"}
    assert places_in_round(progress) == {site: f"round 5 of 40: {text}" for site, text in expected.items()}
    assert places_in_round(progress | {"record": None}) == {}


@pytest.mark.parametrize(
    "text",
    [
        "unlimited", "__import__('os')", "[1]", "{", "no reply", "[" * 9000, "1" + "+1" * 4000, " " * 20_000 + "{}",
        {"clock": 10**400}, {"clock": True}, {"disk": float("nan")}, {"disk": -1}, {"memory": "4"}, {"torch": [2.1]},
        {"torch": "\x1b[2J"}, {"python": "[link=http://x]3.11[/link]"}, {"last_error": "a\u202e"}, {"torch": "9" * 99},
        {"images": "12"}, {1: 2}, {("a",): 1}, {"slices": 10**400},
    ],
)  # fmt: skip
def test_parse_facts_of_other_text_is_empty(text):
    """A clock of 401 digits ended the admin's `job status`."""
    assert parse_facts(text) == {}


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        ("torch", "2.1 /data/Mueller"),
        ("gpu", "<b>"),
        ("disk", float("nan")),
        ("clock", "now"),
        ("certificate", "soon"),
        ("certificate", "2026-99-99"),
        ("patients", 12),
        ("patients", "1 to 4"),
        ("slices", "5 to 9, 7"),
        ("batch", "3"),
        ("last_error", "/data/Mueller.npy not found"),
        ("host", "pacs"),
    ],
)
def test_clear_facts_drops_unlisted_values(fact, value):
    assert clear_facts(FINE | {fact: value}) == {name: one for name, one in FINE.items() if name != fact}


def test_clear_facts_with_unknown_hidden_name_is_empty():
    assert clear_facts(FINE, ["disk"]) == {name: one for name, one in FINE.items() if name != "disk"}
    assert clear_facts(FINE, ["disc"]) == {}


def test_site_facts_omit_hidden_ones(ready):
    log = ready / "runs/job/sites/site1/errors.log"
    log.parent.mkdir(parents=True)
    (log.parent / PROGRESS).write_text("12 of 400")
    log.write_text('Traceback (most recent call last):\n  File "/data/Mueller.py"\nValueError: /data/Mueller.npy\n')
    context = FLContext()
    context.set_prop(FLContextKey.WORKSPACE_ROOT, str(ready))
    manager = SiteFacts(num_of_gpus=0, mem_per_gpu_in_GiB=0)
    facts = manager.report_resources(context)
    assert set(facts) == set(LISTED)
    assert (facts["last_error"][:12], facts["task"], facts["batch"]) == ("ValueError 2", "prostate", "12 of 400")
    assert facts["patients"] == "5 to 9"
    assert "Mueller" not in str(facts)
    assert abs(facts["clock"] - time.time()) < 3600
    manifest = ready / "local/fedmerit.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"hidden": ["memory", "patients"]}))
    assert set(LISTED) - set(manager.report_resources(context)) == {"memory", "patients"}
    clients = [SimpleNamespace(name=name, last_connect_time=NOW - 7) for name in "AB"]

    def report(kind, sites):
        if sites == ["B"]:
            raise NoConnection("it was stopped seven seconds ago")
        return dict.fromkeys(sites, str(facts))

    opened = SimpleNamespace(get_system_info=lambda: SimpleNamespace(client_info=clients), report_resources=report)
    assert ask_sites(opened, NOW) == ({"A": 7.0, "B": 7.0}, {"A": facts})


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("no mask of\nMUELLER_1960"), "ValueError"),
        (ScriptAnswer("its last lines", "MUELLER: none"), "ScriptAnswer"),
        (RunFailed("its last lines:\nTraceback (most recent call last):\n  File\nKeyError: 1\nMUELLER"), "KeyError"),
        (OSError("x" * (TAIL + 1)), "error"),
    ],
)
def test_last_error_of_several_lines_is_only_its_kind(error, kind, tmp_path):
    """The last line of its text, such as a patient's name, went to every admin."""
    with suppress(type(error)):
        raise error
    keep_error(tmp_path / "runs/job/sites/A/errors.log", error)
    assert last_error(tmp_path).split()[0] == kind


def test_last_error_without_log_is_empty(tmp_path):
    assert last_error(tmp_path) == batch_at_work(tmp_path) == ""


@pytest.mark.parametrize(("count", "expected"), [(4, ""), (5, "5 to 9"), (99, "50 to 99"), (10**6, "100000 or more")])
def test_count_bin_of_counts(count, expected):
    assert count_bin(count) == expected


def test_remember_keeps_last_contact_for_a_month(tmp_path):
    month = status.FORGOTTEN
    (tmp_path / status.HEARD).write_text("[]")
    assert status._remember(tmp_path, {"A": 7.0, "B": 1.0}, month) == {"A": month - 7, "B": month - 1}
    assert status._remember(tmp_path, {}, 2 * month - 5) == {"B": month - 1}
