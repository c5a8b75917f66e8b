"""What a run is: method, parameters, network, training, rounds, seed. Made once, sent to server and sites."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fedmerit.core import Method, require_choice
from fedmerit.errors import BadInput
from fedmerit.methods.registry import METHODS

STRICT_NAMES = ConfigDict(extra="forbid")  # an unknown name is an error

TASKS: Mapping[str, Mapping[str, Any]] = {
    "prostate": {"in_channels": 1, "labels": ("prostate",)},
    "fundus": {"in_channels": 3, "labels": ("disc", "cup")},
    "fundus-disc": {"in_channels": 3, "labels": ("disc",)},
}


@dataclass(frozen=True)
class Network:
    """MONAI's 2D U-Net."""

    __pydantic_config__ = STRICT_NAMES
    in_channels: int
    labels: tuple[str, ...]  # one sigmoid output channel each
    width: int = 16  # channels of the first level; each further level doubles them
    depth: int = 5  # levels; the default gives 16, 32, 64, 128, 256
    norm: str = "batch"  # "batch", "instance" or "group": one group, which any number of channels allows
    residual_units: int = 2  # convolutions of each level's residual unit; 0: plain convolutions

    def __post_init__(self) -> None:
        require_choice("norm", self.norm, ("batch", "instance", "group"))
        for name, least, most in (("in_channels", 1, 64), ("width", 1, 512), ("depth", 2, 9), ("residual_units", 0, 8)):
            _between(name, getattr(self, name), least, most)


@dataclass(frozen=True)
class Training:
    """One site's round. Optimiser, batch and epochs are those of Jiang et al. 2023."""

    __pydantic_config__ = STRICT_NAMES
    loss: str = "dice_ce"  # "dice_ce": soft Dice + cross-entropy; "dice": soft Dice alone, as in that paper
    lr: float = 1e-3  # Adam's, with betas (0.9, 0.99), made anew each round
    batch_size: int = 8
    epochs: int = 1  # local epochs per round
    augment: bool = True  # random flips, rotation, scaling, noise and contrast
    amp: bool = False  # mixed precision
    cpu_threads: int = 1  # of one site; another number is another order of summation
    validate_trained: bool = False  # also test what a site trained on its validation split: evidence of free riders

    def __post_init__(self) -> None:
        require_choice("loss", self.loss, ("dice_ce", "dice"))
        for name, most in (("batch_size", 4096), ("epochs", 1000), ("cpu_threads", 256)):
            _between(name, getattr(self, name), 1, most)
        if not 0 < self.lr < float("inf"):
            raise ValueError(f"lr={self.lr}: expected a positive number")


def _between(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name}={value}: expected {least} to {most}")


@dataclass(frozen=True)
class RunConfiguration:
    """One run, whatever the engine."""

    __pydantic_config__ = STRICT_NAMES
    method: str
    task: str
    rounds: int
    seed: int
    network: Network
    training: Training = Training()
    parameters: Mapping[str, Any] = field(default_factory=dict)  # of the method, by the paper's names

    def build_method(self) -> Method:
        """The method with its parameters."""
        return METHODS[self.method].method(**self.parameters)

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
        if self.rounds < 1:
            raise BadInput(f"rounds={self.rounds}: expected 1 or more")
        if self.seed < 0:
            raise BadInput(f"seed={self.seed}: expected 0 or more")
        method = build(METHODS[self.method].method, self.parameters, f"method {self.method}")
        if self.rounds < method.least_rounds:
            raise BadInput(
                f"rounds={self.rounds}: method {self.method} with these parameters needs {method.least_rounds} or more"
            )
        return RunConfiguration(**vars(self) | {"parameters": asdict(method)})


def parameter_names(method: str) -> dict[str, list[str]]:
    """What can be set, by group: of the method, the training, the network."""
    groups: dict[str, type[Any]] = {"parameters": METHODS[method].method, "training": Training, "network": Network}
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
