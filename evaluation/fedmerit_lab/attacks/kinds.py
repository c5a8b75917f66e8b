"""The laboratory's attacks by name; `fedmerit.attacks.catalogue` offers them if the laboratory is installed."""

from collections.abc import Mapping

from fedmerit.attacks.attack import Attack
from fedmerit_lab.attacks.faults import (
    HalfFlip,
    Inflated,
    Inverted,
    LabelNoise,
    NearTwin,
    Rigged,
    Scaled,
    Shifted,
    SignFlip,
    Swapped,
    Twin,
    ZeroInflated,
)
from fedmerit_lab.attacks.free_riders import (
    Adaptive,
    Delta,
    DeltaNoise,
    IntermittentRider,
    Noise,
    Partial,
    Repeat,
    Replay,
    Zero,
)

KINDS: Mapping[str, type[Attack]] = {
    "repeat": Repeat,
    "zero": Zero,
    "rests": IntermittentRider,
    "noise": Noise,
    "delta": Delta,
    "delta-noise": DeltaNoise,
    "replay": Replay,
    "sign-flip": SignFlip,
    "scaled": Scaled,
    "shifted": Shifted,
    "inverted": Inverted,
    "swapped": Swapped,
    "label-noise": LabelNoise,
    "inflated": Inflated,
    "twin": Twin,
    "partial": Partial,
    "adaptive": Adaptive,
    "half-flip": HalfFlip,
    "zero-inflated": ZeroInflated,
    "rigged": Rigged,
    "near-twin": NearTwin,
}
