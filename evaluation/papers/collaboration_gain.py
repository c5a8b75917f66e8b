"""What sites gain by collaborating (MCG) and how evenly (CGS), as tables and figures of CYCle (Tastan et al., 2025).

Dice is that of the test cases of all sites together, as in `evaluation.papers.dealt_sites`.
"""

import numpy as np
import pandas as pd

from evaluation.display import heat_maps
from evaluation.display.table import Table, file_name
from evaluation.fairness.measures import gain_spread, mean_gain
from evaluation.papers.artefact import Artefact, Drawn, Made, printed
from evaluation.papers.dealt_sites import alone_and_final, deal_of, dealt, methods_of, parameters_of, scatter
from evaluation.papers.study import Study
from fedmerit.errors import BadInput

TAUS = ("tau_opt", "tau_max")  # of Eq. 5, Tastan et al. 2025


def gains(study: Study, artefact: Artefact) -> Made:
    """Mean Dice, mean gain over training alone and its spread, by method and way of dealing."""
    columns = _measured(study, artefact)
    there = methods_of(artefact, columns)
    frame = pd.DataFrame(
        {"Method": there} | {name: column.reindex(there).to_list() for name, column in columns.items()}
    )
    caption = "Mean Dice (MVA), mean gain over training alone (MCG) and its spread over sites (CGS), means over seeds"
    return Made([Table(artefact.name, caption, frame, decimals=2), *printed(artefact.name, artefact.published)])


def gain_beside_spread(study: Study, artefact: Artefact) -> Made:
    """Gain and spread of every method on every deal, a point each."""
    columns = _measured(study, artefact)
    by_deal = {name.split(", ", 1)[1]: column for name, column in columns.items() if name.startswith("MCG")}
    parts = [
        pd.DataFrame({"MCG": gain, "CGS": columns[f"CGS [points], {deal}"]}).assign(deal=deal).reset_index()
        for deal, gain in by_deal.items()
    ]
    points = pd.concat(parts, ignore_index=True)
    return scatter(
        artefact,
        points,
        ("MCG", "Mean gain over training alone (MCG) [points]"),
        ("CGS", "Its spread over sites (CGS) [points]"),
    )


def gain_by_parameters(study: Study, artefact: Artefact) -> Made:
    """What `gains` has of one way of dealing, as two maps over `TAUS`, by the labels that set both."""
    made = gains(study, artefact)
    frame = made.tables[0].frame
    set_by = pd.DataFrame([parameters_of(label) for label in frame["Method"]], frame.index, list(TAUS)).dropna()
    frame = frame.loc[set_by.index]
    if frame.empty:
        raise BadInput("no training of cycle is finished; the same command goes on")
    (need,) = dealt(artefact)
    measured = {what: frame[f"{what}, {deal_of(need).heading}"].to_list() for what in ("MCG [points]", "CGS [points]")}
    numbers = set_by.astype(float).assign(**measured).reset_index(drop=True)
    figure = heat_maps.over_parameters(numbers, TAUS)
    return Made(made.tables, [Drawn(artefact.name, artefact.what, figure, numbers)])


def gains_by_site(study: Study, artefact: Artefact) -> Made:
    """Gain of each site over training alone, and who lost."""
    tables = []
    for need in dealt(artefact):
        alone, final = alone_and_final(study.results(need))
        gained = 100 * (final - alone).groupby(level="method").mean()
        there = [label for label in need.labels if label in gained.index]
        gained = gained.reindex(there)
        below = gained.to_numpy(float) < 0
        columns = {str(site): gained[site].to_list() for site in gained.columns}
        lost = [", ".join(np.array(list(columns))[row]) or "nobody" for row in below]
        frame = pd.DataFrame({"Method": there} | columns | {"Worse off than alone": lost})
        deal = deal_of(need).name
        caption = f"Gain in Dice over training alone [points], {deal}, mean over seeds; those below 0 are named"
        tables.append(Table(f"{artefact.name}-{file_name(deal).lower()}", caption, frame))
    return Made([*tables, *printed(artefact.name, artefact.published)])


def _measured(study: Study, artefact: Artefact) -> dict[str, pd.Series]:
    """By "MVA [%], Homogeneous" and so on, what each method has, mean over seeds."""
    columns: dict[str, pd.Series] = {}
    for need in dealt(artefact):
        alone, final = alone_and_final(study.results(need))
        both = (100 * alone.to_numpy(float), 100 * final.to_numpy(float))
        name = deal_of(need).heading
        for what, values in (
            ("MVA [%]", both[1].mean(axis=1)),
            ("MCG [points]", mean_gain(*both)),
            ("CGS [points]", gain_spread(*both)),
        ):
            columns[f"{what}, {name}"] = pd.Series(values, final.index).groupby(level="method").mean()
    return columns
