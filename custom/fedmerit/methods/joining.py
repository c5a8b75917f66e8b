"""What methods that remember what sites are worth know of one that joins a run: nothing, or the others' mean."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from fedmerit.contract.method import Layout, Method
from fedmerit.schema.rules import About, Choice


@dataclass(frozen=True, kw_only=True)
class RemembersSites(Method):
    """A method whose state has a number for each site that rounds add to: `remembered`, 0 for a site without any."""

    joining: Annotated[
        str,
        Choice(("zero", "mean")),
        About("what a site that joins later has of it; mean: of the others that have one"),
    ] = "zero"
    remembered: ClassVar[str] = "reputation"  # of the state, (n,)

    def join(self, state: Any, rows: Sequence[int], num_sites: int, layout: Layout) -> Any:
        """As `Method.join`; with ``joining="mean"`` others begin with the mean of what ``rows`` have, 0 left out."""
        grown = super().join(state, rows, num_sites, layout)
        before: Tensor = getattr(state, self.remembered)
        if self.joining == "zero" or not before.any():
            return grown
        known = torch.full((num_sites,), float(before[before != 0].mean()), dtype=before.dtype)
        return replace(grown, **{self.remembered: known.index_copy(0, torch.tensor(rows), before)})
