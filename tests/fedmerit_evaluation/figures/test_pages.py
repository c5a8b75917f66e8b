"""Figures of a page: inside it, and beside it as files."""

import base64
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from fedmerit_evaluation.figures import pages
from fedmerit_evaluation.figures.pages import Drawing, pictures


def _held(address: str, kind: str) -> bytes:
    """What an address itself holds."""
    start = f"data:image/{kind};base64,"
    assert address.startswith(start)
    return base64.b64decode(address.removeprefix(start))


def test_figures_are_saved_as_png_and_held_as_svg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "png", lambda figure: f"png of {figure.get_label()}".encode())
    monkeypatch.setattr(pages, "svg", lambda figure: f"svg of {figure.get_label()}".encode())
    dice, weights = Figure(), Figure()
    dice.set_label("dice")
    weights.set_label("weights")
    shown = pictures({"d": Drawing("Dice.", dice), "w": Drawing("Weights.", weights, "A line.")}, tmp_path / "figures")
    assert (tmp_path / "figures" / "d.png").read_bytes() == b"png of dice"
    assert (tmp_path / "figures" / "w.png").read_bytes() == b"png of weights"
    assert [(one.name, one.caption, one.seen) for one in shown.values()] == [
        ("d", "Dice.", "Dice."),  # nothing is reported of what is seen: the caption is
        ("w", "Weights.", "A line."),
    ]
    assert [_held(one.address, "svg+xml") for one in shown.values()] == [b"svg of dice", b"svg of weights"]
