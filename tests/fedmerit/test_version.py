import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedmerit.version
from fedmerit.version import package_version

ASK = "import sys; sys.path.insert(0, sys.argv[1]); import {0} as v; print(v.code_commit())"


@pytest.fixture
def checkout(tmp_path):
    """A repository of its own that holds the file; asks it for its commit."""
    (tmp_path / "named.py").write_text(Path(fedmerit.version.__file__).read_text())
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a", "commit", "-qm", "a"]):
        subprocess.run(["git", "-C", tmp_path, *words], check=True)
    return tmp_path


def asked(folder):
    code = [sys.executable, "-B", "-c", ASK.format("named"), str(folder)]
    return subprocess.run(code, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.skipif(shutil.which("git") is None, reason="no git on this machine")
def test_a_checkout_names_its_commit_and_says_when_files_differ(checkout):
    head = subprocess.run(["git", "-C", checkout, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    assert asked(checkout) == head
    with (checkout / "named.py").open("a") as file:
        file.write("\n")
    assert asked(checkout) == f"{head}-dirty"


@pytest.mark.parametrize(
    ("installed", "commit"),
    [("1.2", "unknown"), ("1.3.dev4+gabc123", "abc123"), ("1.3.dev4+gabc123.d20260101", "abc123")],
)
def test_an_installed_package_has_the_commit_of_its_version(monkeypatch, installed, commit, tmp_path):
    monkeypatch.setattr(fedmerit.version, "__file__", str(tmp_path / "version.py"))
    monkeypatch.setattr(fedmerit.version, "version", lambda package: installed)
    fedmerit.version.code_commit.cache_clear()
    assert fedmerit.version.code_commit() == commit
    fedmerit.version.code_commit.cache_clear()


def test_a_missing_package_has_no_version():
    assert package_version("no-such-package") == "not installed"
