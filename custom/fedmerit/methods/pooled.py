"""Pooled: one model trained on all sites' images in one place, the reference for federated training."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedmerit.capabilities import PoolsImages
from fedmerit.core import About, GlobalModel, Needs, Outcome, Reports
from fedmerit.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Pooled(FedAvg, PoolsImages):
    """All sites send the same update, so their FedAvg equals it. A round is an epoch over all images. One update says
    nothing of the sites' contributions: no site is credited.
    """

    needs: ClassVar[Needs] = Needs(sites=1, unfiltered="nothing leaves a site: one machine holds all images")
    about: ClassVar[About] = About(
        contribution="none", site_work="one training on the images of all sites; only engine local", paper="baseline"
    )

    def round(self, state: GlobalModel, updates: Tensor, reports: Reports) -> tuple[GlobalModel, Outcome]:
        """``updates`` (n, d), all the same."""
        state, outcome = super().round(state, updates, reports)
        nothing = torch.zeros(len(updates), dtype=torch.float64)
        return state, replace(outcome, contribution=nothing.where(reports.present, torch.nan))
