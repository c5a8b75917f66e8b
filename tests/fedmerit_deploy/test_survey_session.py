"""An admin's wait for a survey's answers: those that came, and who refused; one survey goes between real machines."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from federation_factory import federation
from nvflare.fuel.flare_api.flare_api import JobNotDone

from fedmerit.errors import BadInput, RunFailed
from fedmerit.schema.site_folder import open_sites
from fedmerit.schema.survey import ANSWERS, Question, Survey, Surveyed
from fedmerit_deploy import session
from fedmerit_deploy.kits import prepare_site
from fedmerit_deploy.survey import NO_ANSWER, await_survey, export_survey, local_survey

QUESTION = Question(5)
ANSWERED = Survey(5, {"A": Surveyed(9, 90, {}, 5)}, {"B": "no answer"})
DEPLOYED = ["server: OK", "A: OK", "B: OK", "C: NVFLARE_ERROR: not in allow_list: SurveyExecutor"]


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """A session in which a job ran once, and is over; a test may change what it says and left."""
    monkeypatch.setattr(session, "POLL", 0.01)
    left = tmp_path / "left/workspace"
    left.mkdir(parents=True)
    (left / ANSWERS).write_text(json.dumps(ANSWERED.to_dict()))
    made = SimpleNamespace(left=left, unready=0, statuses=["RUNNING", "RUNNING", "FINISHED:COMPLETED"])

    def describe(job):
        status = made.statuses.pop(0) if len(made.statuses) > 1 else made.statuses[0]
        return {"job_id": job, "status": status, "job_deploy_detail": DEPLOYED}

    def download(job, folder):
        if made.unready:
            made.unready -= 1
            raise JobNotDone("is not stored yet")
        return str(shutil.copytree(tmp_path / "left", Path(folder) / job))

    made.get_job_meta, made.download_job_result = describe, download
    return made


def test_answers_come_with_those_who_refused_as_the_job_was_deployed(opened):
    opened.unready = 2
    told = await_survey(opened, "job1", 60)
    assert (told.floor, told.sites) == (5, ANSWERED.sites)
    assert told.refused == {"B": "no answer", "C": "not in allow_list: SurveyExecutor"}


def test_what_the_server_does_not_store_is_asked_for_again_later(opened, monkeypatch):
    monkeypatch.setattr(session, "STORING", 0.1)
    opened.unready = 10**6
    with pytest.raises(BadInput, match="job job1: is not stored yet; try again in a few seconds"):
        await_survey(opened, "job1", 60)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "left no answers of a survey: its status is FINISHED:COMPLETED; C: not in allow_list: SurveyExecutor"),
        ({"floor": 5}, "not a survey: sites: Field required"),
        ({"floor": True, "sites": {}, "refused": {}}, "not a survey: floor: Input should be a valid integer"),
    ],
)
def test_what_is_no_survey_fails_with_the_reason(opened, content, words):
    (opened.left / ANSWERS).unlink() if content is None else (opened.left / ANSWERS).write_text(json.dumps(content))
    with pytest.raises(RunFailed, match=f"job job1: .*{words}"):
        await_survey(opened, "job1", 60)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_hospitals_answer_as_their_folders_do_and_who_refuses_is_named(sites, tmp_path):
    """site2 allows no surveys; site3's own gate wants more patients than the question."""
    with federation(tmp_path / "kits", sites, started=False) as made:
        prepare_site(made.kits["site2"], sites / "site2", surveys=False)
        path = made.kits["site3"] / "local/privacy.json"
        policy = json.loads(path.read_text())
        policy["scopes"][0]["task_result_filters"][0]["args"]["least"] = 1000
        path.write_text(json.dumps(policy))
        made.start()
        made.wait_for_sites()
        export_survey(QUESTION, tmp_path / "job")
        job = made.submit(tmp_path / "job")
        with made.session() as opened:
            survey = await_survey(opened, job, 600)
    assert survey.sites == {"site1": local_survey(open_sites(sites, ["site1"]), QUESTION).sites["site1"]}
    assert set(survey.refused) == {"site2", "site3"}, made.log()
    assert "SurveyExecutor" in survey.refused["site2"]
    assert "not in allow_list" in survey.refused["site2"]
    assert survey.refused["site3"] == NO_ANSWER
