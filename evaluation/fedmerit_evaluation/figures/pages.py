"""A page of a report: one HTML file that fetches nothing, with its tables and figures as files beside it."""

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from fedmerit.files import write_atomically, write_text
from fedmerit_evaluation.figures.drawing import for_phone, png, svg
from fedmerit_evaluation.figures.tables import file_name


@dataclass(frozen=True)
class Drawing:
    """A figure that is drawn."""

    caption: str
    figure: Figure
    seen: str = ""  # what a reader sees in it, for those who cannot; the caption where nothing is said


@dataclass(frozen=True)
class SavedFigure:
    """A figure to show: its file's name, a caption, an address that holds the image itself."""

    name: str
    caption: str
    address: str
    seen: str  # the text in the place of the image
    narrow: str = ""  # the address of an image that a phone shows in its place


def write_page(out: Path, template: str, **shown: Any) -> None:
    """Render one of ``templates/`` into ``out``.

    Its style and its script stand inside; the content policy allows these two, by their digests, and images that the
    page itself holds. Nothing else is loaded or run, whatever stands in the results.
    """
    environment = Environment(
        loader=PackageLoader("fedmerit_evaluation.figures", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["file_name"] = file_name
    inside = {name: environment.get_template(name).render() for name in ("style.css", "sort.js")}
    policy = (
        f"default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
        f"style-src {_digest(inside['style.css'])}; script-src {_digest(inside['sort.js'])}"
    )
    page = environment.get_template(template)
    content = page.render(style=inside["style.css"], script=inside["sort.js"], policy=policy, **shown)
    write_text(out, re.sub(r"(?<=\d) %", "&nbsp;%", content))  # no line begins with a percent sign


def pictures(drawn: Mapping[str, Drawing], folder: Path) -> dict[str, SavedFigure]:
    """Figures by name: saved as PNG, and held as SVG for the page, twice: for a screen, and for a phone."""
    shown = {}
    for name, one in drawn.items():
        save_png(folder / f"{name}.png", png(one.figure))
        wide = _address(svg(one.figure), "svg+xml")
        narrow = _address(svg(one.figure), "svg+xml") if for_phone(one.figure) else ""
        shown[name] = SavedFigure(name, one.caption, wide, one.seen or one.caption, narrow)
    return shown


def photograph(content: bytes, caption: str, seen: str, file: Path) -> SavedFigure:
    """A PNG, saved, and held for the page."""
    save_png(file, content)
    return SavedFigure(file.stem, caption, _address(content, "png"), seen)


def save_png(path: Path, content: bytes) -> None:
    """Write an image's bytes, whole or not at all."""
    write_atomically(path, lambda file: file.write(content))


def _address(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
