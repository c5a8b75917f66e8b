"""Every method by name."""

from collections.abc import Mapping
from dataclasses import dataclass

from fedmerit.core import Method
from fedmerit.methods.fedavg import FedAvg
from fedmerit.methods.fedce import FedCE
from fedmerit.methods.standalone import Standalone


@dataclass(frozen=True)
class Entry:
    """A method and what the method table says of it."""

    method: type[Method]
    contribution: str
    weights: str
    download: str
    site_work: str
    paper: str


METHODS: Mapping[str, Entry] = {
    "standalone": Entry(Standalone, "none", "none", "own model", "training", "baseline"),
    "fedavg": Entry(FedAvg, "sample share", "sample share", "global model", "training", "McMahan et al. 2017"),
    "fedce": Entry(
        FedCE,
        "gradient cosine and leave-self-out error",
        "accumulated contribution",
        "global model",
        "training, cosine, validation without own model",
        "Jiang et al. 2023",
    ),
}
