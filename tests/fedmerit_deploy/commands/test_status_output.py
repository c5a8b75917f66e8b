"""What `job status` shows of a federation: on the terminal, as a page, to Prometheus. Sessions: tests of flare."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedmerit.errors import RunFailed
from fedmerit_deploy.commands.status_output import METRICS
from fedmerit_deploy.status import FederationState, judge_sites

NOW = 1.8e9
FACTS = {
    "torch": "2.1",
    "disk": 0.2,
    "clock": NOW + 90,
    "task": "prostate",
    "patients": "10 to 19",
    "batch": "3 of 80",
    "certificate": "2027-06-01",
}
RECORD = {"round": 3, "participants": ["A"], "rejected": {}, "weights": {"A": 1.0}, "validation_dice": {"A": 0.8}}
JOB = {"job_id": "3f2a", "name": "<i>fedce</i>", "status": "RUNNING", "submit_time_iso": "2027-01-15T08:00:00+00:00"}


@pytest.fixture
def state():
    progress = {"method": "fedavg", "rounds": 40, "record": RECORD, "absent": {}, "silent": [], "at_work": []}
    progress["undefined"] = []
    sites = judge_sites({"B": NOW - 700}, {"A": 3.0}, {"A": FACTS}, {}, NOW, {"A": "round 5 of 40: answered"})
    return FederationState(NOW, sites, [JOB], {"3f2a": progress})


@pytest.fixture
def status(fedmerit, state, monkeypatch, tmp_path):
    """`fedmerit job status` of that federation; it goes once, or until ``ends`` is raised by the server."""

    def call(*options, ends=None):
        answers = iter([state, RunFailed("server fl: gave no answer"), state])

        def read(*_):
            answer = next(answers) if ends else state
            if isinstance(answer, Exception):
                raise answer
            return answer

        def sleep(_):
            if not ends or not ends():
                raise KeyboardInterrupt

        monkeypatch.setattr("fedmerit_deploy.status.read_federation", read)
        monkeypatch.setattr("fedmerit_deploy.commands.jobs.time", SimpleNamespace(sleep=sleep))
        monkeypatch.setattr("fedmerit_cli.terminal.console.width", 200)
        return fedmerit("job", "status", "--kit", tmp_path, *options)

    return call


def test_status_names_flags_on_terminal(status):
    shown = status().output
    for text in ("connected sites: A", "look at A: 0.2 GiB of disk free", "its clock is +90 s", "3f2a: round 4 of 40"):
        assert text in shown
    assert "look at B: not connected since" in shown


def test_status_page_refreshes_itself(status, tmp_path):
    page = tmp_path / "status.html"
    assert status("--html", page, "--every", 0).exit_code == 0
    once = page.read_text()
    assert 'http-equiv="refresh"' not in once
    assert "prostate: 10 to 19 patients" in once
    assert "round 5 of 40: answered, batch 3 of 80" in once
    assert "&lt;i&gt;fedce" in once
    looks = iter([True, True, False])
    status("--html", page, ends=lambda: next(looks))
    assert '<meta http-equiv="refresh" content="15">' in page.read_text()
    assert "gave no answer" not in page.read_text()


def test_status_page_says_that_server_is_away(status, tmp_path):
    looks = iter([True, False])
    status("--html", tmp_path / "status.html", ends=lambda: next(looks))
    assert "not of now: server fl: gave no answer" in (tmp_path / "status.html").read_text()


def test_metrics_file_has_all_that_dashboard_shows(status, tmp_path):
    file = tmp_path / "status.prom"
    assert status("--metrics", file, "--every", 0).exit_code == 0
    lines = file.read_text().splitlines()
    assert 'fedmerit_site_connected{site="B"} 0.0' in lines
    assert 'fedmerit_site_clock_offset_seconds{site="A"} 90.0' in lines
    assert 'fedmerit_job_round{job="3f2a"} 4' in lines
    assert "# TYPE fedmerit_site_flags gauge" in lines
    dashboard = (Path(__file__).parents[3] / "deploy/grafana-dashboard.json").read_text()
    assert set(re.findall(r"fedmerit_\w+", dashboard)) <= METRICS.keys()


@pytest.mark.slow
def test_status_page_works_offline_in_browser(status, tmp_path):
    from browser import chromium, requested, resize

    page = tmp_path / "status.html"
    status("--html", page, "--every", 600)
    with chromium(tmp_path / "profile") as driver:
        driver.get("about:blank")
        requested(driver)
        driver.get_log("browser")
        for width, mobile in ((1100, False), (390, True)):
            resize(driver, width, mobile=mobile)
            driver.get(page.as_uri())
            assert driver.execute_script("return document.documentElement.scrollWidth") <= width
        assert driver.execute_script("return document.querySelectorAll('#table-sites tbody tr').length") == 2
        assert requested(driver) == {driver.current_url}
        assert driver.get_log("browser") == []
