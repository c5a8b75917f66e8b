"""Evidence of what it came to: Dice with its uncertainty, fairness, failures, and what each site contributed."""

from typing import Any

import pandas as pd

from evaluation.dossier.file import File
from evaluation.report import caveats
from evaluation.report.contribution_shares import contribution_shares
from evaluation.report.hospitals import grounds_of
from evaluation.report.parts import surface_columns
from evaluation.report.words import percent, points
from evaluation.results.bootstrap import DRAWS, LEVEL
from evaluation.results.dice import SURFACES
from evaluation.results.evaluate import ESTIMATED
from evaluation.results.intervals import of_methods, of_sites
from fedmerit.training.overlaps import TOLERANCE


def measures(file: File) -> str:
    """Which were recorded."""
    if file.results.dice.rows.empty:
        return ""
    surfaces = [name for name in SURFACES if name in file.results.dice.sites]
    text = "Dice per case over all its slices, mean over labels, then cases, then sites"
    return f"{text}; HD95 and NSD at {TOLERANCE:g} beside it." if surfaces else f"{text}."


def uncertainty(file: File) -> str:
    """How intervals are made, and on what they rest."""
    if file.results.dice.rows.empty:
        return ""
    grounds = grounds_of(file.results, methods=file.method and [file.method])
    return (
        f"{100 * LEVEL:g} % intervals of {DRAWS} draws: of test cases within sites with replacement, of seeds by "
        "Student's t. "
        f"Fewest test cases of a site: {grounds.cases}; seeds: {grounds.seeds}."
    )


def performance(file: File) -> str:
    """Test Dice, overall and by site, with HD95 and NSD."""
    if not file.is_tested:
        return ""
    table = of_methods(file.results.dice.intervals, "mean")
    sites = of_sites(file.results.dice.intervals, "dice").loc[file.method]
    told = ", ".join(f"{site} {_with_ends(row)}" for site, row in sites.iterrows())
    text = f"Mean test Dice {_with_ends(pd.Series(table.T[file.method]))}; by site: {told}."
    tested = pd.DataFrame(file.results.dice.sites.xs(str(file.method), level="method"))
    means = tested.mean().to_frame().T.dropna(axis=1)
    surfaces = [f"{name} {column.iloc[0]:.1f}" for name, column in surface_columns(means).items()]
    return f"{text} Means over sites: {', '.join(surfaces)}." if surfaces else text


def fairness(file: File) -> str:
    """Spread over sites, and gains over training alone."""
    if not file.is_tested:
        return ""
    row = pd.Series(pd.DataFrame(file.results.dice.by_site.loc[file.method]).mean())
    text = f"Dice by site from {percent(row.min())} ({row.idxmin()}) to {percent(row.max())} ({row.idxmax()})"
    gains = file.results.dice.gains
    if file.method in gains.index:
        gain = pd.Series(gains.loc[file.method]).dropna()
        lowest, highest = points(float(gain.min())), points(float(gain.max()))
        text += f"; gain over training alone from {lowest} ({gain.idxmin()}) to {highest} points"
    return f"{text}. Groups of patients by age, sex or the like were not compared."


def failures(file: File) -> str:
    """The lowest cases."""
    if not file.is_tested:
        return ""
    lowest = file.results.dice.sites["lowest"].xs(file.method, level="method").groupby(level="site").min()
    return f"Lowest Dice of a test case: {', '.join(f'{site} {percent(value)}' for site, value in lowest.items())}."


def robustness(file: File) -> str:
    """Runs with attackers, and seeds."""
    planted = [f"{run.label}: {site} ({kind})" for run in file.runs for site, kind in run.attacks.items()]
    return f"Runs with attackers in them: {'; '.join(planted)}; see report.html." if planted else ""


def external(file: File) -> str:
    """Tests on sites that took no part, that `fedmerit evaluate` left in the run folder."""
    found = []
    for table in sorted((file.run.path / "evaluation").glob("*.csv")):
        # a site may be called NA
        rows = pd.read_csv(table, dtype={"site": str, "case": str}, keep_default_na=False, na_values={"value": [""]})
        if not {"split", "quantity", "site", "value"} <= set(rows):
            continue  # another table, such as of losses
        tested = rows[(rows["split"] == "testing") & (rows["quantity"] == "dice")]
        others = tested[~tested["site"].isin(file.run.sites)]
        told = [f"{site} {percent(part['value'].mean())}" for site, part in others.groupby("site")]
        how = ", with BatchNorm statistics of their own training images" * table.stem.endswith(ESTIMATED)
        found += [f"{', '.join(told)} ({table.name}{how})"] if told else []
    return f"Mean test Dice at sites that took no part: {'; '.join(found)}." if found else ""


def limits(file: File) -> str:
    """The report's own caveats."""
    said = [*caveats.of_runs(file.honest, file.results), *caveats.of_cases(file.results)]
    return " ".join(said)


def contributions(file: File) -> str:
    """Shares by the method's estimate."""
    shares = contribution_shares(file.results).get(file.method or "", {})
    told = ", ".join(f"{site} {percent(share.mean)}" for site, share in shares.items())
    return f"Shares by the method's own estimate: {told}. They are no price." if told else ""


RESULTS = (measures, uncertainty, performance, fairness, failures, robustness, external, limits, contributions)


def _with_ends(row: "pd.Series[Any]") -> str:
    ends = f" [{percent(row['low'])}, {percent(row['high'])}]" if pd.notna(row["low"]) else ""
    return f"{percent(row['mean'])}{ends}"
