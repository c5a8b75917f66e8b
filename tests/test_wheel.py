"""The wheel only, in an empty folder: from images to a report and a model to use."""

import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("cli", "custom", "deploy", "data_prep", "evaluation", "pyproject.toml", "README.md", "LICENSE")
PACKAGES = {f"fedmerit{name}" for name in ("", "_deploy", "_data", "_evaluation", "_dossier", "_lab", "_cli")}
PIP, QUIET = [sys.executable, "-m", "pip"], ("--quiet", "--no-deps")
pytestmark = pytest.mark.timeout(1800)


@dataclass(frozen=True)
class Installed:
    """FedMerit, installed from its wheel into an environment of its own, and an empty folder."""

    scripts: Path
    folder: Path

    def __call__(self, command: str, *arguments: object) -> str:
        """What a command of the environment prints."""
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        words = [self.scripts / command, *map(str, arguments)]
        done = subprocess.run(words, cwd=self.folder, env=kept, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def in_one_process(self, *commands: tuple[object, ...]) -> str:
        """Where FedMerit lies, and what several of its commands print, whose packages are imported only once."""
        given = [list(map(str, command)) for command in commands]
        script = "import fedmerit, fedmerit_cli.main as cli\nprint(fedmerit.__file__, cli.__file__)\n"
        script += "from fedmerit_data.synthetic import prostate\nprostate.SLICES = 5\n"  # of which all goes faster
        script += f"for given in {given!r}:\n    cli.app(given, standalone_mode=False)"
        return self("python", "-c", script)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("setuptools", reason="a wheel is built without the network where setuptools is installed")
    root = tmp_path_factory.mktemp("wheel")
    source = root / "source"
    source.mkdir()
    for name in SOURCES:
        copied = partial(shutil.copytree, ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
        (copied if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, source / name)
    subprocess.run([*PIP, "wheel", *QUIET, "--no-build-isolation", "--wheel-dir", root, source], check=True)
    (built,) = root.glob("*.whl")
    return built


@pytest.fixture
def installed(wheel: Path, tmp_path: Path) -> Installed:
    environment, work = tmp_path / "environment", tmp_path / "work"
    work.mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (own,) = environment.glob("lib/python*/site-packages")
    installed_here = [path for path in sys.path if path.endswith("-packages")]  # their .pth files do not count there
    (own / "dependencies.pth").write_text("\n".join(installed_here))
    target = ("--python", environment / "bin" / "python", "install")
    subprocess.run([*PIP, *target, *QUIET, "--no-index", "--no-compile", wheel], check=True)

    return Installed(environment / "bin", work)


def test_the_wheel_holds_all_packages_and_nothing_generic(wheel: Path) -> None:
    """Every file of the source roots, and no top-level module that another distribution could have as well."""
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert {name.partition("/")[0] for name in held} == PACKAGES
    roots = (ROOT / name for name in ("cli", "custom", "deploy", "data_prep", "evaluation"))
    files = {str(file.relative_to(root)) for root in roots for file in root.glob("*/**/*") if file.is_file()}
    assert held == {name for name in files if "__pycache__" not in name and ".egg-info/" not in name}


@pytest.mark.slow  # the commands are tested where they lie, and the wheel has all their files by the test above
def test_the_wheel_only_prepares_trains_reports_predicts_and_exports(installed: Installed) -> None:
    work = installed.folder
    assert "fedce" in installed("fedmerit", "methods")
    prepared = ("--size", 32, "--patients", 5, "--no-pictures", "--jobs", 1)
    training = ("--only", "site1,site2", "--rounds", 1, "--recipe", "quick", "--engine", "local")
    log = ("--log", "logs/run.log")
    image = np.random.default_rng(0).normal(size=(64, 64, 5)).astype(np.float32)
    nib.save(nib.Nifti1Image(image, np.diag([2.0, 2.0, 4.0, 1.0])), work / "raw.nii.gz")
    reported = installed.in_one_process(
        ("prepare", "synthetic-prostate", "--out", "sites", *prepared),
        (*log, "run", "--method", "fedce", "--sites", "sites", *training, "--out", "run"),
        ("report", "run", "--out", "shown"),
        ("data", "survey", "--sites", "sites", "--out", "surveyed"),
        ("dossier", "run", "--out", "reported"),
        ("predict", "run", "raw.nii.gz", "--out", "masks"),
        ("model", "export", "run", "--bundle", "bundle", "--torchscript", "model.ts"),
    )
    assert f"{ROOT}/" not in reported
    assert "round 0: Dice" in (work / "logs/run.log").read_text()
    for page in ("shown/report.html", "surveyed/survey.html", "reported/dossier.html"):
        assert "</html>" in (work / page).read_text()
    (mask,) = (work / "masks").rglob("*.nii.gz")
    assert nib.load(mask).shape == image.shape
    assert "MONAI applied its network" in reported
    assert (work / "model.ts").exists()
