"""``fedmerit data``: statistics of images before training, and a plan from them; `fedmerit_lab` adds studies' own."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmerit.errors import BadInput
from fedmerit_cli.terminal import Commands, console

if TYPE_CHECKING:
    from fedmerit.schema.survey import Question, Survey

FEWEST = 5  # `fedmerit.schema.survey.LEAST`, which loads NumPy

commands = Commands()


@commands.add("data survey --sites sites --out survey")
def survey(
    ctx: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder to write survey.html, survey.csv and the tables into.")],
    sites: Annotated[Path | None, typer.Option(help="Site folders on this machine.")] = None,
    kit: Annotated[
        Path | None, typer.Option(envvar="FEDMERIT_KIT", help="Or an admin's kit: ask the hospitals.")
    ] = None,
    floor: Annotated[int, typer.Option(help="Fewest patients behind every number; hospitals may set more.")] = FEWEST,
    connected: Annotated[int, typer.Option("--min-sites", min=1, help="With --kit: sites that must be connected.")] = 1,
    wait: Annotated[int, typer.Option(min=1, help="With --kit: seconds for the sites to answer.")] = 600,
    job: Annotated[str | None, typer.Option(help="With --kit: the id of a survey submitted before.")] = None,
) -> None:
    """Show statistics of images before training: patients, spacing, sizes, intensities, label volumes, in coarse bins.

    No number about fewer than --floor patients leaves a hospital: docs/privacy.md.
    """
    from fedmerit.schema.survey import Question
    from fedmerit_evaluation.report.survey import write_survey

    if sites is None and kit is None:
        raise BadInput("--sites or --kit: missing; name site folders on this machine, or an admin's kit")
    flags = {"kit": "--kit", "job": "--job", "connected": "--min-sites", "wait": "--wait"}
    with_kit = [flag for name, flag in flags.items() if _is_typed(ctx, name)]
    if sites is not None and with_kit:
        raise BadInput(f"--sites, {', '.join(with_kit)}: give only one; images on this machine need no job")
    try:
        question = Question(floor)
    except ValueError as error:
        raise BadInput(f"--floor: {error}") from error
    if sites is not None:
        from fedmerit.schema.site_folder import open_sites
        from fedmerit_deploy.survey import local_survey

        found = local_survey(open_sites(sites), question)
    elif kit is not None:
        found = _ask_hospitals(kit, question, out, connected, wait, job)
    path = write_survey(found, out, console)
    console.print(f"survey: {path.resolve()}", soft_wrap=True)


@commands.add("data plan survey --out plan.json")
def plan(
    survey: Annotated[Path, typer.Argument(help="Folder of a survey, or its survey.json.")],
    out: Annotated[Path, typer.Option(help="File to write, for `fedmerit prepare --plan` at every site.")],
    memory: Annotated[float, typer.Option(min=0.1, help="GB of feature maps in a training step.")] = 4.0,
    width: Annotated[int, typer.Option(min=1, help="Channels of the network's first level.")] = 8,
    field_of_view: Annotated[
        float | None, typer.Option(min=10, help="Millimetres to crop to, around the centre.", show_default="largest")
    ] = None,
) -> None:
    """Make one plan for the volumes of all sites: spacing, patch, network and batch, by nnU-Net's published rules."""
    from dataclasses import asdict

    from fedmerit.files import read_object, write_json
    from fedmerit.schema.survey import Survey
    from fedmerit_data.planning import make_plan, merge

    file = survey / "survey.json" if survey.is_dir() else survey
    try:
        answers = Survey.from_dict(read_object(file))
    except ValueError as error:
        raise BadInput(f"{file}: {error}; expected what `fedmerit data survey` writes") from error
    found = merge(answers)
    made = make_plan(found, memory, width, field_of_view)
    write_json(out, {"data_plan": made.to_dict(), "fingerprint": asdict(found), "sites": sorted(answers.sites)})
    patch, spacing = (" x ".join(f"{one:.4g}" for one in three) for three in (made.patch, made.spacing))
    console.print(
        f"slices of {made.size} x {made.size} pixels, voxels of {spacing} mm\n"
        f"patches of {patch}, {made.batch_size} a step; {made.depth} levels of width {made.width}\n"
        f"plan: {out}\nSHA-256: {made.digest}",
        soft_wrap=True,
    )


def _is_typed(ctx: typer.Context, name: str) -> bool:
    """Return whether an option is on the command line: FEDMERIT_KIT may be set besides."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _ask_hospitals(kit: Path, question: "Question", out: Path, sites: int, wait: int, job: str | None) -> "Survey":
    """Return the answers of the hospitals of a federation, as soon as so many sites are connected."""
    from fedmerit.files import folder_digest
    from fedmerit_deploy import session
    from fedmerit_deploy.survey import await_survey, export_survey

    with session.session(kit) as opened:
        if job is None:
            folder = out / "job"
            export_survey(question, folder, sites, wait)
            console.print(f"job folder: {folder}\nSHA-256 of its files: {folder_digest(folder)}", soft_wrap=True)
            job = session.submit(opened, folder)
            console.print(f"job: {job}\nconnected sites: {', '.join(session.connected(opened)) or 'none yet'}")
        return await_survey(opened, job, 2 * wait)
