"""`fedmerit lab bench`: every benchmark is one of its commands."""

from pathlib import Path

import typer.main
from fedmerit_cli.benching import bench

import fedmerit_cli


def test_every_file_of_a_benchmark_is_a_command():
    files = {file.stem.removeprefix("bench_") for file in Path(fedmerit_cli.__file__).parent.glob("bench_*.py")}
    commands = typer.main.get_group(bench).commands
    assert set(commands) == files - {"options"}
    for name, command in commands.items():
        assert command.callback.__module__ == f"cli.bench_{name}"
