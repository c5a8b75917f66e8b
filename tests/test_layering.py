"""The house: which room may know which, what travels, what is loaded."""

import ast
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

import fedmerit

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "custom" / "fedmerit"
FOLDERS = (ROOT / "cli", PACKAGE, ROOT / "data_prep", ROOT / "evaluation", ROOT / "fedmerit_api")
GROUND = ("flat", "machine", "parameters", "seeds", "vectors", "workers")
FLOORS = (  # from the ground up: what stands on a line may import what stands above it, and its own room
    {"fedmerit.errors"},
    {"fedmerit.plugins"},
    {f"fedmerit.{name}" for name in GROUND},
    {"fedmerit.files", "fedmerit.core"},
    {"fedmerit.capabilities"},
    {"fedmerit.games", "fedmerit.distillation"},
    {"fedmerit.methods", "fedmerit.records", "fedmerit.values", "fedmerit.guard"},
    {"fedmerit.configuration"},
    {"fedmerit.training"},
    {"fedmerit.wire"},
    {"fedmerit.federation"},
    {"fedmerit.verification"},
    {"fedmerit.attacks"},
    {"fedmerit.flare"},
    {"fedmerit.engines"},
    {"data_prep.raw", "data_prep.folders", "data_prep.dealing", "data_prep.csv_cells", "data_prep.figure_text"},
    {"data_prep.images"},
    {"data_prep.readers"},
    {"data_prep.synthetic"},
    {"data_prep.kinds"},
    {"data_prep.preparation"},
    {"data_prep.preparing", "data_prep.partitioning", "data_prep.checking"},
    {"data_prep"},
    {"evaluation.results"},
    {"evaluation.models"},
    {"evaluation.display"},
    {"evaluation.studies"},
    {"evaluation.truth"},
    {"evaluation.values"},
    {"evaluation.fairness", "evaluation.freeriders"},
    {"evaluation.report"},
    {"evaluation.dossier"},
    {"evaluation.papers"},
    {"evaluation.benchmarks"},
    {"fedmerit_api"},
    {"cli"},
)
ROOMS = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def name_of(file):
    """A source file by its path from the checkout, as test id."""
    return str(file.relative_to(ROOT))


SOURCES = sorted(file for folder in FOLDERS for file in folder.rglob("*.py"))
MODULES = [file for file in SOURCES if file.name != "__init__.py"]
TRAVELLING = [file for file in SOURCES if PACKAGE in file.parents]


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


def room_of(module):
    """The room that a module of ours is in, None for others and for `fedmerit` itself."""
    return next((room for room in ROOMS if within(module, {room})), None)


def module_of(file):
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removeprefix("custom.")


def test_the_sources_are_found():
    assert {"core.py", "fedce.py", "recipe.py"} <= {file.name for file in SOURCES}


@pytest.mark.parametrize("file", MODULES, ids=name_of)
def test_every_file_is_in_a_room_and_imports_nothing_from_above(file):
    room = room_of(module_of(file))
    assert room, "stands in no room: put it into one, or a line of FLOORS"
    others = {room_of(module) for module in imports(file)} - {None, room}
    assert {other for other in others if ROOMS[other] >= ROOMS[room]} == set()


def test_no_two_files_have_one_name():
    times = Counter(file.name for file in MODULES)
    assert {name for name, number in times.items() if number > 1} == set()


PEER = {"nvflare_peer.py", "nvflare_client.py"}  # NVFlare's own FedCE, which the benchmarks measure beside ours


@pytest.mark.parametrize(
    "file", [f for f in SOURCES if PACKAGE / "flare" not in f.parents and f.name not in PEER], ids=name_of
)
def test_nothing_outside_flare_imports_nvflare(file):
    assert "nvflare" not in packages(file)


SHARED = {"torch", "fedmerit.methods"}
SHARED |= {
    f"fedmerit.{name}" for name in ("core", "parameters", "plugins", "vectors", "games", "distillation", "capabilities")
}


@pytest.mark.parametrize("file", sorted((PACKAGE / "methods").glob("*.py")), ids=name_of)
def test_methods_import_torch_the_standard_library_and_the_contract_alone(file):
    others = {module for module in imports(file) if not within(module, SHARED)} - {"fedmerit"}
    assert {module.split(".")[0] for module in others} <= sys.stdlib_module_names


@pytest.mark.parametrize("name", ["vectors", "flat"])
def test_vectors_and_flat_import_nothing_of_ours(name):
    assert packages(PACKAGE / f"{name}.py") <= {"torch", "numpy", *sys.stdlib_module_names}


@pytest.mark.parametrize("file", TRAVELLING, ids=name_of)
def test_what_travels_to_a_site_needs_no_preparation_or_evaluation(file):
    assert not packages(file) & {"data_prep", "evaluation", "cli", "fedmerit_api"}


FRONT = PACKAGE / "__init__.py"  # its functions are loaded when they are asked for


@pytest.mark.parametrize("file", [f for f in SOURCES if f.name == "__init__.py" and f != FRONT], ids=name_of)
def test_package_files_are_empty(file):
    assert file.read_bytes() == b""


def loaded_by(module):
    """Top-level packages that importing ``module`` loads in a fresh interpreter."""
    code = f"import sys, {module}; print(*{{name.split('.')[0] for name in sys.modules}})"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_the_command_line_loads_nothing_heavy():
    assert not loaded_by("cli.main") & {"nvflare", "monai", "torch", "pandas", "numpy", "matplotlib"}


def test_the_methods_load_neither_nvflare_nor_monai():
    assert not loaded_by("fedmerit.methods.registry") & {"nvflare", "monai", "pandas", "numpy.testing"}


def test_the_front_loads_nothing():
    assert not loaded_by("fedmerit") & {"nvflare", "monai", "torch", "pandas", "numpy", "fedmerit_api", "data_prep"}


def test_the_front_says_what_it_has():
    stub = ast.parse(FRONT.with_suffix(".pyi").read_text())
    named = {alias.asname for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert {*named, "__version__"} == set(fedmerit.__all__)
    assert all(getattr(fedmerit, name) for name in fedmerit.__all__)


def test_every_package_is_installed():
    """What pyproject.toml leaves out works in a checkout and is missing from the wheel."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    there = {
        str(file.parent.relative_to(ROOT)).removeprefix("custom/") for file in SOURCES if file.name == "__init__.py"
    }
    assert sorted(listed) == sorted(name.replace("/", ".") for name in there)
