"""A run repeated without a site: which job is submitted, and what is refused."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedmerit.engines.nvflare.operations import REPEATS, read_repeats
from fedmerit.errors import BadInput
from fedmerit_deploy import session
from fedmerit_deploy.session import remove_site

JOBS = {
    "first": {"job_id": "first", "status": session.COMPLETED, "job_deploy_detail": ["server: OK", "A: OK", "B: OK"]},
    "later": {"job_id": "later", "status": "RUNNING", "min_clients": 2, "cloned_from": "first"},
}


@pytest.fixture
def server(monkeypatch):
    """An admin's session; "log" has what it was asked to do."""
    opened = SimpleNamespace(log=[])

    def download(job_id, folder):
        """As NVFlare 2.9 does: the job folder below "job", its own description of the job beside that."""
        whole = Path(folder, job_id)
        (whole / "job/mine/app/config").mkdir(parents=True)
        (whole / "meta.json").write_text(json.dumps({"job_id": job_id, "deploy_map": {"app": ["@ALL"]}}))
        (whole / "job/mine/meta.json").write_text(json.dumps({"name": "job", "deploy_map": {"app": ["@ALL"]}}))
        return str(whole)

    def submit(opened, folder):
        opened.log.append(json.loads((folder / "meta.json").read_text()))
        opened.note = read_repeats(folder)
        return "new"

    opened.download_job_result = download
    monkeypatch.setattr(session, "job", lambda opened, job_id: JOBS[job_id])
    monkeypatch.setattr(session, "connected", lambda opened: ["A", "B", "C"])
    monkeypatch.setattr(session, "stop", lambda opened, job_id: opened.log.append(f"stop {job_id}"))
    monkeypatch.setattr(session, "submit", submit)
    return opened


def test_the_job_goes_to_all_others_and_says_what_it_repeats(server):
    assert remove_site(server, "later", "B") == "new"
    stopped, meta = server.log
    assert stopped == "stop later"
    assert meta["name"] == "job"
    assert meta["deploy_map"] == {"app": ["server", "A", "C"]}
    assert meta[REPEATS] == server.note == "repeats the run of job first without B"


@pytest.mark.parametrize(
    ("site", "there", "words"),
    [
        ("D", ["A", "B", "C"], "D has no part in it; its sites are A, B"),
        ("B", ["A", "B"], "needs 2 sites without B, connected are A"),
    ],
)
def test_what_cannot_be_repeated_is_refused_before_anything_stops(server, monkeypatch, site, there, words):
    monkeypatch.setattr(session, "connected", lambda opened: there)
    with pytest.raises(BadInput, match=words):
        remove_site(server, "later", site)
    assert not server.log
