"""What `job status` shows of a federation: on the terminal, as a page, to Prometheus. Sessions: tests of flare."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedmerit.errors import RunFailed
from fedmerit_deploy.commands.status_output import METRICS, describe_progress, print_jobs, write_status_page
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
    progress["recent"] = {
        "first": 0,
        "dice": {"A": [0.5, 0.6, 0.7, 0.8], "B": [0.4, None, None, 0.5]},
        "seconds": {"A": [2.0, 1.0, 1.0, 1.5], "B": [3.0, None, None, 4.0]},
    }
    sites = judge_sites({"B": NOW - 700}, {"A": 3.0}, {"A": FACTS}, {}, NOW, {"A": "round 5 of 40: answered"})
    return FederationState(NOW, sites, [JOB], {"3f2a": progress})


@pytest.fixture
def status(fedmerit, state, monkeypatch, tmp_path):
    """`fedmerit job status` of that federation; it goes once, or until ``ends`` is raised by the server."""

    def call(*options, ends=None, outages=1, clock=lambda: NOW):
        answers = iter([state, *[RunFailed("server fl: gave no answer")] * outages, state])

        def read(*_):
            answer = next(answers) if ends else state
            if isinstance(answer, Exception):
                raise answer
            return answer

        def sleep(_):
            if not ends or not ends():
                raise KeyboardInterrupt

        monkeypatch.setattr("fedmerit_deploy.status.read_federation", read)
        monkeypatch.setattr("fedmerit_deploy.commands.jobs.time", SimpleNamespace(sleep=sleep, time=clock))
        monkeypatch.setattr("fedmerit_cli.terminal.console.width", 200)
        return fedmerit("job", "status", "--kit", tmp_path, *options)

    return call


def test_status_names_flags_on_terminal(status):
    shown = status().output
    for text in ("connected sites: A", "look at A: 0.2 GiB of disk free", "its clock is +90 s", "3f2a: round 4 of 40"):
        assert text in shown
    assert "look at B: not connected since" in shown


def test_job_rows_fit_a_narrow_terminal(capsys, monkeypatch):
    monkeypatch.setattr("fedmerit_cli.terminal.console.width", 80)
    job = {
        **JOB,
        "job_id": "3f2a0b1c-0000-1111-2222-333344445555",
        "status": "FINISHED:ABANDONED",
        "duration": "1:02:03.5",
    }
    print_jobs([job | {"submitter_name": "admin@example.org"}])
    shown = capsys.readouterr().out
    assert "3f2a0b1c-0000-1111-2222-333344445555 FINISHED:ABANDONED" in shown
    assert "by admin@example.org, took 1:02:03" in shown


def test_progress_names_sites_that_a_job_waits_for(state):
    waiting = {**state.progress["3f2a"], "record": None, "silent": ["A", "B"], "at_work": ["A"]}
    (line,) = describe_progress(replace(state, progress={"3f2a": waiting}))
    assert line == "3f2a: no round of 40 is complete; at work: A; no answer yet: B"
    (line,) = describe_progress(replace(state, progress={}))
    assert line == "3f2a: is being started, or its rounds are over and it waits for its sites to end"


def test_status_page_refreshes_itself(status, tmp_path):
    page = tmp_path / "status.html"
    assert status("--html", page, "--every", 0).exit_code == 0
    once = page.read_text()
    assert 'http-equiv="refresh"' not in once
    assert "&lt;i&gt;fedce" in once
    looks = iter([True, True, False])
    shown = status("--html", page, ends=lambda: next(looks))
    assert f"{page}: written every 15 s, until Ctrl-C" in shown.output.replace("\n", "")
    assert '<meta http-equiv="refresh" content="15">' in page.read_text()
    assert "gave no answer" not in page.read_text()


def test_status_page_shows_course_of_sites_and_facts_once(status, tmp_path):
    page = tmp_path / "status.html"
    status("--html", page, "--every", 0)
    text = page.read_text()
    assert "A run is at work; B is away" in text
    assert "Round 4 of 40" in text
    assert "Validation Dice of A in rounds 0 to 3: last 80.0&nbsp;%" in text
    assert "Seconds of B in rounds 0 to 3: last 4.0 s, absent in 2" in text
    assert text.count("torch 2.1") == 1
    assert "As of 2027-01-15 08:00 UTC" in text
    for words in ("0.2 GiB of disk free", "its clock is +90 s", "round 5 of 40: answered, batch 3 of 80"):
        assert words in text


@pytest.mark.parametrize(
    ("job", "heading"), [("RUNNING", "A job begins or ends; "), ("FINISHED:COMPLETED", "No run is at work; ")]
)
def test_status_page_of_a_job_without_a_round_says_whether_it_is_active(state, tmp_path, job, heading):
    jobs = [JOB | {"status": job}]
    write_status_page(tmp_path / "status.html", replace(state, progress={}, jobs=jobs), 0)
    assert heading in (tmp_path / "status.html").read_text()


def test_status_page_says_since_when_it_is_out_of_date(status, tmp_path):
    looks = iter([True, False])
    status("--html", tmp_path / "status.html", ends=lambda: next(looks))
    text = (tmp_path / "status.html").read_text()
    assert "<strong>Out of date since 08:00 UTC.</strong> server fl: gave no answer" in text
    assert "The server does not answer" in text
    assert "</span> unknown</span>" in text


def test_alert_tells_of_a_lasting_outage_once_and_of_its_end(status):
    looks, clock = iter([True] * 4 + [False]), iter([NOW + 60, NOW + 130])
    command = ("--webhook", "http://127.0.0.1:9/secret")
    shown = status(*command, ends=lambda: next(looks), outages=3, clock=lambda: next(clock)).output
    assert shown.count("the server does not answer: server fl: gave no answer") == 1
    assert shown.count("the server answers again") == 1


def test_status_page_shows_error_of_ended_job_in_full(status, state, tmp_path):
    error = "RunFailed: " + 60 * "long "
    end = {"round": 3, "error": error, "cause": "failure"}
    state.jobs.append(JOB | {"job_id": "77aa", "status": "FINISHED:EXECUTION_EXCEPTION", "fedmerit_end": end})
    status("--html", tmp_path / "status.html", "--every", 0)
    assert error.strip() in (tmp_path / "status.html").read_text()


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
    from browser import chromium, requested, resize, violations

    page = tmp_path / "status.html"
    status("--html", page, "--every", 600)
    with chromium(tmp_path / "profile") as driver:
        driver.get("about:blank")
        requested(driver)
        driver.get_log("browser")
        for width, mobile in ((1280, False), (1100, False), (390, True)):
            resize(driver, width, mobile=mobile)
            driver.get(page.as_uri())
            assert driver.execute_script("return document.documentElement.scrollWidth") <= width
            cut = "return [...document.querySelectorAll('.boxed')].some(box => box.scrollWidth > box.clientWidth)"
            assert not driver.execute_script(cut)
            assert violations(driver, width, "light") == []
        assert violations(driver, 1100, "dark") == []
        assert driver.execute_script("return document.querySelectorAll('#table-sites tbody tr').length") == 2
        assert requested(driver) == {driver.current_url}
        assert driver.get_log("browser") == []
