"""The report of one or several runs on all sites, for whoever steers them: one HTML file, tables and figures beside."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from evaluation.display import curves, dots_and_bars, heat_maps
from evaluation.display.pages import Picture, pictures, write_page
from evaluation.display.table import Table, write_tables
from evaluation.report import caveats, marks, summary
from evaluation.report.agreement import Agreement, agreements
from evaluation.report.all_sites_tables import report_tables
from evaluation.report.observed_values import drawn_values
from evaluation.report.parts import ROUNDS, common_folder, overlay_picture, settings_of, shared_quantities
from evaluation.results.dice import ALONE
from evaluation.results.intervals import by_rank, of_methods, of_sites
from evaluation.results.run_folders import Run, open_runs, together
from evaluation.results.views import Results

MOST_SHOWN = 2  # methods whose segmentations are shown side by side


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
    agreed, truth_notes = agreements(opened, results, truth) if truth is not None else ([], [])
    suspicions, silent = marks.suspected(opened)
    out = common_folder(opened) / "report.html" if out is None else Path(out)
    shown = report_tables(opened, results)
    extra = [table for one in agreed for table in (one.of_values, one.of_methods)]
    write_tables([*shown.values(), *extra, *([suspicions] if len(suspicions.frame) else [])], out.parent / "tables")
    drawn = _drawn(results) | _drawn_agreements(agreed) | drawn_values(opened)
    for name in {"peers", *(name for name, _ in ROUNDS.values())} - set(drawn):
        (out.parent / "figures" / f"{name}.png").unlink(missing_ok=True)
    overlay, overlay_note = _overlay(opened, results, sites, out.parent / "figures", images=images)
    settings, differing = settings_of(opened, [_shown(run) for run in opened])
    write_page(
        out,
        "report.html.j2",
        runs=opened,
        title=_title(opened),
        facts=summary.facts(results),
        sentences=[*summary.sentences(results), *marks.suspicion_in_words(suspicions.frame)],
        of_methods=summary.method_by_method(results),
        notes=caveats.of_runs(opened, results),
        caveats=[
            *caveats.of_ranks(results),
            *caveats.of_contributions(results),
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


def _title(runs: Sequence[Run]) -> str:
    labels = list(dict.fromkeys(run.label for run in runs))
    return ", ".join(labels) if len(labels) < 4 else f"{len(labels)} methods compared"


def _drawn(results: Results) -> dict[str, tuple[str, Figure]]:
    """Every figure that the results can fill, with its caption."""
    drawn: dict[str, tuple[str, Figure]] = {}
    if not results.dice.rows.empty:
        drawn["dice"] = ("Test Dice per method and site; each dot is a case.", dots_and_bars.dice_bars(results))
    gains = of_sites(results.dice.intervals, "gain")
    if not gains.empty:
        text = "Gain in test Dice over training alone, with 95 % intervals over cases and seeds; below 0 a site lost."
        gains = gains.loc[[method for method in results.methods if method in gains.index.unique("method")]]
        drawn["gains"] = (text, dots_and_bars.gain_ranges(gains, results.sites))
    if not results.rounds.validation.empty:
        text = (
            "Validation Dice over the rounds, of the model each site receives. Mean of sites: thin as measured, "
            "thick smoothed (Savitzky-Golay); single sites are smoothed."
        )
        drawn["convergence"] = (text, curves.convergence(results))
    for quantity, same in shared_quantities(results).items():
        name, caption = ROUNDS[quantity]
        caption += "".join(f" Here the {other} is the same number." for other in same)
        figure = curves.over_rounds(results, quantity, quantity.title(), equal_share=quantity == "weight")
        drawn[name] = (caption, figure)
    if not results.rounds.pairs("peer_reputation").empty:
        text = "Reputation of each site (columns) with each of the others (rows), 0 to 1, in three rounds."
        drawn["peers"] = (
            text + " The lowest row is the mean over all rounds and holders.",
            heat_maps.reputations(results),
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
        drawn[name] = (caption, dots_and_bars.agreement(one.values.mean(), said, one.truth))
    return drawn


def _overlay(
    runs: Sequence[Run], results: Results, sites: Path | None, folder: Path, *, images: bool
) -> tuple[Picture | None, str]:
    """The overlays, or why there are none. An older overlay file is removed where there are none."""
    if len(results.methods) > MOST_SHOWN and not results.dice.intervals.empty:
        best = by_rank(of_methods(results.dice.intervals, "mean"))[0]
        runs = sorted((run for run in runs if run.label in (best, ALONE)), key=lambda run: run.label != best)
    return overlay_picture(runs, sites, folder / "overlays.png", images=images)


def _shown(run: Run) -> dict[str, Any]:
    """run.json, each setting once: the configuration repeats all but the network, ``settings`` what was asked for."""
    shown = {name: value for name, value in run.info.items() if name not in ("plan", "settings")}
    return shown | {"network": run.info.get("plan", {}).get("network", {})}
