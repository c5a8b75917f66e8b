"""``fedmerit data``: new site folders from prepared ones, and statistics of images before training."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedmerit.errors import BadInput
from fedmerit_cli.terminal import Commands, console, option_in

if TYPE_CHECKING:
    from fedmerit.wire.survey import Question, Survey

FEWEST = 5  # `fedmerit.wire.survey.LEAST`, which loads NumPy
VARIANTS = "Noise and duplicates"
PreparedSites = Annotated[Path, typer.Argument(help="Folder of prepared site folders; they stay unchanged.")]
By = Literal["uniform", "powerlaw", "dirichlet", "banded", "imbalanced", "variety"]
Classes = Literal["source", "size", "intensity", "labels"]
NoiseRule = Literal["shift", "offset", "resize", "invert", "swap"]

commands = Commands("Other site folders from prepared ones, and a survey of images before training.")


@commands.add("data partition sites --out four --into 4 --by dirichlet --alpha 0.5")
def partition(
    sites: PreparedSites,
    out: Annotated[Path, typer.Option(help="Folder to write the new site folders into.")],
    into: Annotated[int, typer.Option(min=1, help="Number of sites: site-1, site-2, ...")],
    by: Annotated[
        By,
        typer.Option(
            help="Equal shares; a power law; drawn per class; bands of classes; imbalanced; growing class count."
        ),
    ],
    exponent: Annotated[
        float | None, typer.Option(help="powerlaw: site k gets a share proportional to k^A.", show_default="1.25")
    ] = None,
    alpha: Annotated[
        float | None, typer.Option(help="dirichlet: large is even, small is concentrated.", show_default="0.5")
    ] = None,
    kappa: Annotated[
        float | None, typer.Option(help="imbalanced: the share of each large site.", show_default="0.6")
    ] = None,
    holders: Annotated[
        int | None,
        typer.Option(help="imbalanced: number of large sites; the others share the rest evenly.", show_default="1"),
    ] = None,
    classes: Annotated[
        Classes | None,
        typer.Option(
            help="A patient's class: source site; quarter by organ size, intensity, or the last label's share.",
            show_default="source; size for dirichlet over one; labels or size for variety",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the partition.")] = 0,
    outlier: Annotated[
        list[str] | None, option_in(VARIANTS, "All of it to the last site only; may be repeated.", metavar="CLASS")
    ] = None,
    label_noise: Annotated[
        str | None, option_in(VARIANTS, "Share of a new site's training masks to disturb.", metavar="SITE=LEVEL,...")
    ] = None,
    noise_rule: Annotated[
        NoiseRule | None,
        option_in(VARIANTS, "Moved, moved all one way, grown or shrunk, inverted, another's.", show_default="shift"),
    ] = None,
    duplicate: Annotated[
        list[str] | None, option_in(VARIANTS, "New site to add a twin of; may be repeated.", metavar="SITE")
    ] = None,
    split_site: Annotated[
        list[str] | None, option_in(VARIANTS, "New site to split in two; may be repeated.", metavar="SITE")
    ] = None,
    inverted: Annotated[
        list[str] | None,
        option_in(VARIANTS, "Prepared site whose images are inverted; may be repeated.", metavar="SITE"),
    ] = None,
) -> None:
    """Repartition the patients of prepared sites into new site folders, as papers partition data sets."""
    from fedmerit_cli.printing import print_sites
    from fedmerit_data.partition import partition as partition_sites
    from fedmerit_data.partitioning.scheme import Scheme

    if noise_rule and not label_noise:
        raise BadInput(f"--noise-rule {noise_rule}: belongs to --label-noise; give that too")
    scheme = Scheme(by, into, exponent, alpha, classes, seed, tuple(outlier or ()), kappa, holders)
    folders = partition_sites(
        sites,
        out,
        scheme,
        label_noise=_levels(label_noise),
        noise_rule=noise_rule or "shift",
        duplicate=duplicate or (),
        split_site=split_site or (),
        inverted=inverted or (),
    )
    print_sites(out, len(folders))


@commands.add("data shrink sites --out small --by 2")
def shrink(
    sites: PreparedSites,
    out: Annotated[Path, typer.Option(help="Folder to write the smaller site folders into.")],
    by: Annotated[int, typer.Option(min=2, help="Downsampling factor; a divisor of height and width.")] = 2,
) -> None:
    """Copies of prepared sites at a lower resolution, such as for cheap trainings of many coalitions."""
    from fedmerit_cli.printing import print_sites
    from fedmerit_data.downsampling import shrink as shrink_sites

    folders = shrink_sites(sites, out, by)
    print_sites(out, len(folders))


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
    """Statistics of images before training: patients, spacing, sizes, intensities, label volumes, in coarse bins.

    No number about fewer than --floor patients leaves a hospital: docs/privacy.md.
    """
    from fedmerit.wire.survey import Question
    from fedmerit_evaluation.report.survey_page import write_survey

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
        from fedmerit.site.site_survey import local_survey
        from fedmerit.trainers.monai_trainer.data import open_sites

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
    """One plan for the volumes of all sites: spacing, patch, network and batch, by nnU-Net's published rules."""
    from dataclasses import asdict

    from fedmerit.files import read_object, write_json
    from fedmerit.wire.survey import Survey
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
    """Whether an option is on the command line: FEDMERIT_KIT may be set besides."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _ask_hospitals(kit: Path, question: "Question", out: Path, sites: int, wait: int, job: str | None) -> "Survey":
    """The answers of the hospitals of a federation, as soon as so many sites are connected."""
    from fedmerit.files import folder_digest
    from fedmerit.flare.deploy import session
    from fedmerit.flare.deploy.session import await_survey
    from fedmerit.flare.survey_job import export_survey

    with session.session(kit) as opened:
        if job is None:
            folder = out / "job"
            export_survey(question, folder, sites, wait)
            console.print(f"job folder: {folder}\nSHA-256 of its files: {folder_digest(folder)}", soft_wrap=True)
            job = session.submit(opened, folder)
            console.print(f"job: {job}\nconnected sites: {', '.join(session.connected(opened)) or 'none yet'}")
        return await_survey(opened, job, 2 * wait)


def _levels(text: str | None) -> dict[str, float]:
    """The noise level of each site, from --label-noise."""
    levels: dict[str, float] = {}
    for part in text.split(",") if text else ():
        site, _, level = part.partition("=")
        try:
            value = float(level)
        except ValueError:
            value = -1.0
        if not site or site in levels or not 0 < value <= 1:
            raise BadInput(f"--label-noise {part}: expected SITE=LEVEL, each site once, a level above 0 and at most 1")
        levels[site] = value
    return levels
