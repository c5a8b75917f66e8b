"""The documentation as a site: `make docs`."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [
    str(ROOT / "docs"),
    *(str(ROOT / name) for name in ("custom", "deploy", "data_prep", "evaluation", "cli")),
]

project = "FedMerit"
extensions = ["myst_nb", "sphinxcontrib.mermaid", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
nb_execution_mode = "off"  # notebooks are shown with the outputs that they hold
root_doc = "index"
html_theme = "furo"
myst_heading_anchors = 3
myst_fence_as_directive = ["mermaid"]
exclude_patterns = ["site", "jupyter_execute", "example", "README.md"]  # index.md includes the first README
html_static_path: list[str] = []
html_extra_path = ["example"]  # the report of the demonstration, which opens in the site
autodoc_member_order = "bysource"
autodoc_typehints = "signature"


# Pages of the site for texts that lie outside docs/, which links of the other pages name by their path
PAGES = {
    "benchmarks/contribution/README.md": "/outside/benchmark.md",
    "examples/nnunet/README.md": "/outside/nnunet.md",
}


def point_into_site(app, name, source):
    """Point links to texts outside docs/ at their pages of the site."""
    for path, page in PAGES.items():
        source[0] = re.sub(rf"\]\((\.\./)+{re.escape(path)}", f"]({page}", source[0])


def add_options(app, name, source):
    """The page of commands gets every option of every command."""
    if name == "commands":
        import tables

        source[0] += "\n" + tables.commands_options()


def setup(app):
    """What Sphinx calls first."""
    app.connect("source-read", point_into_site)
    app.connect("source-read", add_options)
