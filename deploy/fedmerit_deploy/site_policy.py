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
from fedmerit.errors import BadInput, printable
from fedmerit.plugin_references import Reference, refusal
from fedmerit.plugins import find_reference
from fedmerit.schema.configuration.run import RunConfiguration, find_external_parts
from fedmerit.schema.scores import EVALUATED
from fedmerit.site.evaluation_budget import most_evaluations
from fedmerit.site.machine_settings import site_folder
from fedmerit.site.policy import MANIFEST, JobRules, Manifest, read_manifest_file
from fedmerit.trainers.factory import count_images

EDIT = f'change "jobs" in local/{MANIFEST} of the kit if your hospital agrees to more, or ask for another plan'
LONGEST = 300  # characters of what a plan asks for: others chose them


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
        approved = read_manifest_file(Path(self.manifest)).approved if self.manifest else {}
        if approved is None:
            return
        for group, name in find_external_parts(plan):
            reference = find_reference(group, name)
            if reference is not None and (refused := refusal(reference, approved)):
                raise BadInput(f"{group}: {name!r}: {refused}")


class SitePolicy:
    """The engine's hook at a site: the rules of its manifest.

    Args:
        manifest: the site's manifest.
    """

    def __init__(self, manifest: Manifest):
        self.manifest = manifest

    def check(self, plan: RunConfiguration, sites: int) -> None:
        """Raise `BadInput` with every reason if the site refuses a plan in which so many sites take part."""
        images = None if plan.script else count_images(site_folder(self.manifest.site), plan)
        if refused := refusals(self.manifest, plan, sites, images):
            raise BadInput("the rules of this site refuse the job", *refused)


def refusals(manifest: Manifest, config: RunConfiguration, sites: int, images: int | None = None) -> list[str]:
    """Return a sentence for each rule of a manifest that a plan breaks; none if the site takes part.

    Args:
        manifest: the site's manifest.
        config: the plan.
        sites: how many sites take part.
        images: the site's training images, or patches; None: not known.
    """
    return [check.sentence for check in check_rules(manifest, config, sites, images) if not check.passes]


def check_rules(manifest: Manifest, config: RunConfiguration, sites: int, images: int | None = None) -> list[RuleCheck]:
    """Return every rule of a manifest, held against a plan; the arguments are those of `refusals`."""
    rules = manifest.jobs
    brought = {
        group: part for group, name in find_external_parts(config.to_dict()) if (part := find_reference(group, name))
    }
    return [
        *_check_parts(manifest, brought),
        *(_check_script(manifest) if config.script else _check_training(rules, config, images, brought)),
        _check_fold(rules, config),
        *_check_models(rules, config),
        *_check_evaluations(rules, config, sites),
        _check_study(rules, config.study),
    ]


def images_per_round(config: RunConfiguration, images: int | None) -> int | None:
    """Return how many different training images are behind an update; None: all of the site's, an unknown number."""
    training = config.training
    drawn = training.steps * training.batch_size if training.steps else images
    return drawn if images is None or drawn is None else min(drawn, images)


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
    rules: JobRules, config: RunConfiguration, images: int | None, brought: dict[str, Reference]
) -> Iterator[RuleCheck]:
    network, training = config.network, config.training
    yield RuleCheck(
        "architectures",
        network.architecture[:LONGEST],
        _listed(rules.architectures),
        network.architecture in rules.architectures or "networks" in brought,  # `_check_parts` judges those
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
    yield RuleCheck(
        "least_images",
        f"{amount} a round",
        f"{rules.least_images} or more",
        there is None or there >= rules.least_images,
        "an update of few images can give them back",
    )
    sgd = 0 if "sgd" in rules.optimizers else rules.sgd_images
    many = training.optimizer == "sgd" and sgd > 0 and (there is None or there >= sgd)
    yield RuleCheck(
        "optimizers",
        training.optimizer[:LONGEST] + (f" with {amount} a round" if training.optimizer == "sgd" else ""),
        _listed(rules.optimizers) + (f"; sgd with {sgd} images a round or more" if sgd else ""),
        training.optimizer in rules.optimizers or many or "optimizers" in brought,
        "an update of plain SGD is a sum of gradients, which are the easiest to invert",
    )
    for rule, text, found, most in (
        ("largest_lr", "a learning rate", training.lr, rules.largest_lr),
        ("largest_weight_decay", "a weight decay", training.weight_decay, rules.largest_weight_decay),
    ):
        why = "a larger one can end training after the first batch, and then the update is of that batch"
        yield RuleCheck(rule, f"{text} of {found:g}", f"at most {most:g}", found <= most, why)


def _check_fold(rules: JobRules, config: RunConfiguration) -> RuleCheck:
    allowed = rules.folds is None or config.fold is None or config.fold in rules.folds
    known = "any fold" if rules.folds is None else f"folds {', '.join(map(str, rules.folds)) or 'none'}"
    asked = "the split of the site's folder" if config.fold is None else f"fold {config.fold}"
    return RuleCheck("folds", asked, known, allowed, "runs of all folds train on every patient of the site")


def _check_models(rules: JobRules, config: RunConfiguration) -> Iterator[RuleCheck]:
    keeps, shares = config.keep_updates, config.share_models
    yield RuleCheck(
        "keep_updates",
        f"{'every' if keeps else 'no'} update to be kept at the server",
        "kept updates" if rules.keep_updates else "no kept updates",
        not keeps or rules.keep_updates,
        "kept updates can be inverted at any later time",
    )
    yield RuleCheck(
        "share_models",
        f"{'models' if shares else 'no models'} of single sites for other sites",
        "models of single sites" if rules.share_models else "no models of single sites",
        not shares or rules.share_models,
        "another hospital could invert them",
    )


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
