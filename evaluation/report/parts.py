"""What both reports are made of: settings, overlays, columns with intervals, and which quantities are shown."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from evaluation.display.drawing import png
from evaluation.display.pages import Picture, photograph
from evaluation.display.table import DASH, HEADINGS, UNITS
from evaluation.report.alt_texts import of_overlays
from evaluation.report.overlay import draw, of_cases, overlays, without_blanks
from evaluation.results.dice import SURFACES
from evaluation.results.run_folders import Run
from evaluation.results.views import Results
from fedmerit.errors import BadInput

FOLDERS = ("sites_folder", "server_sites")  # of run.json, places on one machine
DIGESTS = ("site_digests", "server_digests")  # of run.json, what nobody reads
OF_ONE_RUN = ("run", "method", "command", "started")  # of run.json, what is in no table of several runs
ROUNDS = {
    "weight": ("weights", "Aggregation weight of each site over the rounds, in percent of the whole."),
    "contribution": (
        "contributions",
        "Contribution of each site as the method estimates it, round by round, in the method's own unit.",
    ),
    "reputation": ("reputation", "Reputation: contribution remembered over rounds, in the method's own unit."),
}


def common_folder(runs: Sequence[Run]) -> Path:
    """The run's folder, or the runs' common parent."""
    if len(runs) == 1:
        return runs[0].path
    paths = [run.path.resolve().parent for run in runs]
    return next(path for path in (paths[0], *paths[0].parents) if all(one.is_relative_to(path) for one in paths))


def remove_tables_of(page: Path) -> None:
    """Remove the tables that an earlier report, which stands where ``page`` will, links in ``tables`` beside it."""
    earlier = page.read_text(encoding="utf-8", errors="replace") if page.is_file() else ""
    for name in re.findall(r'href="tables/([\w.+-]+)\.csv"', earlier):
        for ending in ("csv", "tex"):
            (page.parent / "tables" / f"{name}.{ending}").unlink(missing_ok=True)


def settings_of(runs: Sequence[Run], shown: Sequence[Mapping[str, Any]]) -> tuple[dict[str, str], pd.DataFrame]:
    """Settings of runs as (those that all share, a row per method of those that differ, all values of its runs)."""
    table = pd.DataFrame([_flat(one) for one in shown]).fillna("")
    same = [name for name in table if table[name].nunique() == 1]
    differing = table.drop(columns=[*same, *(name for name in OF_ONE_RUN if name in table and name not in same)])
    labels = [run.label for run in runs]
    rows = [
        {"Method": label} | {name: ", ".join(filter(None, dict.fromkeys(part[name]))) or DASH for name in differing}
        for label, part in differing.groupby(labels, sort=False)
    ]
    return {str(name): table[name].iloc[0] for name in same}, pd.DataFrame(rows)


def _flat(info: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Settings by name, without digests, those that say nothing and the folders of this machine."""
    found: dict[str, str] = {}
    for name, value in info.items():
        if name in DIGESTS:
            continue
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}: ")
        elif value in (None, "", []) or name in FOLDERS:
            continue
        elif isinstance(value, list) and all(isinstance(part, str) for part in value):
            joint = " " if name == "command" else ", "
            found[prefix + name] = joint.join(map(_without_folder, value))
        else:
            found[prefix + name] = _without_folder(value) if isinstance(value, str) else json.dumps(value)
    return found


def _without_folder(text: str) -> str:
    """The last part of a path, of an option's value too; else the text."""
    return re.sub(r"(^|=)[^=\s]*/([^/=\s]+)/?$", r"\1\2", text) if "://" not in text else text


def trained(runs: Sequence[Run]) -> str:
    """The days on which the runs were begun: ``2026-01-02``, or the first and the last."""
    days = sorted({str(run.info["started"])[:10] for run in runs if run.info.get("started")})
    return " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "at a time not recorded"


def shared_quantities(results: Results) -> dict[str, list[str]]:
    """The quantities of rounds that are recorded, each with those that are the very same numbers."""
    seen: dict[str, list[str]] = {}
    for quantity in ROUNDS:
        rounds = results.rounds.of(quantity)
        if rounds.isna().all(axis=None):
            continue
        same = [other for other in seen if rounds.equals(results.rounds.of(other))]
        if same:
            seen[same[0]].append(quantity)
        else:
            seen[quantity] = []
    return seen


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
        shown = without_blanks(overlays(tested, place, only))
        content = png(draw(shown))
    except BadInput as error:
        if sites is not None:
            raise
        return None, f"No segmentation is shown: {error if only is None else 'its images are not on this machine'}."
    labels = list(dict.fromkeys(run.label for run in tested))
    caption = (
        f"The {of_cases(shown)} test case by the Dice of {labels[0]}, seed {tested[0].seed}, "
        "in the slice where the organ is largest. The Dice is that of the whole case."
    )
    return photograph(content, caption, of_overlays(shown), file), ""


def surface_columns(table: pd.DataFrame) -> dict[str, pd.Series]:
    """Of `evaluation.results.dice.Dice.sites` or means of it, HD95 and NSD as shown, by heading."""
    return {HEADINGS[name]: table[name] * UNITS.get(name, 1.0) for name in SURFACES if name in table}


def averaged(table: pd.DataFrame) -> pd.DataFrame:
    """Mean over seeds: ``(method, site)`` x columns; counts stay whole where they are the same in all."""
    mean = table.groupby(level=["method", "site"], observed=True).mean()
    whole = [name for name in table.select_dtypes("integer") if (mean[name] % 1 == 0).all()]
    return mean.astype(dict.fromkeys(whole, int))


def with_intervals(columns: Mapping[str, pd.DataFrame | pd.Series], names: Mapping[str, Any]) -> dict[str, Any]:
    """Frame, low and high of a `Table` from columns: series, or frames ``mean, low, high`` of one index.

    Args:
        columns: by heading, in the unit shown.
        names: the first columns, by heading, in the order of the index.
    """
    parts: dict[str, dict[str, Any]] = {"mean": {}, "low": {}, "high": {}}
    for heading, column in columns.items():
        for part, into in parts.items():
            if isinstance(column, pd.DataFrame):
                into[heading] = column[part].to_numpy()
            else:
                into[heading] = column.to_numpy() if part == "mean" else math.nan
    count = len(next(iter(columns.values())))
    frames = {
        part: pd.DataFrame({**(names if part == "mean" else dict.fromkeys(names, math.nan)), **into}, range(count))
        for part, into in parts.items()
    }
    return {"frame": frames["mean"], "low": frames["low"], "high": frames["high"]}
