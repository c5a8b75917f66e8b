"""What tests of pages share."""

from collections.abc import Iterator

import pytest
from undrawn import drawing_nothing


@pytest.fixture
def undrawn() -> Iterator[pytest.MonkeyPatch]:
    """Figures are made and never drawn."""
    with drawing_nothing() as patch:
        yield patch
