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
        typer.Option(help="Train networks on these site folders.", show_default="six synthetic sites, tiny model"),
    ] = None,
    generated: Annotated[
        int | None, typer.Option(metavar="PIXELS", help="Train networks on six generated sites of this size.")
    ] = None,
    methods: Methods = "fedavg,fedce,cgsv",
    attacks: Annotated[
        str, typer.Option(metavar="all|worst|NAME;NAME", help="worst: the ten with the largest gain.")
    ] = "all",
    seeds: Annotated[str, typer.Option(help="Of every federation.")] = "0,1,2",
    rounds: Annotated[int, typer.Option(min=4, help="Of every federation.")] = ROUNDS,
    after: Annotated[int, typer.Option(min=1, help="Rounds of an attack after which detection is scored.")] = 10,
    attacker: Annotated[str | None, typer.Option(help="Site that attacks.", show_default="the last")] = None,
    outlier: Annotated[str | None, typer.Option(help="Honest site of images unlike the others'.")] = None,
    guard: Annotated[str, typer.Option(metavar="on|off", help="Of every federation.")] = "on",
    on_verdict: OnVerdict = "withhold",
    settings: Settings = None,
    recipe: Recipe = None,
) -> None:
    """Compare detectors of free riders and poisoning, and the gain from attacks, over methods and seeds.

    The guard and detectors of other papers monitor every federation: AUROC and F1 by round with 95 % CI over seeds,
    and false positives among honest sites. docs/trust.md describes them. An interrupted benchmark resumes.
    """
    from fedmerit_cli.printing import show
    from fedmerit_evaluation.studies.study_folders import parse_methods, parse_seeds
    from fedmerit_lab.benchmarks import detection_benchmark as bench
    from fedmerit_lab.benchmarks.generated_sites import generated_sites
    from fedmerit_lab.detection.simulated_attacks import ATTACKS, WORST

    if sites and generated:
        raise BadInput("--sites, --generated: give one of both")
    for option, value, choices in (
        ("--guard", guard, ("on", "off")),
        ("--on-verdict", on_verdict, ("show", "withhold", "exclude")),
    ):
        if value not in choices:
            raise BadInput(f"{option} {value}: expected one of {', '.join(choices)}")
    folder = generated_sites(out, generated) if generated else sites
    named = {"all": tuple(ATTACKS), "worst": WORST}.get(attacks, tuple(attacks.split(";")))
    asked = bench.DetectionBench(
        parse_methods(methods, attacked=True),
        [name.strip() for name in named],
        parse_seeds(seeds),
        after,
        guard,
        on_verdict or "withhold",
        folder,
        attacker,
        outlier or ("site5" if generated else None),
        rounds,
        settings_of(settings, recipe),
    )
    found = bench.federations(
        asked, out, lambda case, done, of: console.print(f"{done + 1} of {of}: {case}", soft_wrap=True)
    )
    show(bench.detection(asked, found, out), out)
    console.print(f"all that was measured, every round, and figures: {out}", soft_wrap=True)
