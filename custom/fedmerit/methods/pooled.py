"""Pooled: one model trained on all sites' images in one place. The ceiling that federation is measured by."""

from dataclasses import dataclass
from typing import ClassVar

from fedmerit.capabilities.pooling import PoolsImages
from fedmerit.core import About, Needs
from fedmerit.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Pooled(FedAvg, PoolsImages):
    """All sites send one and the same update, so that FedAvg of them is it. A round is an epoch over all images."""

    needs: ClassVar[Needs] = Needs(sites=1, unfiltered="nothing leaves a site: one machine holds all images")
    about: ClassVar[About] = About(
        contribution="share of training images",
        weights="share of training images",
        download="global model",
        site_work="one training on the images of all sites; engine local alone",
        paper="baseline",
    )
