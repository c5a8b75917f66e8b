"""`fedmerit new`: projects that run as they are."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("options", "files"),
    [((), {"README.md", "job.py"}), (("--script",), {"README.md", "client.py", "data.py", "job.py", "model.py"})],
)
def test_new_writes_a_project_of_valid_files(fedmerit, tmp_path, options, files):
    folder = tmp_path / "my project"
    done = fedmerit("new", folder, *options)
    assert done.exit_code == 0
    assert {path.name for path in folder.iterdir()} == files
    assert f"cd '{folder}' && python job.py" in done.output
    for path in folder.glob("*.py"):
        ast.parse(path.read_text())


def test_new_in_a_folder_with_files_refuses_and_keeps_them(fedmerit, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    done = fedmerit("new", tmp_path)
    assert done.exit_code == 2
    assert "name a new one" in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_example_of_a_script_is_the_project_of_new(fedmerit, tmp_path):
    fedmerit("new", tmp_path / "project", "--script")
    for path in (tmp_path / "project").glob("*.py"):
        assert path.read_text() == (ROOT / "examples" / "nvflare_project" / path.name).read_text()


@pytest.mark.slow
def test_project_of_hospitals_runs_to_its_report(fedmerit, tmp_path):

    fedmerit("new", tmp_path / "project")
    subprocess.run([sys.executable, "-P", "job.py"], cwd=tmp_path / "project", check=True, capture_output=True)
    assert "</html>" in (tmp_path / "project" / "comparison" / "report.html").read_text()
