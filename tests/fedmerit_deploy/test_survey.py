"""Test surveys: a site's answer against its images, the job between machines, and the admin's wait for answers."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from federation_factory import federation
from nvflare.fuel.flare_api.flare_api import JobNotDone
from torch import nn

from fedmerit.engines.nvflare.translation import message_to_model
from fedmerit.errors import BadInput, RunFailed
from fedmerit.schema.messages import ClosingReceipt, Failure
from fedmerit.schema.site_folder import Case, SiteFolder, open_sites
from fedmerit.schema.survey import ANSWERS, TOO_FEW, Question, Survey, Surveyed, find_quantity
from fedmerit_deploy import session
from fedmerit_deploy.kits import class_policy, prepare_site
from fedmerit_deploy.survey import (
    NO_ANSWER,
    SURVEY_CLASSES,
    await_survey,
    export_survey,
    local_survey,
    read_answer,
    survey_site,
)

FLOOR = Question(2)


def cases_of(folder):
    return [case for cases in folder.splits.values() for case in cases]


def shown_of(tally):
    return np.array(tally.patients) > 0


def test_survey_equals_histograms_of_pooled_images(sites):
    """Of the bins that all sites show: nothing was left out of them."""
    folders = open_sites(sites)
    survey = local_survey(folders, FLOOR)
    pooled = np.concatenate([np.ravel(case.image) for folder in folders for case in cases_of(folder)])
    edges = np.array([-np.inf, *find_quantity("intensity").edges, np.inf])
    expected = np.histogram(pooled.astype(np.float64), edges)[0]
    tallies = [one.tallies["intensity"] for one in survey.sites.values()]
    everywhere = np.all([shown_of(tally) for tally in tallies], axis=0)
    assert everywhere.sum() > 5
    total = np.sum([tally.voxels for tally in tallies], axis=0)
    assert np.array_equal(total[everywhere], expected[everywhere])
    assert total[everywhere].sum() > 0.9 * pooled.size
    assert sum(one.slices for one in survey.sites.values()) == len(pooled) // 32**2


def test_survey_counts_patients_by_quantity(sites):
    folder = open_sites(sites)[0]
    answer = survey_site(folder, FLOOR)
    patients = {case.patient: case for case in cases_of(folder)}
    assert answer.patients == len(patients)
    of_volume = [float(case.label.sum() * np.prod(case.spacing) / 1000) for case in patients.values()]
    for name, values in {
        "slice_spacing": [case.spacing[0] for case in patients.values()],
        "pixel_spacing": [one["spacing"][1] for one in folder.info["readings"]],  # as acquired
        "field_of_view": [32 * case.spacing[1] for case in patients.values()],
        "slices": [len(case.image) for case in patients.values()],
        "volume prostate": of_volume,
        "plane": [1] * len(patients),  # axial
    }.items():
        edges = np.array([-np.inf, *find_quantity(name).edges, np.inf])
        shown = shown_of(answer.tallies[name])
        assert np.array_equal(np.array(answer.tallies[name].patients)[shown], np.histogram(values, edges)[0][shown])
    assert not any(name.startswith("area") for name in answer.tallies)


def test_survey_ignores_malformed_readings(sites):
    folder = SiteFolder(sites / "site1")
    name = cases_of(folder)[0].name
    for stated in (
        None,
        3,
        [3],
        [{"case": name, "plane": "oblique", "cut": "much"}],
        [{"case": name, "plane": 1, "cut": 7}],
    ):
        folder.info = {**folder.info, "readings": stated}
        assert not {"plane", "values_cut"} & set(survey_site(folder, FLOOR).tallies)
    folder.info = {"readings": [{"case": case.name, "cut": 0.6} for case in cases_of(folder)]}
    found = survey_site(folder, FLOOR).tallies
    assert (np.argmax(found["plane"].patients), np.argmax(found["values_cut"].patients)) == (0, 5)


def test_survey_of_case_without_spacing_has_area(sites):
    folder = SiteFolder(sites / "site1")
    folder.splits = {"training": tuple(replace(case, spacing=None) for case in cases_of(folder))}
    answer = survey_site(folder, FLOOR)
    assert set(answer.tallies) == {"area prostate", "intensity", "plane", "slices"}
    assert sum(answer.tallies["area prostate"].patients) <= answer.patients


def test_survey_counts_patient_once(sites):
    folder = SiteFolder(sites / "site1")
    folder.splits = {"training": tuple(replace(case, patient="one") for case in cases_of(folder))}
    assert survey_site(folder, FLOOR) == Failure(TOO_FEW)


def test_survey_refuses_below_floor(sites):
    survey = local_survey(open_sites(sites), Question(1000))
    assert survey.sites == {}
    assert survey.refused == dict.fromkeys(("site1", "site2", "site3"), TOO_FEW)


@pytest.mark.parametrize("outer", [-1e30, -3.000001, 5.0, 1e30])
def test_survey_puts_extreme_intensities_in_outer_bins(tmp_path, outer):
    np.save(tmp_path / "image.npy", np.full((1, 1, 2, 2), outer, np.float32))
    np.save(tmp_path / "label.npy", np.zeros((1, 1, 2, 2), np.uint8))
    folder = SiteFolder.__new__(SiteFolder)
    cases = [Case(str(n), str(n), tmp_path / "image.npy", tmp_path / "label.npy") for n in range(2)]
    folder.splits, folder.labels, folder.info = {"training": tuple(cases)}, ("mask",), {}
    voxels = survey_site(folder, FLOOR).tallies["intensity"].voxels
    assert voxels[-1 if outer > 0 else 0] == sum(voxels) == 8


QUESTION = Question(5)


def test_survey_job_brings_no_code(tmp_path):
    for _ in range(2):
        export_survey(QUESTION, tmp_path / "job", min_sites=3)
    files = [path for path in (tmp_path / "job").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json"}
    assert json.loads((tmp_path / "job/meta.json").read_text())["min_clients"] == 3
    reported = "".join(path.read_text() for path in files)
    assert all(name in reported for name in SURVEY_CLASSES)
    assert str(tmp_path) not in reported


def test_class_policy_without_surveys_lacks_only_their_classes():
    answering, refusing = (set(class_policy("client", surveys)["class_allow_list"]) for surveys in (True, False))
    assert answering - refusing == set(SURVEY_CLASSES)
    assert refusing < answering


@pytest.mark.parametrize(
    ("reported", "why"),
    [
        (Failure(TOO_FEW), TOO_FEW),
        (Failure("no\nreply"), "expected a listed reason"),
        (ClosingReceipt(0), "no answer to a survey"),
        (Surveyed(4, 40, {}, 5), "below the floor"),
        (Surveyed(9, 90, {}, 4), "below the floor"),
    ],
)
def test_read_answer_rejects_unusable_answer(reported, why):
    found = read_answer(message_to_model(reported, nn.Identity()), QUESTION)
    assert isinstance(found, str)
    assert why in found
    assert "\n" not in found


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


def test_await_survey_adds_refusals_at_deployment(opened):
    opened.unready = 2
    reported = await_survey(opened, "job1", 60)
    assert (reported.floor, reported.sites) == (5, ANSWERED.sites)
    assert reported.refused == {"B": "no answer", "C": "not in allow_list: SurveyExecutor"}


def test_await_survey_fails_if_server_stores_nothing(opened, monkeypatch):
    monkeypatch.setattr(session, "STORING", 0.1)
    opened.unready = 10**6
    with pytest.raises(BadInput, match="job job1: is not stored yet; try again in a few seconds"):
        await_survey(opened, "job1", 60)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "left no answers of a survey: its status is FINISHED:COMPLETED; C: not in allow_list: SurveyExecutor"),
        ({"floor": 5}, "not a survey: lacks sites"),
        ({"floor": True, "sites": {}, "refused": {}}, "not a survey: floor=.*expected a whole number"),
    ],
)
def test_await_survey_rejects_other_content(opened, content, words):
    (opened.left / ANSWERS).unlink() if content is None else (opened.left / ANSWERS).write_text(json.dumps(content))
    with pytest.raises(RunFailed, match=f"job job1: .*{words}"):
        await_survey(opened, "job1", 60)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_survey_of_federation_equals_local_survey(sites, tmp_path):
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
