"""What a job asks of the sites, in plain words for a hospital's data officer.

The job folder, or the run folder, is read as data: nothing of it is imported or carried out.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import JobConstants, WorkspaceConstants
from nvflare.apis.job_def import JobMetaKey
from nvflare.app_common.widgets.component_path_authorizer import CLASS_ALLOW_LIST

from fedmerit.contract.capabilities import capabilities
from fedmerit.engines.nvflare.components import class_path, find_components
from fedmerit.engines.nvflare.executor import MeritExecutor
from fedmerit.engines.nvflare.privacy import FILTERS
from fedmerit.engines.nvflare.recipe import build_site_policy
from fedmerit.errors import BadInput, printable
from fedmerit.files import read_object
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.configuration.specs import HE
from fedmerit.schema.scores import EVALUATED
from fedmerit.schema.site_folder import SiteFolder
from fedmerit.site.evaluation_budget import most_evaluations
from fedmerit.site.machine_settings import follow_approvals
from fedmerit.site.policy import Manifest
from fedmerit.trainers.factory import describe_images
from fedmerit.trainers.trainer import TrainingImages
from fedmerit_deploy.kit_files import require_kind
from fedmerit_deploy.kits import read_manifest
from fedmerit_deploy.site_policy import RuleCheck, check_rules, images_per_round, open_ledger

LARGEST = 2**20  # bytes of a file of a job: exported ones have some 6000
MOST_SITES = 100  # that a job can ask for here: the number of coalitions is two to their power
EXPORTED = "expected what `fedmerit job export` wrote"
UNKNOWN = "nobody can tell from the job what such code does"
LONGEST = 400  # characters of a text whose words the plan chose
NO_STATISTICS = ("dynunet", "segresnet", "basicunet", "swinunetr")  # have no BatchNorm, unless norm=batch


@dataclass(frozen=True)
class Job:
    """A request of somebody to the sites."""

    name: str
    plan: Mapping[str, object]  # `RunConfiguration.to_dict`, unchecked
    filters: Sequence[str] = ()  # at the site, as specs or class names
    code: Sequence[str] = ()  # that is not FedMerit's: classes, or the folder of code that the job brings
    sites: int = 2  # that take part at least
    named: Sequence[str] = ()  # their names, if these are known

    @property
    def encrypted(self) -> bool:
        """Whether updates leave as ciphertexts."""
        return HE in self.filters


@dataclass(frozen=True)
class JobPage:
    """A page about a job: what it would do at a site, and what the rules of the site's manifest say of it."""

    points: Sequence[tuple[str, str]]  # title and text of each point
    checks: Sequence[RuleCheck]
    rules: str  # whose rules these are

    @property
    def refused(self) -> Sequence[RuleCheck]:
        """The rules that the job breaks."""
        return [check for check in self.checks if not check.passes]


def examine_job(path: Path, kit: Path | None) -> JobPage:
    """Return the page of the job at ``path``, by the rules of a site's ``kit`` or the default ones.

    Raises:
        BadInput: there is no such job, its plan cannot run, or the kit is no site's or not prepared.
    """
    manifest = Manifest(site="any")
    if kit is not None:
        require_kind(kit, "client")
        manifest = read_manifest(kit)
    follow_approvals(manifest)  # a plan may name code of others: nothing is imported that is not approved
    job = read_job(path)
    config = read_configuration(job, path)
    images = None
    if manifest.site_folder and not config.script:
        images = describe_images(SiteFolder(Path(manifest.site_folder)), config)
    history = open_ledger(kit).history() if kit else None
    checks = check_rules(manifest, config, job.sites, images, history)
    checks += [RuleCheck("code", code, "none that a job brings or names", False, UNKNOWN) for code in job.code]
    rules = f"the rules of {manifest.site} ({kit})" if kit else "the default rules; --kit KIT takes a site's own"
    return JobPage(describe_job(job, config, images), checks, rules)


def read_plan_digest(job: str) -> str:
    """Return the SHA-256 of the plan of a job or run folder, or ``job`` itself if it is a SHA-256.

    Raises:
        BadInput: it is neither.
    """
    if re.fullmatch(r"[0-9a-f]{64}", job) and not Path(job).exists():
        return job
    if not Path(job).exists():
        raise BadInput(f"{job:.200}: expected a job or run folder, or the 64 digits of a plan, as the refusal names it")
    return read_configuration(read_job(Path(job)), Path(job)).digest


def read_job(path: Path) -> Job:
    """Return the job in a folder that `fedmerit job export` wrote, or of a run folder or its run.json.

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
    """Return the plan of the job at ``path``; `BadInput` if it is none, or names code that is not approved here."""
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
    code += [f"{apps[0]}/{WorkspaceConstants.CUSTOM_FOLDER_NAME}, code that the job brings"] * (
        folder / apps[0] / WorkspaceConstants.CUSTOM_FOLDER_NAME
    ).exists()
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
    return read_object(file)


def describe_job(job: Job, config: RunConfiguration, images: TrainingImages | None = None) -> list[tuple[str, str]]:
    """Return title and text of each point of the page; ``images`` are the site's for training, None: not known."""
    page = [
        ("job", job.name),
        ("trains", _training(config)),
        ("images", _images(config, images)),
        *(
            [("fold", f"{config.fold}: its patients test, those of the next validate")]
            if config.fold is not None
            else []
        ),
        ("leaves, before", _parts(parts_before(config))),
        ("leaves, each round", _parts(parts_each_round(job, config))),
        ("leaves, at the end", _parts(parts_at_the_end(config))),
        ("never leaves", "images, masks, file names, patients, paths"),
        ("other sites get", "; ".join(_received(config))),
        ("evaluations", "; ".join(_evaluations(config, job.sites))),
        ("updates kept", "yes: the server stores every update of every round" if config.keep_updates else "no"),
        ("filters", ", ".join([*job.filters, "the egress filter"])),
        ("code of others", ", ".join(job.code) or "none in the job"),
        ("asked", _asked(job)),
    ]
    return [(title, printable(text)[: LONGEST * 4]) for title, text in page]


def _asked(job: Job) -> str:
    least = f"at least {job.sites} sites, the server waits for them"
    return f"{', '.join(job.named)[:LONGEST]}" if job.named else f"every connected site; {least}"


def _training(config: RunConfiguration) -> str:
    network, training = config.network, config.training
    kind = f"3D patches of {'x'.join(map(str, network.patch))}" if network.patch else "2D slices"
    return (
        f"method {config.method}, {config.rounds} rounds; {network.architecture[:LONGEST]} of width {network.width} "
        f"and depth {network.depth} on {kind} of {network.in_channels} channels; labels "
        f"{', '.join(network.labels)[:LONGEST]}; task {config.task[:LONGEST]}; optimiser "
        f"{training.optimizer[:LONGEST]}, learning rate {training.lr:g}"
    )


def _images(config: RunConfiguration, images: TrainingImages | None) -> str:
    training, there = config.training, images_per_round(config, images)
    passes = "a pass" if training.epochs == 1 else f"{training.epochs} passes"
    work = f"{training.steps} steps" if training.steps else f"{passes} over all training images in steps"
    behind = "all training images of the site" if there is None else f"{there} different training images"
    return f"each round {work} of {training.batch_size} images: an update is of {behind}"


def _parts(parts: Iterator[tuple[str, str]]) -> str:
    return ", ".join(f"{name} ({text})" if text else name for name, text in parts) or "nothing"


def parts_before(config: RunConfiguration) -> Iterator[tuple[str, str]]:
    """Yield the parts of the egress list that leave a site before round 0, each in a few words."""
    if config.is_guarded(config.build_method()) and config.can_enrol:
        yield "enrolment", "counts of cases and slices, salted digests of training images, certificate"


def parts_each_round(job: Job, config: RunConfiguration) -> Iterator[tuple[str, str]]:
    """Yield the parts of the egress list that leave a site in each round, each in a few words."""
    method, training = config.build_guarded_method(), config.training
    can, network = capabilities(method), config.network
    has_statistics = network.norm == "own" and network.architecture not in NO_STATISTICS
    if can.exchanges_directly:
        yield "model", "the whole model, to each peer"
    elif job.encrypted:
        yield "ciphertexts", "the update, encrypted"
    else:
        yield "update", "what training changed, every parameter"
        if has_statistics or network.norm == "batch":
            yield "buffers", "BatchNorm statistics"
    if can.vectors:
        yield "vectors", f"{', '.join(can.vectors)}, as long as the update"
    yield "num_samples", "training images"
    yield "overlaps", "voxel counts by case"
    if training.validate_trained:
        yield "trained_overlaps", ""
    if method.asks:
        yield "values", ", ".join(method.asks)
    if can.peers:
        yield "pairs", "numbers about each peer"
    if can.neurons:
        yield "increases", "loss without each neuron"
        yield "images", ""
    if can.loss_bins:
        yield "losses", "histogram"
    of_script = ("metric", "restarts", "unsent", "evaluation_fault") if config.script else ()
    loss = ("epsilon",) if config.privacy else ("train_loss",)
    yield from ((name, "") for name in (*loss, "seconds", "log", *of_script))
    yield "failure", "instead, if there is an error"


def parts_at_the_end(config: RunConfiguration) -> Iterator[tuple[str, str]]:
    """Yield the parts of the egress list that leave a site after the last round, each in a few words."""
    yield "overlaps", "voxel counts and surface distances by test case"
    if config.training.final_model == "selected":
        yield "choice", "which model the site selects"
    yield "countersigned", "that the site logged the end"


def _received(config: RunConfiguration) -> Iterator[str]:
    method = config.build_method()
    if config.share_models:
        yield "models of single sites, from which updates can be computed"
    if config.values:
        yield f"models of parts of the sites, to evaluate ({', '.join(config.values)[:LONGEST]})"
    yield "a model for each, made of all updates" if method.has_site_models else "the model made of all updates"


def _evaluations(config: RunConfiguration, sites: int) -> Iterator[str]:
    for split in EVALUATED:
        most = most_evaluations(config, split, sites)
        when = "after the last round" if split == "testing" else "a round"
        yield f"{split}: {f'at most {most} models {when}' if most else 'none'}"
