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
from fedmerit.schema.score_name import shown_score, with_score_name
from fedmerit_evaluation.figures.drawing import for_phone, png, svg
from fedmerit_evaluation.figures.tables import file_name


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


def write_page(out: Path, template: str, **shown: Any) -> None:
    """Render one of ``templates/`` into ``out``.

    Style and script are inline; the content policy allows these two, by their digests, and inline images. Nothing else
    is loaded or run, whatever is in the results.
    """
    environment = Environment(
        loader=PackageLoader("fedmerit_evaluation.figures", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["file_name"] = file_name
    environment.globals["score"] = shown_score()
    inside = {name: environment.get_template(name).render() for name in ("style.css", "sort.js")}
    policy = (
        f"default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
        f"style-src {_digest(inside['style.css'])}; script-src {_digest(inside['sort.js'])}"
    )
    page = environment.get_template(template)
    content = with_score_name(page.render(style=inside["style.css"], script=inside["sort.js"], policy=policy, **shown))
    write_text(out, re.sub(r"(?<=\d) %", "&nbsp;%", content))  # no line begins with a percent sign


def pictures(drawn: Mapping[str, Drawing], folder: Path) -> dict[str, SavedFigure]:
    """Figures by name: saved as PNG, and as SVG for the page, in two versions: for screens and for phones."""
    shown = {}
    for name, one in drawn.items():
        save_png(folder / f"{name}.png", png(one.figure))
        wide = _address(svg(one.figure), "svg+xml")
        narrow = _address(svg(one.figure), "svg+xml") if for_phone(one.figure) else ""
        shown[name] = SavedFigure(name, one.caption, wide, one.seen or one.caption, narrow)
    return shown


def photograph(content: bytes, caption: str, seen: str, file: Path) -> SavedFigure:
    """A PNG, saved as a file and for the page."""
    save_png(file, content)
    return SavedFigure(file.stem, caption, _address(content, "png"), seen)


def save_png(path: Path, content: bytes) -> None:
    """Write an image's bytes, whole or not at all."""
    write_atomically(path, lambda file: file.write(content))


def _address(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
