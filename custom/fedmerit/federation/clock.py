"""Time of the server's own work."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Seconds of the server's own work on a round; waiting for sites does not count."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Since it was made, without pauses."""
        return time.perf_counter() - self._began

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What happens in this block does not count."""
        began = time.perf_counter()
        yield
        self._began += time.perf_counter() - began
