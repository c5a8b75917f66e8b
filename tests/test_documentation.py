"""What stands in the documentation is there."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from fedmerit.methods.registry import METHODS
from fedmerit_cli.main import app

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\((?!https?://|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)")
KNOWN = typer.main.get_command(app)


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


def spoken(text):
    """The words of every ``fedmerit ...`` in a page or a compose file."""
    text = re.sub(r"```mermaid.*?```", "", text, flags=re.DOTALL)
    joined = re.sub(r"\\\n\s*", " ", text)
    joined = re.sub(r"(?<!`)`[^`]+`(?!`)", lambda code: " ".join(code.group().split()), joined)  # wrapped
    for said in re.findall(r"\bfedmerit ((?:[a-z]+ )*[a-z]+(?: [^`\n#]*)?)(?=[`\n]| {2,}#)", joined):
        yield shlex.split(said.replace("...", ""))


def unknown_in(words):
    """What a command line has that is neither a command nor an option of it."""
    command = KNOWN
    while words and hasattr(command, "commands"):
        if words[0] not in command.commands:
            return {words[0]}
        command, words = command.commands[words[0]], words[1:]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return {word.partition("=")[0] for word in words if word.startswith("--")} - known


@pytest.mark.parametrize(
    "page",
    [*(page for page in PAGES if page.name != "CHANGELOG.md"), *sorted((ROOT / "deploy").glob("compose*.yaml"))],
    ids=lambda page: page.name,
)
def test_commands_and_options_exist(page):
    found = [(" ".join(words), unknown) for words in spoken(page.read_text()) if (unknown := unknown_in(words))]
    assert found == []


def test_what_does_not_exist_is_found():
    said = "Then `fedmerit report RUN --no-images`, `fedmerit deploy\nsight --kit KIT`, and `fedmerit job status --kitt KIT`."
    assert [unknown_in(words) for words in spoken(said)] == [set(), {"sight"}, {"--kitt"}]
