"""What tests of commands share."""

import pytest


@pytest.fixture(scope="session")
def small() -> tuple[str, ...]:
    """Options of the smallest network that trains."""
    settings = ("architecture=unet", "width=2", "depth=2", "residual_units=0", "augment=false")
    return tuple(text for setting in settings for text in ("--set", setting))
