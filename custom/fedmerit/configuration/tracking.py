"""Where the scalars of the rounds are shown live, beside results.csv: by name, for NVFlare's engines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from fedmerit.configuration import options
from fedmerit.configuration.run import STRICT_NAMES
from fedmerit.errors import BadInput


@dataclass(frozen=True)
class TensorBoard:
    """Event files in the job's folder at the server, a folder per site."""

    __pydantic_config__ = STRICT_NAMES


@dataclass(frozen=True)
class MLflow:
    """A run per site, in a SQLite file in the job's results or at an MLflow server."""

    __pydantic_config__ = STRICT_NAMES
    uri: str = ""  # of the MLflow server, as the federation's server reaches it


KINDS: Mapping[str, type[Any]] = {"tensorboard": TensorBoard, "mlflow": MLflow}


def parse(spec: str) -> TensorBoard | MLflow:
    """The tracker of a spec such as ``mlflow:uri=http://server:5000``; `BadInput` where it is none."""
    tracker: TensorBoard | MLflow = options.parse(spec, KINDS, "--track")
    return tracker


def require_tracking(specs: Sequence[str], engine: str) -> list[str]:
    """The specs; `BadInput` where one is none, its package is not installed here, or the engine has no receivers."""
    for spec in specs:
        parse(spec)
        package = spec.partition(":")[0]
        if engine == "local":
            raise BadInput(f"--track {spec}: only with NVFlare's engines; take --engine sim")
        if find_spec(package) is None:
            raise BadInput(f"--track {spec}: {package} is not installed; pip install 'fedmerit[tracking]'")
    return list(specs)
