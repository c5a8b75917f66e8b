"""What is started imports from no working folder: a run folder or a startup kit is what somebody else may have sent."""

import ast
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import yaml

from fedmerit.child_processes import child_environment, python_command, safe_children
from fedmerit.engines.nvflare.start_scripts import closed
from fedmerit.errors import BadInput, RunFailed
from fedmerit.schema.run_info import read_run

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(
    file
    for name in ("custom", "deploy", "data_prep", "evaluation", "cli", "benchmarks")
    for file in (ROOT / name).rglob("*.py")
)
HOME = ROOT / "custom/fedmerit/child_processes.py"
PRINTED = {ROOT / "deploy/fedmerit_deploy/checks.py", ROOT / "deploy/fedmerit_deploy/kits.py"}  # name it, start nothing
COMMANDS = r"(subprocess|os|psutil)\.(run|Popen|call|check_\w+|exec\w+|system|popen|spawn\w+)"


@cache
def calls(file):
    """Return every call that starts a process by a command, with its line."""
    text = file.read_text()
    if not re.search(COMMANDS, text):
        return []
    nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    return [node for node in nodes if re.fullmatch(COMMANDS, ast.unparse(node.func))]


def test_only_one_module_names_the_interpreter():
    named = {file for file in SOURCES if "sys.executable" in file.read_text()}
    assert named <= {HOME, *PRINTED}, "take python_command of fedmerit.child_processes, which has -P"
    for file in PRINTED & named:
        assert calls(file) == []


def test_commands_of_child_processes_name_python_by_python_command():
    """Other commands are git's, a shell's that parses, MPS's, or a caller's word by word, such as one for alerts."""
    known = {"asked", "[*asked[:3], 'ls-files', '--error-unmatch', __file__]", "list(command)", "command"}
    known |= {"[shell, '-n', path]", "[control]"}
    commands = {ast.unparse(call.args[0]) for file in SOURCES for call in calls(file) if call.args}
    assert {command for command in commands if not command.startswith("python_command(")} <= known
    assert any(command.startswith("python_command(") for command in commands)


def test_child_environment_is_safe_for_each_call():
    """A child of a child inherits the variable; only a script's own process has an environment made of sys.path."""
    for file in SOURCES:
        for call in calls(file):
            if ast.unparse(call.args[0]).startswith(("python_command(", "list(command)")):
                environment = next(ast.unparse(word.value) for word in call.keywords if word.arg == "env")
                assert environment.startswith("child_environment(") or environment == "paths", f"{file}:{call.lineno}"


def test_worker_processes_are_started_by_begin_fork_server():
    """`multiprocessing` starts its server, and its tracker, by ``python -c``."""
    for file in SOURCES:
        text = file.read_text()
        if re.search(r"get_context\(\s*[\"'](spawn|forkserver)|set_start_method|multiprocessing-method", text):
            assert "begin_processes()" in text or file == ROOT / "custom/fedmerit/workers.py", file


@pytest.mark.parametrize("paths", [None, "", ":/somewhere", "/somewhere:", "/somewhere::/elsewhere"])
def test_child_process_imports_nothing_from_its_working_folder(tmp_path, monkeypatch, paths):
    """Neither with -P, nor in what a child starts by itself, nor by an empty entry of PYTHONPATH."""
    (tmp_path / "psutil.py").write_text("raise SystemExit('imported from the working folder')\n")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if paths is not None:
        monkeypatch.setenv("PYTHONPATH", paths)
    nested = "import psutil, subprocess, sys; subprocess.run([sys.executable, '-c', 'import psutil'], check=True)"
    command = python_command("-c", nested)
    subprocess.run(command, cwd=tmp_path, env=child_environment(), check=True)


def test_fork_server_imports_nothing_from_its_working_folder(tmp_path):
    for name in ("socket.py", "selectors.py", "psutil.py"):
        (tmp_path / name).write_text(f"open({str(tmp_path / 'mark')!r}, 'a').write('imported')\n")
    program = tmp_path.parent / "starts_workers.py"
    program.write_text(
        "import os, time\nfrom fedmerit.workers import begin_fork_server\n"
        f"os.chdir({str(tmp_path)!r})\nbegin_fork_server(['psutil'])\n"
        "import multiprocessing\nprocess = multiprocessing.get_context('forkserver').Process(target=print)\n"
        "process.start()\nprocess.join()\n"
    )
    subprocess.run([sys.executable, program], cwd=tmp_path, env=child_environment(), check=True, timeout=120)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    subprocess.run([sys.executable, program], env=environment, check=True, timeout=120)
    assert not (tmp_path / "mark").exists()


def test_safe_children_leaves_environment_as_it_was(monkeypatch):
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.setenv("PYTHONPATH", ":/a")
    with safe_children():
        assert (os.environ["PYTHONSAFEPATH"], os.environ["PYTHONPATH"]) == ("1", "/a")
    assert "PYTHONSAFEPATH" not in os.environ
    assert os.environ["PYTHONPATH"] == ":/a"


def start_script():
    import nvflare.lighter.templates

    template = Path(nvflare.lighter.templates.__path__[0]) / "master_template.yml"
    return yaml.safe_load(template.read_text())["sub_start_sh"]


def test_closed_start_script_imports_nothing_from_its_kit(tmp_path):
    """The script unchanged, with ``python3`` replaced by one that prints what it would import from."""
    kit = tmp_path / "kit"
    for folder in ("startup", "local", "bin"):
        (kit / folder).mkdir(parents=True)
    text = closed(start_script(), kit / "startup/sub_start.sh").replace("{~~", "").replace("~~}", "")
    (kit / "startup/sub_start.sh").write_text(text)
    fake = tmp_path / "chosen"
    fake.mkdir()
    (fake / "python3").write_text(f"#!/bin/sh\nexec {sys.executable} -c 'import sys; print(sys.path)'\n")
    (fake / "python3").chmod(0o755)
    (kit / "local/python_folder").write_text(f"{fake}\n")
    (kit / "psutil.py").write_text("")
    command = ["bash", str(kit / "startup/sub_start.sh"), "--once"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    reported = subprocess.run(command, cwd=kit, env=environment, capture_output=True, text=True, timeout=60).stdout
    path = ast.literal_eval(reported.splitlines()[-1])
    assert "/local/custom" in path
    assert not {"", ".", str(kit)} & set(path)


def test_closed_rejects_start_script_of_other_version(tmp_path):
    with pytest.raises(RunFailed, match="extends PYTHONPATH otherwise"):
        closed("#!/bin/bash\nexport PYTHONPATH=/other:$PYTHONPATH\npython3 -m x\n", tmp_path / "sub_start.sh")


@pytest.mark.parametrize("name", ["psutil.py", "models/torch.py", "numpy/__init__.pyc", "tables/x.so"])
def test_read_run_rejects_run_folder_with_code(tmp_path, name):
    (tmp_path / "run.json").write_text("{}")
    read_run(tmp_path)
    (file := tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"")
    with pytest.raises(BadInput, match=f"{re.escape(str(file))}: a run folder holds no code"):
        read_run(tmp_path)
    shutil.move(file, tmp_path.parent / "moved")
    for folder in ("nvflare/custom", "sites/site1"):  # in which a run's own programs work
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "net.py").write_text("")
    read_run(tmp_path)


def test_units_and_image_import_nothing_from_the_working_folder():
    for unit in (ROOT / "deploy").glob("*.service"):
        assert "\nEnvironment=PYTHONSAFEPATH=1\n" in unit.read_text()
    assert re.search(r"^ENV .*PYTHONSAFEPATH=1", (ROOT / "deploy/Dockerfile").read_text(), re.MULTILINE)
