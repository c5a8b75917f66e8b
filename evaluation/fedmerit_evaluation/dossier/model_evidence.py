"""Evidence on the model: network, method, settings and machines; Dice with uncertainty, fairness, failures, shares."""

import inspect
from typing import Any

import pandas as pd

from fedmerit.methods.registry import METHODS
from fedmerit.schema.results import read_csv
from fedmerit.schema.scores import TOLERANCE
from fedmerit_evaluation.dossier.sources import DossierSources
from fedmerit_evaluation.report import caveats
from fedmerit_evaluation.report.contributions import contribution_shares
from fedmerit_evaluation.report.hospitals import sample_size
from fedmerit_evaluation.report.phrases import percent, points
from fedmerit_evaluation.report.shared_parts import surface_columns
from fedmerit_evaluation.results.evaluation import ESTIMATED
from fedmerit_evaluation.results.views import SURFACES
from fedmerit_evaluation.statistics.intervals import select_methods, select_sites
from fedmerit_evaluation.statistics.resampling import LEVEL


def network(file: DossierSources) -> str:
    """The architecture."""
    plan = file.info.get("plan", {}).get("network", {})
    described = ", ".join(
        f"{name} {value}" for name, value in plan.items() if name != "labels" and value not in ({}, None)
    )
    return f"{described}." if described else ""


def training(file: DossierSources) -> str:
    """The settings of local training."""
    described = ", ".join(f"{name} {value}" for name, value in file.info["training"].items())
    described = described or "by a script of the sites"
    return f"{file.run.rounds_done} of {file.run.rounds} rounds; local training: {described}."


def method(file: DossierSources) -> str:
    """The federated method and its parameters."""
    name = str(file.info["method"])
    about = METHODS[name].about if name in METHODS else None
    described = ", ".join(f"{key} {value}" for key, value in file.info["parameters"].items())
    text = f"Method {name}{f' ({described})' if described else ''}"
    return f"{text}. Weights: {about.weights}. {inspect.cleandoc(about.paper)}." if about else f"{text}."


def seeds(file: DossierSources) -> str:
    """Seeds of the runs."""
    numbers = sorted({run.seed for run in file.honest if run.label == file.run.label})
    return f"Initial parameters are random, by seed: {', '.join(map(str, numbers))}."


def selection(file: DossierSources) -> str:
    """Which round's model."""
    if not file.run.tested:
        return ""
    if file.info["training"].get("final_model", "method") != "method":
        return "Each site received the model that was best on its validation patients: results.csv has the choice."
    return f"The model after the last round, {file.run.rounds - 1} counted from 0."


def ensembles(file: DossierSources) -> str:
    """None is used."""
    return "None: one model is tested at a time." if file.run.tested else ""


def software(file: DossierSources) -> str:
    """Versions."""
    packages = ", ".join(f"{name} {number}" for name, number in file.info.get("packages", {}).items())
    version = file.info.get("fedmerit_version")
    return f"FedMerit {version}{f' ({packages})' if packages else ''}, Apache-2.0." if version else ""


def hardware(file: DossierSources) -> str:
    """Devices of the run."""
    return f"Trained on {file.info['device']}, engine {file.info['engine']}." if file.info.get("device") else ""


def cost(file: DossierSources) -> str:
    """Seconds and bytes."""
    costs = file.run.results.rounds.costs
    if "seconds" not in costs:
        return ""
    rounds = file.run.rounds_done
    text = f"{costs['seconds'].sum() * rounds / 60:.0f} minutes of sites' time in the run"
    sent = f", {costs['bytes_sent'].sum() * rounds / 1e6:.0f} MB sent" if "bytes_sent" in costs else ""
    return f"{text}{sent}. Energy was not measured."


TRAINING = (network, training, method, seeds, selection, ensembles, software, hardware, cost)


def measures(file: DossierSources) -> str:
    """Which were recorded."""
    if file.results.dice.rows.empty:
        return ""
    surfaces = [name for name in SURFACES if name in file.results.dice.sites]
    text = "Dice per case over all its slices, mean over labels, then cases, then sites"
    return f"{text}; also HD95 and NSD at {TOLERANCE:g}." if surfaces else f"{text}."


def uncertainty(file: DossierSources) -> str:
    """How confidence intervals are computed, and their sample size."""
    if file.results.dice.rows.empty:
        return ""
    sample = sample_size(file.results, methods=file.method and [file.method])
    return (
        f"{100 * LEVEL:g} % confidence intervals: Student's t, seeds and test patients as crossed random effects, or "
        "over folds. "
        f"Fewest test cases of a site: {sample.cases}; seeds: {sample.seeds}."
    )


def performance(file: DossierSources) -> str:
    """Test Dice, overall and by site, with HD95 and NSD."""
    if not file.is_tested:
        return ""
    table = select_methods(file.results.dice.intervals, "mean")
    sites = select_sites(file.results.dice.intervals, "dice").loc[file.method]
    described = ", ".join(f"{site} {_with_ends(row)}" for site, row in sites.iterrows())
    text = f"Mean test Dice {_with_ends(pd.Series(table.T[file.method]))}; by site: {described}."
    tested = pd.DataFrame(file.results.dice.sites.xs(str(file.method), level="method"))
    means = tested.mean().to_frame().T.dropna(axis=1)
    surfaces = [f"{name} {column.iloc[0]:.1f}" for name, column in surface_columns(means).items()]
    return f"{text} Means over sites: {', '.join(surfaces)}." if surfaces else text


def fairness(file: DossierSources) -> str:
    """Spread over sites, and gains over local training."""
    if not file.is_tested:
        return ""
    row = pd.Series(pd.DataFrame(file.results.dice.by_site.loc[file.method]).mean())
    text = f"Dice by site from {percent(row.min())} ({row.idxmin()}) to {percent(row.max())} ({row.idxmax()})"
    gains = file.results.dice.gains
    if file.method in gains.index:
        gain = pd.Series(gains.loc[file.method]).dropna()
        lowest, highest = points(float(gain.min())), points(float(gain.max()))
        text += f"; gain over local training from {lowest} ({gain.idxmin()}) to {highest} points"
    return f"{text}. Groups of patients by age, sex or the like were not compared."


def failures(file: DossierSources) -> str:
    """The lowest cases."""
    if not file.is_tested:
        return ""
    lowest = file.results.dice.sites["lowest"].xs(file.method, level="method").groupby(level="site").min()
    return f"Lowest Dice of a test case: {', '.join(f'{site} {percent(value)}' for site, value in lowest.items())}."


def robustness(file: DossierSources) -> str:
    """Runs with simulated attacks."""
    attacks = [f"{run.label}: {site} ({kind})" for run in file.runs for site, kind in run.attacks.items()]
    return f"Runs with simulated attacks: {'; '.join(attacks)}; see report.html." if attacks else ""


def external(file: DossierSources) -> str:
    """Tests on sites that took no part, from `fedmerit evaluate`."""
    found = []
    for table in sorted((file.run.path / "evaluation").glob("*.csv")):
        # a site may be called NA
        rows, _ = read_csv(table, {"site": str, "case": str, "value": float})
        if not {"split", "quantity", "site", "value"} <= set(rows):
            continue  # another table, such as of losses
        tested = rows[(rows["split"] == "testing") & (rows["quantity"] == "dice")]
        others = tested[~tested["site"].isin(file.run.sites)]
        described = [f"{site} {percent(part['value'].mean())}" for site, part in others.groupby("site")]
        how = ", with BatchNorm statistics of their own training images" * table.stem.endswith(ESTIMATED)
        found += [f"{', '.join(described)} ({table.name}{how})"] if described else []
    return f"Mean test Dice at sites that took no part: {'; '.join(found)}." if found else ""


def limits(file: DossierSources) -> str:
    """The report's own caveats."""
    said = [*caveats.list_run_caveats(file.honest, file.results), *caveats.list_case_caveats(file.results)]
    return " ".join(said)


def contributions(file: DossierSources) -> str:
    """Shares by the method's estimate."""
    shares = contribution_shares(file.results).get(file.method or "", {})
    described = ", ".join(f"{site} {percent(share.mean)}" for site, share in shares.items())
    return f"Shares by the method's own estimate: {described}. They are not a basis for payment." if described else ""


RESULTS = (measures, uncertainty, performance, fairness, failures, robustness, external, limits, contributions)


def _with_ends(row: "pd.Series[Any]") -> str:
    ends = f" [{percent(row['low'])}, {percent(row['high'])}]" if pd.notna(row["low"]) else ""
    return f"{percent(row['mean'])}{ends}"
