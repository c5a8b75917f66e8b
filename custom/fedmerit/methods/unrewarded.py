"""What becomes of those entries of a site's model for which it downloads nothing.

By the papers they stay what they were before the site trained, so that a site that earns nothing trains the same first
step for ever. By ``own`` it keeps there what it trained: w_i ← w_i + M_i ⊙ u + (1 - M_i) ⊙ Δ_i, which is training
alone where it earns nothing, and the aggregate u where it earns all. The download is as large as the model then.
"""

from typing import Any

from torch import Tensor

from fedmerit.parameters import parameter

CHOICES = ("nothing", "own")


def unrewarded_parameter(default: str) -> Any:
    """The parameter."""
    text = "entries of its model that a site earns nothing for: as before training, or own: as it trained them"
    return parameter(default, text, choices=CHOICES)


def instead(choice: str, updates: Tensor) -> Tensor | None:
    """What takes the place of an update that is not earned: of ``updates`` (n, d), or None: nothing."""
    return updates if choice == "own" else None
