"""Fewer of a kind under `make test`."""

from collections.abc import Iterable
from typing import Any

import pytest


def one_in(n: int, values: Iterable[Any]) -> list[Any]:
    """Parameters of a test: the first and every ``n``-th after it; under `make test-all` the others, too."""
    return [pytest.param(value, marks=pytest.mark.slow if place % n else ()) for place, value in enumerate(values)]
