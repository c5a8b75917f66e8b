"""Pages whose figures are made and never drawn, which takes most of the time of a report."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAG7buVgAAAABJRU5ErkJggg==")
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"/>'


@contextmanager
def drawing_nothing() -> Iterator[pytest.MonkeyPatch]:
    """While this lasts."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("fedmerit_evaluation.figures.pages", "fedmerit_evaluation.report.overlays"):
            patch.setattr(f"{module}.png", lambda figure: PNG)
        patch.setattr("fedmerit_evaluation.figures.pages.svg", lambda figure: SVG)
        yield patch
