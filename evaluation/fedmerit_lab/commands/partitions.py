"""``fedmerit data partition``: new site folders from prepared ones, for studies."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from fedmerit.errors import BadInput
from fedmerit.schema.declarations import parameters, parse_text
from fedmerit_cli.options import takes
from fedmerit_cli.terminal import Commands, option_in
from fedmerit_lab.partitioning.scheme import VARIANTS, Scheme

PreparedSites = Annotated[Path, typer.Argument(help="Folder of prepared site folders; they stay unchanged.")]
NoiseRule = Literal["shift", "offset", "swap"]

commands = Commands()


@commands.add("data partition sites --out four --into 4 --by dirichlet --alpha 0.5")
@takes(Scheme, *parameters(Scheme), required=["by", "into"])
def partition(
    sites: PreparedSites,
    asked: Scheme,
    out: Annotated[Path, typer.Option(help="Folder to write the new site folders into.")],
    folds: Annotated[
        bool, typer.Option("--folds", help="Keep the sites' folds; without it, only fold 0's split is partitioned.")
    ] = False,
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

    if noise_rule and not label_noise:
        raise BadInput(f"--noise-rule {noise_rule}: belongs to --label-noise; give that too")
    folders = partition_sites(
        sites,
        out,
        asked,
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
        value = parse_text(level, float)
        if not site or site in levels or not (isinstance(value, float) and 0 < value <= 1):
            raise BadInput(f"--label-noise {part}: expected SITE=LEVEL, each site once, a level above 0 and at most 1")
        levels[site] = value
    return levels
