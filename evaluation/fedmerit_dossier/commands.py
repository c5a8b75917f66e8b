"""``fedmerit dossier``: evidence for reporting checklists and regulators."""

from pathlib import Path
from typing import Annotated

import typer

from fedmerit_cli.results import RunFolders, expand_runs
from fedmerit_cli.terminal import Commands, console

commands = Commands()


@commands.add("dossier runs/fedce --out dossier", reads_records=True)
def dossier(
    runs: RunFolders,
    out: Annotated[Path, typer.Option(help="Folder to write dossier.html and its tables into.")],
    sites: Annotated[Path | None, typer.Option(help="Site folders, if not the run's own.")] = None,
) -> None:
    """Write checklists of journals and regulators: CLAIM, TRIPOD+AI, FUTURE-AI, a model card, EU AI Act, HL7 FLUTE.

    Every item with the evidence from runs and site folders, or whom to ask.
    """
    from fedmerit_dossier.dossier import write_dossier

    console.print(f"dossier: {write_dossier(expand_runs(runs), out, sites=sites).resolve()}", soft_wrap=True)
