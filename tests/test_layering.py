"""The house: which room may know which, what travels, what is loaded."""

import ast
import subprocess
import sys
import tomllib
from collections import Counter
from functools import cache
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
    {"data_prep.raw", "data_prep.folders", "data_prep.dealing"},
    {"data_prep.csv_cells", "data_prep.csv_tables", "data_prep.figure_text"},
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


SOURCES = sorted(file for folder in FOLDERS for file in folder.rglob("*.py"))
MODULES = [file for file in SOURCES if file.name != "__init__.py"]
TRAVELLING = [file for file in SOURCES if PACKAGE in file.parents]


@cache
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


def named(files, forbidden):
    """Of the files that import what they must not, their paths from the checkout, and what it is."""
    found = {str(file.relative_to(ROOT)): forbidden(file) for file in files}
    return {name: modules for name, modules in found.items() if modules}


def test_every_file_is_in_a_room():
    assert [module_of(file) for file in MODULES if not room_of(module_of(file))] == [], "or a line of FLOORS is missing"


def test_no_file_imports_from_above():
    def from_above(file):
        own = room_of(module_of(file))
        others = {room_of(module) for module in imports(file)} - {None, own}
        return {other for other in others if ROOMS[other] >= ROOMS[own]}

    assert named(MODULES, from_above) == {}


def test_no_two_files_have_one_name():
    times = Counter(file.name for file in MODULES)
    assert {name for name, number in times.items() if number > 1} == set()


PEER = {"nvflare_peer.py", "nvflare_client.py"}  # NVFlare's own FedCE, which the benchmarks measure beside ours


def test_nothing_outside_flare_imports_nvflare():
    files = [file for file in SOURCES if PACKAGE / "flare" not in file.parents and file.name not in PEER]
    assert named(files, lambda file: packages(file) & {"nvflare"}) == {}


SHARED = {"torch", "fedmerit.methods"}
SHARED |= {
    f"fedmerit.{name}" for name in ("core", "parameters", "plugins", "vectors", "games", "distillation", "capabilities")
}


def test_methods_import_torch_the_standard_library_and_the_contract_alone():
    def others(file):
        found = {module for module in imports(file) if not within(module, SHARED)} - {"fedmerit"}
        return {module.split(".")[0] for module in found} - sys.stdlib_module_names

    methods = sorted((PACKAGE / "methods").glob("*.py"))
    assert methods
    assert named(methods, others) == {}


@pytest.mark.parametrize("name", ["vectors", "flat"])
def test_vectors_and_flat_import_nothing_of_ours(name):
    assert packages(PACKAGE / f"{name}.py") <= {"torch", "numpy", *sys.stdlib_module_names}


def test_what_travels_to_a_site_needs_no_preparation_or_evaluation():
    assert named(TRAVELLING, lambda file: packages(file) & {"data_prep", "evaluation", "cli", "fedmerit_api"}) == {}


FRONT = PACKAGE / "__init__.py"  # its functions are loaded when they are asked for


def test_package_files_are_empty():
    """NVFlare's export leaves them out."""
    assert [file for file in SOURCES if file.name == "__init__.py" and file != FRONT and file.read_bytes()] == []


def loaded_by(module):
    """Top-level packages that importing ``module`` loads in a fresh interpreter."""
    code = f"import sys, {module}; print(*{{name.split('.')[0] for name in sys.modules}})"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_the_command_line_loads_nothing_heavy():
    assert not loaded_by("cli.main") & {"nvflare", "monai", "torch", "pandas", "numpy", "matplotlib"}


def test_processes_of_a_preparation_begin_before_anything_heavy_is_loaded():
    assert not loaded_by("data_prep.preparing.case_processes") & {"numpy", "torch", "monai"}


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


def test_tests_mirror_the_source():
    """A file of tests for every file of the source, at the same place."""
    tests = Path(__file__).parent
    asked = {
        tests / file.relative_to(ROOT / "custom" if PACKAGE in file.parents else ROOT).with_name(f"test_{file.name}")
        for file in SOURCES
        if file.name != "__init__.py"
    }
    assert [str(file.relative_to(tests)) for file in sorted(asked) if not file.exists()] == []
