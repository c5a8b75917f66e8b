"""Figures of a page: inside it, and as files beside it."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from fedmerit.files import write_atomically
from fedmerit_evaluation.figures.drawing import for_phone, png, svg


@dataclass(frozen=True)
class Drawing:
    """A drawn figure."""

    caption: str
    figure: Figure
    seen: str = ""  # alternative text; "": the caption


@dataclass(frozen=True)
class SavedFigure:
    """A figure to show: the name of its file, a caption, and a data address with the image."""

    name: str
    caption: str
    address: str
    seen: str  # alternative text
    narrow: str = ""  # the address of the version for phones


def pictures(drawn: Mapping[str, Drawing], folder: Path) -> dict[str, SavedFigure]:
    """Save figures as PNG, and return them by name as SVG for the page, in two versions: for screens and for phones."""
    shown = {}
    for name, one in drawn.items():
        save_png(folder / f"{name}.png", png(one.figure))
        wide = address_of(svg(one.figure), "svg+xml")
        narrow = address_of(svg(one.figure), "svg+xml") if for_phone(one.figure) else ""
        shown[name] = SavedFigure(name, one.caption, wide, one.seen or one.caption, narrow)
    return shown


def save_png(path: Path, content: bytes) -> None:
    """Write an image's bytes, whole or not at all."""
    write_atomically(path, lambda file: file.write(content))


def address_of(content: bytes, kind: str) -> str:
    """Return a data address with an image of a kind such as ``png``."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
