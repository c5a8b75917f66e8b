"""What an NVFlare job folder, or a run folder, asks of the sites: read as data, nothing of it is imported."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import JobConstants, WorkspaceConstants
from nvflare.apis.job_def import JobMetaKey
from nvflare.app_common.widgets.component_path_authorizer import CLASS_ALLOW_LIST

from fedmerit.engines.nvflare.components import class_path, find_components
from fedmerit.engines.nvflare.executor import MeritExecutor
from fedmerit.engines.nvflare.privacy import FILTERS
from fedmerit.engines.nvflare.recipe import build_site_policy
from fedmerit.errors import BadInput
from fedmerit.files import read_json
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.configuration.specs import HE
from fedmerit_deploy.plan_description import Job

CODE = WorkspaceConstants.CUSTOM_FOLDER_NAME
LARGEST = 2**20  # bytes of a file of a job: exported ones have some 6000
MOST_SITES = 100  # that a job can ask for here: the number of coalitions is two to their power
EXPORTED = "expected what `fedmerit job export` wrote"


def read_job(path: Path) -> Job:
    """The job in a folder that `fedmerit job export` wrote, or of a run folder or its run.json.

    Raises:
        BadInput: there is none, it is of another form, or it says one thing to one site and another to others.
    """
    run = path if path.is_file() else path / "run.json"
    try:
        return _read_run(run) if run.is_file() else _read_folder(path)
    except (OSError, AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{path}: no job ({type(error).__name__}); {EXPORTED}") from None


def read_configuration(job: Job, path: Path) -> RunConfiguration:
    """The plan of the job at ``path``; `BadInput` naming it if it is none, or names code that is not approved here."""
    try:
        return RunConfiguration.from_dict(job.plan)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        text = str(error) if isinstance(error, BadInput) else f"its plan is none ({type(error).__name__}); {EXPORTED}"
        raise BadInput(f"{path}: {text}") from None


def _read_run(file: Path) -> Job:
    info = _read(file)
    sites, filters = [str(site) for site in info["sites"]], [str(spec) for spec in info.get("privacy", [])]
    return Job(str(info["run"]), _plan(info["plan"], file), filters, (), _sites(len(sites), file), sites)


def _read_folder(folder: Path) -> Job:
    meta = _read(folder / JobConstants.META_FILE)
    apps = [str(app) for app in meta[JobMetaKey.DEPLOY_MAP.value]]
    if len(apps) != 1 or not (folder / apps[0]).resolve().is_relative_to(folder.resolve()):
        raise BadInput(f"{folder}: has apps {', '.join(apps):.200}; expected one for all; {EXPORTED}")
    file = folder / apps[0] / "config" / JobConstants.CLIENT_JOB_CONFIG
    if others := [other.name for other in sorted(file.parent.glob(f"{file.stem}.*")) if other != file]:
        raise BadInput(f"{file.parent / others[0]}: a second configuration of the sites; {EXPORTED}")
    parts = [one.element for one in find_components(_read(file), [])]
    named = [(str(part.get("path") or part.get("class_path")), part.get("args") or {}) for part in parts]
    trainings = [args for name, args in named if name == class_path(MeritExecutor)]
    if len(trainings) != 1:
        raise BadInput(f"{file}: has {len(trainings)} trainings, {class_path(MeritExecutor)}; expected 1; {EXPORTED}")
    specs = {class_path(kind): spec.__name__.lower() for spec, kind in FILTERS.items()}
    filters = [f"{specs[name]} {args}" for name, args in named if name in specs]
    filters += [HE] * (trainings[0].get("encrypted") is True)
    known = build_site_policy()[CLASS_ALLOW_LIST]
    code = [f"class {name}" for name, _ in named if name not in known]
    code += [f"{apps[0]}/{CODE}, code that the job brings"] * (folder / apps[0] / CODE).exists()
    least = _sites(meta.get(JobMetaKey.MIN_CLIENTS.value, 2), folder)
    return Job(str(meta[JobMetaKey.JOB_NAME.value]), _plan(trainings[0]["plan"], file), filters, code, least)


def _plan(content: Any, file: Path) -> Mapping[str, Any]:
    if not isinstance(content, dict):
        raise BadInput(f"{file}: its plan is {content!r:.80}, no object; {EXPORTED}")
    return content


def _sites(number: Any, where: Path) -> int:
    if not isinstance(number, int) or not 1 <= number <= MOST_SITES:
        raise BadInput(f"{where}: asks for {number!r:.80} sites; expected 1 to {MOST_SITES}")
    return number


def _read(file: Path) -> Mapping[str, Any]:
    if file.exists() and file.stat().st_size > LARGEST:
        raise BadInput(f"{file}: {file.stat().st_size} bytes, expected at most {LARGEST}; {EXPORTED}")
    content = read_json(file)
    if not isinstance(content, dict):
        raise BadInput(f"{file}: holds no JSON object; {EXPORTED}")
    return content
