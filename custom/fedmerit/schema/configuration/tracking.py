"""Live trackers of the rounds' scalars, beside results.csv: by name, for NVFlare's engines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from fedmerit.errors import BadInput
from fedmerit.schema.configuration import spec_syntax
from fedmerit.schema.parameters import parameter


@dataclass(frozen=True)
class TensorBoard:
    """Event files in the job's folder at the server, a folder per site."""


@dataclass(frozen=True)
class MLflow:
    """A run per site, in a SQLite file in the job's results or at an MLflow server."""

    uri: str = parameter("", "address of the MLflow server, as the federation's server reaches it")


Tracker = TensorBoard | MLflow
KINDS: Mapping[str, type[Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow}  # by the package that each needs


def parse(spec: str) -> Tracker:
    """The tracker of a spec such as ``mlflow:uri=http://server:5000``; `BadInput` if it is none."""
    return spec_syntax.parse(spec, KINDS, "--track")


def require_tracking(specs: Sequence[str], engine: str) -> list[str]:
    """The specs; `BadInput` if one is invalid, its package is not installed here, or the engine has no receivers."""
    for spec in specs:
        parse(spec)
        if engine == "local":
            raise BadInput(f"--track {spec}: only with NVFlare's engines; take --engine sim")
        package, _ = spec_syntax.split_spec(spec)
        if find_spec(package) is None:
            raise BadInput(f"--track {spec}: {package} is not installed; pip install 'fedmerit[tracking]'")
    return list(specs)
