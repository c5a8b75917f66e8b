"""The settings of a run: network, training and guard, what recipes and papers' presets set of them."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, Strict, StringConstraints, TypeAdapter, ValidationError

from fedmerit.errors import BadInput, require_known
from fedmerit.files import is_file_name
from fedmerit.schema.configuration.script import NAMED_TENSORS, read_tensors
from fedmerit.schema.declarations import Checked, Parameter, parameters, read
from fedmerit.schema.rules import About, Choice, Count, Number, Switch, Text

# Of `monai.networks.nets`, for segmentation, each built and applied. None downloads weights, and none has a layer that
# is connected to every pixel of an image.
MONAI_NETWORKS = (
    "BasicUNetPlusPlus", "FlexibleUNet", "HighResNet", "MedNeXt", "SegResNetDS", "SegResNetDS2", "UNETR", "VNet",
)  # fmt: skip

_ACTIVATIONS = {"celu", "elu", "gelu", "leakyrelu", "mish", "prelu", "relu", "relu6", "selu", "swish"}
_NORMS = {"batch", "group", "instance", "layer"}
_UPSAMPLING = {"deconv", "nontrainable", "pixelshuffle"}
TEXTS: Mapping[str, set[str]] = {  # by argument of a MONAI network, in lower case
    "act": _ACTIVATIONS,
    "act_name": _ACTIVATIONS,
    "acti_type": _ACTIVATIONS,
    "adn_ordering": {"a", "an", "na", "nad", "nda", "ndan"},
    "backbone": {f"efficientnet-b{size}" for size in range(9)} | {f"resnet{size}" for size in (10, 18, 34, 50, 101)},
    "channel_matching": {"pad", "project"},
    "downsample": {"merging", "mergingv2"},
    "interp_mode": {"nearest", "linear", "bilinear", "bicubic", "trilinear"},
    "norm": _NORMS,
    "norm_name": _NORMS,
    "norm_type": _NORMS,
    "pre_conv": {"default"},
    "proj_type": {"conv", "perceptron"},
    "upsample": _UPSAMPLING,
    "upsample_mode": _UPSAMPLING,
}

_Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w{0,39}$")]
_Text = Annotated[str, Strict(), StringConstraints(pattern=r"^[A-Za-z][\w-]{0,39}$")]
_Count = Annotated[int, Strict(), Field(ge=-4096, le=4096)]
_Number = Annotated[float, Strict(), Field(ge=-1e6, le=1e6, allow_inf_nan=False)]
_Value = Annotated[bool, Strict()] | _Count | _Number | _Text | None
_Options = Annotated[dict[_Name, _Value], Field(max_length=16)]
_List = Annotated[list[_Value | _Options | Annotated[list[_Value], Field(max_length=16)]], Field(max_length=32)]
_Arguments = Annotated[dict[_Name, _Value | _Options | _List], Field(max_length=64)]
MOST_LABELS = 64
ARGUMENTS_EXPECTED = "expected numbers, true, false, short words, and lists of them"


def check_labels(labels: Sequence[str]) -> None:
    """Raise `ValueError` if labels are no names of files, of which they become parts."""
    if not 0 < len(labels) <= MOST_LABELS or not all(map(is_file_name, labels)):
        raise ValueError(f"labels={labels!r:.80}: expected 1 to {MOST_LABELS} names of files without endings")


@cache
def _arguments() -> TypeAdapter[Any]:
    """Return the validator of arguments, which takes longer to make than a help text to print."""
    return TypeAdapter(_Arguments)


def check_arguments(architecture: str, arguments: Mapping[str, Any], own: bool) -> None:
    """Raise `ValueError` naming an argument that a description may not have.

    Args:
        architecture: the network's.
        arguments: of the network's class.
        own: whether it is one of `fedmerit`'s architectures or of `MONAI_NETWORKS`, whose texts are known.
    """
    try:
        _arguments().validate_python(arguments)
    except ValidationError as error:
        name = str((error.errors()[0]["loc"] or ("",))[0])
        raise ValueError(f"arguments: {name}={arguments.get(name)!r:.60}: {ARGUMENTS_EXPECTED}") from None
    if arguments.get("pretrained"):
        raise ValueError("arguments: pretrained=true: no weights are downloaded; leave it out")
    for name, value in arguments.items() if own else ():
        if unknown := [text for text in _texts(value) if text.lower() not in TEXTS.get(name, ())]:
            known = f"one of {', '.join(sorted(TEXTS[name]))}" if name in TEXTS else "no text"
            raise ValueError(f"arguments: {name}={unknown[0]!r}: expected {known} for {architecture}")


def _texts(value: object) -> Iterator[str]:
    """Yield the texts in an argument; names of options are none."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple | Mapping):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)


ARCHITECTURES = ("dynunet", "unet", "segresnet", "basicunet", "attentionunet", "swinunetr")
LOSSES = ("dice_ce", "dice")
OPTIMIZERS = ("adam", "adamw", "sgd")

TASKS: Mapping[str, Mapping[str, Any]] = {
    "prostate": {"in_channels": 1, "labels": ("prostate",)},
    "fundus": {"in_channels": 3, "labels": ("disc", "cup")},
    "fundus-disc": {"in_channels": 3, "labels": ("disc",)},
}


@dataclass(frozen=True)
class Network(Checked):
    """A network of MONAI: of slices, or with a patch of volumes."""

    in_channels: Annotated[int, Count(1, 64), About("Channels of an image.")]
    labels: Annotated[tuple[str, ...], Text(), About("Names of the labels: one sigmoid output channel each.")]
    architecture: Annotated[
        str,
        Text(),
        About(f"{', '.join(ARCHITECTURES)}, a class of MONAI ({', '.join(MONAI_NETWORKS)}), or a network of your own."),
    ] = "dynunet"
    width: Annotated[int, Count(1, 512), About("Channels of the first level; each further level doubles them.")] = 8
    depth: Annotated[int, Count(2, 9), About("Levels; 5 of width 8 give 8, 16, 32, 64, 128.")] = 5
    norm: Annotated[
        str,
        Choice(("own", "batch", "instance", "group")),
        About("own: the architecture's; group: one group, which any number of channels allows."),
    ] = "own"
    residual_units: Annotated[int, Count(0, 8), About("unet: convolutions of a residual unit; 0: plain ones.")] = 2
    arguments: Annotated[
        Mapping[str, Any], About('Further arguments of MONAI\'s class, as JSON: {"deep_supervision": true}.')
    ] = field(default_factory=dict)
    patch: Annotated[
        tuple[int, ...],
        Count(2, 1024),
        About("3D: slices, rows and columns that a step sees, as 16,96,96; none: 2D, a slice at a time."),
    ] = ()
    spacing: Annotated[
        tuple[float, ...],
        Number(above=0),
        About("3D: distance of slices, rows and columns; the finest are halved first; none: a patch is a cube.", "mm"),
    ] = ()
    mirrored: Annotated[
        bool, Switch(), About("Final masks follow from the mean logits of an image and its mirror image.")
    ] = True
    largest: Annotated[
        bool,
        Switch(),
        About(
            "Final masks keep only the largest connected part of each label of a case; true by default for organs "
            "(prostate, fundus)."
        ),
    ] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_labels(self.labels)
        if self.architecture == NAMED_TENSORS:  # of a script, which the server does not know otherwise
            read_tensors(self.arguments)
            return
        check_arguments(self.architecture, self.arguments, own=self.architecture in (*ARCHITECTURES, *MONAI_NETWORKS))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Network":
        """Build the network that `dataclasses.asdict` wrote; `BadInput` if a name or value is unknown."""
        return read(cls, values, "network")


@dataclass(frozen=True)
class Training(Checked):
    """A site's training in one round."""

    loss: Annotated[
        str,
        Choice(LOSSES, others="losses"),
        About("dice_ce: soft Dice + cross-entropy; dice: only soft Dice, as in Jiang et al. 2023."),
    ] = "dice_ce"
    optimizer: Annotated[
        str,
        Choice(OPTIMIZERS, others="optimizers"),
        About("Optimizer, created again each round; adam and adamw have betas (0.9, 0.99)."),
    ] = "adam"
    lr: Annotated[float, Number(above=0), About("Learning rate, the schedule's highest.")] = 1e-3
    schedule: Annotated[
        str,
        Choice(("constant", "polynomial", "cosine", "step")),
        About(
            "Schedule of the learning rate over T rounds; polynomial: (1 - t/T)^0.9, cosine: (1 + cos(πt/T))/2, step: "
            "times decay every decay_every rounds."
        ),
    ] = "polynomial"
    decay: Annotated[float, Number(above=0, high=1), About("Factor of schedule=step.")] = 0.1
    decay_every: Annotated[int, Count(1), About("Rounds of schedule=step between two factors.")] = 25
    momentum: Annotated[float, Number(0, below=1), About("Momentum of sgd.")] = 0.0
    weight_decay: Annotated[float, Number(0), About("Weight decay; adam, sgd: L2; adamw: decoupled.")] = 0.0
    clip_norm: Annotated[float, Number(0), About("Longest gradient of a step; 0: any.")] = 0.0
    batch_size: Annotated[int, Count(1, 4096), About("Slices of a step; 2 by default of prostate and fundus.")] = 8
    epochs: Annotated[int, Count(1, 1000), About("Local epochs per round.")] = 1
    steps: Annotated[
        int,
        Count(0, 1_000_000),
        About("Steps of the optimizer per round, instead of epochs; 0: epochs; 30 by default for fundus."),
    ] = 0
    organ_share: Annotated[
        float,
        Number(0, 1),
        About("Least share of drawn slices that show a label, or of patches about one; 0: each slice once."),
    ] = 0.0
    augmentation: Annotated[
        str,
        Choice(("strong", "light", "none")),
        About(
            "Random transforms of images and masks; light: flip, small rotation and scaling, noise, gamma; strong: "
            "more of them, and blur, bias field, intensity."
        ),
    ] = "strong"
    statistics: Annotated[
        str,
        Choice(("method", "mean", "own", "weights", "recalibrated", "frozen")),
        About(
            "BatchNorm statistics of evaluated models; method: its own rule; mean: by data share; own: "
            "each site's; weights: by the method's weights; recalibrated: estimated every round on all sites' training "
            "images; frozen: the mean, until round frozen_from."
        ),
    ] = "method"
    frozen_from: Annotated[int, Count(), About("First round in which statistics=frozen no longer change.")] = 0
    amp: Annotated[
        bool, Switch(), About("Mixed precision: bfloat16, float16 on a GPU without it; final tests stay in float32.")
    ] = False
    capture: Annotated[
        bool, Switch(), About("On a GPU, replay steps and evaluation as CUDA graphs, with the same bits.")
    ] = False
    final_model: Annotated[
        str,
        Choice(("method", "selected")),
        About("selected: a site receives the best model on its own validation cases."),
    ] = "method"
    last_round: Annotated[
        str,
        Choice(("aggregated", "own")),
        About(
            "aggregated: one model for all; own: each site keeps what it trains in the last round, as papers compare "
            "sites of one model."
        ),
    ] = "aggregated"
    validate_trained: Annotated[
        bool, Switch(), About("Also test what a site trained on its validation split: evidence of free riders.")
    ] = False


# times the median of the other sites that `guard.bounds` holds a site to
NORM_FACTOR = 3.0  # Sun et al. 2019 bound norms with a median, too; honest ones of one round differ by less
STATISTICS_FACTOR = 3.0
COUNT_FACTOR = 3.0  # of the four prostate hospitals the largest has 2.4 times the median of the others


@dataclass(frozen=True)
class GuardSettings(Checked):
    """A choice whether replies are bounded and judged before the method gets them, and of what a verdict does."""

    guard: Annotated[
        str,
        Choice(("on", "off")),
        About("off: the papers' algorithms, without bounds and verdicts; on by default of `fedmerit run`."),
    ] = "off"
    on_verdict: Annotated[
        str, Choice(("show", "withhold", "exclude")), About("Action against detected free riders: docs/guard.md.")
    ] = "withhold"
    false_alarms: Annotated[
        float,
        Number(above=0, below=1),
        About("Largest probability of a verdict against any site in a run in which all work."),
    ] = 0.01
    rate_every: Annotated[
        int,
        Count(),
        About(
            "Rounds from one rating of the models without each site to the next, on the server's images or with "
            "--share-models; 0: none."
        ),
    ] = 5
    counts: Annotated[
        str,
        Choice(("claimed", "shown")),
        About(
            "Images that count; claimed: up to three times the others' median; shown: beyond that median only as far "
            "as the site's updates share more with the others' than theirs do."
        ),
    ] = "claimed"

    def rates(self, round: int, rounds: int) -> bool:
        """Return whether the models without each site may be rated in ``round`` of ``rounds``."""
        due = self.rate_every > 0 and round % self.rate_every == 0
        return self.guard == "on" and due and round + 1 < rounds


@dataclass(frozen=True)
class Privacy(Checked):
    """A choice whether sites train by DP-SGD (Abadi et al. 2016), with patients as its units, and of its noise."""

    dp_epsilon: Annotated[
        float,
        Number(0),
        About("DP-SGD: the run's ε for each patient, from which each site's noise follows; 0: dp_noise says it."),
    ] = 0.0
    dp_noise: Annotated[
        float, Number(0), About("DP-SGD: standard deviation of the noise, as a multiple of dp_clip; 0: dp_epsilon.")
    ] = 0.0
    dp_delta: Annotated[
        float, Number(above=0, below=1), About("DP-SGD: δ; below 1 by the number of a site's patients.")
    ] = 1e-3
    dp_clip: Annotated[float, Number(above=0), About("DP-SGD: longest gradient of a patient in a step.")] = 1.0
    dp_slices: Annotated[
        int,
        Count(1, 4096),
        About("DP-SGD: most slices of a patient in a step, which draws batch_size / dp_slices patients on average."),
    ] = 1

    def __bool__(self) -> bool:
        """Return whether sites train by DP-SGD."""
        return self.dp_epsilon > 0 or self.dp_noise > 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dp_epsilon and self.dp_noise:
            raise ValueError(f"dp_noise={self.dp_noise:g}: the noise follows from dp_epsilon; leave one out")
        changed = [
            name for name in ("dp_delta", "dp_clip", "dp_slices") if getattr(self, name) != getattr(Privacy, name)
        ]
        if changed and not self:
            raise ValueError(f"{changed[0]}: has no effect without dp_epsilon or dp_noise; leave it out")


SHARED_GROUPS: Mapping[str, type[Any]] = {
    "training": Training,
    "network": Network,
    "guard": GuardSettings,
    "privacy": Privacy,
}
SYNONYMS = {"learning_rate": "lr", "local_epochs": "epochs", "network": "architecture", "channels": "width"}
FROM_SITES = ("in_channels", "labels")  # of a network: the sites' images fix them


def settable(kind: type[Any]) -> dict[str, Parameter]:
    """Return the parameters that a person may set of a method, or of a group of `SHARED_GROUPS`, by name."""
    return {name: parameter for name, parameter in parameters(kind).items() if name not in FROM_SITES}


ROUNDS = 100  # of a run, by default

# beneath every recipe: an organ is in one piece; a site of few images takes few steps a round, unless small ones; if
# sites differ in size, as sources of photographs do, an epoch each would count images twice: in steps and in weights
TASK_RECIPES: Mapping[str, Mapping[str, Any]] = {
    "prostate": {"largest": True, "batch_size": 2},
    "fundus": {"largest": True, "batch_size": 2, "steps": 30},
    "fundus-disc": {"largest": True, "batch_size": 2},
}
RECIPES: Mapping[str, Mapping[str, Any]] = {
    "default": {},  # the defaults of `Network` and `Training`: docs/training.md
    "quick": {  # for demonstrations: a quarter of a round's operations, few rounds
        "architecture": "unet",
        "width": 8,
        "lr": 1e-2,
        "schedule": "constant",
        "augmentation": "light",
        "batch_size": 8,
        "mirrored": False,
        "largest": False,
    },
}


@dataclass(frozen=True)
class Preset:
    """A paper's own settings, as far as it states them."""

    source: str  # the place in the paper, and what is not stated there
    rounds: int  # of a run
    training: Mapping[str, Any]  # of any method
    parameters: Mapping[str, Any]  # of its own


PAPER = "paper"  # the preset of the run's own method
PRESETS: Mapping[str, Preset] = {  # by method
    name: Preset(**stated)
    for name, stated in tomllib.loads(Path(__file__).with_name("presets.toml").read_text("utf-8")).items()
}


def guarded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a new run, whose guard is on by default."""
    return {"guard": "on", **settings}


def with_preset(settings: Mapping[str, Any], method: str) -> dict[str, Any]:
    """Return ``settings`` above those of the paper that "preset" among them names: `PAPER`, or a method.

    Raises:
        BadInput: there is no preset of that name, or the method has none of its own.
    """
    rest = dict(settings)
    name = rest.pop("preset", None)
    if name is None:
        return rest
    chosen = PRESETS.get(method if name == PAPER else name)
    if chosen is None:
        own = f"method {method} has none of its own; " if name == PAPER else "unknown; "
        raise BadInput(
            f"preset {name!r}: {own}there are {', '.join(PRESETS)}, of which each is how to train any method"
        )
    parameters = chosen.parameters if chosen is PRESETS.get(method) else {}
    return {**chosen.training, **parameters, **rest}


def with_recipe(settings: Mapping[str, Any], task: str = "") -> dict[str, Any]:
    """Return ``settings`` above those of the recipe that "recipe" among them names, above those of the task.

    A task's steps belong to its batch size: settings that name epochs or a batch size train in epochs.

    Raises:
        BadInput: there is no recipe of that name.
    """
    rest = dict(settings)
    name = rest.pop("recipe", "default")
    require_known("recipe", [name], RECIPES)
    above, beneath = {**RECIPES[name], **rest}, dict(TASK_RECIPES.get(task, {}))
    if above.keys() & {"epochs", "batch_size"}:
        beneath.pop("steps", None)
    return {**beneath, **above}
