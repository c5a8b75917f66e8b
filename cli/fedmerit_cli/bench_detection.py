"""``fedmerit bench detection``."""

from pathlib import Path
from typing import Annotated

import typer

from fedmerit.errors import BadInput
from fedmerit_cli.app import Methods, OnVerdict, Recipe, Settings, console, settings_of
from fedmerit_cli.bench_options import BenchFolder

commands = typer.Typer()
ROUNDS = 15


@commands.command()
def detection(
    out: BenchFolder,
    sites: Annotated[
        Path | None,
        typer.Option(help="Train networks on these site folders.", show_default="made-up sites, no network"),
    ] = None,
    generated: Annotated[
        int | None, typer.Option(metavar="PIXELS", help="Train networks on six generated sites of this size.")
    ] = None,
    methods: Methods = "fedavg,fedce,cgsv",
    attacks: Annotated[
        str, typer.Option(metavar="all|worst|NAME;NAME", help="worst: the ten of docs/trust.md, on trained networks.")
    ] = "all",
    seeds: Annotated[str, typer.Option(help="Of every federation.")] = "0,1,2",
    rounds: Annotated[int, typer.Option(min=4, help="Of trained networks; made-up sites have 15.")] = ROUNDS,
    after: Annotated[int, typer.Option(min=1, help="Rounds of an attack within which it is to be told.")] = 10,
    attacker: Annotated[str | None, typer.Option(help="Site that attacks.", show_default="the last")] = None,
    outlier: Annotated[str | None, typer.Option(help="Honest site of images unlike the others'.")] = None,
    guard: Annotated[str, typer.Option(metavar="on|off", help="Of every federation.")] = "on",
    on_verdict: OnVerdict = "withhold",
    settings: Settings = None,
    recipe: Recipe = None,
) -> None:
    """Detectors of riders and poisoners beside each other, and what attacks pay: attacks by methods by seeds.

    The guard and detectors of other papers watch every federation: AUROC and F1 by round, with intervals over seeds,
    and false alarms on honest sites. docs/trust.md says what each is. Interrupted, the same command goes on.
    """
    from fedmerit_cli.printing import show
    from fedmerit_evaluation.studies.study_folders import parse_methods, parse_seeds
    from fedmerit_lab.benchmarks import detection_benchmark as bench
    from fedmerit_lab.benchmarks.generated_sites import generated_sites
    from fedmerit_lab.detection import attack_matrix, monitored_federation

    if sites and generated:
        raise BadInput("--sites, --generated: give one of both")
    for option, value, choices in (
        ("--guard", guard, ("on", "off")),
        ("--on-verdict", on_verdict, ("show", "withhold", "exclude")),
    ):
        if value not in choices:
            raise BadInput(f"{option} {value}: expected one of {', '.join(choices)}")
    folder = generated_sites(out, generated) if generated else sites
    known = monitored_federation.ATTACKS if folder else attack_matrix.ATTACKS
    named = {"all": tuple(known), "worst": bench.WORST}.get(attacks, tuple(attacks.split(";")))
    if folder is None and rounds != ROUNDS:
        raise BadInput(f"--rounds {rounds}: made-up sites have {ROUNDS}; give --sites or --generated")
    of_networks = {"--set": settings, "--recipe": recipe, "--attacker": attacker, "--outlier": outlier}
    if folder is None and (needless := [option for option, value in of_networks.items() if value]):
        raise BadInput(f"{', '.join(needless)}: no network is trained on made-up sites; give --sites or --generated")
    asked = bench.DetectionBench(
        bench.TRAINED if folder else bench.MADE_UP,
        parse_methods(methods, attacked=True),
        [name.strip() for name in named],
        parse_seeds(seeds),
        after,
        guard,
        on_verdict or "withhold",
        folder,
        bench.assign_roles(folder, attacker, outlier or ("site5" if generated else None)) if folder else None,
        rounds,
        settings_of(settings, recipe),
    )
    found = bench.federations(
        asked, out, lambda case, done, of: console.print(f"{done + 1} of {of}: {case}", soft_wrap=True)
    )
    show(bench.detection(asked, found, out), out)
    console.print(f"all that was measured, every round, and figures: {out}", soft_wrap=True)
