"""The survey of the sites' images before training: a page, tables, a figure of intensities."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import style
from matplotlib.figure import Figure
from rich.console import Console

from fedmerit.files import write_json
from fedmerit.schema.survey import AREA, PLANE, VALUES_CUT, VOLUME, Quantity, Survey, find_quantity, is_intensity
from fedmerit_data.figure_style import STYLE
from fedmerit_data.pages import write_page
from fedmerit_data.tables import write_csv
from fedmerit_evaluation.figures.drawing import legend, panels, site_style, titled
from fedmerit_evaluation.figures.pages import Drawing, pictures
from fedmerit_evaluation.figures.tables import MINUS, Table, print_table, write_tables

ALL_SITES = "all sites"
HIDDEN = "\N{LESS-THAN SIGN}"  # before the floor, instead of a 0
FAR = 8.0  # times; hospitals' organs differ by less; lengths in another unit are in the outermost bins
LITTLE = 0.5  # share of intensities that a site has in common with the others; of four prostate hospitals .8 and more
MOST = 50  # % of the values beyond the window
LENGTHS = ("pixel_spacing", "slice_spacing", "field_of_view")

Shares = Mapping[str, np.ndarray[tuple[int], np.dtype[np.float64]]]  # of each site, by bin


def write_survey(survey: Survey, out: Path, console: Console) -> Path:
    """Write ``survey.html``, ``survey.csv`` and ``survey.json`` into ``out``, tables and figures beside; print tables.

    Returns:
        The page.
    """
    shown = [
        name
        for name in _names(survey)
        if any(any(one.tallies[name].patients) for one in survey.sites.values() if name in one.tallies)
    ]
    tables = [sites_table(survey), *(survey_table(survey, name) for name in shown if not is_intensity(name))]
    for table in tables:
        print_table(table, console)
    hidden = [
        f"{find_quantity(name).title}: no bin has {survey.floor} patients or more at any site: none is shown."
        for name in _names(survey)
        if name not in shown
    ]
    for text in hidden:
        console.print(text, soft_wrap=True, markup=False)
    differences = survey_differences(survey)
    for text in differences:
        console.print(text, soft_wrap=True, markup=False)
    for name, why in survey.refused.items():
        console.print(f"{name}: no answer: {why}", soft_wrap=True, markup=False)
    write_tables(tables, out / "tables")
    write_json(out / "survey.json", survey.to_dict())
    write_csv(out / "survey.csv", long_table(survey))
    drawn = {
        f"intensity{number or ''}": Drawing(_caption(survey, name), intensities(survey, name), _visible(survey, name))
        for number, name in enumerate(filter(is_intensity, shown))
    }
    page = out / "survey.html"
    write_page(
        page,
        "fedmerit_evaluation.report",
        "survey.html.j2",
        survey=survey,
        tables=tables,
        hidden=hidden,
        differences=differences,
        pictures=pictures(drawn, out / "figures"),
        names=", ".join(survey.sites),
    )
    return page


def sites_table(survey: Survey) -> Table:
    """Return a row per site: patients and slices."""
    rows = [(name, one.patients, one.slices) for name, one in survey.sites.items()]
    if len(rows) > 1:
        rows.append((ALL_SITES, sum(row[1] for row in rows), sum(row[2] for row in rows)))
    frame = pd.DataFrame(rows, columns=["Site", "Patients", "Slices"])
    return Table("sites", "Patients and slices, all splits", frame, decimals=0)


def survey_table(survey: Survey, name: str) -> Table:
    """Return a row per site and one of their sum, a column per bin that any site fills: patients."""
    quantity = find_quantity(name)
    counts = {site: one.tallies[name].patients for site, one in survey.sites.items() if name in one.tallies}
    if len(counts) > 1:
        counts[ALL_SITES] = tuple(map(sum, zip(*counts.values(), strict=True)))
    filled = [place for place in range(quantity.bins) if any(row[place] for row in counts.values())]
    below = f"{HIDDEN} {survey.floor}"
    frame = pd.DataFrame(
        [[site, *(str(row[place]) if row[place] else below for place in filled)] for site, row in counts.items()],
        columns=["Site", *(bin_name(quantity, place) for place in filled)],
    )
    unit = f" [{quantity.unit}]" if quantity.unit else ""
    return Table(name.replace(" ", "-"), f"{quantity.title}{unit}: patients", frame)


def bin_name(quantity: Quantity, place: int) -> str:
    """Return a bin in words."""
    if quantity.names:
        return quantity.names[place]
    edges = [f"{edge:g}".replace("-", MINUS) for edge in quantity.edges]
    if place == 0:
        return f"below {edges[0]}"
    return f"{edges[-1]} and more" if place == len(edges) else f"{edges[place - 1]} to {edges[place]}"


def long_table(survey: Survey) -> pd.DataFrame:
    """Return a row per site, quantity and bin; 0: the bin is empty or below the floor."""
    rows = [
        (site, name, quantity.unit, low, high, patients, voxels)
        for site, one in survey.sites.items()
        for name, tally in one.tallies.items()
        for quantity in [find_quantity(name)]
        for low, high, patients, voxels in zip(
            (-np.inf, *quantity.edges),
            (*quantity.edges, np.inf),
            tally.patients,
            tally.voxels or (np.nan,) * quantity.bins,
            strict=True,
        )
    ]
    table = pd.DataFrame(rows, columns=["site", "quantity", "unit", "from", "to", "patients", "voxels"])
    return table.astype({"voxels": "Int64"})


def intensities(survey: Survey, name: str) -> Figure:
    """Share of a site's voxels in each bin that is shown: a line per site."""
    edges, names = np.array(find_quantity(name).edges), list(survey.sites)
    with style.context(STYLE):
        figure, (panel,) = panels(1)
        handles = []
        for site, one in survey.sites.items():
            if name not in one.tallies:
                continue
            voxels = np.array(one.tallies[name].voxels[1:-1], dtype=float)
            share = 100 * voxels / max(voxels.sum(), 1)
            handles += panel.step(
                edges, np.append(share, share[-1]), where="post", label=site, **site_style(names, site)
            )
        panel.set_ylim(bottom=0)
        legend(figure, handles)
        titled(figure, "Voxels [%]", "Intensity, as prepared")
    return figure


def _names(survey: Survey) -> list[str]:
    return list(dict.fromkeys(name for one in survey.sites.values() for name in one.tallies))


def _caption(survey: Survey, name: str) -> str:
    return f"{find_quantity(name).title}: share of each site's voxels, in bins with {survey.floor} patients or more."


def _visible(survey: Survey, name: str) -> str:
    quantity, highest = find_quantity(name), []
    for site, one in survey.sites.items():
        if name in one.tallies and any(one.tallies[name].voxels):
            place = int(np.argmax(one.tallies[name].voxels))
            highest.append(f"{site} has most voxels at {bin_name(quantity, place)}")
    return f"{_caption(survey, name)} {'; '.join(highest)}."


def survey_differences(survey: Survey) -> list[str]:
    """Return a sentence for each site and quantity in which it differs from the others."""
    names = dict.fromkeys(name for one in survey.sites.values() for name in one.tallies)
    return [text for name in names for text in _differences(name, _shares(survey, name))]


def _shares(survey: Survey, name: str) -> Shares:
    """Return the shares of bins by site, without sites that say nothing of a quantity or only bins below the floor."""
    counts = {
        site: np.array(one.tallies[name].voxels or one.tallies[name].patients, float)
        for site, one in survey.sites.items()
        if name in one.tallies
    }
    return {site: row / row.sum() for site, row in counts.items() if row.any()}


def _differences(name: str, shares: Shares) -> Iterator[str]:
    quantity, kind = find_quantity(name), name.partition(" ")[0]
    compare: Callable[[str, Shares, Quantity], str | None] | None = None
    if is_intensity(name):
        compare = _intensity
    elif kind in (*LENGTHS, VOLUME, AREA):
        compare = _size
    elif kind in (PLANE, VALUES_CUT):
        compare = _plane if kind == PLANE else _cut
    for site in shares if compare and len(shares) > 1 else ():
        assert compare is not None
        if text := compare(site, shares, quantity):
            yield f"{site}: {text}"


def _intensity(site: str, shares: Shares, quantity: Quantity) -> str | None:
    others = np.mean([row for name, row in shares.items() if name != site], axis=0)
    common = float(np.minimum(shares[site], others).sum())
    if common >= LITTLE:
        return None
    return f"its intensities have {common:.0%} in common with the other sites': is its modality or window another?"


def _size(site: str, shares: Shares, quantity: Quantity) -> str | None:
    own, others = _median(shares[site], quantity), _others(site, shares, quantity)
    is_beyond = quantity.unit == "mm" and own in (quantity.edges[0], quantity.edges[-1]) and own != others
    if 1 / FAR < own / others < FAR and not is_beyond:
        return None
    why = "is its unit of length right?" if quantity.unit == "mm" else "do its labels mean the same?"
    return f"{quantity.title}: about {own:.3g} {quantity.unit}, the other sites {others:.3g}: {why}"


def _plane(site: str, shares: Shares, quantity: Quantity) -> str | None:
    own = int(np.argmax(shares[site]))
    others = int(np.argmax(np.sum([row for name, row in shares.items() if name != site], axis=0)))
    if own == others:
        return None
    return f"its slices are {quantity.names[own]}, those of the other sites {quantity.names[others]}"


def _cut(site: str, shares: Shares, quantity: Quantity) -> str | None:
    own, others = _median(shares[site], quantity), _others(site, shares, quantity)
    if not others < MOST <= own:
        return None
    return "most of its values are beyond the window, those of the other sites are not: are they Hounsfield units?"


def _others(site: str, shares: Shares, quantity: Quantity) -> float:
    return float(np.median([_median(row, quantity) for name, row in shares.items() if name != site]))


def _median(row: np.ndarray[tuple[int], np.dtype[np.float64]], quantity: Quantity) -> float:
    """Return the middle of the bin that half of the patients are below; of an outer bin its one edge."""
    place = int(np.searchsorted(np.cumsum(row), 0.5))
    low, high = quantity.edges[max(place - 1, 0)], quantity.edges[min(place, len(quantity.edges) - 1)]
    return float(np.sqrt(low * high))
