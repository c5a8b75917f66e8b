"""How sites are: what one says of its machine, and what of all that an admin is pointed at."""

import time
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from fedmerit.flare.deploy.site_states import ask_sites, judge_sites, parse_facts
from fedmerit.flare.site_facts import SiteFacts, last_error

NOW = 1000.0
FINE = {"fedmerit": "1.0", "torch": "2.1", "python": "3.11.7", "disk": 80.0, "clock": NOW + 2, "last_error": ""}


@pytest.mark.parametrize(
    ("own", "silent", "flag"),
    [
        ({}, 5.0, None),
        ({"fedmerit": "0.9"}, 5.0, "fedmerit 0.9, others have 1.0"),
        ({"python": "3.12.1"}, 5.0, "python 3.12.1, others have 3.11.7"),
        ({"clock": NOW + 60}, 5.0, "its clock is +60 s from this one"),
        ({"clock": NOW - 31}, 5.0, "its clock is -31 s from this one"),
        ({"disk": 0.3}, 5.0, "0.3 GiB free on its disk"),
        ({}, 61.0, "silent for 61 s"),
        ({}, None, "not connected"),
    ],
)
def test_what_is_to_be_looked_at_is_named(own, silent, flag):
    told = {"A": FINE, "B": FINE, "C": FINE | own}
    heard = {"A": 1.0, "B": 2.0} | ({"C": silent} if silent is not None else {})
    states = judge_sites(["C"], heard, told, {}, NOW)
    assert [states[site].flags for site in "ABC"] == [[], [], [flag] if flag else []]


def test_a_site_that_hides_or_lacks_is_named_without_it():
    states = judge_sites([], {"A": 1.0}, {"A": {"fedmerit": "1.0"}}, {"A": "absent in 3 of 3 rounds"}, NOW)
    assert (states["A"].clock_offset, states["A"].flags) == (None, ["absent in 3 of 3 rounds"])


@pytest.mark.parametrize(
    "text",
    [
        "unlimited", "__import__('os')", "[1]", "{", "no reply", "[" * 9000, "1" + "+1" * 4000, " " * 20_000 + "{}",
        {"clock": 10**400}, {"clock": True}, {"disk": float("nan")}, {"disk": -1}, {"memory": "4"}, {"torch": [2.1]},
        {"torch": "\x1b[2J"}, {"python": "[link=http://x]3.11[/link]"}, {"last_error": "a\u202e"}, {"torch": "9" * 99},
        {"images": "12"}, {1: 2}, {("a",): 1},
    ],
)  # fmt: skip
def test_what_is_no_report_says_nothing(text):
    """A clock of 401 digits ended the admin's `job status`."""
    assert parse_facts(text) == {}


def test_a_site_reports_what_it_does_not_hide(tmp_path):
    log = tmp_path / "runs/job/sites/A/errors.log"
    log.parent.mkdir(parents=True)
    log.write_text('Traceback (most recent call last):\n  File "/data/Mueller.py"\nValueError: /data/Mueller.npy\n')
    context = MagicMock()
    context.get_engine.return_value.get_workspace.return_value = SimpleNamespace(get_root_dir=lambda: str(tmp_path))
    facts = SiteFacts(["memory"], num_of_gpus=0, mem_per_gpu_in_GiB=0).report_resources(context)
    assert facts["last_error"].startswith("ValueError 20")
    assert "Mueller" not in str(facts)
    assert abs(facts["clock"] - time.time()) < 3600
    assert {"fedmerit", "python", "disk"} <= set(facts)
    assert "memory" not in facts
    client = SimpleNamespace(name="A", last_connect_time=NOW - 7)
    opened = SimpleNamespace(
        get_system_info=lambda: SimpleNamespace(client_info=[client]), report_resources=lambda kind: {"A": str(facts)}
    )
    assert ask_sites(opened, NOW) == ({"A": 7.0}, {"A": facts})


def test_no_error_is_none(tmp_path):
    assert last_error(tmp_path) == ""
