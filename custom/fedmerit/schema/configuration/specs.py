"""Parts of a run that a spec names: privacy filters, and live trackers of the rounds' scalars."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated

from fedmerit.errors import BadInput, require_known
from fedmerit.schema.declarations import Checked, parse_spec, split_spec
from fedmerit.schema.rules import About, Number, Text
from fedmerit.version import install_advice


@dataclass(frozen=True)
class Percentile(Checked):
    """A filter: entries below a percentile of all magnitudes become 0, the others are clipped (Shokri and
    Shmatikov 2015).
    """

    percentile: Annotated[float, Number(0, 100), About("of the magnitudes")] = 10.0
    gamma: Annotated[float, Number(above=0), About("the largest magnitude that is sent")] = 0.01


@dataclass(frozen=True)
class Gaussian(Checked):
    """The update is cut to a norm, and Gaussian noise is added to every entry (McMahan et al. 2018, at the site)."""

    clip: Annotated[float, Number(above=0), About("the largest Euclidean norm of an update")] = 1.0
    noise: Annotated[float, Number(above=0), About("standard deviation of the noise, as a multiple of clip")] = 0.01


Filter = Percentile | Gaussian
FILTERS: Mapping[str, type[Filter]] = {"percentile": Percentile, "gaussian": Gaussian}
HE = "he"  # no filter: updates leave encrypted, and the server adds up what it cannot read (`ciphertexts.py`)


def parse_filter(spec: str) -> Filter:
    """Return the filter of a spec such as ``percentile:percentile=10,gamma=0.01``; `BadInput` if it is invalid."""
    if (kind := spec.partition(":")[0]) not in FILTERS:
        require_known("--privacy", [kind], (*FILTERS, HE))
    return parse_spec(spec, FILTERS, "--privacy")


def filter_names(specs: Sequence[str]) -> list[str]:
    """Return the names of the filters of specs, by which a site declares them; encryption is none."""
    return [type(parse_filter(spec)).__name__ for spec in specs if spec != HE]


@dataclass(frozen=True)
class TensorBoard:
    """A tracker: event files in the run folder, on NVFlare in the job's folder at the server; a folder per site."""


@dataclass(frozen=True)
class MLflow:
    """A run per site, in a SQLite file in the run folder, on NVFlare in the job's results, or at an MLflow server."""

    uri: Annotated[str, Text(), About("address of the MLflow server, as the federation's server reaches it")] = ""


Tracker = TensorBoard | MLflow
TRACKERS: Mapping[str, type[Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow}  # by the package that each needs


def parse_tracker(spec: str) -> Tracker:
    """Return the tracker of a spec such as ``mlflow:uri=http://server:5000``; `BadInput` if it is none."""
    return parse_spec(spec, TRACKERS, "--track")


def require_tracking(specs: Sequence[str]) -> list[str]:
    """Return the specs; `BadInput` if one is invalid, or its package is not installed here."""
    for spec in specs:
        parse_tracker(spec)
        package, _ = split_spec(spec)
        if find_spec(package) is None:
            raise BadInput(f"--track {spec}: {package} is not installed; {install_advice('tracking')}")
    return list(specs)
