"""The ``fedmerit`` command: everyday commands, then groups, in the order of ``--help``.

``--help`` answers at once, since no file of commands loads anything heavy at its head: torch, NVFlare and the like are
imported inside a command's function, when it is called. Commands of the laboratory, the dossier and operations come by
entry point: a group by its name, further commands of a group as GROUP.NAME, and everyday ones, which are no group.
"""

from importlib.metadata import distribution

from fedmerit_cli import data, methods, models, projects, results, runs, sites, values
from fedmerit_cli.terminal import Commands, set_up

ENTRY_POINTS = "fedmerit.commands"
FIRST = "demo"  # of the everyday commands
ORDER = ("data", "value", "job", "deploy", "model", "lab")

everyday = [projects.commands, sites.commands, runs.commands, results.commands, models.commands, methods.commands]
groups = {"data": data.commands, "value": values.commands, "model": models.group}
for entry in distribution("fedmerit").entry_points.select(group=ENTRY_POINTS):
    commands: Commands = entry.load()
    group, _, is_addition = entry.name.partition(".")
    if is_addition:
        groups[group].add_typer(commands)
    elif commands.is_group:
        groups[group] = commands
    else:
        everyday.insert(0 if entry.name == FIRST else len(everyday), commands)

app = Commands()
app.callback()(set_up)
for commands in everyday:
    app.add_typer(commands)
for group in ORDER:
    app.add_typer(groups[group], name=group, rich_help_panel="Groups")

if __name__ == "__main__":
    app()
