"""The report of one or several runs on all sites, for whoever steers them: one HTML file, tables and figures beside."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from evaluation import figures, tables
from evaluation.formats import Table, write_tables
from evaluation.pages import Picture, photograph, pictures, write_page
from evaluation.report import caveats, marks, summary
from evaluation.report.agreement import Agreement, agreements
from evaluation.report.intervals import by_rank, contribution_intervals, dice_intervals, of_methods, of_sites
from evaluation.report.overlay import draw, overlays
from evaluation.report.report_tables import report_tables
from evaluation.runs import Run, open_runs, together
from fedmerit.errors import BadInput

OF_ONE_RUN = ("run", "method", "command", "started")  # of run.json, what is in no table of several runs
MOST_SHOWN = 2  # methods whose segmentations are shown side by side
ROUNDS = {
    "weight": ("weights", "Aggregation weight of each site over the rounds."),
    "contribution": ("contributions", "Contribution of each site as the method estimates it, round by round."),
    "reputation": ("reputation", "Reputation: contribution remembered over rounds."),
}


def write_report(
    runs: Sequence[Path],
    out: Path | None = None,
    *,
    sites: Path | None = None,
    images: bool = True,
    truth: Path | None = None,
) -> Path:
    """Write report.html of one run or of several compared, with ``tables/`` and ``figures/`` beside it.

    Args:
        runs: run folders, on the same task and sites.
        out: where to; default ``RUN/report.html``, or report.html in the runs' common parent.
        sites: the prepared site folders; default those of the first run, where they are on this machine.
        images: whether to show test images with outlines. Such a report must not leave the hospital.
        truth: a folder of trained coalitions of the same sites (`fedmerit loo`, `fedmerit shapley`).

    Returns:
        The path of the HTML file.

    Raises:
        BadInput: a run is unusable or empty, the runs do not belong together, or the ground truth is not of them.
    """
    opened = open_runs(runs)
    results = together(opened)
    intervals, said = dice_intervals(results), contribution_intervals(results)
    agreed, truth_notes = agreements(opened, results, truth) if truth is not None else ([], [])
    suspicions, silent = marks.suspected(opened)
    out = common_folder(opened) / "report.html" if out is None else Path(out)
    shown = report_tables(opened, results, intervals, said)
    extra = [table for one in agreed for table in (one.of_values, one.of_methods)]
    write_tables([*shown.values(), *extra, *([suspicions] if len(suspicions.frame) else [])], out.parent / "tables")
    drawn = _drawn(results, intervals) | _drawn_agreements(agreed)
    for name in {"peers", *(name for name, _ in ROUNDS.values())} - set(drawn):
        (out.parent / "figures" / f"{name}.png").unlink(missing_ok=True)
    overlay, overlay_note = _overlay(opened, intervals, sites, out.parent / "figures", images=images)
    settings, differing = settings_of(opened, [_shown(run) for run in opened])
    write_page(
        out,
        "report.html.j2",
        runs=opened,
        title=_title(opened),
        facts=summary.facts(results),
        sentences=[*summary.sentences(results, intervals), *marks.suspicion_in_words(suspicions.frame)],
        of_methods=summary.method_by_method(results),
        notes=caveats.of_runs(opened, results),
        caveats=[
            *caveats.of_ranks(intervals),
            *caveats.of_contributions(results, said),
            *caveats.of_cases(results),
            *(caveat for one in agreed for caveat in one.caveats),
            *(f"Ground truth: {note}." for note in truth_notes),
        ],
        tables=shown,
        agreements=agreed,
        suspicions=suspicions,
        silent=silent,
        pictures=pictures(drawn, out.parent / "figures"),
        overlay=overlay,
        overlay_note=overlay_note,
        settings=settings,
        differing=Table("runs", "What differs between the methods' runs", differing),
    )
    return out


def common_folder(runs: Sequence[Run]) -> Path:
    """The run's folder, or the runs' common parent."""
    if len(runs) == 1:
        return runs[0].path
    paths = [run.path.resolve().parent for run in runs]
    return next(path for path in (paths[0], *paths[0].parents) if all(one.is_relative_to(path) for one in paths))


def settings_of(runs: Sequence[Run], shown: Sequence[Mapping[str, Any]]) -> tuple[dict[str, str], pd.DataFrame]:
    """Settings of runs as (those that all share, a row per method of those that differ, all values of its runs)."""
    table = pd.DataFrame([_flat(one) for one in shown]).fillna("")
    same = [name for name in table if table[name].nunique() == 1]
    differing = table.drop(columns=[*same, *(name for name in OF_ONE_RUN if name in table and name not in same)])
    labels = [run.label for run in runs]
    rows = [
        {"Method": label} | {name: ", ".join(filter(None, dict.fromkeys(part[name]))) for name in differing}
        for label, part in differing.groupby(labels, sort=False)
    ]
    return {str(name): table[name].iloc[0] for name in same}, pd.DataFrame(rows)


def shared_quantities(results: pd.DataFrame) -> dict[str, list[str]]:
    """The quantities of rounds that are recorded, each with those that are the very same numbers."""
    seen: dict[str, list[str]] = {}
    for quantity in ROUNDS:
        rounds = tables.per_round(results, quantity)
        if rounds.isna().all(axis=None):
            continue
        same = [other for other in seen if rounds.equals(tables.per_round(results, other))]
        if same:
            seen[same[0]].append(quantity)
        else:
            seen[quantity] = []
    return seen


def _title(runs: Sequence[Run]) -> str:
    labels = list(dict.fromkeys(run.label for run in runs))
    return ", ".join(labels) if len(labels) < 4 else f"{len(labels)} methods compared"


def _drawn(results: pd.DataFrame, intervals: pd.DataFrame) -> dict[str, tuple[str, Figure]]:
    """Every figure that the results can fill, with its caption."""
    drawn: dict[str, tuple[str, Figure]] = {}
    if not intervals.empty:
        drawn["dice"] = ("Test Dice per method and site; each dot is a case.", figures.dice_bars(results))
    gains = of_sites(intervals, "gain")
    if not gains.empty:
        text = "Gain in test Dice over training alone, with 95 % intervals over cases and seeds; below 0 a site lost."
        gains = gains.loc[[method for method in _order(results) if method in gains.index.unique("method")]]
        drawn["gains"] = (text, figures.gain_ranges(gains, sorted(site for site in results["site"].unique() if site)))
    if not tables.validation(results).empty:
        text = (
            "Validation Dice over the rounds, of the model each site receives. Mean of sites: thin as measured, "
            "thick smoothed (Savitzky-Golay); single sites are smoothed."
        )
        drawn["convergence"] = (text, figures.convergence(results))
    for quantity, same in shared_quantities(results).items():
        name, caption = ROUNDS[quantity]
        caption += "".join(f" Here the {other} is the same number." for other in same)
        figure = figures.over_rounds(results, quantity, quantity.title(), equal_share=quantity == "weight")
        drawn[name] = (caption, figure)
    if (results["quantity"] == "peer_reputation").any():
        text = "Reputation of each site (columns) with each of the others (rows), 0 to 1, in three rounds."
        drawn["peers"] = (
            text + " The lowest row is the mean over all rounds and holders.",
            figures.reputations(results),
        )
    return drawn


def _drawn_agreements(agreed: Sequence[Agreement]) -> dict[str, tuple[str, Figure]]:
    """What the methods say over each ground truth, means over seeds."""
    drawn = {}
    for one in agreed:
        said = {method: frame.mean() for (method, estimate), frame in one.said.items()
                if estimate in ("mean contribution", "sample share")}  # fmt: skip
        said = {("sample share" if method == "any" else method): line for method, line in said.items()}
        caption = f"What each method says of the sites' contributions, over their {one.truth} values; means over seeds."
        name = f"agreement-{one.truth.lower()}"
        drawn[name] = (caption, figures.agreement(one.values.mean(), said, one.truth))
    return drawn


def _order(results: pd.DataFrame) -> list[str]:
    return [str(method) for method in results["method"].cat.categories]


def _overlay(
    runs: Sequence[Run], intervals: pd.DataFrame, sites: Path | None, folder: Path, *, images: bool
) -> tuple[Picture | None, str]:
    """The overlays, or why there are none. An older overlay file is removed where there are none."""
    labels = [run.label for run in runs]
    if len(set(labels)) > MOST_SHOWN and not intervals.empty:
        best = by_rank(of_methods(intervals, "mean"))[0]
        runs = sorted((run for run in runs if run.label in (best, "standalone")), key=lambda run: run.label != best)
    return overlay_picture(runs, sites, folder / "overlays.png", images=images)


def overlay_picture(
    runs: Sequence[Run], sites: Path | None, file: Path, *, images: bool, only: str | None = None
) -> tuple[Picture | None, str]:
    """The overlays of runs, or why there are none; an older file is removed where there are none.

    Raises:
        BadInput: ``sites`` is given and cannot be shown.
    """
    file.unlink(missing_ok=True)
    if not images:
        return None, "Images were left out of this report on request. It holds no image, file name or patient."
    place = sites or (Path(runs[0].info["sites_folder"]) if runs[0].info.get("sites_folder") else None)
    if place is None or (sites is None and not place.is_dir()):
        return None, (
            "The sites' images are not on this machine, so no segmentation is shown. "
            "A hospital sees its own with `fedmerit report RUN --sites FOLDER`."
        )
    tested = [run for run in runs if run.tested]
    if not tested:
        return None, "No segmentation is shown: the run has no test Dice yet."
    try:
        content = figures.png(draw(overlays(tested, place, only)))
    except BadInput as error:
        if sites is not None:
            raise
        return None, f"No segmentation is shown: {error if only is None else 'its images are not on this machine'}."
    labels = list(dict.fromkeys(run.label for run in tested))
    caption = (
        f"The best, median and worst test case by the Dice of {labels[0]}, seed {tested[0].seed}, "
        "in the slice where the organ is largest. The Dice is that of the whole case."
    )
    return photograph(content, caption, file), ""


def _shown(run: Run) -> dict[str, Any]:
    """run.json, each setting once: the configuration repeats all but the network, ``settings`` what was asked for."""
    shown = {name: value for name, value in run.info.items() if name not in ("plan", "settings")}
    return shown | {"network": run.info.get("plan", {}).get("network", {})}


def _flat(info: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in info.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}: ")
        elif isinstance(value, list) and all(isinstance(part, str) for part in value):
            joint = " " if name == "command" else ", "
            found[prefix + name] = joint.join(value)
        else:
            found[prefix + name] = value if isinstance(value, str) else json.dumps(value)
    return found
