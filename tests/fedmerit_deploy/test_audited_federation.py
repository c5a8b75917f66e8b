"""A deployed federation whose sites commit to their steps, keep a ledger of jobs, and draw their own order."""

import json
import re
import shutil
from pathlib import Path

import pytest
from federation_factory import WIDE, Federation, federation

from fedmerit.evidence.repeated_work import AUDITS
from fedmerit.site.job_ledger import JOB_LEDGER
from fedmerit.site.policy import JobRules
from fedmerit_deploy import session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # whole federations of processes

TINY = ("--task", "prostate", "--rounds", 2, "--min-sites", 2, "--set", "architecture=unet", "--set", "width=4")


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory, sites):
    pair = tmp_path_factory.mktemp("pair")
    for name in ("site1", "site2"):
        shutil.copytree(sites / name, pair / name)
    with federation(tmp_path_factory.mktemp("audited") / "kits", pair, rules=JobRules(**WIDE)) as made:
        yield made


@pytest.fixture(scope="module")
def first(hospitals: Federation, fedmerit, tmp_path_factory) -> tuple[str, Path]:
    """The id of a job that has ended, and its run folder."""
    out = tmp_path_factory.mktemp("first")
    result = fedmerit("job", "export", "--method", "fedavg", *TINY, "--set", "depth=3", "--out", out / "job")
    assert result.exit_code == 0, result.output
    job = hospitals.submit(out / "job")
    assert hospitals.wait(job) == session.COMPLETED, hospitals.log()
    return job, hospitals.fetch(job, out / "run")


def test_audit_of_a_deployed_run_repeats_its_drawn_steps(hospitals, first, fedmerit):
    job, run = first
    shared = ("--run", run, "--auditor", hospitals.admin)
    for name in hospitals.names:
        result = fedmerit("deploy", "audit", job, "--kit", hospitals.kits[name], *shared)
        assert result.exit_code == 0, result.output
        assert f"{name}: 2 of 2 drawn steps repeated" in result.output
    assert sorted(path.name for path in (run / AUDITS).iterdir()) == ["site1.json", "site2.json"]
    root = hospitals.kits["server"] / "startup" / "rootCA.pem"
    logs = [hospitals.kits[name] / "runs" / job / "sites" / name / "site_log.jsonl" for name in hospitals.names]
    given = [text for log in logs for text in ("--site-log", log)]
    result = fedmerit("verify", run, "--certificate", root, *given)
    assert result.exit_code in (0, 3), result.output  # 3: something else rests on the server's word
    for name in hospitals.names:
        assert f"{name}: 2 of 2 drawn steps repeated, by " in result.output
    assert "nobody repeated drawn steps" not in result.output


def test_related_job_is_refused_until_the_data_managers_allow_it(hospitals, first, fedmerit, tmp_path):
    settings = (*TINY, "--set", "depth=3", "--set", "steps=3")
    fedmerit("job", "export", "--method", "fedavg", *settings, "--out", tmp_path / "job")
    refused = hospitals.submit(tmp_path / "job")
    assert hospitals.wait(refused) != session.COMPLETED
    for name in hospitals.names:
        kit = hospitals.kits[name]
        reported = (kit / "runs" / refused / "sites" / name / "errors.log").read_text()
        assert re.search(rf"what job {first[0]}-[0-9a-f]{{8}} trained here", reported)  # with the site's secret
        assert "differs from it only in" in reported
        result = fedmerit("deploy", "site", "allow", tmp_path / "job", "--kit", kit)
        assert result.exit_code == 0, result.output
    job = hospitals.submit(tmp_path / "job")
    assert hospitals.wait(job) == session.COMPLETED, hospitals.log()
    lines = [json.loads(line) for line in (hospitals.kits["site1"] / JOB_LEDGER).read_text().splitlines()]
    assert [line["work"] for line in lines] == ["begin", "train", "train", "allow", "begin", "train", "train"]
    assert all(line["signature"] for line in lines)


def test_orders_of_two_jobs_follow_from_different_secrets(hospitals, first):
    files = list(hospitals.root.glob("**/runs/*/sites/*/order.secret"))
    assert len(files) >= len(hospitals.names)
    assert len({path.read_text() for path in files}) == len(files)
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
