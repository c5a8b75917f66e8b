"""Pooled: one model trained on all sites' images in one place. The ceiling that federation is measured by."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedmerit.capabilities import PoolsImages
from fedmerit.core import About, Needs, Outcome, Reports
from fedmerit.methods.fedavg import FedAvg, FedAvgState


@dataclass(frozen=True)
class Pooled(FedAvg, PoolsImages):
    """All sites send one and the same update, so that FedAvg of them is it. A round is an epoch over all images.

    Of one update nothing can be said of who contributed what: nobody is credited.
    """

    needs: ClassVar[Needs] = Needs(sites=1, unfiltered="nothing leaves a site: one machine holds all images")
    about: ClassVar[About] = About(
        contribution="none",
        weights="share of training images",
        download="global model",
        site_work="one training on the images of all sites; engine local alone",
        paper="baseline",
    )

    def round(self, state: FedAvgState, updates: Tensor, reports: Reports) -> tuple[FedAvgState, Outcome]:
        """``updates`` (n, d), all the same."""
        state, outcome = super().round(state, updates, reports)
        nothing = torch.zeros(len(updates), dtype=torch.float64)
        return state, replace(outcome, contribution=nothing.where(reports.present, torch.nan))
