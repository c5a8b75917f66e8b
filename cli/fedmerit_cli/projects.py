"""The command that begins a project: new."""

import shutil
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated

import typer

from fedmerit.errors import BadInput
from fedmerit_cli.terminal import Commands, console

commands = Commands()


@commands.add("new my-federation")
def new(
    folder: Annotated[Path, typer.Argument(help="Folder to write. It must not exist, or be empty.")],
    script: Annotated[
        bool, typer.Option("--script", help="A project round a training script with NVFlare's Client API.")
    ] = False,
) -> None:
    """Write a project that runs unchanged: a job and a README; with --script also network, client script and data."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder}: exists and is not an empty folder; name a new one")
    with as_file(files("fedmerit_cli") / "templates" / ("script" if script else "sites")) as template:
        shutil.copytree(template, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    console.print(f"{folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")
    console.print(f"Next: cd {folder} && python job.py{' cgsv 4 5 ws' if script else ''}    (README.md has more)")
