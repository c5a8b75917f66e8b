"""Standalone: every site trains a local-only model. The reference of all fairness measures."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedmerit.core import About, Layout, Method, Needs, Outcome, Reports, SiteModels


@dataclass(frozen=True)
class Standalone(Method):
    """Nothing is shared: each site's next model is its own trained one, BatchNorm statistics included.

    An absent site keeps what it has.
    """

    needs: ClassVar[Needs] = Needs(
        sites=1, unfiltered="no site gets anything of another's update, so a filter would only harm its own"
    )
    has_site_models: ClassVar[bool] = True
    about: ClassVar[About] = About(
        contribution="none",
        weights="none",
        download="own model",
        site_work="training",
        paper="baseline",
    )

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> SiteModels:
        """All sites start from one model (d,)."""
        return SiteModels(model.repeat(num_sites, 1))

    def round(self, state: SiteModels, updates: Tensor, reports: Reports) -> tuple[SiteModels, Outcome]:
        """``updates`` (n, d): w_i ← w_i + Δ_i. Contributions are 0; weights are sample shares."""
        models = state.models + updates
        return SiteModels(models), Outcome.without_credit(reports, models)
