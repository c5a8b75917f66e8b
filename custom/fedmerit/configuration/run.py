"""What a run is: method, parameters, network, training, rounds, seed. Made once, sent to server and sites."""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fedmerit.capabilities.local_training import TrainsLocally
from fedmerit.core import Method
from fedmerit.errors import BadInput
from fedmerit.methods.registry import METHODS, build_method, method_class
from fedmerit.parameters import Checked, parameter

OPTIMIZERS = ("adam", "sgd")
STRICT_NAMES = ConfigDict(extra="forbid")  # an unknown name is an error

TASKS: Mapping[str, Mapping[str, Any]] = {
    "prostate": {"in_channels": 1, "labels": ("prostate",)},
    "fundus": {"in_channels": 3, "labels": ("disc", "cup")},
    "fundus-disc": {"in_channels": 3, "labels": ("disc",)},
}


@dataclass(frozen=True)
class Network(Checked):
    """MONAI's 2D U-Net."""

    __pydantic_config__ = STRICT_NAMES
    in_channels: int = parameter(MISSING, "of an image", low=1, high=64)
    labels: tuple[str, ...] = parameter(MISSING, "one sigmoid output channel each")
    width: int = parameter(16, "channels of the first level; each further level doubles them", low=1, high=512)
    depth: int = parameter(5, "levels; 5 of width 16 give 16, 32, 64, 128, 256", low=2, high=9)
    norm: str = parameter(
        "batch", "group: one group, which any number of channels allows", choices=("batch", "instance", "group")
    )
    residual_units: int = parameter(2, "convolutions of each level's residual unit; 0: plain ones", low=0, high=8)


@dataclass(frozen=True)
class Training(Checked):
    """One site's round. Optimiser, batch and epochs are those of Jiang et al. 2023."""

    __pydantic_config__ = STRICT_NAMES
    loss: str = parameter(
        "dice_ce", "soft Dice + cross-entropy; dice: soft Dice alone, as in that paper", choices=("dice_ce", "dice")
    )
    optimizer: str = parameter(
        "adam", "made anew each round; adam: betas (0.9, 0.99); sgd: no momentum", choices=OPTIMIZERS
    )
    lr: float = parameter(1e-3, "learning rate", above=0)
    batch_size: int = parameter(8, "slices of a step", low=1, high=4096)
    epochs: int = parameter(1, "local epochs per round", low=1, high=1000)
    augment: bool = parameter(True, "random flips, rotation, scaling, noise and contrast")
    amp: bool = parameter(False, "mixed precision")
    cpu_threads: int = parameter(1, "of one site; another number is another order of summation", low=1, high=256)
    validate_trained: bool = parameter(
        False, "also test what a site trained on its validation split: evidence of free riders"
    )


@dataclass(frozen=True)
class RunConfiguration(Checked):
    """One run, whatever the engine."""

    __pydantic_config__ = STRICT_NAMES
    method: str
    task: str
    rounds: int = parameter(MISSING, "to train", low=1)
    seed: int = parameter(MISSING, "of the first model and all that is drawn", low=0)
    network: Network = parameter(MISSING, "that is trained")
    training: Training = field(default_factory=Training)
    parameters: Mapping[str, Any] = field(default_factory=dict)  # of the method, by the paper's names

    def build_method(self) -> Method:
        """The method with its parameters."""
        return build_method(self.method, self.parameters)

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self) | {"network": asdict(self.network) | {"labels": list(self.network.labels)}}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "RunConfiguration":
        """The configuration that `to_dict` wrote; `BadInput` where a name or value is none of ours."""
        config: RunConfiguration = build(cls, values, "plan")
        return config.checked()

    def checked(self) -> "RunConfiguration":
        """The same configuration with the method's parameters complete and of their types, or `BadInput`."""
        if self.method not in METHODS:
            raise BadInput(f"method {self.method!r}: unknown; expected one of {', '.join(METHODS)}")
        method = build(method_class(self.method, self.parameters), self.parameters, f"method {self.method}")
        if self.rounds < method.needs.rounds:
            raise BadInput(
                f"rounds={self.rounds}: method {self.method} with these parameters needs {method.needs.rounds} or more"
            )
        if isinstance(method, TrainsLocally) and self.training.optimizer not in (method.optimizers or OPTIMIZERS):
            raise BadInput(
                f"optimizer={self.training.optimizer}: method {self.method} needs {' or '.join(method.optimizers)}; "
                f"add --set optimizer={method.optimizers[0]}"
            )
        return RunConfiguration(**vars(self) | {"parameters": asdict(method)})


def parameter_names(method: str) -> dict[str, list[str]]:
    """What can be set, by group: of the method, the training, the network."""
    groups: dict[str, type[Any]] = {"parameters": METHODS[method], "training": Training, "network": Network}
    fixed = {"in_channels", "labels"}  # by the sites
    return {group: [part.name for part in fields(kind) if part.name not in fixed] for group, kind in groups.items()}


def make_configuration(
    method: str, task: str, rounds: int, seed: int, network: Mapping[str, Any], settings: Mapping[str, Any]
) -> RunConfiguration:
    """A configuration from defaults and ``settings``, each naming a parameter of method, training or network.

    Raises:
        BadInput: a name is unknown or a value not of its type; the message lists the names there are.
    """
    if method not in METHODS:
        raise BadInput(f"method {method!r}: unknown; expected one of {', '.join(METHODS)}")
    names = parameter_names(method)
    chosen: dict[str, dict[str, Any]] = {"parameters": {}, "training": {}, "network": dict(network)}
    for name, value in settings.items():
        group = next((group for group in names if name in names[group]), None)
        if group is None:
            known = "; ".join(f"{group}: {', '.join(there) or 'none'}" for group, there in names.items())
            raise BadInput(f"parameter {name!r}: method {method} has none of that name. There are {known}")
        chosen[group][name] = value
    return RunConfiguration.from_dict({"method": method, "task": task, "rounds": rounds, "seed": seed, **chosen})


def build(kind: type[Any], values: Mapping[str, Any], what: str) -> Any:
    """A dataclass from JSON or text values, each converted to its field's type."""
    unknown = set(values) - {part.name for part in fields(kind)}
    if unknown:
        raise BadInput(f"{what}: unknown parameter {', '.join(sorted(unknown))}")
    kinds = get_type_hints(kind)
    values = {  # a list in a text: 0.5,0.25
        name: [part for part in value.split(",") if part]
        if isinstance(value, str) and get_origin(kinds[name]) is tuple
        else value
        for name, value in values.items()
    }
    try:
        return TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "value_error":  # raised by the dataclass itself, which names parameter and choices
            raise BadInput(f"{what}: {first['ctx']['error']}") from None
        name = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"{what}: {name}: {first['msg']} (got {first['input']!r})") from None
