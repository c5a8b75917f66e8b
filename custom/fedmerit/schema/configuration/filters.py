"""Privacy filters: what a site does to its update before it leaves, by name.

The filters themselves are NVFlare's task result filters (`fedmerit.engines.nvflare.privacy`); here are their
parameters. They change neither BatchNorm statistics nor reported numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fedmerit.errors import BadInput
from fedmerit.schema.configuration import spec_syntax
from fedmerit.schema.parameters import Checked, parameter


@dataclass(frozen=True)
class Percentile(Checked):
    """Entries below a percentile of all magnitudes become 0, the others are clipped (Shokri and Shmatikov 2015)."""

    percentile: float = parameter(10.0, "of the magnitudes", low=0, high=100)
    gamma: float = parameter(0.01, "the largest magnitude that is sent", above=0)


@dataclass(frozen=True)
class SparseVector(Checked):
    """A random fraction of the entries, drawn by noisy magnitude, is sent clipped and with Laplace noise (SVT)."""

    fraction: float = parameter(0.1, "of the entries that is sent", above=0, high=1)
    epsilon: float = parameter(0.1, "budget of the choice", above=0)
    noise_var: float = parameter(0.1, "budget of each sent entry: its noise has scale 2 gamma / noise_var", above=0)
    gamma: float = parameter(1e-5, "the largest magnitude that is sent", above=0)
    tau: float = parameter(1e-6, "threshold of the choice")


@dataclass(frozen=True)
class Gaussian(Checked):
    """The update is cut to a norm, and Gaussian noise is added to every entry (McMahan et al. 2018, at the site)."""

    clip: float = parameter(1.0, "the largest Euclidean norm of an update", above=0)
    noise: float = parameter(0.01, "standard deviation of the noise, as a multiple of clip", above=0)


Filter = Percentile | SparseVector | Gaussian
KINDS: Mapping[str, type[Filter]] = {"percentile": Percentile, "svt": SparseVector, "gaussian": Gaussian}
HE = "he"  # no filter: updates leave encrypted, and the server adds up what it cannot read (`ciphertexts.py`)


def parse(spec: str) -> Filter:
    """The filter of a spec such as ``percentile:percentile=10,gamma=0.01``; `BadInput` if it is invalid."""
    if spec.partition(":")[0] not in KINDS:
        known = ", ".join((*KINDS, HE))
        raise BadInput(f"--privacy {spec.partition(':')[0]!r}: unknown; expected one of {known}")
    return spec_syntax.parse(spec, KINDS, "--privacy")
