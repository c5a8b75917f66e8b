"""SiloBN: FedAvg, but for the statistics."""

import torch
from rounds import make_rounds, outcomes

from fedmerit.methods.fedavg import FedAvg
from fedmerit.methods.silobn import SiloBN


def test_silobn_is_fedavg_with_statistics_of_each_sites_own():
    rounds = make_rounds(absences=True)
    for ours, theirs in zip(outcomes(SiloBN(), rounds), outcomes(FedAvg(), rounds), strict=True):
        assert (ours.statistics, theirs.statistics) == ("own", "models")
        assert torch.equal(ours.models, theirs.models)
        assert torch.equal(ours.weights, theirs.weights)
