"""A survey as an NVFlare job of its own: one task to every site, on the path of evaluations, through the same gate.

It names classes that no training names, so that a site's list of allowed classes can refuse surveys and nothing else.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.workflows.model_controller import ModelController
from nvflare.job_config.api import FedJob
from nvflare.job_config.defs import FilterType
from nvflare.recipe.spec import Recipe

from fedmerit.engines.nvflare.components import class_path
from fedmerit.engines.nvflare.egress import EgressFilter
from fedmerit.engines.nvflare.executor import report_error
from fedmerit.errors import BadInput, printable
from fedmerit.files import write_json
from fedmerit.schema.messages import EVALUATE, Failure, describe_failure
from fedmerit.schema.survey import ANSWERS, Question, Survey, Surveyed
from fedmerit.server.exchange import LONGEST_REASON
from fedmerit.site.machine_settings import follow_manifest, site_folder
from fedmerit_deploy.site_survey import survey_site

WAIT = 600  # seconds for a site to read its images
NO_ANSWER = "no usable answer; its own log says why, such as a gate of its own that asks for a higher floor"


class SurveyExecutor(Executor):
    """A site's half."""

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """The answer to one question. The server learns of an error that there was one."""
        if task_name != EVALUATE:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        try:
            name = fl_ctx.get_identity_name()
            follow_manifest(Path(fl_ctx.get_engine().get_workspace().get_site_config_dir()), name)
            question = Question(**FLModelUtils.from_shareable(shareable).meta["survey"])
            answer = survey_site(site_folder(name), question)
        except Exception as error:
            report_error(self, error, "survey failed", fl_ctx)
            answer = describe_failure(error)
        meta = {"failure": answer.reason} if isinstance(answer, Failure) else {"survey": answer.to_dict()}
        return FLModelUtils.to_shareable(FLModel(params_type=ParamsType.DIFF, params={}, meta=meta))


class SurveyController(ModelController):
    """The server's half: asks every site once, and writes `ANSWERS`.

    Args:
        question: the fields of `Question`.
        wait: seconds for the sites to answer.
    """

    def __init__(self, question: dict[str, Any], wait: int = WAIT):
        super().__init__(persistor_id="", ignore_result_error=True)
        self.question, self.wait = question, wait

    def run(self) -> None:
        """NVFlare's entry point."""
        asked = Question(**self.question)
        message = FLModel(params_type=ParamsType.FULL, params={}, meta={"survey": self.question})
        sites = self.sample_clients()
        answers = self.send_model_and_wait(EVALUATE, message, targets=sites, timeout=self.wait)
        read = {str(answer.meta["client_name"]): read_answer(answer.meta, asked) for answer in answers}
        surveyed = {name: one for name, one in sorted(read.items()) if isinstance(one, Surveyed)}
        refused = {name: one for name, one in read.items() if isinstance(one, str)}
        refused |= dict.fromkeys((name for name in sites if name not in read), NO_ANSWER)
        write_json(Path(self.get_run_dir()) / ANSWERS, Survey(asked.floor, surveyed, refused).to_dict())


def read_answer(meta: Mapping[str, Any], asked: Question) -> Surveyed | str:
    """What the server makes of an answer; or why it cannot be used."""
    try:
        if "failure" in meta:
            return printable(str(meta["failure"])[:LONGEST_REASON])
        answer = Surveyed.from_dict(meta["survey"])
    except (IndexError, KeyError, RuntimeError, TypeError, ValueError):
        return "no answer to a survey"
    return "an answer below the floor" if answer.below(asked.floor) else answer


SURVEY_CLASSES = (class_path(SurveyController), class_path(SurveyExecutor))  # that its job names, beside the gate's


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
