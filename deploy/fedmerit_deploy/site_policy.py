"""The rules of one machine for jobs: which classes a job may name, and what a plan may ask of a site.

NVFlare itself compares a job's classes with the list of allowed ones when the job's processes build their parts. By
then the job runs at the server, which learns only the exit code of the first site's process. `ClassValidator` looks at
the job's deployment, and the server learns the reason. `SitePolicy` holds the manifest's rules against the plan, before
any work.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nvflare.apis.app_validation import AppValidator
from nvflare.apis.fl_constant import WorkspaceConstants
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer
from nvflare.fuel.utils.config_factory import ConfigFactory

from fedmerit.engines.nvflare.components import find_components
from fedmerit.errors import BadInput, Refused, printable
from fedmerit.evidence.signatures import Signer
from fedmerit.plugin_references import Reference, refusal
from fedmerit.plugins import find_reference
from fedmerit.reasons import RefusedByRules
from fedmerit.schema.configuration.run import RunConfiguration, find_external_parts
from fedmerit.schema.messages import SAME_MODEL
from fedmerit.schema.scores import EVALUATED
from fedmerit.site.evaluation_budget import most_evaluations
from fedmerit.site.job_ledger import JOB_LEDGER, JobHistory, JobLedger, list_differences
from fedmerit.site.machine_settings import site_folder
from fedmerit.site.policy import MANIFEST, JobRules, Manifest, read_manifest_file
from fedmerit.trainers.factory import describe_images, least_learning_rate, measure_network
from fedmerit.trainers.privacy_budget import Mechanism, plan_mechanism, spent_epsilon
from fedmerit.trainers.trainer import TrainingImages

EDIT = f'change "jobs" in local/{MANIFEST} of the kit if your hospital agrees to more, or ask for another plan'
OF_IMAGES = ("least_images", "least_patients", "least_bottom", "parameters_per_voxel")  # which of them is broken says
IMAGES = "images"  # something of the site's images, so the server learns only this
LONGEST = 300  # characters of what a plan asks for: others chose them
MOST_ROUNDS = 2  # of a job from one received model: FedSAC begins again after its local-only rounds


@dataclass(frozen=True)
class RuleCheck:
    """A rule of a manifest, held against a plan."""

    rule: str  # its name in the manifest
    requested: str  # what the plan asks for
    allowed: str  # what the site allows
    passes: bool
    reason: str = ""  # why the rule exists

    @property
    def sentence(self) -> str:
        """The refusal, for the log of the site."""
        return f"{self.rule}: the job asks for {self.requested}; allowed here: {self.allowed} ({self.reason}); {EDIT}"


class ClassValidator(AppValidator):
    """A validator of apps for NVFlare, by the class allow list in ``local/resources.json``.

    A plan names methods, networks, losses and optimisers; those that are not FedMerit's have to be approved.

    Args:
        config: the file of a job that is for this machine, ``config_fed_client.json`` or ``config_fed_server.json``.
        manifest: the file that lists the approved parts of others.
    """

    def __init__(self, config: str, manifest: str = ""):
        self.config, self.manifest = config, manifest
        self.authorizer = ComponentPathAuthorizer()

    def validate(self, app_folder: str) -> tuple[str, dict[str, Any]]:
        """Return why the job is refused, "" if it is not, and no further properties."""
        app = Path(app_folder)
        if not (app / WorkspaceConstants.CUSTOM_FOLDER_NAME).exists():  # a job with code is judged by the byoc right
            content = ConfigFactory.load_config(self.config, [str(app / "config")]).to_dict()
            try:
                for part in find_components(content, []):
                    self.authorizer.authorize_component_config(part.element, part)
                    self._require_approved(part.element.get("args", {}).get("plan"))
            except (UnsafeComponentError, BadInput) as error:
                return str(error), {}
        return "", {}

    def _require_approved(self, plan: Any) -> None:
        """Raise `BadInput` if a plan names a part of others that is not approved here, or is no plan."""
        if plan is None:
            return
        try:
            approved = read_manifest_file(Path(self.manifest)).approved if self.manifest else {}
        except BadInput:  # whose text has paths, and what is in the file: the server gets this one
            raise BadInput(f"its {MANIFEST} cannot be read; `fedmerit deploy check` there says why") from None
        if approved is None:
            return
        for group, name in find_external_parts(plan):
            reference = find_reference(group, name)
            if reference is not None and (refused := refusal(reference, approved)):
                raise BadInput(f"{group}: {name!r}: {refused}")


def open_ledger(kit: Path, signer: Signer | None = None) -> JobLedger:
    """Return the ledger of jobs of a site's kit; ``signer`` signs what is added."""
    return JobLedger(kit / JOB_LEDGER, signer)


class SitePolicy:
    """The engine's hook at a site: the rules of its manifest.

    Args:
        manifest: the site's manifest.
        ledger: of the jobs that trained at the site; None: jobs are judged by themselves.
    """

    def __init__(self, manifest: Manifest, ledger: JobLedger | None = None):
        self.manifest, self.ledger = manifest, ledger

    def check(self, plan: RunConfiguration, sites: int, job: str = "") -> None:
        """Raise `RefusedByRules` if the site refuses a plan in which so many sites take part.

        ``job`` is the id of the job, the first one of a run that was resumed.
        """
        images = self._describe_images(plan)
        history = self.ledger.history() if self.ledger else None
        _require(check_rules(self.manifest, plan, sites, images, history, job))

    def note_training(self, plan: RunConfiguration, job: str, round: int, received: str) -> None:
        """Note in the ledger of jobs that a round is going to be trained from a model with this SHA-256.

        Raises:
            RefusedByRules: it is the job's first training, and a related job or too many of the study came in
                between; or more ε is spent than the site allows.
            Refused: `MOST_ROUNDS` others of the job were trained from this model: the updates of all show more of the
                images than one.
        """
        if self.ledger is None:
            return
        shown = self._describe_images(plan) if plan.privacy else None
        mechanism = _plan_mechanism(self.manifest, plan, shown)
        folder = None if plan.script else site_folder(self.manifest.site).in_fold(plan.fold)
        images = sum(len(case.slices or case.image) for case in folder.cases("training")) if folder else 0
        with self.ledger.locked():
            history = self.ledger.history()
            is_new = history.find(job, plan.digest) is None
            checks = [_check_privacy(self.manifest, plan, shown, history, job)]
            checks += check_history(self.manifest.jobs, plan, history, job) if is_new else ()
            _require(checks)
            before = history.rounds.get((job, plan.digest, received), [])
            if round not in before and len(before) >= MOST_ROUNDS:
                raise Refused(SAME_MODEL, f"round {round}, with the model of rounds {' and '.join(map(str, before))}")
            if is_new:
                self.ledger.began(job, plan)
            self.ledger.trained(job, plan, round, received, images, folder.digest if folder else "", mechanism)

    def _describe_images(self, plan: RunConfiguration) -> TrainingImages | None:
        return None if plan.script else describe_images(site_folder(self.manifest.site), plan)


def _require(checks: Sequence[RuleCheck]) -> None:
    """Raise `RefusedByRules` if a rule is broken."""
    if broken := [check for check in checks if not check.passes]:
        rules = [IMAGES if check.rule in OF_IMAGES else check.rule for check in broken]
        raise RefusedByRules(rules, *(check.sentence for check in broken))


def check_rules(
    manifest: Manifest,
    config: RunConfiguration,
    sites: int,
    images: TrainingImages | None = None,
    history: JobHistory | None = None,
    job: str = "",
) -> list[RuleCheck]:
    """Return every rule of a manifest, held against a plan.

    Args:
        manifest: the site's manifest.
        config: the plan.
        sites: how many sites take part.
        images: the site's training images; None: not known.
        history: the jobs that trained at the site; None: not known.
        job: id of the job; "": not known yet.
    """
    rules = manifest.jobs
    brought = {
        group: part for group, name in find_external_parts(config.to_dict()) if (part := find_reference(group, name))
    }
    parts = list(_check_parts(manifest, brought))
    may_build = all(part.passes for part in parts)
    return [
        *parts,
        *(_check_script(manifest) if config.script else _check_training(rules, config, images, brought, may_build)),
        _check_fold(rules, config),
        *_check_models(rules, config),
        *_check_evaluations(rules, config, sites),
        _check_study(rules, config.study),
        _check_privacy(manifest, config, images, history or JobHistory(), job),
        *(check_history(rules, config, history, job) if history is not None else ()),
    ]


def check_history(rules: JobRules, config: RunConfiguration, history: JobHistory, job: str) -> Iterator[RuleCheck]:
    """Yield the rules across jobs, held against a plan; a job that trained here already may continue."""
    plan = config.digest
    if history.find(job, plan) is not None:
        return
    related, word = history.related(config), "the data manager's word"
    asked = "no network that an earlier job trained by the same loss and optimizer"
    if related:
        last = related[0]
        differences = printable(", ".join(list_differences(last.settings, config)))[:LONGEST]
        how = f"differs from it only in {differences}" if differences else "has the same plan"
        asked = f"what job {last.job} trained here on {last.day}; it {how}"
    yield RuleCheck(
        "repeated_jobs",
        asked,
        "repeated jobs" if rules.repeated_jobs else f"that only by {word}: `fedmerit deploy site allow {plan}`",
        not related or rules.repeated_jobs or history.words.get(plan, 0) > 0,
        "the difference of two such jobs can show a single image",
    )
    agreed = config.study in rules.studies
    name = f"study {config.study[:LONGEST]}" if agreed else "studies that the rules do not name"
    studies = [one.study for one in history.jobs]
    earlier = studies.count(config.study) if agreed else sum(study not in rules.studies for study in studies)
    yield RuleCheck(
        "jobs_per_study",
        f"job {earlier + 1} of {name}",
        f"at most {rules.jobs_per_study}",
        earlier < rules.jobs_per_study,
        "each job says more about the images",
    )


def _plan_mechanism(manifest: Manifest, config: RunConfiguration, images: TrainingImages | None) -> Mechanism | None:
    """Return what a round of a plan by DP-SGD does at a site; None: it trains without, or its images are not known."""
    if not config.privacy or images is None:
        return None
    return plan_mechanism(config, images.images, len(images.patients), manifest.site)


def _check_privacy(
    manifest: Manifest, config: RunConfiguration, images: TrainingImages | None, history: JobHistory, job: str
) -> RuleCheck:
    """Return the rule on what all jobs by DP-SGD spend, held against a plan."""
    rules, privacy = manifest.jobs, config.privacy
    most, delta = rules.largest_epsilon, rules.largest_delta
    allowed = "any training" if most is None else f"DP-SGD with ε of at most {most:g} over all jobs, at δ {delta:g}"
    reason = "ε bounds what all updates together show of a patient"
    if not privacy:
        asked = "training without differential privacy"
        return RuleCheck("largest_epsilon", asked, allowed, most is None, reason)
    asked = f"DP-SGD with {f'ε {privacy.dp_epsilon:g}' if privacy.dp_epsilon else f'noise {privacy.dp_noise:g}'}"
    if images is None:
        return RuleCheck("largest_epsilon", f"{asked}; the site's images are not known", allowed, most is None, reason)
    try:
        mechanism = _plan_mechanism(manifest, config, images)
    except BadInput as error:
        return RuleCheck("largest_epsilon", f"{asked} ({error})", allowed, False, reason)
    assert mechanism
    earlier = history.mechanisms_without(job, config.digest)
    spent = spent_epsilon([*earlier, *[mechanism] * config.rounds], delta)
    jobs = len({key[:2] for key in history.mechanisms} - {(job, config.digest)})
    asked += f", ε {spent:.3g} at δ {delta:g} over this job and {jobs} earlier ones"
    return RuleCheck("largest_epsilon", asked, allowed, most is None or spent <= most, reason)


def images_per_round(config: RunConfiguration, images: TrainingImages | None) -> int | None:
    """Return how many different training images are behind an update; None: all of the site's, an unknown number."""
    training, number = config.training, images.images if images else None
    drawn = training.steps * training.batch_size if training.steps else number
    return drawn if number is None or drawn is None else min(drawn, number)


def _check_parts(manifest: Manifest, brought: dict[str, Reference]) -> Iterator[RuleCheck]:
    allowed = "what was approved here"
    if not brought:
        yield RuleCheck("parts", "no code of others", allowed, True)
    for group, part in brought.items():
        refused = "" if manifest.approved is None else refusal(part, manifest.approved)
        yield RuleCheck("parts", f"{group}: {part.text[:LONGEST]}", allowed, not refused, refused)


def _check_script(manifest: Manifest) -> Iterator[RuleCheck]:
    own = manifest.script
    fault = own.fault if own else "the manifest names none"
    yield RuleCheck("script", "a script of this site's own", own.file if own else "none", not fault, fault)


def _check_training(
    rules: JobRules,
    config: RunConfiguration,
    images: TrainingImages | None,
    brought: dict[str, Reference],
    may_build: bool,
) -> Iterator[RuleCheck]:
    """Yield the rules on network and training; ``may_build``: whether the network's code may be used here."""
    network, training = config.network, config.training
    is_known = network.architecture in rules.architectures or "networks" in brought  # `_check_parts` judges those
    yield RuleCheck(
        "architectures",
        network.architecture[:LONGEST],
        _listed(rules.architectures),
        is_known,
        "a network whose first layer sees the whole image copies it into the update",
    )
    yield RuleCheck(
        "arguments",
        _listed(sorted(network.arguments)),
        _listed(rules.arguments),
        set(network.arguments) <= set(rules.arguments) or "networks" in brought,
        "others can make the first kernel as large as an image",
    )
    there = images_per_round(config, images)
    amount = "all training images" if there is None else f"{there} different images"
    patients = images.count_patients(there) if images else None
    people = "all patients of the site"
    if patients is not None:
        people = f"{patients} different patients a round, as expected by chance"
    size = training.batch_size
    yield _at_least(rules, "least_images", there, f"{amount} a round", "an update of few images can give them back")
    yield _at_least(rules, "least_patients", patients, people, "many images of few patients are still those few")
    yield _at_least(rules, "least_batch", size, f"{size} images a step", "a step of few images can give them back")
    if images and may_build and is_known and set(network.arguments) <= set(rules.arguments):
        yield from _check_size(rules, config, images)
    sgd = 0 if "sgd" in rules.optimizers else rules.sgd_images
    many = training.optimizer == "sgd" and sgd > 0 and (there is None or there >= sgd)
    yield RuleCheck(
        "optimizers",
        training.optimizer[:LONGEST] + (f" with {amount} a round" if training.optimizer == "sgd" else ""),
        _listed(rules.optimizers) + (f"; sgd with {sgd} images a round or more" if sgd else ""),
        training.optimizer in rules.optimizers or many or "optimizers" in brought,
        "an update of plain SGD is a sum of gradients, which are the easiest to invert",
    )
    why = "a larger one can end training after the first batch, and then the update is of that batch"
    decay = training.weight_decay
    yield _at_most(rules, "largest_lr", training.lr, f"a learning rate of {training.lr:g}", why)
    yield _at_most(rules, "largest_weight_decay", decay, f"a weight decay of {decay:g}", why)
    rate, round = least_learning_rate(config)
    rule = "sgd_least_lr" if training.optimizer == "sgd" else "least_lr"
    why = "steps of a smaller one are all at one model, and their sum does not depend on the order of images"
    yield _at_least(rules, rule, rate, f"a learning rate of {rate:g} in round {round}", why)


def _at_least(rules: JobRules, rule: str, value: float | None, requested: str, reason: str) -> RuleCheck:
    """Return a rule that names the least ``value``; None passes: all that the site has."""
    least = getattr(rules, rule)
    return RuleCheck(rule, requested, f"{_number(least)} or more", value is None or value >= least, reason)


def _at_most(rules: JobRules, rule: str, value: float, requested: str, reason: str) -> RuleCheck:
    """Return a rule that names the largest ``value``."""
    most = getattr(rules, rule)
    return RuleCheck(rule, requested, f"at most {_number(most)}", value <= most, reason)


def _number(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _check_size(rules: JobRules, config: RunConfiguration, images: TrainingImages) -> Iterator[RuleCheck]:
    """Yield the rules on the size of the network, beside that of the images."""
    try:
        parameters, bottom = measure_network(config.network, images.sides)
    except BadInput as error:
        yield RuleCheck("least_bottom", f"another network ({error})", "one that can be applied", False, "unknown")
        return
    why = "gradients of smaller ones are products of single pixels, which can be read off"
    yield _at_least(rules, "least_bottom", bottom, f"feature maps of {bottom} rows or columns", why)
    multiple = parameters / max(images.voxels, 1)
    size = f"{parameters} parameters, {multiple:.3g} for each voxel of the training images"
    why = "an update with many more numbers than the images can hold copies of them"
    yield _at_most(rules, "parameters_per_voxel", multiple, size, why)


def _check_fold(rules: JobRules, config: RunConfiguration) -> RuleCheck:
    allowed = rules.folds is None or config.fold is None or config.fold in rules.folds
    known = "any fold" if rules.folds is None else f"folds {', '.join(map(str, rules.folds)) or 'none'}"
    asked = "the split of the site's folder" if config.fold is None else f"fold {config.fold}"
    return RuleCheck("folds", asked, known, allowed, "runs of all folds train on every patient of the site")


def _check_models(rules: JobRules, config: RunConfiguration) -> Iterator[RuleCheck]:
    keeps, shares = config.keep_updates, config.share_models
    kept = f"{'every' if keeps else 'no'} update to be kept at the server"
    shared = f"{'models' if shares else 'no models'} of single sites for other sites"
    for rule, requests, requested, what, why in (
        ("keep_updates", keeps, kept, "kept updates", "kept updates can be inverted at any later time"),
        ("share_models", shares, shared, "models of single sites", "another hospital could invert them"),
    ):
        allows = getattr(rules, rule)
        yield RuleCheck(rule, requested, what if allows else f"no {what}", not requests or allows, why)


def _check_evaluations(rules: JobRules, config: RunConfiguration, sites: int) -> Iterator[RuleCheck]:
    for split in EVALUATED:
        wanted, cap = most_evaluations(config, split, sites), rules.caps[split]
        without = cap == 0 and split != "validation"  # the run does without; validation is part of training
        yield RuleCheck(
            "evaluations",
            f"{wanted} models a round on {split}, with {sites} sites",
            "none, the run does without" if without else f"at most {cap}",
            wanted <= cap or without,
            "each result says something about the images",
        )


def _check_study(rules: JobRules, study: str) -> RuleCheck:
    today, period = str(datetime.now(UTC).date()), rules.studies.get(study, "")
    first, _, last = period.partition("/")
    found = f"study {study[:LONGEST]} on {today}" if study else "no study"
    allowed = "; ".join(f"{name} from {one.replace('/', ' to ')}" for name, one in rules.studies.items())
    passes = not rules.studies or (bool(period) and first <= today <= last)
    return RuleCheck("studies", found, allowed or "any", passes, "this hospital agreed to these studies and days")


def _listed(names: Sequence[str]) -> str:
    return printable(", ".join(names))[:LONGEST] or "none"
