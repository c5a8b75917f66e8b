"""The house: which room may know which, what travels, what is loaded."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import fedmerit

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "custom" / "fedmerit"
SOURCE_ROOTS = tuple(ROOT / name for name in ("custom", "deploy", "data_prep", "evaluation", "cli"))
LAB = ROOT / "evaluation" / "fedmerit_lab"
OPERATIONS = ROOT / "deploy" / "fedmerit_deploy"
BASE = ("client", "machine", "seeds", "version", "workers")
LAYERS = (  # from the bottom up: a line may import the lines above it, and its own package
    {"fedmerit.errors", "fedmerit.child_processes"},
    {"fedmerit.plugin_references", "fedmerit.trust", "fedmerit.reasons"},
    {"fedmerit.plugins"},
    {"fedmerit.schema.rules"},
    {"fedmerit.schema.declarations", *(f"fedmerit.{name}" for name in BASE)},
    {"fedmerit.contract.flat", "fedmerit.contract.vectors"},
    {"fedmerit.files", "fedmerit.contract.method", "fedmerit.schema.score_name"},
    {"fedmerit.schema.configuration.script"},
    {"fedmerit.schema.configuration.settings"},
    {"fedmerit.contract.capabilities"},
    {"fedmerit.contract"},
    {"fedmerit.methods", "fedmerit.guard", "fedmerit.ciphertexts", "fedmerit.tensor_files"},
    {"fedmerit.schema.records", "fedmerit.schema.scores"},
    {"fedmerit.schema.results"},
    {"fedmerit.schema.run_info"},
    {"fedmerit.evidence"},
    {"fedmerit.schema.configuration"},
    {"fedmerit.schema.configuration.options"},
    {"fedmerit.schema"},
    {
        f"fedmerit.trainers.{name}"
        for name in ("memory", "privacy_budget", "saved_networks", "seen_patients", "statistics", "training_checkpoint")
    },
    {"fedmerit.trainers.step_commitments"},
    {"fedmerit.trainers.trainer"},
    {"fedmerit.trainers.script"},
    {"fedmerit.trainers.monai"},
    {"fedmerit.trainers"},
    {"fedmerit.site"},
    {"fedmerit.server"},
    {"fedmerit.evidence.verification"},
    {"fedmerit.engines.engine", "fedmerit.engines.site_errors"},
    {"fedmerit.engines.live_curves"},
    {"fedmerit.engines.nvflare"},
    {"fedmerit_deploy"},
    {"fedmerit.engines"},
    {"fedmerit_data.raw_cases", "fedmerit_data.folders", "fedmerit_data.splits"},
    {"fedmerit_data.tables", "fedmerit_data.figure_style", "fedmerit_data.pages"},
    {"fedmerit_data.spatial"},
    {"fedmerit_data.readers"},
    {"fedmerit_data.synthetic"},
    {"fedmerit_data.kinds", "fedmerit_data.options"},
    {"fedmerit_data.preparation"},
    {"fedmerit_data.preparing", "fedmerit_data.checking"},
    {"fedmerit_data"},
    {"fedmerit_evaluation.statistics"},
    {"fedmerit_evaluation.results"},
    {"fedmerit_evaluation.models"},
    {"fedmerit_evaluation.figures"},
    {"fedmerit_evaluation.studies"},
    {"fedmerit_evaluation.ground_truth"},
    {"fedmerit_evaluation.valuation"},
    {"fedmerit_evaluation.fairness"},
    {"fedmerit_evaluation.report"},
    {"fedmerit_dossier"},
    {"fedmerit_lab"},
    {"fedmerit_cli.api"},
    {"fedmerit_cli"},
    {"fedmerit_lab.commands", "fedmerit_deploy.commands", "fedmerit_dossier.commands"},
    {"fedmerit_cli.main"},
)
ROOMS = {room: floor for floor, rooms in enumerate(LAYERS) for room in rooms}


SOURCES = sorted(file for root in SOURCE_ROOTS for file in root.rglob("*.py") if "templates" not in file.parts)
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


@cache
def room_of(module):
    """The innermost room that a module of ours is in, None for others and for `fedmerit` itself."""
    return max((room for room in ROOMS if within(module, {room})), key=len, default=None)


def module_of(file):
    root = next(root for root in SOURCE_ROOTS if root in file.parents)
    return ".".join(file.relative_to(root).with_suffix("").parts)


def test_the_sources_are_found():
    assert {"method.py", "fedce.py", "recipe.py"} <= {file.name for file in SOURCES}


def named(files, forbidden):
    """Of the files that import what they must not, their paths from the checkout, and what it is."""
    found = {str(file.relative_to(ROOT)): forbidden(file) for file in files}
    return {name: modules for name, modules in found.items() if modules}


def test_every_file_is_in_a_room():
    assert [module_of(file) for file in MODULES if not room_of(module_of(file))] == [], "or a line of LAYERS is missing"


def test_no_file_imports_from_above():
    def from_above(file):
        own = room_of(module_of(file))
        others = {room_of(module) for module in imports(file)} - {None, own}
        return {other for other in others if ROOMS[other] >= ROOMS[own]}

    assert named(MODULES, from_above) == {}


@pytest.mark.parametrize(("room", "owner"), [("fedmerit_lab", LAB), ("fedmerit_deploy.commands", OPERATIONS)])
def test_commands_of_others_come_only_by_entry_point(room, owner):
    others = [file for file in MODULES if owner not in file.parents]
    assert named(others, lambda file: {module for module in imports(file) if within(module, {room})}) == {}


PEER = {"nvflare_peer.py", "client.py"}  # the benchmarks' peer; calls of a script of NVFlare's


def test_only_the_nvflare_engine_and_operations_import_nvflare():
    homes = {PACKAGE / "engines" / "nvflare", ROOT / "deploy" / "fedmerit_deploy"}
    files = [file for file in SOURCES if not homes & {*file.parents} and file.name not in PEER]
    assert named(files, lambda file: packages(file) & {"nvflare"}) == {}


SHARED = {
    "torch", "fedmerit.methods", "fedmerit.contract", "fedmerit.schema.declarations", "fedmerit.schema.rules",
    "fedmerit.plugins",
}  # fmt: skip


def test_methods_import_torch_the_standard_library_and_the_contract_only():
    def others(file):
        found = {module for module in imports(file) if not within(module, SHARED)} - {"fedmerit"}
        return {module.split(".")[0] for module in found} - sys.stdlib_module_names

    methods = sorted((PACKAGE / "methods").glob("*.py")) + sorted((LAB / "methods").glob("*.py"))
    assert {"fedce.py", "fedci.py"} <= {file.name for file in methods}
    assert named(methods, others) == {}


@pytest.mark.parametrize("name", ["vectors", "flat"])
def test_vectors_and_flat_import_nothing_of_ours(name):
    assert packages(PACKAGE / "contract" / f"{name}.py") <= {"torch", "numpy", *sys.stdlib_module_names}


def test_what_travels_to_a_site_needs_no_preparation_or_evaluation():
    assert (
        named(
            TRAVELLING,
            lambda file: packages(file) & {"fedmerit_data", "fedmerit_evaluation", "fedmerit_lab", "fedmerit_cli"},
        )
        == {}
    )


FRONT = PACKAGE / "__init__.py"  # its functions are loaded when they are asked for


def test_package_files_are_empty():
    """NVFlare's export leaves them out."""
    assert [file for file in SOURCES if file.name == "__init__.py" and file != FRONT and file.read_bytes()] == []


# What fresh interpreters import, in this order, and what must not be loaded by then.
REPORT = "fedmerit_evaluation.report.report"
CHECK = "fedmerit_data.check"
STATUS = "fedmerit_deploy.session, fedmerit_deploy.status"
HEAVY = {"nvflare", "monai", "torch", "pandas", "numpy", "matplotlib"}
IMPORTED = {
    "the command line, then `verify`": [
        ("fedmerit", HEAVY | {"fedmerit_cli", "fedmerit_data"}),  # its functions are loaded when they are asked for
        ("fedmerit_cli.main, fedmerit_data.preparing.case_processes", HEAVY),  # processes begin before anything heavy
        ("fedmerit.methods.registry", {"nvflare", "monai", "pandas"}),
        (
            "fedmerit.evidence.verification.run",
            {"monai", "nvflare", "scipy", "matplotlib"},
        ),  # it plays methods: with torch
    ],
    "`report --no-images`, `check`": [(f"{REPORT}, {CHECK}", {"torch", "monai", "nvflare"})],
    "`job status`": [(STATUS, {"torch", "monai", "scipy", "pandas"})],
    "a site that starts a script": [
        (
            "fedmerit.engines.nvflare.executor, fedmerit.engines.nvflare.egress",
            {"monai", "scipy", "pandas", "matplotlib"},
        )
    ],
}


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(IMPORTED[who], marks=[pytest.mark.slow] * (who != "the command line, then `verify`"), id=who)
        for who in IMPORTED
    ],
)
def test_commands_load_only_what_they_use(steps):
    loaded = "print(*{name.split('.')[0] for name in sys.modules})"
    code = "\n".join(f"import sys, {names}\n{loaded}" for names, _ in steps)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for (names, left), found in zip(steps, done.stdout.splitlines(), strict=True):
        assert not left & set(found.split()), names


def test_the_front_says_what_it_has():
    stub = ast.parse(FRONT.with_suffix(".pyi").read_text())
    named = {alias.asname for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert {*named, "__version__"} == set(fedmerit.__all__)
    assert all(getattr(fedmerit, name) for name in fedmerit.__all__)


def test_every_package_is_installed():
    """A folder without `__init__.py` works in a checkout and is missing from the wheel."""
    assert [str(file) for file in MODULES if not (file.parent / "__init__.py").exists()] == []


def test_no_top_level_module_has_a_generic_name():
    packages = {file.parent.name for root in SOURCE_ROOTS for file in root.glob("*/__init__.py")}
    assert packages == {
        "fedmerit", "fedmerit_deploy", "fedmerit_data", "fedmerit_evaluation", "fedmerit_dossier",
        "fedmerit_lab", "fedmerit_cli",
    }  # fmt: skip
    assert not [file for root in SOURCE_ROOTS for file in root.glob("*.py")]
