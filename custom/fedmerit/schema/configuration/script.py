"""A run whose sites train by a script of their own: what the server has to know of its model and of its scores."""

import ast
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from fedmerit.schema.declarations import Checked, read
from fedmerit.schema.rules import FLOAT32_SLACK, MOST_TENSORS, TENSOR_NAME, About, Choice, Number, Switch, Text
from fedmerit.schema.score_name import AUTO, METRIC

NAMED_TENSORS = "tensors"  # the architecture of a network that is known only by the names and shapes of its tensors
DTYPES = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")
LIGHTNING = "nvflare.client.lightning"  # which applies both by itself in a trainer that it patched
USES: Mapping[str, tuple[str, ...]] = {  # helpers that a script may use, and the words of which its text then has one
    "fedce": ("PTFedCEHelper", "fedce_minus_val"),
    "fedprox": ("PTFedProxLoss", "fedprox_mu", "FEDPROX_MU", "get_fedprox_mu", LIGHTNING),
    "scaffold": ("PTScaffoldHelper", "scaffold_c_diff", "SCAFFOLD_CTRL_DIFF", LIGHTNING),
    "cases": ("enrol_cases",),  # this and the next: of `fedmerit.client`
    "losses": ("with_losses",),
    "own_model": ("with_own_model",),
}
DERIVED = ("network", "training")  # of a plan: of a script's run they follow from the script
LARGEST = 2**40  # side of a tensor
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # last parts of names: of BatchNorm


@dataclass(frozen=True)
class NamedTensor:
    """An entry of a state_dict."""

    name: str
    shape: tuple[int, ...]
    kind: str = "float32"  # of `DTYPES`
    norm: bool = False  # whether it belongs to a layer that normalises

    def __post_init__(self) -> None:
        if not re.fullmatch(TENSOR_NAME, self.name) or "" in self.name.split("."):
            raise ValueError(f"tensor {self.name!r:.140}: its name may have at most 120 letters, digits, _ . and -")
        if self.kind not in DTYPES:
            raise ValueError(f"tensor {self.name}: is in {self.kind!s:.20}; expected {', '.join(DTYPES)}")
        if not all(type(side) is int and 0 <= side < LARGEST for side in self.shape):
            raise ValueError(f"tensor {self.name}: has shape {self.shape!s:.80}; expected whole numbers")

    @property
    def is_statistic(self) -> bool:
        """Whether sites share it as they do BatchNorm statistics, and no method sees it."""
        return not self.kind.startswith(("float", "bfloat")) or self.name.rpartition(".")[2] in STATISTICS


@dataclass(frozen=True)
class Script(Checked):
    """A description of sites' scripts in a run, instead of a network and how to train it."""

    tensors: Annotated[tuple[NamedTensor, ...], About("of the model's state_dict")] = ()
    start: Annotated[str, Text(), About("SHA-256 of the weights that all begin with")] = ""
    output: Annotated[
        str, Text(), About("name of the output layer, whose weight's first axis are the labels; none: not known")
    ] = ""
    metric: Annotated[
        str,
        Text(),
        About(
            "that the script measures of the model it receives; empty: it measures none; auto: dice, accuracy or its "
            "only one"
        ),
    ] = AUTO
    lowest: Annotated[float, Number(), About("value of the metric")] = 0.0
    highest: Annotated[float, Number(), About("value of the metric")] = 1.0
    better: Annotated[str, Choice(("higher", "lower")), About("which values of the metric are")] = "higher"
    evaluates: Annotated[bool, Switch(), About("whether it answers flare.is_evaluate()")] = False
    uses: Annotated[tuple[str, ...], Text(), About(f"helpers that it uses: {', '.join(USES)}")] = ()
    arrays: Annotated[bool, Switch(), About("whether it gets NumPy's arrays instead of tensors")] = False
    statistics: Annotated[
        str,
        Choice(("method", "mean", "own", "weights")),
        About("of BatchNorm; mean: by data share; own: each site's; weights: by the method's weights"),
    ] = "method"
    last_round: Annotated[str, Choice(("aggregated", "own")), About("own: a site keeps what it trains in it")] = (
        "aggregated"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.metric and not METRIC.fullmatch(self.metric):
            raise ValueError(f"metric={self.metric!r:.80}: expected at most 60 letters, digits, spaces and .:/@%()+-_")
        if not self.lowest < self.highest:
            raise ValueError(f"lowest={self.lowest:g}, highest={self.highest:g}: expected a range of the metric")
        if unknown := sorted({*self.uses} - {*USES}):
            raise ValueError(f"uses={unknown[0]!r:.80}: expected some of {', '.join(USES)}")
        names = {one.name for one in self.tensors}
        if len(names) < len(self.tensors) or len(names) > MOST_TENSORS:
            raise ValueError(f"tensors: expected at most {MOST_TENSORS}, each name once")

    def network_parts(self) -> dict[str, Any]:
        """Return the description of the network, as ``Network`` takes it."""
        arguments = {"tensors": [asdict(one) for one in self.tensors], "output": self.output}
        return {"in_channels": 1, "labels": (self.label,), "architecture": NAMED_TENSORS, "arguments": arguments}

    @property
    def label(self) -> str:
        """The metric's name as the label of scores, in the characters that a label may have."""
        return "score" if self.metric == AUTO else re.sub(r"[^\w.\-]+", "_", self.metric) or "score"

    def score(self, value: float) -> float:
        """Return the metric's value from 0 to 1, higher being better; `ValueError` if it is outside of its range."""
        slack = FLOAT32_SLACK * (self.highest - self.lowest)
        if not self.lowest - slack <= value <= self.highest + slack:
            raise ValueError(f"{self.metric} is {value!s:.30}; expected {self.lowest:g} to {self.highest:g}")
        part = min(max((value - self.lowest) / (self.highest - self.lowest), 0.0), 1.0)
        return part if self.better == "higher" else 1 - part


def find_names(text: str) -> set[str]:
    """Return what Python text names in its code, not in its comments: names, attributes, modules, whole texts.

    Raises:
        ValueError: it is no Python.
    """
    parts = ("id", "attr", "name", "value", "module")  # of names, attributes, imports and constants
    nodes = list(ast.walk(ast.parse(text)))
    found = [getattr(node, part, None) for node in nodes for part in parts]
    found += [f"{node.module}.{name.name}" for node in nodes if isinstance(node, ast.ImportFrom) for name in node.names]
    return {one for one in found if isinstance(one, str)}


def find_uses(text: str) -> tuple[str, ...]:
    """Return the helpers, of `USES`, that a script's text names."""
    names = find_names(text)
    return tuple(use for use, words in USES.items() if names & {*words})


SETTINGS = ("metric", "lowest", "highest", "better", "evaluates", "uses", "statistics", "last_round")  # a person's own


def read_tensors(arguments: Mapping[str, Any]) -> tuple[NamedTensor, ...]:
    """Return the tensors in a network's arguments; `ValueError` if they are none."""
    try:
        return tuple(
            NamedTensor(one["name"], tuple(one["shape"]), one["kind"], one["norm"]) for one in arguments["tensors"]
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"arguments: no description of tensors ({type(error).__name__})") from None


def derived_parts(script: Mapping[str, Any]) -> dict[str, Any]:
    """Return network, training and script of a plan with ``script``."""
    own = read(Script, script, "plan: script")
    training = {"statistics": own.statistics, "last_round": own.last_round}  # what of it the server decides
    return {"network": own.network_parts(), "training": training, "script": own}
