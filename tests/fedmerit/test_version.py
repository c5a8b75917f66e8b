import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedmerit.version
from fedmerit.version import code_commit, package_version


def git(folder, *words):
    asked = ["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a", *words]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def commit_of(folder):
    """What the copy of the module in ``folder`` says, asked in another process."""
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); import named; print(named.code_commit())"
    return subprocess.run([sys.executable, "-Bc", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.skipif(shutil.which("git") is None, reason="no git on this machine")
def test_a_checkout_names_its_commit_and_says_when_files_differ(tmp_path):
    (tmp_path / "named.py").write_text(Path(fedmerit.version.__file__).read_text())
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "a")):
        git(tmp_path, *words)
    head = git(tmp_path, "rev-parse", "HEAD")
    assert commit_of(tmp_path) == head
    with (tmp_path / "named.py").open("a") as file:
        file.write("\n")
    assert commit_of(tmp_path) == f"{head}-dirty"


@pytest.mark.usefixtures("fresh_versions")
@pytest.mark.parametrize(
    ("installed", "commit"),
    [("1.2", "unknown"), ("1.3.dev4+gabc123", "abc123"), ("1.3.dev4+gabc123.d20260101", "abc123")],
)
def test_an_installed_package_has_the_commit_of_its_version(monkeypatch, installed, commit, tmp_path):
    monkeypatch.setattr(fedmerit.version, "__file__", str(tmp_path / "version.py"))
    monkeypatch.setattr(fedmerit.version, "version", lambda package: installed)
    assert code_commit.__wrapped__() == commit


def test_a_missing_package_has_no_version():
    assert package_version("no-such-package") == "not installed"
