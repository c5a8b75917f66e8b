"""Output that commands share: sites, runs, tables. Commands import it when they are called, as it loads torch."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Column
from rich.table import Table as RichTable

from fedmerit.configuration.description import read_plan
from fedmerit.records.results import read_run
from fedmerit.trainers.monai_trainer.data import SERVER_SPLIT, SPLITS, open_sites
from fedmerit.trainers.monai_trainer.networks import estimate_cost
from fedmerit_cli.terminal import console, plain_table
from fedmerit_evaluation.figures.tables import Table, print_table, write_tables
from fedmerit_evaluation.results.run_folders import combine_results, open_runs


def show(tables: Sequence[Table], out: Path) -> None:
    """Print tables, and write them below ``out/tables``."""
    for table in tables:
        print_table(table, console)
    write_tables(tables, out / "tables")


def print_runs(folders: Sequence[Path]) -> None:
    """Print Dice and contribution of finished runs, and their folders."""
    print_table(combine_results(open_runs(list(folders))).dice_and_contributions, console)
    for folder in folders:
        console.print(f"run folder: {folder}", soft_wrap=True)


def print_cost(folder: Path) -> None:
    """Print parameters, update size and operations of a run's network."""
    info = read_run(folder)
    network = read_plan(folder).network
    height, width = info["image_size"]
    cost = estimate_cost(network, (height, width))
    seen = "a patch" if network.patch else "an image"
    size = " x ".join(str(side) for side in network.patch or (height, width))
    console.print(
        f"{network.architecture}: {cost.parameters:,} parameters, {cost.update_bytes / 1e6:.1f} MB an update, "
        f"{cost.operations / 1e9:.2f} billion operations for {seen} of {size}"
    )


def print_sites(root: Path, count: int) -> None:
    """Print the cases of each site, and those left out or corrected, by reason."""
    sites = open_sites(root)
    columns = {f"{split} cases": split for split in SPLITS}
    if any(site.cases(SERVER_SPLIT) for site in sites):
        columns["server cases"] = SERVER_SPLIT
    longest = max(len(site.name) for site in sites)
    table = RichTable(
        Column("site", min_width=longest), *columns, "training slices", "files used", "left out", box=None
    )
    for site in sites:
        cases = [str(len(site.cases(split))) for split in columns.values()]
        slices = site.info["counts"]["training"]["slices"]
        table.add_row(site.name, *cases, str(slices), str(site.info["used"]["files"]), str(len(site.info["left_out"])))
    console.print(table)
    for title, field, key, what in (
        ("left out", "left_out", "reason", "files"),
        ("noted", "remarks", "remark", "cases"),
    ):
        _print_reasons(title, what, Counter((site.name, entry[key]) for site in sites for entry in site.info[field]))
    if unreadable := sum(site.info["unreadable_cases"] for site in sites):
        console.print(f"{unreadable} unreadable cases left out, as --skip-unreadable asks")
    console.print(f"{count} sites in {root}", soft_wrap=True)


def _print_reasons(title: str, what: str, counts: Mapping[tuple[str, str], int], most: int = 20) -> None:
    if not counts:
        return
    table = plain_table("site", what, title)
    ordered = sorted(counts.items(), key=lambda item: (item[0][0], -item[1], item[0][1]))
    for (site, reason), count in ordered[:most]:
        table.add_row(site, str(count), reason)
    console.print(table)
    if len(ordered) > most:
        console.print(f"and {len(ordered) - most} other reasons, all in the sites' site.json")
