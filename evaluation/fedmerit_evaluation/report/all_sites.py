"""The report of one or several runs on all sites, for the steering group: HTML, with tables and figures beside it."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedmerit_data.pages import write_page
from fedmerit_evaluation.figures.pages import SavedFigure, pictures
from fedmerit_evaluation.figures.tables import Table, write_tables
from fedmerit_evaluation.report import caveats, contribution_statements, flagged_sites, phrases, statements, summary
from fedmerit_evaluation.report.all_sites_figures import FIGURES, draw_figures, moving_quantities
from fedmerit_evaluation.report.all_sites_tables import report_tables
from fedmerit_evaluation.report.contributions import Agreement, agreements
from fedmerit_evaluation.report.hospitals import (
    Hospital,
    align_local_only,
    benefit_table,
    choose_method,
    contribution_table,
    has_ambiguous_baseline,
    list_hospitals,
    sample_size,
)
from fedmerit_evaluation.report.shared_parts import (
    ROUNDS,
    common_folder,
    overlay_picture,
    remove_tables,
    require_own_folders,
    shared_settings,
    training_dates,
)
from fedmerit_evaluation.results.runs import Run, combine_results, open_runs
from fedmerit_evaluation.results.views import STANDALONE, Results
from fedmerit_evaluation.statistics.inference import Estimate
from fedmerit_evaluation.statistics.intervals import estimates, select_methods


def write_report(
    runs: Sequence[Path],
    out: Path | None = None,
    *,
    sites: Path | None = None,
    images: bool = True,
    ground_truth: Path | None = None,
) -> Path:
    """Write report.html of one run or of several compared, with ``tables/`` and ``figures/`` beside it.

    Args:
        runs: run folders, on the same task and sites.
        out: where to; default ``RUN/report.html``, or report.html in the runs' common parent.
        sites: the prepared site folders; default those of the first run, if they are on this machine.
        images: whether to show test images with outlines. Such a report must not leave the hospital.
        ground_truth: folder of `fedmerit value leave-one-out` or `shapley`, on the same sites.

    Returns:
        The path of the HTML file.

    Raises:
        BadInput: a run is unusable or empty, the runs do not belong together, or the ground truth is not of them.
    """
    opened = align_local_only(open_runs(runs))
    honest = [run for run in opened if not run.attacks] or opened
    everything = combine_results(opened)
    results = everything if len(honest) == len(opened) else combine_results(honest)
    agreed, notes_on_values = agreements(honest, results, ground_truth) if ground_truth is not None else ([], [])
    out = common_folder(opened) / "report.html" if out is None else Path(out)
    require_own_folders(out)
    method = choose_method(honest, results)
    hospitals = list_hospitals(honest, results, method, agreed) if method else []
    shown = report_tables(honest, results, opened, everything)
    if method:
        seeds = {run.seed for run in honest if run.label == method and run.tested}
        over = phrases.resampling_units(len(seeds), results.dice.clusters.folds)
        shown["benefit"] = benefit_table(hospitals, method, over)
        shown["contribution"] = contribution_table(hospitals, method, results.repeats)
    extra = [table for one in agreed for table in (one.values_table, one.methods_table)]
    remove_tables(out)
    write_tables([*shown.values(), *extra], out.parent / "tables")
    drawn = draw_figures(opened, results, everything, hospitals, agreed, method)
    for name in FIGURES - set(drawn):  # of an earlier report on other runs
        (out.parent / "figures" / f"{name}.png").unlink(missing_ok=True)
    overlay, overlay_note = _overlay(honest, method, sites, out.parent / "figures", images=images)
    settings, differing = shared_settings(opened, [_settings(run) for run in opened])
    write_page(
        out,
        "fedmerit_evaluation.report",
        "report.html.j2",
        runs=opened,
        trained=training_dates(opened),
        title=_title(honest),
        method=method,
        is_ambiguous=has_ambiguous_baseline(honest),
        headlines=_headlines(hospitals, method, agreed, results),
        answers=_answers(hospitals, method, agreed, results),
        sentences=[*summary.list_sentences(results), *_detected(honest)],
        simulated=flagged_sites.describe_attacked_runs(opened),
        notes=[*caveats.list_run_caveats(honest, results), *caveats.list_attack_caveats(opened)],
        caveats=[
            *caveats.list_contribution_caveats(results),
            *caveats.list_case_caveats(results),
            *(caveat for one in agreed for caveat in one.caveats),
            *(f"Ground truth: {note}." for note in notes_on_values),
        ],
        tables=shown,
        agreements=agreed,
        pictures=pictures(drawn, out.parent / "figures"),
        still=[name for name in ROUNDS if name not in moving_quantities(everything)],
        overlay=overlay,
        overlay_note=overlay_note,
        settings=settings,
        differing=Table("runs", "Settings that differ between the runs", differing),
    )
    return out


def _headlines(
    hospitals: Sequence[Hospital], method: str | None, agreed: Sequence[Agreement], results: Results
) -> list[str]:
    """The first two lines: whether federated training helped, and whether payment is supported."""
    if method is None:
        return ["No run trains the hospitals together: there is no benefit and no contribution to report."]
    mean_gains = estimates(select_methods(results.dice.intervals, "mean_gain"))
    has_estimate = not any(one.counts_images or math.isnan(one.share.mean) for one in hospitals)
    patients = _fewest_patients(results)
    chances = {
        one.reference: (
            contribution_statements.find_agreement(one.ranks[method], one.p[method]),
            contribution_statements.describe_chance("it", len(one.values), patients),
        )
        for one in agreed
        if method in one.ranks
    }
    order = results.rounds.rankings.get(method)
    return [
        statements.describe_benefit(
            mean_gains.get(method, Estimate(math.nan)), sample_size(results, methods=[method, STANDALONE])
        ),
        contribution_statements.describe_payment(
            has_estimate=has_estimate,
            seeds=min(one.share_seeds for one in hospitals),
            agreements=chances,
            has_order=order is not None and order.has_significant_pairs,
        ),
    ]


def _answers(
    hospitals: Sequence[Hospital], method: str | None, agreed: Sequence[Agreement], results: Results
) -> list[str]:
    """Who gained, who contributed, and how the estimate agrees with ground truth, in a few sentences."""
    if method is None:
        return []
    shares, seeds = {one.name: one.share for one in hospitals}, min(one.share_seeds for one in hospitals)
    of_images = any(one.counts_images for one in hospitals)
    found = [
        statements.describe_hospitals({one.name: one.comparison for one in hospitals}, method),
        contribution_statements.describe_largest_share(
            shares, seeds, results.rounds.rankings.get(method), of_images=of_images, has_folds=results.folds is not None
        ),
    ]
    patients = _fewest_patients(results)
    for one in agreed:
        values = {str(site): value / 100 for site, value in one.values.mean().items()}
        found.append(contribution_statements.describe_values(values, one.reference, one.ranking))
        if method in one.ranks:
            found.append(
                contribution_statements.describe_agreement(
                    one.ranks[method], one.p[method], one.reference, len(one.values), patients
                )
            )
    return list(filter(None, found))


def _fewest_patients(results: Results) -> int:
    """Test patients of the hospital with the fewest; 0: none is tested."""
    tested = results.dice.sites["patients"]
    return int(tested.min()) if len(tested) else 0


def _title(runs: Sequence[Run]) -> str:
    labels = list(dict.fromkeys(run.label for run in runs))
    return ", ".join(labels) if len(labels) < 4 else f"{len(labels)} methods compared"


def _detected(honest: Sequence[Run]) -> list[str]:
    """The free riders that the guard detected; nothing if no run was guarded."""
    guarded = [run for run in honest if flagged_sites.is_guarded(run)]
    return [phrases.describe_verdicts(flagged_sites.describe_by_site(guarded))] if guarded else []


def _overlay(
    runs: Sequence[Run], method: str | None, sites: Path | None, folder: Path, *, images: bool
) -> tuple[SavedFigure | None, str]:
    """The overlays of the report's method beside local training, or why there are none."""
    if method is not None:
        runs = sorted((run for run in runs if run.label in (method, STANDALONE)), key=lambda run: run.label != method)
    return overlay_picture(runs, sites, folder / "overlays.png", images=images)


def _settings(run: Run) -> dict[str, Any]:
    """run.json, each setting once: the configuration repeats all but the network, ``settings`` what was asked for."""
    shown = {name: value for name, value in run.info.items() if name not in ("plan", "settings")}
    return shown | {"network": run.info.get("plan", {}).get("network", {})}
