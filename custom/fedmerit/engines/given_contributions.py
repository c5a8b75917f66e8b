"""Contributions read from a finished run, for methods that take them as input, as FedSAC does."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmerit.errors import BadInput
from fedmerit.methods.registry import METHODS
from fedmerit.schema.results import read_results
from fedmerit.schema.run_info import read_run
from fedmerit.server.checkpoint import is_finished


def read_contributions(run: Path, sites: Sequence[str]) -> dict[str, float]:
    """By site, in the order of ``sites``: what a standalone run reached, or the last reputation that another run gave.

    Of a standalone run it is the mean validation Dice of the last round, over cases of the mean over labels, 0 to 1.

    Raises:
        BadInput: the run is not finished, is of other sites, or says nothing of contributions in [0, 1].
    """
    info = read_run(run)
    method = info["method"]
    if not is_finished(run, info["rounds"]):
        raise BadInput(
            f"{run}: not finished; contributions are taken from a whole run, of standalone or another method"
        )
    if method not in METHODS or (method != "standalone" and METHODS[method].about.contribution == "none"):
        raise BadInput(
            f"{run}: method {method} says nothing of contributions; take a run of standalone, or another one"
        )
    results = read_results(run)
    if method == "standalone":
        wanted = (results["quantity"] == "dice") & (results["split"] == "validation")
        what, rows = "validation Dice", results[wanted & (results["round"] == results.loc[wanted, "round"].max())]
        found = rows.groupby(["site", "case"])["value"].mean().groupby("site").mean()
    else:
        rows = results[(results["quantity"] == "reputation") & (results["split"] == "")]
        what, found = "reputation", rows.sort_values("round", kind="stable").groupby("site")["value"].last()
    values = {site: float(found[site]) if site in found.index else float("nan") for site in sites}
    if missing := [site for site, value in values.items() if value != value]:
        there = ", ".join(str(site) for site in found.dropna().index)
        raise BadInput(f"{run}: no {what} of {', '.join(missing)}; it has that of {there or 'no site'}")
    if beyond := [f"{site} {value:g}" for site, value in values.items() if not 0 <= value <= 1]:
        raise BadInput(f"{run}: {what} of {', '.join(beyond)} is not within 0 to 1; take a run of another method")
    return values


def format_setting(contributions: dict[str, float]) -> str:
    """Contributions in the order of site names, as ``--set contributions=`` takes them."""
    return ",".join(repr(contributions[site]) for site in sorted(contributions))


def add_contributions(settings: Mapping[str, Any], run: Path | None, sites: Sequence[str]) -> dict[str, Any]:
    """The settings, and what these sites contributed to a finished ``run``, if one is given.

    Raises:
        BadInput: the settings have contributions already, or the run has none of these sites.
    """
    if run is None:
        return dict(settings)
    if "contributions" in settings:
        raise BadInput("--contributions: also given by --set; give them once")
    return {**settings, "contributions": format_setting(read_contributions(run, sites))}
