"""A tag makes a release: sdist and wheel of its version, whose descriptions the package index takes."""

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_tagged_commit_builds_sdist_and_wheel_of_its_version(tmp_path):
    pytest.importorskip("build", reason="make install brings what builds a release")
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("a copy without git history")
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, clone], check=True)
    identity = ("-c", "user.name=Release", "-c", "user.email=release@example.org")
    subprocess.run(
        ["git", *identity, "tag", "--annotate", "v1.0.0", "--message", "FedMerit 1.0.0"], cwd=clone, check=True
    )
    subprocess.run([sys.executable, "-P", "-m", "build", "--no-isolation"], cwd=clone, check=True, capture_output=True)
    names = sorted(path.name for path in (clone / "dist").iterdir())
    assert names == ["fedmerit-1.0.0-py3-none-any.whl", "fedmerit-1.0.0.tar.gz"]
    subprocess.run([sys.executable, "-P", "-m", "twine", "check", "--strict", *(clone / "dist").iterdir()], check=True)
    with tarfile.open(clone / "dist" / "fedmerit-1.0.0.tar.gz") as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "LICENSE", "README.md", "requirements/runtime.txt"} <= files


def test_container_file_has_no_lint():
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.exists():
        pytest.skip("hadolint is not installed; make install brings it")
    done = subprocess.run([hadolint, ROOT / "deploy" / "Dockerfile"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
