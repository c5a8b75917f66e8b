"""``fedmerit data partition``: new site folders from prepared ones, for studies."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from fedmerit.errors import BadInput
from fedmerit_cli.terminal import Commands, option_in

VARIANTS = "Noise and duplicates"
PreparedSites = Annotated[Path, typer.Argument(help="Folder of prepared site folders; they stay unchanged.")]
By = Literal["uniform", "powerlaw", "dirichlet", "banded", "imbalanced", "variety"]
Classes = Literal["source", "size", "intensity", "labels"]
NoiseRule = Literal["shift", "offset", "swap"]

commands = Commands()


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
    folds: Annotated[
        bool, typer.Option("--folds", help="Keep the sites' folds; without it, only fold 0's split is partitioned.")
    ] = False,
    outlier: Annotated[
        list[str] | None, option_in(VARIANTS, "All of it to the last site only; may be repeated.", metavar="CLASS")
    ] = None,
    label_noise: Annotated[
        str | None, option_in(VARIANTS, "Share of a new site's training masks to disturb.", metavar="SITE=LEVEL,...")
    ] = None,
    noise_rule: Annotated[
        NoiseRule | None, option_in(VARIANTS, "Moved, moved all one way, another patient's.", show_default="shift")
    ] = None,
    duplicate: Annotated[
        list[str] | None, option_in(VARIANTS, "New site to add a twin of; may be repeated.", metavar="SITE")
    ] = None,
    inverted: Annotated[
        list[str] | None,
        option_in(VARIANTS, "Prepared site whose images are inverted; may be repeated.", metavar="SITE"),
    ] = None,
) -> None:
    """Split the patients of prepared sites again into new site folders, as papers partition data sets."""
    from fedmerit_cli.printing import print_sites
    from fedmerit_lab.partitioning.partition import partition as partition_sites
    from fedmerit_lab.partitioning.scheme import Scheme

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
        inverted=inverted or (),
        folds=folds,
    )
    print_sites(out, len(folders))


def _levels(text: str | None) -> dict[str, float]:
    """Return the noise level of each site, from --label-noise."""
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
