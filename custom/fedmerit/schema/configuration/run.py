"""What a run is: method, parameters, network, training, rounds, seed. Made once, sent to server and sites."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from typing import Any

from pydantic import ConfigDict

from fedmerit.contract.capabilities import capabilities
from fedmerit.contract.method import Method
from fedmerit.errors import BadInput, suggest
from fedmerit.evidence.ledger import record_hash
from fedmerit.guard.settings import GuardSettings
from fedmerit.methods.registry import METHODS, build_method
from fedmerit.schema.configuration.network_arguments import MONAI_NETWORKS, check_arguments, check_labels
from fedmerit.schema.configuration.network_input import Preprocessing
from fedmerit.schema.configuration.observation import require_observers
from fedmerit.schema.configuration.recipes import with_preset, with_recipe
from fedmerit.schema.configuration.script import DERIVED, NAMED_TENSORS, Script, derived_parts, read_tensors
from fedmerit.schema.configuration.script_needs import require_script_support
from fedmerit.schema.configuration.spec_syntax import build, typed
from fedmerit.schema.parameters import Checked, parameter
from fedmerit.trust import allow

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


SHARED_GROUPS: Mapping[str, type[Any]] = {"training": Training, "network": Network, "guard": GuardSettings}


@dataclass(frozen=True)
class RunConfiguration(Checked):
    """One run, whatever the engine."""

    __pydantic_config__ = STRICT_NAMES
    method: str
    task: str
    rounds: int = parameter(MISSING, "to train", low=1, high=1_000_000)
    seed: int = parameter(MISSING, "of the first model and all that is drawn", low=0)
    network: Network = parameter(MISSING, "that is trained")
    training: Training = field(default_factory=Training)
    parameters: Mapping[str, Any] = field(default_factory=dict)  # of the method, by the paper's names
    values: tuple[str, ...] = ()  # specs of the observers, for values of the sites
    keep_updates: bool = False  # whether the server keeps every round's in the run folder, for values afterwards
    share_models: bool = False  # whether sites may be sent models from which another site's update follows
    guard: GuardSettings = field(default_factory=GuardSettings)
    preprocessing: Preprocessing | None = None  # of all sites' images; None: not known, or not the same
    study: str = ""  # that the run is for, by the name that hospitals know; "": none
    script: Script | None = None  # sites train by scripts of their own; network and training follow from it
    fold: int | None = parameter(None, "of the sites' folders, whose splits they use", low=0)

    @property
    def can_evaluate(self) -> bool:
        """Whether sites evaluate models that they are not asked to train from; only a script may not."""
        return self.script is None or bool(self.script.evaluates and self.script.metric)

    @property
    def can_enrol(self) -> bool:
        """Whether sites know their cases; a script may not say."""
        return self.script is None or "cases" in self.script.uses

    def build_method(self) -> Method:
        """The method with its parameters."""
        return build_method(self.method, self.parameters)

    def build_guarded_method(self) -> Method:
        """The method of server and sites: under the guard its `HasGuardedForm.guarded_form`."""
        method = self.build_method()
        other = capabilities(method).guarded if self.is_guarded(method) else None
        return other.guarded_form if other else method

    def is_guarded(self, method: Method) -> bool:
        """Whether the guard is on and needed: not if no site receives anything from another."""
        return self.guard.guard == "on" and not method.needs.unfiltered

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it; without `values`, `keep_updates`, `preprocessing` and `study` if they are empty.

        Of a script's run without `network` and `training`, else without `script`.
        """
        if self.script:
            left_out = (*DERIVED, "preprocessing", *["study"] * (not self.study))
            own = {name: value for name, value in asdict(self).items() if name not in left_out}
            return own | {"values": list(self.values), "script": self.script.to_dict()}
        optional = ("values", "keep_updates", "preprocessing", "study", "script")
        off = {name for name in optional if not getattr(self, name)}
        off |= {"fold"} if self.fold is None else set()
        content = asdict(self) | {"network": asdict(self.network) | {"labels": list(self.network.labels)}}
        content |= {"values": list(self.values)}
        content |= {"preprocessing": self.preprocessing.to_dict()} if self.preprocessing else {}
        return {name: value for name, value in content.items() if name not in off}

    @property
    def digest(self) -> str:
        """SHA-256 of `to_dict`, in hexadecimal: server and sites record it."""
        return record_hash(self.to_dict())

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "RunConfiguration":
        """The configuration that `to_dict` wrote; `BadInput` if a name or value is unknown."""
        values = dict(values)
        if script := values.get("script"):
            if given := sorted({*DERIVED} & {*values}):
                raise BadInput(f"plan: {' and '.join(given)} of a run by script; leave them out")
            values |= derived_parts(script)
        if preprocessing := values.pop("preprocessing", None):
            values["preprocessing"] = Preprocessing.from_dict(preprocessing)
        config: RunConfiguration = build(cls, values, "plan")
        return config.checked()

    def checked(self) -> "RunConfiguration":
        """The same configuration with the method's parameters complete and of their types, or `BadInput`."""
        if self.method not in METHODS:
            raise BadInput(f"method {self.method!r}: unknown; expected one of {', '.join(METHODS)}")
        method = build(METHODS[self.method], self.parameters, f"method {self.method}")
        can = capabilities(method)
        if self.script:
            require_script_support(self.method, self.build_guarded_method(), self.script, self.values)
        if self.rounds < method.needs.rounds:
            raise BadInput(
                f"rounds={self.rounds}: method {self.method} needs {method.needs.rounds} or more: {method.needs.why}"
            )
        if can.leave_one_out and can.leave_one_out.needs_others and self.guard.guard != "on":
            raise BadInput(
                f"guard={self.guard.guard}: {self.method} needs the others' error without a site, which only the "
                "guard has them measure; take guard=on (in a list of methods, too: "
                f"{self.method}:error=others:guard=on), or error=absolute"
            )
        if can.leave_one_out and can.leave_one_out.needs_others and not self.guard.rate_every:
            raise BadInput(f"rate_every=0: {self.method} needs the others' error without a site; expected 1 or more")
        if can.optimizers and not self.script and self.training.optimizer not in can.optimizers:
            raise BadInput(
                f"optimizer={self.training.optimizer}: method {self.method} needs {' or '.join(can.optimizers)}; "
                f"add --set optimizer={can.optimizers[0]}"
            )
        for name in ("momentum", "clip_norm") if can.optimizers and not self.script else ():
            if value := getattr(self.training, name):
                raise BadInput(
                    f"{name}={value:g}: method {self.method} needs steps of the learning rate times the gradient; "
                    f"leave {name} out"
                )
        observers = require_observers(self.values, self.keep_updates, self.method, method)
        return RunConfiguration(**vars(self) | {"parameters": asdict(method), "values": observers})


SYNONYMS = {"learning_rate": "lr", "local_epochs": "epochs", "network": "architecture", "channels": "width"}


def plan_network(plan: Mapping[str, Any]) -> Any:
    """The network in a plan as JSON holds it; None: there is none."""
    if "script" not in plan:
        return plan.get("network")
    network = asdict(Network.from_dict(derived_parts(plan["script"])["network"]))
    return network | {"labels": list(network["labels"])}


def settable(kind: type[Any]) -> list[Field[Any]]:
    """The fields of a part of a run that its sites do not fix, those of bases that are by keyword last."""
    return sorted((p for p in fields(kind) if p.name not in ("in_channels", "labels")), key=lambda p: p.kw_only is True)


def parameter_names(method: str) -> dict[str, list[str]]:
    """The names of the settings, by group: of the method, the training, the network, the guard."""
    groups: dict[str, type[Any]] = {"parameters": METHODS[method], **SHARED_GROUPS}
    return {group: [part.name for part in settable(kind)] for group, kind in groups.items()}


def make_configuration(
    method: str,
    task: str,
    rounds: int,
    seed: int,
    network: Mapping[str, Any],
    settings: Mapping[str, Any],
    values: Sequence[str] = (),
    keep_updates: bool = False,
    preprocessing: Preprocessing | None = None,
    fold: int | None = None,
) -> RunConfiguration:
    """A configuration from defaults and ``settings``, which a person chose: what they name may be imported.

    Each setting names a parameter of the method, the training, the network or the guard, or is the "recipe" of the
    defaults or the "preset" of a paper, which goes before a recipe.
    ``values``, ``keep_updates`` and ``fold`` are those of `RunConfiguration`.

    Raises:
        BadInput: a name is unknown or a value is not of its type; the message lists the known names.
    """
    allow(method, *(str(settings.get(name, "")) for name in ("architecture", "loss", "optimizer")))
    if method not in METHODS:
        raise BadInput(f"method {method!r}: unknown{suggest(method, METHODS)}")
    names = parameter_names(method)
    chosen: dict[str, dict[str, Any]] = {"parameters": {}, "training": {}, "network": dict(network), "guard": {}}
    for name, value in with_recipe(with_preset(settings, method), task).items():
        group = next((group for group in names if name in names[group]), None)
        if group is None:
            known = [name for there in names.values() for name in there]
            raise BadInput(f"parameter {name!r}: unknown with method {method}{suggest(name, known, SYNONYMS)}")
        chosen[group][name] = value
    for group, kind in (("network", Network), ("training", Training)):
        chosen[group] = typed(kind, chosen[group], group)
    parts = {"method": method, "task": task, "rounds": rounds, "seed": seed, "preprocessing": preprocessing}
    parts |= {**chosen, "values": tuple(values), "keep_updates": keep_updates, "fold": fold}
    config: RunConfiguration = build(RunConfiguration, parts, "plan")
    if config.guard.guard == "off" and config.guard != GuardSettings():
        others = ", ".join(name for name in chosen["guard"] if name != "guard")
        raise BadInput(f"{others}: has no effect with the guard off; leave it out")
    return config.checked()
