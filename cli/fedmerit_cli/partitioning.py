"""Commands that make other site folders of prepared ones: partition, shrink."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedmerit.errors import BadInput

PreparedSites = Annotated[Path, typer.Argument(help="Folder of prepared site folders; they stay as they are.")]

commands = typer.Typer()


class By(StrEnum):
    """How sizes and kinds of patients vary from site to site."""

    uniform = "uniform"
    powerlaw = "powerlaw"
    dirichlet = "dirichlet"
    banded = "banded"
    imbalanced = "imbalanced"
    variety = "variety"


class Classes(StrEnum):
    """What a patient's class is."""

    source = "source"
    size = "size"
    intensity = "intensity"
    labels = "labels"


class NoiseRule(StrEnum):
    """What is wrong with a disturbed mask."""

    shift = "shift"
    offset = "offset"
    resize = "resize"
    invert = "invert"
    swap = "swap"


@commands.command()
def partition(
    sites: PreparedSites,
    out: Annotated[Path, typer.Option(help="Folder to write the new site folders into.")],
    into: Annotated[int, typer.Option(help="Number of sites: site-1, site-2, ...")],
    by: Annotated[
        By,
        typer.Option(
            help="Equal shares; by a power law; drawn per class; bands of classes; much for a few; ever more classes."
        ),
    ],
    exponent: Annotated[
        float | None, typer.Option(help="powerlaw: site k gets a share proportional to k^A.", show_default="1.25")
    ] = None,
    alpha: Annotated[
        float | None, typer.Option(help="dirichlet: large is even, small concentrated.", show_default="0.5")
    ] = None,
    kappa: Annotated[
        float | None, typer.Option(help="imbalanced: the share of each holder.", show_default="0.6")
    ] = None,
    holders: Annotated[
        int | None,
        typer.Option(help="imbalanced: the first so many sites; the others share the rest evenly.", show_default="1"),
    ] = None,
    classes: Annotated[
        Classes | None,
        typer.Option(
            help="A patient's class: source site; quarter by organ size, intensity, or the last label's part of all.",
            show_default="source; size for dirichlet over one; labels or size for variety",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Moves who goes where.")] = 0,
    alone: Annotated[
        list[str] | None,
        typer.Option(metavar="CLASS", help="All of it to the last site, and to no other: an outlier; may be repeated."),
    ] = None,
    label_noise: Annotated[
        str | None,
        typer.Option(metavar="SITE=LEVEL,...", help="Share of a new site's training masks to make wrong."),
    ] = None,
    noise_rule: Annotated[
        NoiseRule | None,
        typer.Option(
            help="Wrong how: moved, moved all one way, grown or shrunk, inverted, another's.", show_default="shift"
        ),
    ] = None,
    duplicate: Annotated[
        list[str] | None, typer.Option(metavar="SITE", help="New site to add a twin of; may be repeated.")
    ] = None,
    split_site: Annotated[
        list[str] | None, typer.Option(metavar="SITE", help="New site to break in two; may be repeated.")
    ] = None,
    inverted: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SITE", help="Prepared site in all images of which bright and dark are exchanged; may be repeated."
        ),
    ] = None,
) -> None:
    """Deal the patients of prepared sites into new site folders, as papers partition data sets."""
    from fedmerit_cli.printing import print_sites
    from fedmerit_data.partition import partition as partition_sites
    from fedmerit_data.partitioning.scheme import Scheme

    if noise_rule and not label_noise:
        raise BadInput(f"--noise-rule {noise_rule.value}: says how masks of --label-noise are wrong; give that too")
    scheme = Scheme(
        by.value, into, exponent, alpha, classes and classes.value, seed, tuple(alone or ()), kappa, holders
    )
    folders = partition_sites(
        sites,
        out,
        scheme,
        label_noise=_levels(label_noise),
        noise_rule=(noise_rule or NoiseRule.shift).value,
        duplicate=duplicate or (),
        split_site=split_site or (),
        inverted=inverted or (),
    )
    print_sites(out, len(folders))


@commands.command()
def shrink(
    sites: PreparedSites,
    out: Annotated[Path, typer.Option(help="Folder to write the smaller site folders into.")],
    by: Annotated[int, typer.Option(min=2, help="Times smaller a side; a divisor of both.")] = 2,
) -> None:
    """Copies of prepared sites at a lower resolution, such as for cheap trainings of many coalitions."""
    from fedmerit_cli.printing import print_sites
    from fedmerit_data.downsampling import shrink as shrink_sites

    folders = shrink_sites(sites, out, by)
    print_sites(out, len(folders))


def _levels(text: str | None) -> dict[str, float]:
    """The noise of each site, as --label-noise has it."""
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
