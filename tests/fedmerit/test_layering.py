import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "custom" / "fedmerit"
FOLDERS = (ROOT / "cli", PACKAGE, ROOT / "data_prep", ROOT / "evaluation")
ENGINES = {"fedmerit.engines.local", "fedmerit.flare", "fedmerit.engines.runs", "cli.main"}
ENGINES |= {"fedmerit.commands", "fedmerit.federation.server", "fedmerit.federation.site"}


def name_of(file):
    """A source file by its path from the checkout, as test id."""
    return str(file.relative_to(ROOT))


SOURCES = sorted(file for folder in FOLDERS for file in folder.rglob("*.py"))
TRAVELLING = [file for file in SOURCES if PACKAGE in file.parents and PACKAGE / "commands" not in file.parents]


def imports(file):
    """Every module a file imports, at its head or inside a function; ``from a import b`` counts as a and a.b."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}: relative import"
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def packages(file):
    return {module.split(".")[0] for module in imports(file)}


def within(module, names):
    return any(module == name or module.startswith(f"{name}.") for name in names)


def test_the_sources_are_found():
    assert {"core.py", "fedce.py", "recipe.py"} <= {file.name for file in SOURCES}


@pytest.mark.parametrize("file", [f for f in SOURCES if PACKAGE / "flare" not in f.parents], ids=name_of)
def test_nothing_outside_flare_imports_nvflare(file):
    assert "nvflare" not in packages(file)


@pytest.mark.parametrize("file", sorted((PACKAGE / "methods").glob("*.py")), ids=name_of)
def test_methods_import_torch_the_standard_library_and_core_alone(file):
    others = {module for module in imports(file) if not within(module, {"torch", "fedmerit.core"})}
    assert {module.split(".")[0] for module in others} <= sys.stdlib_module_names


@pytest.mark.parametrize("name", ["core", "flat"])
def test_core_and_flat_import_nothing_of_ours(name):
    assert packages(PACKAGE / f"{name}.py") <= {"torch", "numpy", *sys.stdlib_module_names}


@pytest.mark.parametrize("name", ["errors", "files", "ledger", "data", "results", "registry", "plan", "training"])
def test_lower_layers_know_no_engine(name):
    assert not {module for module in imports(PACKAGE / f"{name}.py") if within(module, ENGINES)}


@pytest.mark.parametrize("name", ["site", "server", "messages", "inspection", "neurons"])
def test_sites_and_server_know_neither_engine(name):
    assert not {
        module
        for module in imports(PACKAGE / f"{name}.py")
        if within(
            module,
            {"fedmerit.engines", "fedmerit.flare", "cli"},
        )
    }


@pytest.mark.parametrize("file", TRAVELLING, ids=name_of)
def test_what_travels_to_a_site_needs_no_preparation_or_evaluation(file):
    assert not packages(file) & {"data_prep", "evaluation"}


@pytest.mark.parametrize("file", [f for f in SOURCES if f.name == "__init__.py"], ids=name_of)
def test_package_files_are_empty(file):
    assert file.read_bytes() == b""


def loaded_by(module):
    """Top-level packages that importing ``module`` loads in a fresh interpreter."""
    code = f"import sys, {module}; print(*{{name.split('.')[0] for name in sys.modules}})"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_the_command_line_loads_neither_nvflare_nor_monai():
    assert not loaded_by("cli.main") & {"nvflare", "monai"}


def test_the_methods_load_neither_nvflare_nor_monai():
    assert not loaded_by("fedmerit.methods.registry") & {"nvflare", "monai", "pandas", "numpy.testing"}


def test_every_package_is_installed():
    """What pyproject.toml leaves out works in a checkout and is missing from the wheel."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    there = {
        str(file.parent.relative_to(ROOT)).removeprefix("custom/") for file in SOURCES if file.name == "__init__.py"
    }
    assert sorted(listed) == sorted(name.replace("/", ".") for name in there)
