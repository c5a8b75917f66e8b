"""A survey of the sites' images before training: the question, each site's answer, and the job that carries them.

The job is one task to every site, on the path of evaluations, through the same egress filter. It names classes that no
training names, so a site's list of allowed classes can refuse surveys and nothing else.
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.workflows.model_controller import ModelController
from nvflare.fuel.flare_api.flare_api import Session
from nvflare.job_config.api import FedJob
from nvflare.job_config.defs import FilterType
from nvflare.recipe.spec import Recipe
from torch import nn

from fedmerit.engines.nvflare.components import class_path
from fedmerit.engines.nvflare.egress import EgressFilter
from fedmerit.engines.nvflare.executor import report_error
from fedmerit.engines.nvflare.translation import message_to_model, model_to_answer, model_to_task
from fedmerit.errors import BadInput, RunFailed, printable
from fedmerit.files import read_object, write_json
from fedmerit.schema import survey
from fedmerit.schema.codec import decode, encode
from fedmerit.schema.egress import Withheld, clear_message
from fedmerit.schema.messages import Failure, describe_failure
from fedmerit.schema.records import EVALUATE
from fedmerit.schema.site_folder import Case, SiteFolder, read_spacing
from fedmerit.schema.survey import ANSWERS, Question, Survey, Surveyed
from fedmerit.server.exchange import LONGEST_REASON
from fedmerit.site.machine_settings import follow_manifest, site_folder
from fedmerit_deploy import session

Counts = NDArray[np.int64]
ACQUIRED = "pixel_spacing"  # as acquired if the folder says it, else as prepared
NO_NETWORK = nn.Identity()  # a survey has no vectors
WAIT = 600  # seconds for a site to read its images
NO_ANSWER = "no usable answer; its own log says why, such as an egress filter of its own that asks for a higher floor"


def survey_site(folder: SiteFolder, question: survey.Question) -> survey.Surveyed | Failure:
    """Return a site's counts over all its cases of all splits; a `Failure` if it has too few patients."""
    cases = [case for split in folder.splits for case in folder.cases(split)]
    patients = {name: place for place, name in enumerate(dict.fromkeys(case.patient for case in cases))}
    if len(patients) < question.floor:
        return Failure(survey.TOO_FEW)
    tables: dict[str, Counts] = {}
    slices, readings = 0, _readings(folder)
    for case in cases:
        slices += len(case.image)
        for name, counts in _counts(case, folder.labels, readings.get(case.name, {})):
            table = tables.setdefault(name, np.zeros((len(patients), len(counts)), np.int64))
            table[patients[case.patient]] += counts
    tallies = {
        name: survey.mask_small_bins(table, question.floor, survey.is_intensity(name))
        for name, table in sorted(tables.items())
    }
    return survey.Surveyed(len(patients), slices, tallies, question.floor)


def local_survey(folders: Sequence[SiteFolder], question: survey.Question) -> survey.Survey:
    """Return the answers of sites on this machine, each checked against the list of what may leave."""
    sites: dict[str, survey.Surveyed] = {}
    refused: dict[str, str] = {}
    for folder in folders:
        answer = survey_site(folder, question)
        if isinstance(answer, Failure):
            refused[folder.name] = answer.reason
            continue
        try:
            passed = clear_message(*encode(answer, NO_NETWORK), least=question.floor)
        except Withheld as error:
            refused[folder.name] = str(error)
        else:
            sites[folder.name] = decode(*passed, NO_NETWORK, (Surveyed,))
    return survey.Survey(question.floor, sites, refused)


def _readings(folder: SiteFolder) -> dict[str, dict[str, float]]:
    """Return, by case, plane and pixel spacing as acquired and % of values beyond the window, as preparation noted."""
    stated = folder.info.get("readings")
    readings: dict[str, dict[str, float]] = {}
    for entry in stated if isinstance(stated, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("case"), str):
            plane, cut = entry.get("plane") or survey.PLANES[0], entry.get("cut")
            reading = {survey.PLANE: float(survey.PLANES.index(plane))} if plane in survey.PLANES else {}
            if spacing := read_spacing(entry.get("spacing")):
                reading[ACQUIRED] = spacing[1]
            if isinstance(cut, int | float) and 0 <= cut <= 1:
                reading[survey.VALUES_CUT] = 100.0 * cut
            readings[entry["case"]] = reading
    return readings


def _counts(case: Case, labels: tuple[str, ...], reading: dict[str, float]) -> Iterator[tuple[str, Counts]]:
    """Yield each quantity with the case's count in each bin: one in all, or one a voxel."""
    image, label = np.asarray(case.image), np.asarray(case.label)
    for channel in range(image.shape[1]):
        name = survey.INTENSITY if image.shape[1] == 1 else f"{survey.INTENSITY} {channel}"
        yield name, _voxels(image[:, channel])
    measured = {"slices": float(len(image))} | {name: value for name, value in reading.items() if name != ACQUIRED}
    voxels = label.sum(axis=(0, 2, 3), dtype=np.int64)
    if case.spacing is not None:
        between, row, _ = case.spacing
        measured |= {"slice_spacing": between, "field_of_view": row * image.shape[2]}
        measured[ACQUIRED] = reading.get(ACQUIRED, row)
        millilitres = voxels * np.prod(case.spacing) / 1000
        measured |= {f"{survey.VOLUME} {name}": float(value) for name, value in zip(labels, millilitres, strict=True)}
    else:
        largest = 100 * label.mean(axis=(2, 3)).max(axis=0)
        measured |= {f"{survey.AREA} {name}": float(value) for name, value in zip(labels, largest, strict=True)}
    for name, value in measured.items():
        quantity = survey.find_quantity(name)
        once = np.zeros(quantity.bins, np.int64)
        once[np.searchsorted(quantity.edges, value, side="right")] = 1
        yield name, once


def _voxels(values: NDArray[np.float32]) -> Counts:
    """Return how many intensities are in each bin; the bins are equally wide, which is fast."""
    edges = survey.QUANTITIES[survey.INTENSITY].edges
    finite = values[np.isfinite(values)].astype(np.float64)
    places = np.clip(np.floor((finite - edges[0]) / (edges[1] - edges[0])) + 1, 0, len(edges))
    return np.bincount(places.astype(np.int64), minlength=len(edges) + 1)


class SurveyExecutor(Executor):
    """A site's half of a survey: it answers one question."""

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Return the answer to one question; the server learns of an error only that it happened."""
        if task_name != EVALUATE:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        try:
            name = fl_ctx.get_identity_name()
            follow_manifest(Path(fl_ctx.get_engine().get_workspace().get_site_config_dir()), name)
            question = model_to_task(FLModelUtils.from_shareable(shareable), NO_NETWORK)
            if not isinstance(question, Question):
                return make_reply(ReturnCode.TASK_UNKNOWN)
            answer: Surveyed | Failure = survey_site(site_folder(name), question)
        except Exception as error:
            report_error(self, error, "survey failed", fl_ctx)
            answer = describe_failure(error)
        return FLModelUtils.to_shareable(message_to_model(answer, NO_NETWORK))


class SurveyController(ModelController):
    """The server's half of a survey: it asks every site once, and writes `ANSWERS`.

    Args:
        question: the fields of `Question`.
        wait: seconds for the sites to answer.
    """

    def __init__(self, question: dict[str, Any], wait: int = WAIT):
        super().__init__(persistor_id="", ignore_result_error=True)
        self.question, self.wait = question, wait

    def run(self) -> None:
        """Ask the sites and write the answers; NVFlare calls it."""
        question = Question(**self.question)
        message = message_to_model(question, NO_NETWORK)
        sites = self.sample_clients()
        answers = self.send_model_and_wait(EVALUATE, message, targets=sites, timeout=self.wait)
        read = {str(answer.meta["client_name"]): read_answer(answer, question) for answer in answers}
        surveyed = {name: one for name, one in sorted(read.items()) if isinstance(one, Surveyed)}
        refused = {name: one for name, one in read.items() if isinstance(one, str)}
        refused |= dict.fromkeys((name for name in sites if name not in read), NO_ANSWER)
        write_json(Path(self.get_run_dir()) / ANSWERS, Survey(question.floor, surveyed, refused).to_dict())


def read_answer(model: FLModel, question: Question) -> Surveyed | str:
    """Return what a site answered, or why the answer cannot be used."""
    answer = model_to_answer(model, NO_NETWORK)
    if not isinstance(answer, Surveyed):
        reason = answer.reason if isinstance(answer, Failure) else "no answer to a survey"
        return printable(reason[:LONGEST_REASON])
    return "an answer below the floor" if answer.below(question.floor) else answer


SURVEY_CLASSES = (class_path(SurveyController), class_path(SurveyExecutor))  # of its job, with the filter


def export_survey(question: Question, out: Path, min_sites: int = 1, wait: int = WAIT) -> None:
    """Write the job folder of a survey to ``out``, replacing an earlier one.

    Args:
        min_sites: sites that have to be there for the job to start.
        wait: seconds for the sites to answer.

    Raises:
        BadInput: ``out`` cannot be written.
    """
    job = FedJob(name=out.name, min_clients=min_sites)
    job.set_app_packages(["fedmerit", "fedmerit_deploy"])
    job.to_server(SurveyController(vars(question), wait))
    job.to_clients(SurveyExecutor(), tasks=[EVALUATE])
    job.to_clients(EgressFilter(), filter_type=FilterType.TASK_RESULT, tasks=[EVALUATE])
    try:
        Recipe(job).export(str(out.parent))
    except (RuntimeError, OSError) as error:
        raise BadInput(f"{out}: cannot be written ({error})") from error


def await_survey(opened: Session, job_id: str, seconds: float) -> Survey:
    """Return the answers to a survey's job, with the sites that refused it as it was deployed.

    Raises:
        RunFailed: the job was not over in that time, or ended without answers.
    """
    description = session.await_end(opened, job_id, seconds)
    if not session.has_job_ended(description):
        raise RunFailed(f"job {job_id}: not over within {seconds:g} seconds; ask again with `--job {job_id}`")
    refused = session.explain_refusal(description)
    with tempfile.TemporaryDirectory(prefix="survey-") as folder:
        files = sorted(session.download(opened, job_id, folder).rglob(ANSWERS))
        if not files:
            reasons = "; ".join([f"its status is {description['status']}", *refused])
            raise RunFailed(f"job {job_id}: left no answers of a survey: {reasons}")
        try:
            answers = Survey.from_dict(read_object(files[0]))
        except ValueError as error:
            raise RunFailed(f"job {job_id}: {error}") from error
    by_site = (text.partition(": ") for text in refused)
    return Survey(answers.floor, answers.sites, {**answers.refused, **{name: why for name, _, why in by_site}})
