"""The ``fedmerit`` command: everyday commands, then groups, in the order of ``--help``.

``--help`` answers at once, since no file of commands loads anything heavy at its head: torch, NVFlare and the like are
imported inside a command's function, when it is called; and a group's files are imported when the group is named.
Commands of the laboratory, the dossier and operations come by entry point: those of a group by its name, or as
GROUP.NAME if others have that; all other names are of everyday commands.
"""

import shlex
import shutil
from importlib.metadata import EntryPoint, distribution
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated

import typer

from fedmerit.errors import BadInput
from fedmerit_cli import methods, models, results, runs, sites
from fedmerit_cli.terminal import Commands, console, lazy_group, set_up

ENTRY_POINTS = "fedmerit.commands"
FIRST = "demo"  # of the everyday commands
GROUPS = {
    "data": "Other site folders from prepared ones, and a survey of images before training.",
    "value": "What each site's data is worth: Shapley and leave-one-out values, estimators, sample sizes.",
    "job": "Jobs of a deployed federation: export, submit, follow, fetch, resume.",
    "deploy": "A federation of separate machines: startup kits, hospitals, server.",
    "model": "A finished run's model in other formats.",
    "lab": "The laboratory: papers' tables and figures, simulated attacks, benchmarks.",
}
OURS = {"data": "fedmerit_cli.data:commands", "value": "fedmerit_cli.values:commands",
        "model": "fedmerit_cli.models:group"}  # fmt: skip

first = Commands()


@first.add("new my-federation")
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
    start = f"cd {shlex.quote(str(folder))} && python job.py{' cgsv 4 5 ws' if script else ''}"
    console.print(f"Next: {start}    (README.md has more)", soft_wrap=True)


everyday = [first, sites.commands, runs.commands, results.commands, models.commands, methods.commands]
of_group = {name: [EntryPoint(name, OURS[name], ENTRY_POINTS)] if name in OURS else [] for name in GROUPS}
for entry in distribution("fedmerit").entry_points.select(group=ENTRY_POINTS):
    if (group := entry.name.partition(".")[0]) in GROUPS:
        of_group[group].append(entry)
    else:
        everyday.insert(0 if entry.name == FIRST else len(everyday), entry.load())

app = Commands()
app.callback()(set_up)
for commands in everyday:
    app.add_typer(commands)
for name, text in GROUPS.items():
    loads = [entry.load for entry in of_group[name]]
    app.add_typer(Commands(), name=name, help=text, cls=lazy_group(loads), rich_help_panel="Groups")

if __name__ == "__main__":
    app()
