"""The ``fedmerit`` command: the commands of every file, in the order of ``--help``.

``--help`` answers at once, since files of commands load nothing heavy: torch, NVFlare and the like come with the
imports at the head of a command's function, once the command is called.
"""

import typer

from fedmerit_cli import (
    attacking,
    benching,
    demo,
    deploying,
    estimating,
    exporting,
    measuring_fairness,
    partitioning,
    preparing,
    reporting,
    reproducing,
    running,
    surveying,
    using_models,
    valuing,
)
from fedmerit_cli.app import Commands
from fedmerit_cli.talking import talk

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.callback()(talk)
for file in (
    preparing,
    partitioning,
    surveying,
    running,
    demo,
    reporting,
    using_models,
    measuring_fairness,
    valuing,
    estimating,
    attacking,
    reproducing,
    exporting,
    deploying,
    benching,
):
    app.add_typer(file.commands)

if __name__ == "__main__":
    app()
