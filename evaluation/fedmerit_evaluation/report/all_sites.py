"""The report of one or several runs on all sites, for whoever steers them: one HTML file, tables and figures beside."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fedmerit_evaluation.figures import curves, dots_and_bars, heat_maps
from fedmerit_evaluation.figures.drawing import METHOD_COLOURS
from fedmerit_evaluation.figures.pages import Drawing, SavedFigure, pictures, write_page
from fedmerit_evaluation.figures.tables import Table, write_tables
from fedmerit_evaluation.ground_truth.ground_truths import EXACT
from fedmerit_evaluation.report import alt_texts, caveats, flagged_sites, phrases, statements, summary
from fedmerit_evaluation.report.all_sites_tables import report_tables
from fedmerit_evaluation.report.contributions import ESTIMATE, Agreement, agreements
from fedmerit_evaluation.report.hospitals import (
    Hospital,
    align_local_only,
    choose_method,
    has_ambiguous_baseline,
    hospital_table,
    list_hospitals,
)
from fedmerit_evaluation.report.phrases import resampling_units
from fedmerit_evaluation.report.shared_parts import (
    ROUNDS,
    common_folder,
    overlay_picture,
    remove_tables,
    shared_quantities,
    shared_settings,
    training_dates,
)
from fedmerit_evaluation.report.value_figure import value_figure
from fedmerit_evaluation.results.dice import STANDALONE
from fedmerit_evaluation.results.run_folders import Run, combine_results, open_runs
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.statistics.intervals import select_sites

AGREEMENTS = {truth: f"agreement-{truth.lower()}" for truth in EXACT}  # figures by ground truth
FIGURES = {"dice", "gains", "convergence", "peers", "shares", "values", *(name for name, _ in ROUNDS.values())}
FIGURES |= set(AGREEMENTS.values())
MAX_GAINS = 5  # methods whose gains are drawn with their intervals; of more, as a table of colours


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
        truth: a folder of trained coalitions of the same sites (`fedmerit value leave-one-out`, `fedmerit value shapley`).

    Returns:
        The path of the HTML file.

    Raises:
        BadInput: a run is unusable or empty, the runs do not belong together, or the ground truth is not of them.
    """
    opened = align_local_only(open_runs(runs))
    honest = [run for run in opened if not run.attacks] or opened
    results, everything = combine_results(honest), combine_results(opened)
    agreed, truth_notes = agreements(honest, results, truth) if truth is not None else ([], [])
    suspicions, silent = flagged_sites.list_suspicions(opened)
    out = common_folder(opened) / "report.html" if out is None else Path(out)
    method = choose_method(honest, results)
    judged = list_hospitals(honest, results, method, agreed, suspicions.frame) if method else []
    shown = report_tables(honest, results, opened, everything)
    if method:
        seeds = {run.seed for run in honest if run.label == method and run.tested}
        shown["hospitals"] = hospital_table(judged, method, len(seeds))
    extra = [table for one in agreed for table in (one.of_values, one.of_methods)]
    remove_tables(out)
    write_tables([*shown.values(), *extra, *([suspicions] if len(suspicions.frame) else [])], out.parent / "tables")
    drawn = _hospital_section(judged) | _drawn(results, everything) | _drawn_agreements(agreed) | value_figure(opened)
    for name in FIGURES - set(drawn):  # of an earlier report on other runs
        (out.parent / "figures" / f"{name}.png").unlink(missing_ok=True)
    overlay, overlay_note = _overlay(honest, method, sites, out.parent / "figures", images=images)
    settings, differing = shared_settings(opened, [_shown(run) for run in opened])
    write_page(
        out,
        "report.html.j2",
        runs=opened,
        trained=training_dates(opened),
        title=_title(honest),
        method=method,
        alone_differs=has_ambiguous_baseline(honest),
        answers=_answers(judged, method, agreed, results),
        facts=summary.list_facts(results),
        sentences=[*summary.list_sentences(results), *_judged_methods(honest), *_suspected(suspicions.frame, honest)],
        of_methods=summary.describe_each_method(results),
        planted=flagged_sites.describe_attacked_runs(opened, suspicions.frame),
        notes=[*caveats.list_run_caveats(honest, results), *caveats.list_attack_caveats(opened)],
        caveats=[
            *caveats.list_rank_caveats(results),
            *caveats.list_contribution_caveats(results),
            *caveats.list_case_caveats(results),
            *(caveat for one in agreed for caveat in one.caveats),
            *(f"Ground truth: {note}." for note in truth_notes),
        ],
        tables=shown,
        agreements=agreed,
        suspicions=suspicions,
        silent=silent,
        pictures=pictures(drawn, out.parent / "figures"),
        still=[name for name in ROUNDS if name not in _moving(everything)],
        overlay=overlay,
        overlay_note=overlay_note,
        settings=settings,
        differing=Table("runs", "What differs between the methods' runs", differing),
    )
    return out


def _answers(
    judged: Sequence[Hospital], method: str | None, agreed: Sequence[Agreement], results: Results
) -> list[str]:
    """Who made it better, and by how much, in a few sentences."""
    if method is None:
        return ["No run trains hospitals together: there is nothing to gain or to give."]
    shares, seeds = {one.name: one.share for one in judged}, min(one.share_seeds for one in judged)
    said = [
        statements.describe_benefit({one.name: one.verdict for one in judged}, method),
        statements.describe_largest_share(shares, seeds),
    ]
    tested = results.dice.sites["cases"]
    cases = int(tested.min()) if len(tested) else 0
    for one in agreed:
        values = {str(site): value / 100 for site, value in one.values.mean().items()}
        said.append(statements.describe_values(values, one.truth, len(one.values), cases))
        if method in one.ranks:
            ranks, p = one.ranks[method], one.p[method]
            said.append(statements.describe_agreement(ranks, p, one.truth, len(one.values), cases))
    return list(filter(None, said))


def _title(runs: Sequence[Run]) -> str:
    labels = list(dict.fromkeys(run.label for run in runs))
    return ", ".join(labels) if len(labels) < 4 else f"{len(labels)} methods compared"


def _judged_methods(honest: Sequence[Run]) -> list[str]:
    """Whom the guard judged in honest runs; nothing where none was guarded."""
    guarded = [run for run in honest if flagged_sites.is_guarded(run)]
    return [phrases.describe_verdicts(flagged_sites.describe_by_site(guarded))] if guarded else []


def _suspected(suspicions: pd.DataFrame, honest: Sequence[Run]) -> list[str]:
    """Whom detectors suspect in honest runs that no guard judged; of those with attackers another sentence speaks."""
    labels = [run.label for run in honest if not flagged_sites.is_guarded(run)]
    said = phrases.describe_suspicions(
        flagged_sites.group_by_detector(
            suspicions[suspicions["Method"].isin(labels)] if len(suspicions) else suspicions
        )
    )
    return [said] if said else []


def _hospital_section(judged: Sequence[Hospital]) -> dict[str, Drawing]:
    """Their shares, where a method says."""
    known = {one.name: vars(one.share) for one in judged if not math.isnan(one.share.mean)}
    if not known:
        return {}
    shares, equal = pd.DataFrame(known).T, 1 / len(judged)
    text = "What share of all contributions each hospital gave, by the method's own estimate; intervals over seeds."
    return {
        "shares": Drawing(text, dots_and_bars.share_ranges(shares, equal), alt_texts.describe_shares(shares, equal))
    }


def _moving(results: Results) -> dict[str, list[str]]:
    """By quantity that is recorded and its own numbers, the methods under which it changes over the rounds."""
    found = {quantity: curves.moving(results.rounds.of(quantity)) for quantity in shared_quantities(results)}
    return {quantity: methods for quantity, methods in found.items() if methods}


def _dice_section(results: Results) -> Drawing:
    """Bars and dots, as long as every method has a colour of its own."""
    means = pd.DataFrame(results.dice.comparison[0]["site"])
    if len(means) > len(METHOD_COLOURS):
        text = "Test Dice of each hospital by every method, mean over cases and seeds."
        return Drawing(
            text, heat_maps.dice(100 * means), alt_texts.describe_cells(100 * means, "Mean test Dice in percent")
        )
    text = "Test Dice of each hospital, a colour per method: bars are means, dots cases."
    return Drawing(text, dots_and_bars.dice_bars(results), alt_texts.describe_dice(means))


def _gain_section(results: Results, gains: pd.DataFrame) -> Drawing:
    """Of ``gains``, ``(method, site)`` x ``mean, low, high``, fractions."""
    order = [method for method in results.methods if method in gains.index.unique("method")]
    if len(order) > MAX_GAINS:
        shown = 100 * gains["mean"].unstack()
        text = "Gain in test Dice over training alone by every method; below 0 a hospital lost."
        return Drawing(text, heat_maps.gains(shown), alt_texts.describe_cells(shown, "Gains in points"))
    over = resampling_units(results.dice.rows["seed"].nunique())
    inside = f", 95 % intervals over {over}" if gains["low"].notna().any() else ""
    text = f"Gain in test Dice over training alone{inside}; left of 0 a hospital lost."
    gains = gains.loc[order]
    return Drawing(text, dots_and_bars.gain_ranges(gains, results.sites), alt_texts.describe_gains(gains))


def _drawn(results: Results, everything: Results) -> dict[str, Drawing]:
    """Every figure that the results can fill: of Dice those of honest runs, of rounds those of all."""
    drawn: dict[str, Drawing] = {}
    if not results.dice.rows.empty:
        drawn["dice"] = _dice_section(results)
    gains = select_sites(results.dice.intervals, "gain").dropna(subset="mean")  # none without a seed in common
    if not gains.empty:
        drawn["gains"] = _gain_section(results, gains)
    if not everything.rounds.validation.empty:
        text = (
            "Validation Dice over the rounds, of the model each hospital receives. Mean of hospitals: thin as "
            "measured, thick smoothed (Savitzky-Golay); single hospitals are smoothed."
        )
        means = 100 * everything.rounds.validation.groupby(level=["method", "round"], observed=True).mean().mean(axis=1)
        seen = alt_texts.describe_lines(means.unstack("method"), "Validation Dice in percent")
        drawn["convergence"] = Drawing(text, curves.convergence(everything), seen)
    same = shared_quantities(everything)
    for quantity, methods in _moving(everything).items():
        name, caption = ROUNDS[quantity]
        caption += "".join(f" Here the {other} is the same number." for other in same[quantity])
        table, weight = everything.rounds.of(quantity), quantity == "weight"
        if still := [method for method in everything.methods if method not in methods and method in table.index]:
            caption += f" Not shown, as it never changes: {', '.join(still)}."
        title = "Weight [%]" if weight else f"{quantity.title()} [own unit]"
        figure = curves.over_rounds(everything, quantity, title, equal_share=weight)
        rounds = (100 if weight else 1) * table.groupby(level=["method", "round"], observed=True).mean()
        panels = {method: pd.DataFrame(rounds.loc[method]) for method in methods}
        drawn[name] = Drawing(caption, figure, alt_texts.describe_panels(panels, title))
    if not everything.rounds.pairs("peer_reputation").empty:
        text = "Reputation of each hospital (columns) with each of the others (rows), 0 to 1, in three rounds."
        text += " The lowest row is the mean over all rounds and holders."
        drawn["peers"] = Drawing(text, heat_maps.reputations(everything))
    return drawn


def _drawn_agreements(agreed: Sequence[Agreement]) -> dict[str, Drawing]:
    """What the methods say over each ground truth, means over seeds."""
    drawn = {}
    for one in agreed:
        said = {method: frame.mean() for (method, estimate), frame in one.said.items()
                if estimate in (ESTIMATE, "sample share")}  # fmt: skip
        said = {("sample share" if method == "any" else method): line for method, line in said.items()}
        text = (
            f"What each method says of the hospitals' contributions, over their {one.truth} values; means over seeds."
        )
        values = one.values.mean()
        figure = dots_and_bars.agreement(values, said, one.truth)
        drawn[AGREEMENTS[one.truth]] = Drawing(text, figure, alt_texts.describe_agreement(values, said, one.truth))
    return drawn


def _overlay(
    runs: Sequence[Run], method: str | None, sites: Path | None, folder: Path, *, images: bool
) -> tuple[SavedFigure | None, str]:
    """The overlays, or why there are none: of the method that hospitals are judged by beside training alone."""
    if method is not None:
        runs = sorted((run for run in runs if run.label in (method, STANDALONE)), key=lambda run: run.label != method)
    return overlay_picture(runs, sites, folder / "overlays.png", images=images)


def _shown(run: Run) -> dict[str, Any]:
    """run.json, each setting once: the configuration repeats all but the network, ``settings`` what was asked for."""
    shown = {name: value for name, value in run.info.items() if name not in ("plan", "settings")}
    return shown | {"network": run.info.get("plan", {}).get("network", {})}
