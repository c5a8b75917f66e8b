"""Pages: what one allows to run, what it escapes, and that all share the base template and the stylesheet."""

import base64
import hashlib
import re
from pathlib import Path

from fedmerit_data.pages import template_environment, write_page

ROOT = Path(__file__).resolve().parents[2]
CONTENT = {"fedmerit_version": "1.0", "sites": [], "findings": []}


def _page(folder: Path, **changes: object) -> str:
    write_page(folder / "page.html", "fedmerit_data", "quality.html.j2", **CONTENT | changes)
    return (folder / "page.html").read_text()


def test_policy_allows_only_own_style_and_script(tmp_path: Path) -> None:
    page = _page(tmp_path)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', page)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.replace("&#39;", "'").split(";"))
    for tag in ("style", "script"):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules.pop(f"{tag}-src") == f"'sha256-{digest}'"
    assert rules == {"default-src": "'none'", "base-uri": "'none'", "form-action": "'none'", "img-src": "data:"}


def test_content_stays_text_and_percent_signs_stay_with_their_numbers(tmp_path: Path) -> None:
    page = _page(tmp_path, fedmerit_version="<script>alert(1)</script> 81.5 % of A %")
    assert "&lt;script&gt;alert(1)&lt;/script&gt; 81.5&nbsp;% of A %" in page
    assert page.count("<script>") == 1


def test_every_page_extends_the_base_template_and_has_no_style_of_its_own() -> None:
    roots = [ROOT / name for name in ("data_prep", "evaluation", "cli", "deploy")]
    pages = [file for root in roots for file in root.rglob("templates/*.html.j2")]
    parts = {"base.html.j2", "parts.html.j2", "report_parts.html.j2", "svg.html.j2", "report_pictures.html.j2"}
    texts = {file.name: file.read_text() for file in pages if file.name not in parts}
    assert len(texts) >= 7
    assert [name for name, text in texts.items() if not text.startswith('{% extends "base.html.j2" %}')] == []
    assert [name for name, text in texts.items() if re.search(r"<style|style=|<script|<header|<footer", text)] == []


def test_a_figure_has_a_narrow_version_only_if_there_is_one() -> None:
    environment = template_environment("fedmerit_data", autoescape=True)
    template = environment.from_string('{% from "parts.html.j2" import picture %}{{ picture(shown) }}')
    shown = {"address": "data:,", "seen": "A line.", "caption": "Weights."}
    assert "<source media" in template.render(shown=shown | {"narrow": "data:,"})
    assert "<source media" not in template.render(shown=shown | {"narrow": ""})
