"""The command that looks at images before training: survey."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmerit.errors import BadInput
from fedmerit_cli.app import console

if TYPE_CHECKING:
    from fedmerit.wire.survey import Question, Survey

LEAST = 5  # `fedmerit.wire.survey.LEAST`, which loads NumPy
commands = typer.Typer()


@commands.command()
def survey(
    ctx: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder to write survey.html, survey.csv and the tables into.")],
    sites: Annotated[Path | None, typer.Option(help="Site folders on this machine.")] = None,
    kit: Annotated[
        Path | None, typer.Option(envvar="FEDMERIT_KIT", help="Or an admin's kit: ask the hospitals.")
    ] = None,
    floor: Annotated[int, typer.Option(help="Patients behind every number; hospitals may ask for more.")] = LEAST,
    min_sites: Annotated[int, typer.Option(help="With --kit: sites that have to be connected.")] = 1,
    wait: Annotated[int, typer.Option(help="With --kit: seconds for the sites to answer.")] = 600,
    job: Annotated[str | None, typer.Option(help="With --kit: the id of a survey submitted before.")] = None,
) -> None:
    """Statistics of images before training: patients, spacing, sizes, intensities, label volumes, in coarse bins.

    No number of fewer than --floor patients leaves a hospital: docs/privacy.md.
    """
    from fedmerit.wire.survey import Question
    from fedmerit_evaluation.report.survey_page import write_survey

    if sites is None and kit is None:
        raise BadInput("--sites or --kit: missing; name site folders on this machine, or an admin's kit")
    of_kits = [name for name in ("kit", "job", "min_sites", "wait") if _is_said(ctx, name)]
    if sites is not None and of_kits:
        told = ", ".join(f"--{name.replace('_', '-')}" for name in of_kits)
        raise BadInput(f"--sites, {told}: give one of both; images on this machine are asked without a job")
    try:
        question = Question(floor)
    except ValueError as error:
        raise BadInput(f"--floor: {error}") from error
    if sites is not None:
        from fedmerit.federation.site_survey import local_survey
        from fedmerit.trainers.monai_trainer.data import open_sites

        found = local_survey(open_sites(sites), question)
    elif kit is not None:
        found = _asked(kit, question, out, min_sites, wait, job)
    path = write_survey(found, out, console)
    console.print(f"survey: {path.resolve()}", soft_wrap=True)


def _is_said(ctx: typer.Context, name: str) -> bool:
    """Whether an option stands on the command line: FEDMERIT_KIT may be set besides."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _asked(kit: Path, question: "Question", out: Path, min_sites: int, wait: int, job: str | None) -> "Survey":
    """The answers of the hospitals of a federation."""
    from fedmerit.files import folder_digest
    from fedmerit.flare.deploy import session
    from fedmerit.flare.deploy.survey_session import await_survey
    from fedmerit.flare.survey_job import export_survey

    with session.session(kit) as opened:
        if job is None:
            folder = out / "job"
            export_survey(question, folder, min_sites, wait)
            console.print(f"job folder: {folder}\nSHA-256 of its files: {folder_digest(folder)}", soft_wrap=True)
            job = session.submit(opened, folder)
            console.print(f"job: {job}\nconnected sites: {', '.join(session.connected(opened)) or 'none yet'}")
        return await_survey(opened, job, 2 * wait)
