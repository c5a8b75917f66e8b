"""A machine's manifest: `MANIFEST` in the local/ folder of its startup kit. No job and no server reaches it.

`fedmerit deploy` writes it with safe defaults; the operator edits it, and it stays when the kit is prepared again.
"""

import hashlib
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedmerit.errors import BadInput
from fedmerit.files import parse_json, read_bytes, write_json
from fedmerit.schema.configuration.settings import ARCHITECTURES
from fedmerit.schema.scores import EVALUATED

MANIFEST = "fedmerit.json"  # in the local/ folder of a startup kit
ALL_PARTS = "all"  # instead of approved parts, if server and sites are one user's own machine
LARGEST_FILE = 2**20  # bytes of a manifest
MANY = 64  # models a round on a split: a run of 20 sites needs 41 at most, coalitions of 6 sites 64
SIMPLE = ("deep_supervision", "deep_supr_num", "dropout", "dropout_prob", "res_block")  # leave layers as they are

Name = Annotated[str, Field(min_length=1, max_length=200)]
Names = Annotated[tuple[Name, ...], Field(max_length=100)]
Count = Annotated[int, Field(ge=0, le=1_000_000_000)]
Positive = Annotated[float, Field(gt=0, le=1e6)]
Text = Annotated[str, Field(max_length=4096)]
Period = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d/\d{4}-\d\d-\d\d$")]  # first and last day
Split = Annotated[str, Field(pattern=f"^({'|'.join(EVALUATED)})$")]
STRICT = ConfigDict(extra="forbid", frozen=True, strict=True)


LOOSER: Mapping[str, Callable[[Any, Any], bool]] = {  # by rule, whether a value allows more than another
    **dict.fromkeys(("architectures", "arguments", "optimizers"), lambda own, usual: bool({*own} - {*usual})),
    **dict.fromkeys(("least_images", "least_patients", "least_batch", "least_bottom"), operator.lt),
    **dict.fromkeys(("least_lr", "sgd_least_lr", "secret_order"), operator.lt),
    "sgd_images": lambda own, usual: 0 < own < usual,  # 0: plain SGD never
    **dict.fromkeys(("largest_lr", "largest_weight_decay", "parameters_per_voxel"), operator.gt),
    **dict.fromkeys(("keep_updates", "share_models", "repeated_jobs", "jobs_per_study"), operator.gt),
    "evaluations": lambda own, usual: any(own.get(name, MANY) > cap for name, cap in usual.items()),
    **dict.fromkeys(("folds", "studies", "largest_epsilon"), lambda own, usual: False),  # the defaults allow any
    "largest_delta": operator.gt,
}


class JobRules(BaseModel):
    """A site's rules on jobs: the section ``jobs`` of its manifest.

    The defaults allow the recipes, and no network whose first layer sees the whole image at once: of such a network an
    update of few images is a copy of them.
    """

    model_config = STRICT
    architectures: Names = ARCHITECTURES
    arguments: Names = SIMPLE  # of an architecture: others may make its first kernel as large as an image
    optimizers: Names = ("adam", "adamw")
    least_images: Count = 8  # different training images, or patches, behind an update
    least_patients: Count = 4  # different patients behind an update, as expected by chance
    least_batch: Count = 4  # images of a step
    sgd_images: Count = 256  # as `least_images`, with plain SGD, whose update is a sum of gradients; 0: not even then
    largest_lr: Positive = 0.1  # a larger one can end training after the first batch
    largest_weight_decay: Positive = 0.1  # likewise
    least_lr: Positive = 1e-6  # in every round: with a smaller one an update is a sum of gradients at one model
    sgd_least_lr: Positive = 1e-3  # likewise with plain SGD, whose steps are that rate times the gradient
    least_bottom: Count = 4  # rows and columns of the smallest feature maps: smaller ones can be read off gradients
    parameters_per_voxel: Positive = 10.0  # most parameters of a network, as a multiple of the training voxels
    repeated_jobs: bool = False  # whether a job may be related to an earlier one without the data manager's word
    jobs_per_study: Count = 20  # most jobs of one study, or of none
    largest_epsilon: Positive | None = None  # of a patient, over all jobs by DP-SGD; no others then. None: any job
    largest_delta: Annotated[float, Field(gt=0, lt=1)] = 1e-3  # at which that ε is computed
    keep_updates: bool = False  # whether the server may keep every round's update
    share_models: bool = False  # whether a model of a single site may go to other sites
    folds: tuple[Count, ...] | None = None  # whose splits a job may use, beside that of datalist.json; None: any
    evaluations: dict[Split, Count] = dict.fromkeys(EVALUATED, MANY)  # models a round
    secret_order: bool = True  # whether order and batches follow from a secret of the site, not from the plan's seed
    studies: dict[Name, Period] = {}  # for which the site takes part; none: any job, also of no study

    @property
    def caps(self) -> Mapping[str, int]:
        """The most models by split that the site evaluates in a round; `MANY` of what ``evaluations`` omits."""
        return dict.fromkeys(EVALUATED, MANY) | self.evaluations

    @property
    def looser(self) -> list[str]:
        """The rules that allow more than the defaults, in words, each with the default."""
        own, usual = self.model_dump(mode="json"), JobRules().model_dump(mode="json")
        return [
            f"{name} {_text(own[name])}, the default is {_text(usual[name])}"
            for name, allows_more in LOOSER.items()
            if allows_more(own[name], usual[name])
        ]

    @property
    def changes(self) -> str:
        """The rules that the operator changed; "the defaults": none."""
        own, usual = self.model_dump(mode="json"), JobRules().model_dump(mode="json")
        changed = [f"{name} {_text(own[name])}" for name in own if own[name] != usual[name]]
        return "; ".join(changed) or "the defaults"


class SiteScript(BaseModel):
    """The script that trains at a site, if a job has sites train by scripts: no job names or changes it."""

    model_config = STRICT
    file: Annotated[str, Field(pattern=r"^/.{1,4000}\.py$")]  # absolute
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]  # of that file; what it imports is not covered
    args: Text = ""
    command: Text = ""  # of a process of its own, such as "python3 -u"; "": in the site's

    @property
    def fault(self) -> str:
        """The reason why the script may not start; "": it may."""
        try:
            found = hashlib.sha256(read_bytes(Path(self.file), LARGEST_FILE)).hexdigest()
        except (OSError, BadInput) as error:
            return f"{self.file} cannot be read ({type(error).__name__})"
        return "" if found == self.sha256 else f"{self.file} has SHA-256 {found}, approved was {self.sha256}"


class Manifest(BaseModel):
    """A machine's own decisions."""

    model_config = STRICT
    site: Annotated[str, Field(min_length=1, max_length=200)]  # or the server's name
    site_folder: Text = ""
    device: Text = ""
    server_sites: Text = ""  # at the server
    run: Text = ""
    runs: Text = ""
    parts: Annotated[dict[Text, Name], Field(max_length=1000)] | Literal["all"] = {}  # SHA-256 by reference
    hidden: Names = ()  # of a site: items of `fedmerit_deploy.facts` that no admin gets
    jobs: JobRules = JobRules()  # likewise
    script: SiteScript | None = None  # likewise

    @property
    def approved(self) -> Mapping[str, str] | None:
        """The parts of others that jobs may name, SHA-256 by reference; None: any."""
        return None if isinstance(self.parts, str) else self.parts

    def write(self, local: Path) -> None:
        """Write it to a kit's ``local`` folder; a site's with all its rules, to be edited there."""
        content = {name: value for name, value in self.model_dump(mode="json").items() if value}
        if not self.site_folder and not self.script:  # the server's
            content.pop("jobs")
        write_json(local / MANIFEST, content)


def read_manifest_file(path: Path) -> Manifest:
    """Return a manifest; `BadInput` naming the file and the first entry that cannot be used."""
    try:
        return Manifest.model_validate_json(read_bytes(path, LARGEST_FILE))
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}); run `fedmerit deploy` for this kit") from None
    except ValidationError as error:
        raise BadInput(
            f"{path}: {_explain(error)}; correct it, or move the file away and run `fedmerit deploy` for this kit again"
        ) from None


def _explain(error: ValidationError) -> str:
    """Return the first entry that cannot be used, what is wrong with it, and what it is."""
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']} (found {first['input']!r:.80})"


def change_rules(rules: JobRules, settings: Sequence[str]) -> JobRules:
    """Return rules with ``settings``, ``NAME=VALUE`` each; values are JSON, or names separated by commas.

    Raises:
        BadInput: a setting is of another form, or is no rule.
    """
    content = rules.model_dump(mode="json")
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or name not in content:
            raise BadInput(f"--set {setting}: expected RULE=VALUE; the rules are {', '.join(content)}")
        try:
            content[name] = parse_json(text)
        except ValueError:
            parts = [part.strip() for part in text.split(",") if part.strip()]
            content[name] = [int(part) if _is_count(part) else part for part in parts]
    try:
        return JobRules.model_validate_json(json.dumps(content))
    except ValidationError as error:
        raise BadInput(f"--set {_explain(error)}") from None


def parse_caps(setting: str) -> dict[str, Any]:
    """Return caps by split, of ``validation=8,testing=4``; those of splits that are not named are the default's.

    Raises:
        BadInput: the setting is not of that form; a misspelt cap must not count as none.
    """
    caps: dict[str, Any] = dict.fromkeys(EVALUATED, MANY)
    pairs = [part.partition("=") for part in setting.split(",") if setting]
    names = [split for split, _, _ in pairs]
    if not set(names) <= set(EVALUATED) or len(set(names)) < len(names) or not all(_is_count(one) for *_, one in pairs):
        raise BadInput(
            f"evaluations {setting!r}: expected SPLIT=NUMBER,SPLIT=NUMBER, each of {', '.join(EVALUATED)} at most once"
        )
    return caps | {split: int(number) for split, _, number in pairs}


def _text(value: Any) -> str:
    items = [f"{name}={one}" for name, one in value.items()] if isinstance(value, dict) else value
    return ", ".join(items) if isinstance(items, list) else json.dumps(items)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10
