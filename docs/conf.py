"""The documentation as a site: `make docs`."""

project = "FedMerit"
extensions = ["myst_parser", "sphinxcontrib.mermaid"]
source_suffix = {".md": "markdown"}
root_doc = "index"
html_theme = "furo"
myst_heading_anchors = 3
myst_fence_as_directive = ["mermaid"]
exclude_patterns = ["site", "README.md"]  # index.md includes the latter
html_static_path: list[str] = []
