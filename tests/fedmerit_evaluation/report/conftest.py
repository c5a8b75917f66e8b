"""What tests of reports share."""

import pytest


@pytest.fixture(autouse=True)
def quick(undrawn: pytest.MonkeyPatch) -> None:
    """Tests that look at figures ask for `drawn`."""


@pytest.fixture
def drawn(undrawn: pytest.MonkeyPatch) -> None:
    """Figures are drawn after all."""
    undrawn.undo()
