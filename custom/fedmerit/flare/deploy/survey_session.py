"""The admin's half of a survey between machines: submit its job, fetch the answers, name sites that refused."""

import tempfile
import time
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from nvflare.fuel.flare_api.flare_api import JobNotDone, Session

from fedmerit.errors import BadInput, RunFailed
from fedmerit.files import read_json
from fedmerit.flare.deploy import session
from fedmerit.flare.survey_job import ANSWERS
from fedmerit.wire.survey import Survey

STORING = 30.0  # seconds for the server to store what a job left, once that is over


def await_survey(opened: Session, job_id: str, seconds: float) -> Survey:
    """The answers to a survey's job; sites that refused it as it was deployed are named among those without an answer.

    Args:
        opened: an admin's session.
        job_id: of the job.
        seconds: to wait for its end.

    Raises:
        RunFailed: it was not over in that time, or ended without answers.
    """
    deadline = time.monotonic() + seconds
    while not session.has_job_ended(description := session.job(opened, job_id)):
        if time.monotonic() > deadline:
            raise RunFailed(f"job {job_id}: not over within {seconds:g} seconds; ask again with `--job {job_id}`")
        time.sleep(session.POLL)
    refused = session.explain_refusal(description)
    with tempfile.TemporaryDirectory(prefix="survey-") as folder:
        found = sorted(_downloaded(opened, job_id, Path(folder)).rglob(ANSWERS))
        if not found:
            reasons = "; ".join([f"its status is {description['status']}", *refused])
            raise RunFailed(f"job {job_id}: left no answers of a survey: {reasons}")
        try:
            survey = Survey.from_dict(read_json(found[0]))
        except ValueError as error:
            raise RunFailed(f"job {job_id}: {error}") from error
    named = (text.partition(": ") for text in refused)
    return Survey(survey.floor, survey.sites, {**survey.refused, **{name: why for name, _, why in named}})


def _downloaded(opened: Session, job_id: str, folder: Path) -> Path:
    deadline = time.monotonic() + STORING
    while True:
        try:
            with redirect_stdout(StringIO()):
                return Path(opened.download_job_result(job_id, str(folder)))
        except JobNotDone as error:
            if time.monotonic() > deadline:
                raise BadInput(f"job {job_id}: {error}; try again in a few seconds") from error
            time.sleep(session.POLL)
