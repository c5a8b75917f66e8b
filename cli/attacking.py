"""Commands on free riders and worse: attack, freeriders."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.app import (
    Device,
    Jobs,
    OutFolder,
    Rounds,
    ServerSites,
    Settings,
    SitesFolder,
    app,
    assignments,
    console,
    reports_bad_input,
    require_jobs,
)
from cli.progress import progress, resumable
from fedmerit.errors import BadInput

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from evaluation.display.table import Table
    from evaluation.freeriders.attacked_runs import Attack

KINDS = "repeat, zero, noise, delta, ..., duplicate, split, each with parameters where wanted: noise:from=5."


@app.command()
@reports_bad_input
def attack(
    kind: Annotated[str, typer.Option(help=f"One of {KINDS}")],
    site: Annotated[str, typer.Option(help="The site that misbehaves.")],
    sites: SitesFolder,
    out: OutFolder,
    method: Annotated[str, typer.Option(help="With parameters where wanted: fedce:combine=plus.")] = "fedce",
    rounds: Rounds = 30,
    seed: Annotated[int, typer.Option(help="Of both runs.")] = 0,
    jobs: Jobs = None,
    device: Device = None,
    server_sites: ServerSites = None,
    settings: Settings = None,
) -> None:
    """One run in which a site misbehaves, beside the same run in which all are honest: who was flagged, and when.

    Interrupted, the same command goes on. Exits with 1 where a run failed.
    """
    from evaluation.freeriders.outcomes import beside_honest

    for option, value in (("--kind", kind), ("--method", method)):
        if "," in value or value == "all":
            raise BadInput(f"{option} {value}: expected one; `fedmerit freeriders` takes several")
    attacks = _train(out, method, kind, [site], str(seed), sites, rounds, jobs, device, server_sites, settings)
    control, attacked = attacks
    _show(out, [beside_honest(attacked, control, _results(attacks))], {})


@app.command()
@reports_bad_input
def freeriders(
    sites: SitesFolder,
    out: OutFolder,
    kinds: Annotated[str, typer.Option(help=f"Behaviours: all, or some of {KINDS}")] = "all",
    methods: Annotated[
        str, typer.Option(help="Names, each with parameters where wanted: fedavg,fedce:combine=plus; or all.")
    ] = "fedavg,fedce,cgsv",
    riding: Annotated[str | None, typer.Option(help="Sites that misbehave in turn: A,B.", show_default="all")] = None,
    rounds: Rounds = 30,
    seeds: Annotated[str, typer.Option(help="Of every run.")] = "0",
    jobs: Jobs = None,
    device: Device = None,
    server_sites: ServerSites = None,
    settings: Settings = None,
) -> None:
    """Every site in turn misbehaves in every way under every method: what it pays, and what tells.

    Prints the matrix of methods and attacks; writes tables, and Figures 4 and 7 of the FedCE paper. Interrupted,
    the same command goes on. Exits with 1 where a run failed.
    """
    from evaluation.display.table import Table, write_tables
    from evaluation.freeriders.outcomes import outcomes, rocs, tables
    from evaluation.freeriders.rider_maps import figures
    from fedmerit.training.data import open_sites

    names = [folder.name for folder in open_sites(sites)] if riding is None else riding.split(",")
    attacks = _train(out, methods, kinds, names, seeds, sites, rounds, jobs, device, server_sites, settings)
    results = _results(attacks)
    _show(out, tables(attacks, results), figures(attacks, results))
    details = {"runs": outcomes(attacks, results), "roc": rocs(attacks, results)}
    write_tables([Table(name, "", frame) for name, frame in details.items()], out / "tables")


def _train(
    out: Path,
    methods: str,
    kinds: str,
    riding: Sequence[str],
    seeds: str,
    sites: Path,
    rounds: int,
    jobs: int | None,
    device: str | None,
    server_sites: Path | None,
    settings: list[str] | None,
) -> "list[Attack]":
    """All runs, those that are missing trained; exit code 1 where one failed."""
    from evaluation.freeriders.attacked_runs import parse_kinds, prepare, work_off
    from evaluation.studies.pool import workers_for
    from evaluation.studies.requests import parse_methods, parse_seeds
    from fedmerit.training.data import open_sites

    require_jobs(jobs)
    chosen = parse_kinds(kinds, open_sites(sites)[0].labels)
    given: dict[str, Any] = {"device": device, "server_sites": server_sites}
    options = {"sites": sites, "rounds": rounds} | {name: value for name, value in given.items() if value is not None}
    attacks = prepare(out, parse_methods(methods), chosen, riding, parse_seeds(seeds), assignments(settings), options)
    left = sum(not attack.finished for attack in attacks)
    workers = jobs or workers_for(attacks[0].folder)
    console.print(f"{len(attacks)} runs, {left} to do, {workers} at a time")
    with resumable(), progress() as bars:
        bar = bars.add_task("runs", total=left, last="")
        failed = work_off(attacks, workers, lambda folder, error: bars.advance(bar))
    for folder, error in failed.items():
        typer.echo(f"failed: {folder}: {error}", err=True)
    if failed:
        raise typer.Exit(1)
    return attacks


def _results(attacks: "Sequence[Attack]") -> Any:
    from evaluation.freeriders.attacked_runs import results_of

    return results_of(attacks)


def _show(out: Path, tables: "Sequence[Table]", figures: "Mapping[str, Figure]") -> None:
    """Print tables; write them and figures."""
    from evaluation.display.drawing import png
    from evaluation.display.pages import save_png
    from evaluation.display.table import file_name, print_table, write_tables

    for table in tables:
        print_table(table, console)
    write_tables(tables, out / "tables")
    for name, figure in figures.items():
        save_png(out / "figures" / f"{file_name(name)}.png", png(figure))
    console.print(f"runs, tables and figures: {out}", soft_wrap=True)
