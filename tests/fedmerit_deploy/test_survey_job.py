"""A survey between machines: by the task path of evaluations, through the sites' own gates; who refuses is named."""

import json

import pytest
from torch import nn

from fedmerit.engines.nvflare.translation import message_to_model
from fedmerit.schema.messages import ClosingReceipt, Failure
from fedmerit.schema.survey import TOO_FEW, Question, Surveyed
from fedmerit_deploy.kits import class_policy
from fedmerit_deploy.survey import SURVEY_CLASSES, export_survey, read_answer

QUESTION = Question(5)


def test_the_job_brings_no_code_and_names_classes_of_the_list(tmp_path):
    for _ in range(2):
        export_survey(QUESTION, tmp_path / "job", min_sites=3)
    files = [path for path in (tmp_path / "job").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json"}
    assert json.loads((tmp_path / "job/meta.json").read_text())["min_clients"] == 3
    told = "".join(path.read_text() for path in files)
    assert all(name in told for name in SURVEY_CLASSES)
    assert str(tmp_path) not in told


def test_a_site_may_refuse_surveys_and_nothing_else():
    answering, refusing = (set(class_policy("client", surveys)["class_allow_list"]) for surveys in (True, False))
    assert answering - refusing == set(SURVEY_CLASSES)
    assert refusing < answering


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (Failure(TOO_FEW), TOO_FEW),
        (Failure("no\nreply"), "expected a listed reason"),
        (ClosingReceipt(0), "no answer to a survey"),
        (Surveyed(4, 40, {}, 5), "below the floor"),
        (Surveyed(9, 90, {}, 4), "below the floor"),
    ],
)
def test_an_answer_that_cannot_be_used_is_said_to_be_none(told, why):
    found = read_answer(message_to_model(told, nn.Identity()), QUESTION)
    assert isinstance(found, str)
    assert why in found
    assert "\n" not in found
