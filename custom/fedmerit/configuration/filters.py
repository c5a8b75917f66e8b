"""Privacy filters: what a site does to its update before it leaves, by name, for every method that bears it.

The filters themselves are NVFlare's task result filters (`fedmerit.flare.privacy`); here is what may be asked of them.
BatchNorm statistics and the reported numbers pass them as they are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedmerit.configuration import options
from fedmerit.configuration.run import STRICT_NAMES
from fedmerit.core import Method
from fedmerit.errors import BadInput
from fedmerit.records.ciphertexts import require_tenseal


@dataclass(frozen=True)
class Percentile:
    """Entries below a percentile of all magnitudes become 0, the others are clipped (Shokri and Shmatikov 2015)."""

    __pydantic_config__ = STRICT_NAMES
    percentile: float = 10.0  # of the magnitudes, 0 to 100
    gamma: float = 0.01  # the largest magnitude that is sent

    def __post_init__(self) -> None:
        if not 0 <= self.percentile <= 100:
            raise ValueError(f"percentile={self.percentile:g}: expected 0 to 100")
        _require_positive("gamma", self.gamma)


@dataclass(frozen=True)
class SparseVector:
    """A random fraction of the entries, drawn by noisy magnitude, is sent clipped and with Laplace noise (SVT)."""

    __pydantic_config__ = STRICT_NAMES
    fraction: float = 0.1  # of the entries that is sent, above 0 up to 1
    epsilon: float = 0.1  # budget of the choice
    noise_var: float = 0.1  # budget of each sent entry: its noise has scale 2 gamma / noise_var
    gamma: float = 1e-5  # the largest magnitude that is sent
    tau: float = 1e-6  # threshold

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction={self.fraction:g}: expected more than 0, up to 1")
        for name in ("epsilon", "noise_var", "gamma"):
            _require_positive(name, getattr(self, name))


@dataclass(frozen=True)
class Gaussian:
    """The update is cut to a norm, and Gaussian noise is added to every entry (McMahan et al. 2018, at the site)."""

    __pydantic_config__ = STRICT_NAMES
    clip: float = 1.0  # the largest Euclidean norm of an update
    noise: float = 0.01  # standard deviation of the noise, as a multiple of ``clip``

    def __post_init__(self) -> None:
        for name in ("clip", "noise"):
            _require_positive(name, getattr(self, name))


KINDS: Mapping[str, type[Any]] = {"percentile": Percentile, "svt": SparseVector, "gaussian": Gaussian}
PAST_THE_FILTERS = "its models go from site to site, past the filters of what goes to the server"
HE = "he"  # no filter: updates leave encrypted, and the server adds up what it cannot read (`ciphertexts.py`)
ALONE = "a filter acts on an update in the clear, and updates leave encrypted; take one or the other"
SINGLE = "its server half needs single updates or the model in the clear, which a server that adds ciphertexts has not"
Filter = Percentile | SparseVector | Gaussian


def parse(spec: str) -> Filter:
    """The filter of a spec such as ``percentile:percentile=10,gamma=0.01``; `BadInput` where it is none."""
    filter: Filter = options.parse(spec, KINDS, "--privacy")
    return filter


def require_privacy(specs: Sequence[str], name: str, method: Method) -> list[str]:
    """The specs, complete; `BadInput` where one is none, or the method called ``name`` cannot work with filters."""
    if HE in specs:
        if not method.sums_only:
            raise BadInput(f"--privacy {HE}: not with method {name}: {SINGLE}")
        if len(specs) > 1:
            raise BadInput(f"--privacy {HE}: not with others: {ALONE}")
        require_tenseal(f"--privacy {HE}")
        return [HE]
    complete = [options.text_of(parse(spec), KINDS) for spec in specs]
    why_not = method.unfilterable or (PAST_THE_FILTERS if method.models_stay else "")
    if complete and why_not:
        raise BadInput(f"--privacy {complete[0]}: not with method {name}: {why_not}")
    return complete


def _require_positive(name: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise ValueError(f"{name}={value:g}: expected more than 0")
