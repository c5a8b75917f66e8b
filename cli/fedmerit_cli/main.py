"""The ``fedmerit`` command: everyday commands, then groups, in the order of ``--help``.

``--help`` answers at once, since no file of commands loads anything heavy at its head: torch, NVFlare and the like are
imported inside a command's function, when it is called.
"""

from fedmerit_cli import data, methods, models, results, runs, sites, values
from fedmerit_cli.terminal import Commands, set_up
from fedmerit_deploy.commands import deploy, jobs
from fedmerit_lab.commands import demo, partitions, studies

GROUPS = {
    "data": data.commands,
    "value": values.commands,
    "job": jobs.commands,
    "deploy": deploy.commands,
    "model": models.group,
    "lab": studies.commands,
}

app = Commands()
app.callback()(set_up)
for file in (demo, sites, runs, results, models, methods):
    app.add_typer(file.commands)
data.commands.add_typer(partitions.commands)
for name, group in GROUPS.items():
    app.add_typer(group, name=name, rich_help_panel="Groups")

if __name__ == "__main__":
    app()
