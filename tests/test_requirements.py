"""The lock files hold every dependency at its pinned version, with hashes."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {"runtime": ["he"], "development": ["dev", "he", "lightning", "onnx", "notebooks", "slurm"]}
PINS = dict(
    line.split("==")
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
)


def locked(name):
    """Return the version and the number of hashes of every package of a lock file."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {
        re.split("==", line)[0]: (Requirement(line.split("--hash")[0]), line.count("--hash=sha256:")) for line in lines
    }


@pytest.mark.parametrize("name", EXTRAS)
def test_lock_file_holds_every_dependency_at_its_pin(name):
    packages = locked(name) | locked("cuda")
    pins = {canonicalize_name(package): version for package, version in PINS.items()}
    wanted = PROJECT["dependencies"] + [
        line for extra in EXTRAS[name] for line in PROJECT["optional-dependencies"][extra]
    ]
    for line in wanted:
        package = canonicalize_name(Requirement(line).name)
        requirement, hashes = packages[package]
        assert hashes > 0
        assert str(requirement.specifier) == f"=={pins[package]}", "make lock"
        assert Requirement(line).specifier.contains(pins[package])


@pytest.mark.parametrize("name", EXTRAS)
def test_lock_file_without_cuda_needs_no_cuda_library(name):
    environment = default_environment() | {"sys_platform": "linux", "platform_machine": "x86_64"}
    packages = [
        package for package, (line, _) in locked(name).items() if not line.marker or line.marker.evaluate(environment)
    ]
    assert not [package for package in packages if re.match("torch$|triton|nvidia-|cuda-", package)]


def test_every_package_of_a_lock_file_has_hashes():
    for name in (*EXTRAS, "cuda"):
        assert [package for package, (_, hashes) in locked(name).items() if hashes == 0] == []
