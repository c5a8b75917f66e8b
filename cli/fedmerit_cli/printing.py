"""Output that commands share: sites, runs, tables. Commands import it when they are called, as it loads torch."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Column
from rich.table import Table as RichTable

from fedmerit.configuration.description import read_plan
from fedmerit.records.run_info import read_run
from fedmerit.trainers.monai_trainer.data import SERVER_SPLIT, SPLITS, SiteFolder, open_sites
from fedmerit.trainers.monai_trainer.networks import estimate_cost
from fedmerit_cli.terminal import console, plain_table
from fedmerit_data.spatial.readings import stated_readings, summarise
from fedmerit_evaluation.figures.tables import Table, print_table, write_tables
from fedmerit_evaluation.results.run_folders import combine_results, open_runs

NAMED = 3  # files or cases of one reason


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
    if folds := sites[0].folds:
        console.print(f"{folds} folds, each patient tested in one; the table shows fold 0")
    longest = max(len(site.name) for site in sites)
    table = RichTable(
        Column("site", min_width=longest), *columns, "training slices", "files used", "left out", box=None
    )
    for site in sites:
        cases = [str(len(site.cases(split))) for split in columns.values()]
        slices = site.info["counts"]["training"]["slices"]
        table.add_row(site.name, *cases, str(slices), str(site.info["used"]["files"]), str(len(site.info["left_out"])))
    console.print(table)
    _print_readings(sites)
    for title, field, key, what, name in (
        ("left out", "left_out", "reason", "files", "file"),
        ("noted", "remarks", "remark", "cases", "case"),
    ):
        found = defaultdict[tuple[str, str], list[str]](list)
        for site in sites:
            for entry in site.info[field]:
                found[site.name, entry[key]].append(entry[name])
        _print_reasons(title, what, found)
    if unreadable := sum(site.info["unreadable_cases"] for site in sites):
        console.print(f"{unreadable} unreadable cases left out, as --skip-unreadable asks")
    console.print(f"{count} sites in {root}", soft_wrap=True)


def _print_readings(sites: Sequence[SiteFolder]) -> None:
    """How the cases of each site were read, and what was left of them; nothing if site.json does not say."""
    read = {site.name: summarise(readings, site.labels) for site in sites if (readings := stated_readings(site.info))}
    headings = list(dict.fromkeys(heading for cells in read.values() for heading in cells))
    if not headings:
        return
    table = plain_table("site", *headings)
    for name, cells in read.items():
        table.add_row(name, *(cells.get(heading, "") for heading in headings))
    console.print(table)


def _print_reasons(title: str, what: str, found: Mapping[tuple[str, str], Sequence[str]], most: int = 20) -> None:
    """The number of files or cases of each reason, most first, and the first of them."""
    if not found:
        return
    table = plain_table("site", what, title, "such as")
    ordered = sorted(found.items(), key=lambda item: (item[0][0], -len(item[1]), item[0][1]))
    for (site, reason), names in ordered[:most]:
        table.add_row(site, str(len(names)), reason, ", ".join(names[:NAMED]))
    console.print(table)
    if len(ordered) > most:
        console.print(f"and {len(ordered) - most} other reasons, all in the sites' site.json")
