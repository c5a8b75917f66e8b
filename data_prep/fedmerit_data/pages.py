"""Pages: HTML files that fetch nothing, all of one base template and one stylesheet."""

import base64
import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from fedmerit.files import write_text
from fedmerit.schema.score_name import shown_score, with_score_name


def write_page(out: Path, package: str, template: str, **content: Any) -> None:
    """Render a template, from the folder ``templates`` of a package, into a file.

    Style and script are inline. The content policy allows these two, by their digests, and inline images: nothing else
    is loaded or run, whatever the content is.

    Args:
        out: the file to write.
        package: the package that the template belongs to. The base template and its parts are in this package.
        template: the name of the template.
        content: the values that the template shows.
    """
    environment = _page_environment(package, shown_score())
    style, script = (environment.get_template(name).render() for name in ("style.css", "page.js"))
    policy = (
        f"default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
        f"style-src {_digest(style)}; script-src {_digest(script)}"
    )
    page = environment.get_template(template).render(style=style, script=script, policy=policy, **content)
    write_text(out, re.sub(r"(?<=\d) %", "&nbsp;%", with_score_name(page)))  # no line begins with a percent sign


def template_environment(package: str, *, autoescape: bool) -> Environment:
    """Return the environment of the templates of a package and of those that all pages share."""
    packages = dict.fromkeys((package, "fedmerit_data"))
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name, "templates") for name in packages]),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["score"] = shown_score()
    return environment


@cache
def _page_environment(package: str, score: str) -> Environment:
    """Return the environment of pages, which compiles each template once; one for each name of the score."""
    return template_environment(package, autoescape=True)


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
