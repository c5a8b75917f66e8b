"""What stands in the documentation is there."""

import re
from pathlib import Path

import pytest

from fedmerit.methods.registry import METHODS

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\((?!https?://|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)")


def anchors(page):
    """Of its headings, as GitHub and MyST make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    for target, anchor in LINK.findall(page.read_text()):
        file = page.parent / target if target else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), f"{target}#{anchor}"


def test_the_readme_is_short_and_has_every_method():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    for name, kind in METHODS.items():
        assert f"| `{name}` | {kind.about.contribution} | {kind.about.paper} |" in text


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.parent == ROOT / "docs" and page.stem not in ("README", "index")]
)
def test_the_index_leads_to_every_page(page):
    assert f"({page.name})" in (ROOT / "docs" / "README.md").read_text()
