"""The documentation: links, lengths, tables, commands and options are those of the program."""

import importlib
import importlib.util
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import typer
from nvflare.recipe import SimEnv
from rounds import make_rounds, play
from torch import nn

import fedmerit
from fedmerit import plugins
from fedmerit.methods.registry import METHODS
from fedmerit_cli.main import app
from fedmerit_data.kinds import KINDS

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
MANUAL = sorted(DOCS.glob("*.md"))
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


@pytest.mark.parametrize("page", [page for page in MANUAL if page.stem not in ("README", "index")])
def test_index_and_site_lead_to_every_page(page):
    assert f"({page.name})" in (DOCS / "README.md").read_text()
    assert f"\n{page.stem}\n" in (DOCS / "index.md").read_text()


TABLES = importlib.util.module_from_spec(spec := importlib.util.spec_from_file_location("tables", DOCS / "tables.py"))
spec.loader.exec_module(TABLES)


def test_what_methods_prints_is_of_the_code():
    assert TABLES.CATALOGUE.read_text() == TABLES.methods_catalogue(), "write it again: python docs/tables.py"


@pytest.mark.parametrize("name", TABLES.TABLES)
def test_tables_are_those_of_the_code(name):
    page, make = TABLES.TABLES[name]
    text = (DOCS / page).read_text()
    assert TABLES.filled(name) == text, "write them again: python docs/tables.py"
    assert make() in text


def test_every_layout_has_a_row():
    rows = [
        line.split("|")[1] for line in (DOCS / "data_layouts.md").read_text().splitlines() if line.startswith("| `")
    ]
    named = " ".join(rows) + (DOCS / "data_layouts.md").read_text().split("## Your own images")[1]
    assert [name for name in KINDS if f"`{name}`" not in named and f"prepare {name}" not in named] == []


def test_every_command_is_listed():
    rows = [line for line in (DOCS / "commands.md").read_text().splitlines() if line.startswith("|")]

    def names(command):
        for name, one in getattr(command, "commands", {}).items():
            yield name
            yield from names(one)

    assert [name for name in names(KNOWN) if f"`{name}`" not in " ".join(rows)] == []


def command_lines(text):
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
        names = [" ".join(words[:count]) for count in (2, 1)]  # a command's name may be of two words
        name = next((name for name in names if name in command.commands), None)
        if name is None:
            return {words[0]}
        command, words = command.commands[name], words[name.count(" ") + 1 :]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return {word.partition("=")[0] for word in words if word.startswith("--")} - known


@pytest.mark.parametrize(
    "page",
    [*(page for page in PAGES if page.name != "CHANGELOG.md"), *sorted((ROOT / "deploy").glob("compose*.yaml"))],
    ids=lambda page: page.name,
)
def test_commands_and_options_exist(page):
    found = [(" ".join(words), unknown) for words in command_lines(page.read_text()) if (unknown := unknown_in(words))]
    assert found == []


def test_unknown_commands_are_found():
    page = "`fedmerit report RUN --no-images`, `fedmerit deploy\nsight --kit KIT`, `fedmerit job status --kitt KIT`"
    assert [unknown_in(words) for words in command_lines(page)] == [set(), {"sight"}, {"--kitt"}]


def test_the_method_of_the_tutorial_runs(monkeypatch):
    """The Python block of docs/add_method.md, two rounds with absences."""
    code = re.search(r"```python\n(.*?)```", (DOCS / "add_method.md").read_text(), flags=re.DOTALL)[1]
    monkeypatch.setitem(sys.modules, "tutorial", module := ModuleType("tutorial"))
    monkeypatch.setattr(plugins, "_registered", {})
    exec(compile(code, "tutorial", "exec"), vars(module))
    assert METHODS["evenly"] is module.Evenly
    outcomes = [outcome for _, outcome in play(module.Evenly(), make_rounds(rounds=2, absences=True))]
    assert all(outcome.weights.sum() == pytest.approx(1) for outcome in outcomes)


def python_blocks(page):
    """Return the Python blocks of a page of the manual."""
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)


def test_estimator_of_the_manual_gives_a_value_for_each_site(monkeypatch):
    (code,) = python_blocks("extending.md")
    monkeypatch.setitem(sys.modules, "mine", module := ModuleType("mine"))
    monkeypatch.setattr(plugins, "_registered", {})
    exec(compile(code, "mine", "exec"), vars(module))
    run = SimpleNamespace(num_samples=np.array([4.0, 9.0]), count=3)
    assert module.RootSize().values(run).tolist() == [[2.0] * 3, [3.0] * 3]


class Net(nn.Linear):
    """The model of a reader's project."""

    def __init__(self):
        super().__init__(2, 1)


@pytest.mark.parametrize("page", ["nvflare_project.md", "from_fedavg_recipe.md"])
def test_recipe_of_the_manual_is_accepted(page, monkeypatch, tmp_path):
    text = (DOCS / page).read_text()
    (changed,) = re.findall(r"```diff\n(.*?)```", text, flags=re.DOTALL) or python_blocks(page)
    code = "\n".join(line.lstrip("+") for line in changed.splitlines() if not line.startswith("-"))
    (tmp_path / "client.py").write_text("")
    monkeypatch.chdir(tmp_path)
    executed = []
    monkeypatch.setattr(fedmerit.FedMeritRecipe, "execute", lambda recipe, env: executed.append(env))
    reader = {"Net": Net, "SimpleNetwork": Net, "SimEnv": SimEnv}
    exec(compile(textwrap.dedent(code), page, "exec"), reader)
    assert isinstance(reader["recipe"], fedmerit.FedMeritRecipe)
    assert len(executed) == code.count("execute")


def test_every_python_block_of_the_manual_is_run_by_a_test():
    run = {"add_method.md", "extending.md", "api.md", "nvflare_project.md"}
    fragments = {"valuation.md"}  # of a reader's own job: keep_updates is run on NVFlare's recipe by its own tests
    assert {page.name for page in MANUAL if "```python" in page.read_text()} == run | fragments


def test_names_listed_in_the_page_of_the_api_exist_in_their_modules():
    text = (DOCS / "api.md").read_text()
    listed = re.findall(r"automodule:: (\S+)\n +:members: (.+)", text)
    assert listed
    for module, names in listed:
        defined = vars(importlib.import_module(module))
        for name in names.split(", "):
            assert getattr(defined.get(name), "__module__", None) == module, f"{module}.{name}"


@pytest.mark.slow
def test_python_api_of_the_manual_runs_to_its_report(tmp_path):
    (code,) = python_blocks("api.md")
    script = tmp_path / "api.py"
    script.write_text('if __name__ == "__main__":\n' + textwrap.indent(code, "    "))
    subprocess.run([sys.executable, "-P", script], cwd=tmp_path, check=True, capture_output=True)
    assert "</html>" in (tmp_path / "report.html").read_text()
