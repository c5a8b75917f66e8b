"""The report for one hospital: its own numbers, and of the others at most one rounded median."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from fedmerit.errors import BadInput
from fedmerit_data.pages import write_page
from fedmerit_evaluation.figures.pages import pictures
from fedmerit_evaluation.figures.tables import Table, write_tables
from fedmerit_evaluation.ground_truth.ground_truths import list_preparation_differences
from fedmerit_evaluation.report import caveats, one_site_tables
from fedmerit_evaluation.report.contribution_statements import describe_share
from fedmerit_evaluation.report.contributions import Agreement, agreements, contribution_shares, count_share_seeds
from fedmerit_evaluation.report.hospitals import align_local_only, choose_method, has_ambiguous_baseline, sample_size
from fedmerit_evaluation.report.phrases import interval, percent, points
from fedmerit_evaluation.report.shared_parts import (
    common_folder,
    overlay_picture,
    require_own_folders,
    shared_settings,
    training_dates,
)
from fedmerit_evaluation.report.statements import describe_gain
from fedmerit_evaluation.results.runs import Run, combine_results, open_runs
from fedmerit_evaluation.results.views import STANDALONE
from fedmerit_evaluation.statistics.inference import Estimate
from fedmerit_evaluation.statistics.intervals import estimates

KEPT = (
    "method", "parameters", "seed", "task", "labels", "rounds", "training", "image_size", "fedmerit_version", "commit",
    "packages", "started",
)  # fmt: skip


def write_site_report(
    runs: Sequence[Path],
    name: str,
    out: Path | None = None,
    *,
    sites: Path | None = None,
    images: bool = True,
    ground_truth: Path | None = None,
) -> Path:
    """Write one site's own report, with ``<its name>-files/tables`` and ``figures`` beside it.

    Neither the page nor a file beside it holds another site's name, number of images or image, nor numbers that reveal
    another site's: what is shown of others is in `fedmerit_evaluation.report.one_site_tables`.

    Args:
        runs: run folders, on the same task and sites.
        name: of the site.
        out: where to; default ``for-NAME/report.html`` in the run's folder, or in the runs' common parent.
        sites: the prepared site folder of the site, in a folder of such; default that of the first run, if it is on
            this machine.
        images: whether to show the site's test images. Such a report must not leave the hospital.
        ground_truth: folder of `fedmerit value leave-one-out` or `shapley`, on the same sites.

    Returns:
        The path of the HTML file.

    Raises:
        BadInput: no such site, a run is unusable, the runs do not belong together, or the ground truth is not of them.
    """
    opened = _relabelled(align_local_only(open_runs(runs)))
    if name not in opened[0].sites:
        raise BadInput(f"--site {name}: no site of {opened[0].path}; its sites are {', '.join(opened[0].sites)}")
    everything = combine_results(opened)
    others = len(opened[0].sites) - 1
    results, left_out = one_site_tables.redact_other_sites(everything, others)
    own = one_site_tables.OwnSite(name, opened, results)
    agreed, differences = list[Agreement](), list[str]()
    if ground_truth is not None:
        agreed, _ = agreements(opened, everything, ground_truth)
        differences = list_preparation_differences(ground_truth, [run.site_digests for run in opened])
    default = common_folder(opened) / re.sub(r"[^\w.-]", "_", f"for-{name}") / "report.html"
    out = default if out is None else Path(out)
    require_own_folders(out)
    files = out.parent / f"{out.stem}-files"
    for stale in files.glob("*/own-*"):
        stale.unlink()
    shown = {table.name: table for table in one_site_tables.own_tables(own, agreed)}
    write_tables(shown.values(), files / "tables")
    overlay, overlay_note = overlay_picture(
        opened[:1], sites, files / "figures" / "own-overlays.png", images=images, only=name
    )
    settings, differing = shared_settings(opened, [_settings(run) for run in opened])
    write_page(
        out,
        "fedmerit_evaluation.report",
        "site.html.j2",
        site=name,
        others=others,
        files=f"{files.name}/tables",
        fewest=one_site_tables.MIN_OTHERS,
        many=one_site_tables.MANY_OTHERS,
        trained=training_dates(opened),
        left_out=left_out,
        runs=opened,
        facts=list(_facts(own)),
        sentences=list(_sentences(own)),
        notes=caveats.list_run_caveats(opened, everything, sites_named=False),
        caveats=[*caveats.list_case_caveats(results, name), *(f"Ground truth: {note}." for note in differences)],
        tables=shown,
        pictures=pictures(dict(one_site_tables.own_figures(own)), files / "figures"),
        overlay=overlay,
        overlay_note=overlay_note,
        settings=settings,
        differing=Table("own-runs", "Settings that differ between the runs", differing),
    )
    return out


def _relabelled(runs: Sequence[Run]) -> list[Run]:
    """Labels with the folder's name get a number instead: a folder may be named after a site."""
    return [
        replace(run, label=run.label.replace(f" [{run.path.name}]", f" [{number}]"))
        for number, run in enumerate(runs, start=1)
    ]


def _settings(run: Run) -> dict[str, Any]:
    """The settings in run.json that name no site and no folder."""
    kept = {name: run.info[name] for name in KEPT if name in run.info}
    return kept | {"network": run.info.get("plan", {}).get("network", {})}


def _facts(own: one_site_tables.OwnSite) -> Iterator[tuple[str, str, str]]:
    """The numbers in large print: name, value, note."""
    dice, everyone = own.of("dice")
    if dice.empty:
        return
    method = choose_method(own.runs, own.results)  # as in the report on all sites; the best one is so by chance, too
    shown = str(method if method in dice.index else dice.index[0])
    yield "Test Dice", percent(dice["mean"][shown]), shown
    medians = one_site_tables.rounded_others(everyone, own.name)
    if shown in medians.index:
        median = percent(medians["median"][shown], decimals=0)
        yield "Median of the others", f"about {median}", f"same method, {shown}, rounded to 5"
    gain, _ = own.of("gain")
    if shown in gain.index:
        yield "Gain over local training", points(gain["mean"][shown]), f"points of Dice, {shown}"


def _sentences(own: one_site_tables.OwnSite) -> Iterator[tuple[str, str]]:
    (dice, everyone), (gain, _) = own.of("dice"), own.of("gain")
    medians = one_site_tables.rounded_others(everyone, own.name)
    shares, seeds = contribution_shares(own.results), count_share_seeds(own.results)
    for method, row in ((str(name), row) for name, row in dice.iterrows()):
        text = f"{own.name}'s test Dice is {percent(row['mean'])}"
        if pd.notna(row["low"]):
            text += f" [95 % CI {percent(row['low'])}, {percent(row['high'])}]"
        if method in medians.index:
            text += f"; the others' median is about {percent(medians['median'][method], decimals=0)}"
        text += "."
        if method != STANDALONE:
            sample = sample_size(own.results, own.name, [method, STANDALONE])
            known = estimates(gain)
            change = known.get(method, Estimate(math.nan)).of_several(len(known))
            if not math.isnan(change.mean):
                ends = f" [95 % CI {interval(change)}]" if change.has_interval else ""
                text += f" Gain over local training: {points(change.mean)} points{ends}."
            ambiguous = has_ambiguous_baseline(own.runs)
            has_local = STANDALONE in dice.index
            text += f" {describe_gain(change, sample, tested=True, has_local=has_local, ambiguous=ambiguous)}"
            share = shares.get(method, {}).get(own.name, Estimate(math.nan))
            text += f" {describe_share(share, 1 / (own.others + 1), seeds.get(method, 0))}".rstrip()
        yield method, text
