"""The settings of a run: network, training and guard, what recipes and papers' presets set of them."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from dataclasses import Field as DataclassField
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, Strict, StringConstraints, TypeAdapter, ValidationError

from fedmerit.errors import BadInput
from fedmerit.files import is_file_name
from fedmerit.schema.configuration.script import NAMED_TENSORS, read_tensors
from fedmerit.schema.declarations import Checked, build, parameter

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
_Arguments = TypeAdapter(Annotated[dict[_Name, _Value | _Options | _List], Field(max_length=64)])
MOST_LABELS = 64
ARGUMENTS_EXPECTED = "expected numbers, true, false, short words, and lists of them"


def check_labels(labels: Sequence[str]) -> None:
    """`ValueError` if labels, which become parts of files' names, are none of these."""
    if not 0 < len(labels) <= MOST_LABELS or not all(map(is_file_name, labels)):
        raise ValueError(f"labels={labels!r:.80}: expected 1 to {MOST_LABELS} names of files without endings")


def check_arguments(architecture: str, arguments: Mapping[str, Any], own: bool) -> None:
    """`ValueError` naming an argument that a description may not have.

    Args:
        own: whether it is one of `fedmerit`'s architectures or of `MONAI_NETWORKS`, whose texts are known.
    """
    try:
        _Arguments.validate_python(arguments)
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
    """All texts in an argument; names of options are none."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple | Mapping):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(one)


ARCHITECTURES = ("dynunet", "unet", "segresnet", "basicunet", "attentionunet", "swinunetr")
LOSSES = ("dice_ce", "dice")
OPTIMIZERS = ("adam", "adamw", "sgd")
SCHEDULES = ("constant", "polynomial", "cosine", "step")
STATISTICS = ("method", "mean", "shared", "own", "weights", "recalibrated", "frozen")
AUGMENTATIONS = ("strong", "light")
STRICT_NAMES = ConfigDict(extra="forbid")  # an unknown name is an error

TASKS: Mapping[str, Mapping[str, Any]] = {
    "prostate": {"in_channels": 1, "labels": ("prostate",)},
    "fundus": {"in_channels": 3, "labels": ("disc", "cup")},
    "fundus-disc": {"in_channels": 3, "labels": ("disc",)},
}


@dataclass(frozen=True)
class Network(Checked):
    """One of MONAI's networks: of slices, or with a patch of volumes."""

    __pydantic_config__ = STRICT_NAMES
    in_channels: int = parameter(MISSING, "of an image", low=1, high=64)
    labels: tuple[str, ...] = parameter(MISSING, "one sigmoid output channel each")
    architecture: str = parameter(
        "dynunet",
        f"{', '.join(ARCHITECTURES)}, a class of MONAI ({', '.join(MONAI_NETWORKS)}), or a network of your own",
    )
    width: int = parameter(8, "channels of the first level; each further level doubles them", low=1, high=512)
    depth: int = parameter(5, "levels; 5 of width 8 give 8, 16, 32, 64, 128", low=2, high=9)
    norm: str = parameter(
        "own",
        "own: the architecture's; group: one group, which any number of channels allows",
        choices=("own", "batch", "instance", "group"),
    )
    residual_units: int = parameter(2, "unet: convolutions of a residual unit; 0: plain ones", low=0, high=8)
    arguments: Mapping[str, Any] = parameter(
        dict, 'further ones of MONAI\'s class, as JSON: {"deep_supervision": true}'
    )
    patch: tuple[int, ...] = parameter(
        (), "3D: slices, rows and columns of what a step sees, as 16,96,96; none: 2D, a slice at a time", low=2
    )
    spacing: tuple[float, ...] = parameter(
        (),
        "3D: mm between slices, rows, columns, of which the finest are halved first; none: a patch is a cube",
        above=0,
    )
    mirrored: bool = parameter(
        True, "final masks: of the mean logits of an image and of its mirror image, left and right exchanged"
    )
    largest: bool = parameter(
        False,
        "final masks: of each label of a case only the largest connected part; true by default if that is an organ "
        "(prostate, fundus)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_labels(self.labels)
        if self.architecture == NAMED_TENSORS:  # of a script, which the server does not know otherwise
            read_tensors(self.arguments)
            return
        check_arguments(self.architecture, self.arguments, own=self.architecture in (*ARCHITECTURES, *MONAI_NETWORKS))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Network":
        """The network that `dataclasses.asdict` wrote."""
        network: Network = build(cls, values, "network")
        return network


@dataclass(frozen=True)
class Training(Checked):
    """One site's round."""

    __pydantic_config__ = STRICT_NAMES
    loss: str = parameter(
        "dice_ce",
        "soft Dice + cross-entropy; dice: only soft Dice, as in Jiang et al. 2023",
        choices=LOSSES,
        others="losses",
    )
    optimizer: str = parameter(
        "adam", "a new one each round; adam, adamw: betas (0.9, 0.99)", choices=OPTIMIZERS, others="optimizers"
    )
    lr: float = parameter(1e-3, "learning rate, the schedule's highest", above=0)
    schedule: str = parameter(
        "polynomial",
        "of the learning rate over T rounds; polynomial: (1 - t/T)^0.9, cosine: (1 + cos(πt/T))/2, step: times decay "
        "every decay_every rounds",
        choices=SCHEDULES,
    )
    decay: float = parameter(0.1, "factor of schedule=step", above=0, high=1)
    decay_every: int = parameter(25, "rounds of schedule=step between two factors", low=1)
    warmup_rounds: int = parameter(0, "in which the learning rate rises in equal steps", low=0)
    momentum: float = parameter(0.0, "of sgd", low=0, below=1)
    weight_decay: float = parameter(0.0, "adam, sgd: L2; adamw: decoupled", low=0)
    clip_norm: float = parameter(0.0, "longest gradient of a step; 0: any", low=0)
    batch_size: int = parameter(8, "slices of a step; 2 by default of prostate and fundus", low=1, high=4096)
    epochs: int = parameter(1, "local epochs per round", low=1, high=1000)
    steps: int = parameter(
        0, "of the optimiser per round, instead of epochs; 0: epochs; 30 by default for fundus", low=0, high=1_000_000
    )
    organ_share: float = parameter(
        0.0, "of drawn slices that show a label, or of patches about one, at least; 0: each slice once", low=0, high=1
    )
    augment: bool = parameter(True, "random transforms of images and masks")
    augmentation: str = parameter(
        "strong",
        "light: flip, small rotation and scaling, noise, gamma; strong: more of them, and blur, bias field, intensity",
        choices=AUGMENTATIONS,
    )
    statistics: str = parameter(
        "method",
        "of BatchNorm, in models that are evaluated; method: its own rule; mean (or shared): by data share; own: each "
        "site's; weights: by the method's weights; recalibrated: estimated every round on all sites' training "
        "images; frozen: the mean, until round frozen_from",
        choices=STATISTICS,
    )
    frozen_from: int = parameter(0, "of statistics=frozen: the first round that changes them no more", low=0)
    amp: bool = parameter(False, "mixed precision; auto: if steps take less time so; final tests stay in float32")
    cpu_threads: int = parameter(1, "of one site; another number is another order of summation", low=1, high=256)
    final_model: str = parameter(
        "method",
        "that a site receives: the method's; selected: of several the best on its own validation patients",
        choices=("method", "selected"),
    )
    last_round: str = parameter(
        "aggregated",
        "of one model for all; own: each site keeps what it trains in it, as papers compare sites of one model",
        choices=("aggregated", "own"),
    )
    validate_trained: bool = parameter(
        False, "also test what a site trained on its validation split: evidence of free riders"
    )


# times the median of the other sites that `guard.bounds` holds a site to
NORM_FACTOR = 3.0  # Sun et al. 2019 bound norms likewise; honest ones of one round differ by less
STATISTICS_FACTOR = 3.0
COUNT_FACTOR = 3.0  # of the four prostate hospitals the largest has 2.4 times the median of the others


@dataclass(frozen=True)
class GuardSettings(Checked):
    """Whether replies are bounded and judged before the method gets them, and what a verdict does."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # an unknown name is an error
    guard: str = parameter("off", "on: the rules of docs/guard.md; off: the papers' forms", choices=("on", "off"))
    on_verdict: str = parameter(
        "withhold",
        "show: report it; withhold: no contribution, weight or reward while the evidence stands; exclude: for good",
        choices=("show", "withhold", "exclude"),
    )
    false_alarms: float = parameter(
        0.01, "largest probability of a verdict against any site in a run in which all work", above=0, below=1
    )
    rate_every: int = parameter(
        5,
        "rounds from one rating of the models without each site to the next, on the server's images or with "
        "--share-models; 0: none",
        low=0,
    )
    counts: str = parameter(
        "claimed",
        "images that count: claimed, up to three times the others' median; shown: beyond that median only as far as "
        "the site's updates share more with the others' than theirs do",
        choices=("claimed", "shown"),
    )

    def rates(self, round: int, rounds: int) -> bool:
        """Whether the models without each site may be rated in ``round`` of ``rounds``."""
        due = self.rate_every > 0 and round % self.rate_every == 0
        return self.guard == "on" and due and round + 1 < rounds


SHARED_GROUPS: Mapping[str, type[Any]] = {"training": Training, "network": Network, "guard": GuardSettings}
SYNONYMS = {"learning_rate": "lr", "local_epochs": "epochs", "network": "architecture", "channels": "width"}


def settable(kind: type[Any]) -> list[DataclassField[Any]]:
    """The fields of a part of a run that its sites do not fix, those of bases that are by keyword last."""
    return sorted((p for p in fields(kind) if p.name not in ("in_channels", "labels")), key=lambda p: p.kw_only is True)


ROUNDS = 100  # of a run, by default
AUTO = "auto"  # for amp: float32 unless the machine of the run measures that mixed precision is faster

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
    """The settings of a new run, whose guard is on by default."""
    return {"guard": "on", **settings}


def with_preset(settings: Mapping[str, Any], method: str) -> dict[str, Any]:
    """``settings``, and beneath them those of the paper that "preset" names among them: `PAPER`, or a method's.

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
    """``settings``, and beneath them those of the recipe that "recipe" names among them, and of the task.

    A task's steps belong to its batch size: settings that name epochs or a batch size train in epochs. `AUTO` is
    false: who knows a machine measures (`engines.runs.create`).

    Raises:
        BadInput: there is no recipe of that name.
    """
    rest = dict(settings)
    name = rest.pop("recipe", "default")
    if name not in RECIPES:
        raise BadInput(f"recipe {name!r}: unknown; expected one of {', '.join(RECIPES)}")
    above, beneath = {**RECIPES[name], **rest}, dict(TASK_RECIPES.get(task, {}))
    if above.keys() & {"epochs", "batch_size"}:
        beneath.pop("steps", None)
    measured = {"amp": False} if above.get("amp") == AUTO else {}
    return {**beneath, **above, **measured}
