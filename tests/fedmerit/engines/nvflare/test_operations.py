"""Test the hooks by which a run meets its operators, and what it reports to them."""

from pathlib import Path

import pytest

from fedmerit.engines.nvflare import operations
from fedmerit.engines.nvflare.operations import absences, job_events, site_policy
from fedmerit.errors import BadInput
from fedmerit.site.policy import Manifest
from fedmerit_deploy.job_ends import JobEvents
from fedmerit_deploy.site_policy import SitePolicy


def test_hooks_come_by_entry_point():
    assert isinstance(site_policy(Manifest(site="A")), SitePolicy)
    assert isinstance(job_events(Path("kit")), JobEvents)


def test_site_without_rules_refuses_every_job(monkeypatch):
    monkeypatch.setattr(operations, "entry_points", lambda **_: ())
    with pytest.raises(BadInput, match="no installed package provides them; install"):
        site_policy(Manifest(site="A"))
    assert job_events(Path("kit")) is None


def records(*rejected):
    """Of rounds of three sites, each without those that are named with a reason."""
    return [
        {"round": number, "participants": sorted({"A", "B", "C"} - set(one)), "rejected": one}
        for number, one in enumerate(rejected)
    ]


@pytest.mark.parametrize(
    ("rejected", "reported"),
    [
        ([], {}),
        ([{}, {"C": "no reply"}, {}], {}),  # it is back
        ([{}, {}, {"C": "no reply"}], {"C": "absent in 1 of 3 rounds, last in round 2: no reply"}),
        ([{"C": "its disk is full"}, {"C": "late"}, {}], {"C": "absent in 2 of 3 rounds, last in round 1: late"}),
    ],
)
def test_absences_name_sites_of_last_round_or_most_rounds(rejected, reported):
    assert absences(records(*rejected)) == reported


def test_absences_explain_site_that_left():
    rounds = records({}, {"C": "its certificate is revoked"}, {})
    rounds[1]["left"], rounds[2]["participants"] = {"C": {"rounds": 1}}, ["A", "B"]
    reported = "absent in 2 of 3 rounds, last in round 2: it left with round 1, before it took part in 1"
    assert absences(rounds) == {"C": reported}
