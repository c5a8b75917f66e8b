"""Every method by name."""

from collections.abc import Mapping
from typing import Any

from fedmerit.contract.method import NO_CREDIT, Method
from fedmerit.methods.cffl import CFFL
from fedmerit.methods.cgsv import CGSV
from fedmerit.methods.cycle import VPDL, CYCle
from fedmerit.methods.fedave import FedAVE
from fedmerit.methods.fedavg import FedAdam, FedAvg, FedAvgM, FedBN, Pooled, SiloBN, Standalone
from fedmerit.methods.fedce import FedCE
from fedmerit.methods.fedsac import FedSAC
from fedmerit.methods.innovation import Innovation
from fedmerit.methods.proximal import Ditto, FedProx
from fedmerit.methods.qfedavg import QFedAvg
from fedmerit.methods.rffl import RFFL
from fedmerit.methods.robust import Krum, Median, Trimmed
from fedmerit.methods.scaffold import SCAFFOLD
from fedmerit.plugins import Catalogue

OWN: Mapping[str, type[Method]] = {
    "standalone": Standalone,
    "pooled": Pooled,
    "fedavg": FedAvg,
    "fedce": FedCE,
    "cgsv": CGSV,
    "rffl": RFFL,
    "cffl": CFFL,
    "fedave": FedAVE,
    "fedsac": FedSAC,
    "qfedavg": QFedAvg,
    "cycle": CYCle,
    "vpdl": VPDL,
    "fedbn": FedBN,
    "silobn": SiloBN,
    "fedprox": FedProx,
    "fedavgm": FedAvgM,
    "fedadam": FedAdam,
    "scaffold": SCAFFOLD,
    "ditto": Ditto,
    "median": Median,
    "trimmed": Trimmed,
    "krum": Krum,
    "innovation": Innovation,
}
METHODS: Catalogue[type[Method]] = Catalogue(
    "methods",
    OWN,
    lambda part: (
        isinstance(part, type)
        and issubclass(part, Method)
        and "__dataclass_params__" in vars(part)  # its own, not those of a class that it derives from
        and part.round is not Method.round
    ),
    "a frozen dataclass derived from fedmerit.contract.method.Method, with round",
)


def build_method(name: str, parameters: Mapping[str, Any]) -> Method:
    """Return a method with its parameters; ValueError if one does not follow its rule."""
    return METHODS[name](**parameters)


def undefined_quantities(name: str) -> list[str]:
    """Return the quantities that every run records, but that this method does not define."""
    kind = METHODS.get(name)
    about, measured = getattr(kind, "about", None), getattr(kind, "measured_by_others", False)
    contributions = ["contribution", "reputation"] if about and about.contribution == NO_CREDIT else []
    weights = ["weight"] if about and about.weights == NO_CREDIT else []
    return [*contributions, *weights, *([] if measured else ["measured_error"])]


def estimates_contributions(name: str) -> bool:
    """Return whether a method declares that it estimates contributions; one that is not known here declares nothing."""
    return bool(getattr(getattr(METHODS.get(name), "about", None), "estimates", False))


def counts_images(name: str) -> bool:
    """Return whether what a method records as contributions are shares of training images."""
    return not estimates_contributions(name) and "contribution" not in undefined_quantities(name)


def asked_quantities() -> set[str]:
    """Return all that our methods, and those of others that this process has loaded, may ask sites for, of peers
    too.
    """
    kinds = METHODS.loaded()
    return {name for kind in kinds for name in (*kind.ranges, *getattr(kind, "peer_ranges", ()))}
