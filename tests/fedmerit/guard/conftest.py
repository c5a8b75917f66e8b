"""Rounds for the guard."""

from collections.abc import Callable, Collection

import pytest
import torch
from pulling_sites import updates_of

from fedmerit.contract.method import Reports
from fedmerit.contract.vectors import gram
from fedmerit.guard.guard import Enrolled, Guard
from fedmerit.guard.history import History
from fedmerit.schema.configuration.settings import GuardSettings

Change = Callable[[int, torch.Tensor], torch.Tensor]


@pytest.fixture
def play():
    """Rounds through a guard: the admission and history of each.

    ``change`` (round, updates) makes attackers; only the rows ``there`` (round) answer.
    """

    def rounds(
        change: Change,
        count: int = 8,
        on_verdict: str = "withhold",
        enrolled: Enrolled | None = None,
        there: Callable[[int], Collection[int]] = lambda round: range(99),
    ):
        n = len(change(0, updates_of(0)))
        guard = Guard(GuardSettings("on", on_verdict), enrolled or Enrolled.nothing(n))
        history, step, given = History.empty(n), None, []
        for number in range(count):
            present = torch.tensor([row in there(number) for row in range(n)])
            updates = change(number, updates_of(number)) * present[:, None]
            reports = Reports(torch.full((n,), 50.0).double() * present, present, products=gram(updates))
            history, admission = guard.admit(history, updates, reports, step)
            step = admission.updates[admission.reports.present].mean(dim=0)
            given.append((admission, history))
        return given

    return rounds
