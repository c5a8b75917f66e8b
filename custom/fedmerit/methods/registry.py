"""Every method by name."""

from collections.abc import Mapping
from dataclasses import dataclass

from fedmerit.core import Method
from fedmerit.methods.cffl import CFFL
from fedmerit.methods.cgsv import CGSV
from fedmerit.methods.cycle import CYCle
from fedmerit.methods.data_weighted import DataWeighted
from fedmerit.methods.eci import ECI
from fedmerit.methods.euclidean import Euclidean
from fedmerit.methods.fedave import FedAVE
from fedmerit.methods.fedavg import FedAvg
from fedmerit.methods.fedce import FedCE
from fedmerit.methods.fedci import FedCI
from fedmerit.methods.fedsac import FedSAC
from fedmerit.methods.qfedavg import QFedAvg
from fedmerit.methods.rffl import RFFL
from fedmerit.methods.round_robin import RoundRobin
from fedmerit.methods.standalone import Standalone
from fedmerit.methods.vpdl import VPDL


@dataclass(frozen=True)
class Entry:
    """A method and what the method table says of it."""

    method: type[Method]
    contribution: str
    weights: str
    download: str
    site_work: str
    paper: str

    @property
    def needs_server_set(self) -> bool:
        """Whether the method has models evaluated on a server validation set."""
        return self.method.candidates is not Method.candidates


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
    "cgsv": Entry(
        CGSV,
        "cosine to the weighted sum, or its Shapley value",
        "reputation",
        "own model, plus the largest entries its reputation earns",
        "training",
        "Xu et al. 2021",
    ),
    "rffl": Entry(
        RFFL,
        "cosine to the weighted sum",
        "reputation, 0 once expelled",
        "own model, plus the largest entries its reputation earns",
        "training",
        "Xu and Lyu 2021",
    ),
    "dw": Entry(
        DataWeighted,
        "sample share",
        "sample share",
        "own model, plus the largest entries its data size earns",
        "training",
        "baseline of Xu et al. 2021",
    ),
    "eu": Entry(
        Euclidean,
        "closeness to the global update",
        "sample share",
        "own model, plus the largest entries its closeness earns",
        "training",
        "baseline of Xu et al. 2021",
    ),
    "rr": Entry(RoundRobin, "none", "sample share", "server model, in turns", "training", "baseline of Xu et al. 2021"),
    "cffl": Entry(
        CFFL,
        "server validation Dice of own model",
        "sample share of those not removed",
        "own model, plus the largest entries by reputation and samples",
        "training, evaluation of the sites' models",
        "Lyu et al. 2020",
    ),
    "fedave": Entry(
        FedAVE,
        "server validation Dice by nearness of losses",
        "sample share",
        "own model, plus the largest entries by reputation and nearness",
        "training, losses of training images, evaluation of the sites' models",
        "Wang et al. 2024",
    ),
    "fedsac": Entry(
        FedSAC,
        "server validation Dice of a model trained alone, or given",
        "equal, of every neuron among those who hold it",
        "global model without the most important neurons, beyond its reputation",
        "training of a submodel, importance of neurons",
        "Wang et al. 2024 (FedSAC)",
    ),
    "qfedavg": Entry(
        QFedAvg,
        "training loss to the power q",
        "training loss to the power q",
        "global model",
        "training, losses of training images",
        "Li et al. 2020",
    ),
    "fedci": Entry(
        FedCI,
        "Shapley value of server validation Dice",
        "accumulated contribution",
        "global model",
        "training, evaluation of the sites' models",
        "Song et al. 2019",
    ),
    "eci": Entry(
        ECI,
        "Shapley value of server validation Dice",
        "sample share",
        "own model, plus the largest entries by contribution",
        "training, evaluation of the sites' models",
        "Song et al. 2019",
    ),
    "cycle": Entry(
        CYCle,
        "alignment of cross-entropy and distillation gradients at the peers",
        "none",
        "own model, and the models of peers that share by reputation",
        "training with distillation from peers, gradients of both losses",
        "Tastan et al. 2025",
    ),
    "vpdl": Entry(
        VPDL,
        "none",
        "none",
        "own model, and the models of all peers",
        "training with distillation from peers",
        "baseline of Tastan et al. 2025",
    ),
}
