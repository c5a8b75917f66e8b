"""Rehearsals: the shorter job, and the verdict on each site. With real processes: test_hospitals.py."""

import json
from pathlib import Path

import pytest

from fedmerit.errors import BadInput
from fedmerit.site.policy import Manifest
from fedmerit.trainers.trainer import TrainingImages
from fedmerit_deploy.rehearsal import export_rehearsal, judge_site, shorten
from fedmerit_deploy.site_policy import JobRules, check_rules
from fedmerit_deploy.status import SiteState

JOBS = Path(__file__).parents[2] / "jobs"


def plan_of(job):
    content = json.loads((job / "app/config/config_fed_client.json").read_text())
    return content["executors"][0]["executor"]["args"]["plan"]


@pytest.mark.parametrize(
    "name", ["fedavg_fundus", "fedce_prostate", "cffl_prostate", "fedsac_prostate", "cycle_fundus"]
)
def test_rehearsal_shortens_rounds_and_batches(name, tmp_path):
    export_rehearsal(JOBS / name, tmp_path / "rehearsal", 90)
    whole, short = plan_of(JOBS / name), plan_of(tmp_path / "rehearsal")
    same = ("method", "network", "parameters", "preprocessing", "share_models")
    assert [short.get(part) for part in same] == [whole.get(part) for part in same]
    assert short["rounds"] == {"fedsac_prostate": 11, "cycle_fundus": 10}.get(name, 1)  # so many they need
    assert short["training"]["steps"] * short["training"]["batch_size"] == JobRules().least_images
    server = json.loads((tmp_path / "rehearsal/app/config/config_fed_server.json").read_text())
    assert server["workflows"][0]["args"] == {"plan": short, "min_sites": 1, "round_timeout": 90}
    assert json.loads((tmp_path / "rehearsal/meta.json").read_text())["min_clients"] == 1


@pytest.mark.parametrize(("optimizer", "images"), [("adam", 8), ("sgd", 256)])
def test_default_rules_allow_rehearsal(optimizer, images):
    from fedmerit.schema.configuration.run import RunConfiguration

    plan = plan_of(JOBS / "fedavg_prostate")
    plan["training"] |= {"optimizer": optimizer}
    short = RunConfiguration.from_dict(shorten(plan))
    assert short.training.steps * short.training.batch_size == images
    manifest = Manifest(site="A", site_folder="/data/A")
    images_there = TrainingImages(300, (20,) * 15, 300 * 128**2, (128, 128))
    assert [check.sentence for check in check_rules(manifest, short, 3, images_there) if not check.passes] == []


def test_rehearsal_rejects_other_folder(tmp_path):
    with pytest.raises(BadInput, match="no job folder"):
        export_rehearsal(tmp_path, tmp_path / "out", 90)


@pytest.mark.parametrize(
    ("site", "refused", "ended", "state", "words"),
    [
        (SiteState(None), None, [], "fail", "not connected: have it started"),
        (SiteState(1.0), "class not allowed", [], "fail", "refuses the job: class not allowed; `fedmerit check"),
        (SiteState(1.0), None, ["job 3f: left no run"], "fail", "job 3f: left no run"),
    ],
)
def test_judge_without_run_names_cause(site, refused, ended, state, words):
    reported, message = judge_site("A", site, refused, None, ended)
    assert reported == state
    assert words in message


def test_judge_of_run_names_rejected_and_late_sites(make_ledger_run):
    """A took part and has a flag, B was rejected, C came too late."""
    sites = {"A": SiteState(1.0, flags=["0.2 GiB of disk free"]), "B": SiteState(1.0), "C": SiteState(1.0)}
    states, messages = zip(*(judge_site(name, sites[name], None, make_ledger_run, []) for name in "ABC"), strict=True)
    assert states == ("warn", "fail", "fail")
    assert messages[0] == "sent 2.0 MB, received 1.0 MB, worked 3 s; look at: 0.2 GiB of disk free"
    assert messages[1].startswith("the disk is full; errors.log")
    assert "connected after the job" in messages[2]


@pytest.fixture
def make_ledger_run(tmp_path):
    from fedmerit.evidence.ledger import Ledger
    from fedmerit.schema.results import COLUMNS

    Ledger(tmp_path / "ledger.jsonl").append({"round": 0, "participants": ["A"], "rejected": {"B": "the disk is full"}})
    values = {"bytes_sent": 2e6, "bytes_received": 1e6, "seconds": 3.0}
    rows = [f"run,fedavg,0,,0,A,,training,,,,{name},{value}" for name, value in values.items()]
    (tmp_path / "results.csv").write_text("\n".join([",".join(COLUMNS), *rows]) + "\n")
    return tmp_path
