"""Parts of both reports: settings, overlays, columns with intervals, quantities shown, tables of other models."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fedmerit.errors import BadInput, Untrusted
from fedmerit.files import read_bytes
from fedmerit.trust import allowed_place
from fedmerit_evaluation.figures.drawing import png
from fedmerit_evaluation.figures.pages import SavedFigure, photograph
from fedmerit_evaluation.figures.tables import DASH, HEADINGS, UNITS, Table
from fedmerit_evaluation.report.alt_texts import describe_overlays
from fedmerit_evaluation.report.overlays import describe_cases, draw, overlays, without_blanks
from fedmerit_evaluation.results.runs import DIGESTS, SERVER_DIGESTS, Run
from fedmerit_evaluation.results.views import OWN, RUN, SURFACES, Dice, Results

FOLDERS = ("sites_folder", "server_sites")  # of run.json: places on one machine
SINGLE_RUN_SETTINGS = ("run", "method", "command", "started")  # of run.json: not in the table of settings that differ
MOST_PAGE = 1 << 30  # bytes of an earlier report
ROUNDS = {
    "weight": ("weights", "Aggregation weight of each site over the rounds, in percent of the whole."),
    "contribution": (
        "contributions",
        "Contribution of each site as the method estimates it, round by round, in the method's own unit.",
    ),
    "reputation": ("reputation", "Reputation of each site: running average of its contribution, in its own unit."),
}


def common_folder(runs: Sequence[Run]) -> Path:
    """The run's folder, or the runs' common parent."""
    if len(runs) == 1:
        return runs[0].path
    paths = [run.path.resolve().parent for run in runs]
    return next(path for path in (paths[0], *paths[0].parents) if all(one.is_relative_to(path) for one in paths))


def require_own_folders(page: Path) -> None:
    """`BadInput` if a folder beside ``page`` that a report writes into is a symbolic link: others may have put it."""
    for folder in (page.parent / name for name in ("tables", "figures", f"{page.stem}-files")):
        if folder.is_symlink():
            raise BadInput(f"{folder}: is a symbolic link, through which no report is written; name another --out")


def remove_tables(page: Path) -> None:
    """Remove the tables in ``tables`` beside ``page`` that an earlier report in its place links to."""
    earlier = read_bytes(page, MOST_PAGE).decode(errors="replace") if page.is_file() else ""
    for name in re.findall(r'href="tables/([\w.+-]+)\.csv"', earlier):
        for ending in ("csv", "tex"):
            (page.parent / "tables" / f"{name}.{ending}").unlink(missing_ok=True)


def shared_settings(runs: Sequence[Run], shown: Sequence[Mapping[str, Any]]) -> tuple[dict[str, str], pd.DataFrame]:
    """Settings of runs as (those that all share, a row per method of those that differ, all values of its runs)."""
    table = pd.DataFrame([_flat(one) for one in shown]).fillna("")
    same = [name for name in table if table[name].nunique() == 1]
    differing = table.drop(
        columns=[*same, *(name for name in SINGLE_RUN_SETTINGS if name in table and name not in same)]
    )
    labels = [run.label for run in runs]
    rows = [
        {"Method": label} | {name: ", ".join(filter(None, dict.fromkeys(part[name]))) or DASH for name in differing}
        for label, part in differing.groupby(labels, sort=False)
    ]
    return {str(name): table[name].iloc[0] for name in same}, pd.DataFrame(rows)


def _flat(info: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Settings by name, without digests, empty settings and folders of this machine."""
    found: dict[str, str] = {}
    for name, value in info.items():
        if name in (DIGESTS, SERVER_DIGESTS):
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


def training_dates(runs: Sequence[Run]) -> str:
    """The days on which the runs were started: ``2026-01-02``, or the first and the last."""
    days = sorted({str(run.info["started"])[:10] for run in runs if run.info.get("started")})
    return " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "at a time not recorded"


def shared_quantities(results: Results) -> dict[str, list[str]]:
    """The recorded quantities of rounds, each with those that are the same numbers."""
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
) -> tuple[SavedFigure | None, str]:
    """The overlays of runs, or why there are none; an older file is then removed.

    Raises:
        BadInput: ``sites`` is given and cannot be shown; or a run's model is of code that nobody trusts.
    """
    file.unlink(missing_ok=True)
    if not images:
        return None, "Images were left out of this report on request. It holds no image, file name or patient."
    place = sites or allowed_place(runs[0].info.get("sites_folder"))
    if place is None or (sites is None and not place.is_dir()):
        return None, (
            "The sites' images are not on this machine, or nobody named them here: no segmentation is shown. "
            "A hospital sees its own with `fedmerit report RUN --sites FOLDER`."
        )
    tested = [run for run in runs if run.tested]
    if not tested:
        return None, "No segmentation is shown: the run has no test Dice yet."
    try:
        shown = without_blanks(overlays(tested, place, only))
        content = png(draw(shown))
    except BadInput as error:
        if sites is not None or isinstance(error, Untrusted):
            raise
        return None, f"No segmentation is shown: {error if only is None else 'its images are not on this machine'}."
    labels = list(dict.fromkeys(run.label for run in tested))
    in_volumes = any(run.info.get("plan", {}).get("network", {}).get("patch") for run in tested)
    planes = ", and the sagittal and coronal plane through its middle" if in_volumes else ""
    caption = (
        f"The {describe_cases(shown)} test case by the Dice of {labels[0]}, seed {tested[0].seed}, "
        f"in the slice where the organ is largest{planes}. The Dice is that of the whole case."
    )
    return photograph(content, caption, describe_overlays(shown), file), ""


def surface_columns(table: pd.DataFrame) -> dict[str, pd.Series]:
    """Of `fedmerit_evaluation.results.views.Dice.sites` or means of it, HD95 and NSD as shown, by heading."""
    return {HEADINGS[name]: table[name] * UNITS.get(name, 1.0) for name in SURFACES if name in table}


def averaged(table: pd.DataFrame) -> pd.DataFrame:
    """Mean over seeds: ``(method, site)`` x columns; counts stay whole if they are the same in all."""
    mean = table.groupby(level=["method", "site"], observed=True).mean()
    whole = [name for name in table.select_dtypes("integer") if (mean[name] % 1 == 0).all()]
    return mean.astype(dict.fromkeys(whole, int))


def with_intervals(columns: Mapping[str, pd.DataFrame | pd.Series], names: Mapping[str, Any]) -> dict[str, Any]:
    """Frame, low and high of a `Table` from columns: series, or frames ``mean, low, high`` of one index.

    Args:
        columns: by heading, in the unit shown.
        names: the first columns, by heading, in the order of the index.
    """
    means = {
        heading: column["mean"] if isinstance(column, pd.DataFrame) else column for heading, column in columns.items()
    }
    low, high = (
        pd.DataFrame({heading: column[end].to_numpy() for heading, column in columns.items()
                      if isinstance(column, pd.DataFrame)})
        for end in ("low", "high")
    )  # fmt: skip
    frame = pd.DataFrame({**names, **{heading: column.to_numpy() for heading, column in means.items()}})
    return {"frame": frame, "low": low, "high": high}


BEST = "testing_best"
RECEIVED = {"Received": "given", "Local": "local_only", "Final": "selected"}  # by the ends of the splits' names
DICE = HEADINGS["dice"]


def other_models(results: Results) -> list[Table]:
    """Those that the results can fill: ``best_round``, ``final_models`` and ``final_models_surfaces``."""
    return [*_best_round(results), *received_models(results.rows)]


def _best_round(results: Results) -> list[Table]:
    """A row per run; if the last round was the best, it is both."""
    best = _by_site(results.rows, BEST)
    if best.empty:
        return []
    rows = results.rows[(results.rows["split"] == BEST) & (results.rows["quantity"] == "dice")]
    chosen = rows.groupby(RUN, observed=True)["round"].first()
    last, best = (table.groupby(level=RUN, observed=True).mean() for table in (_by_site(results.rows, OWN), best))
    both = {"Last round": last, "Best round": best.reindex(last.index).fillna(last)}
    shown = {f"{when}, {name}": table[name] for name in best if name in last for when, table in both.items()}
    frame = pd.DataFrame(shown | {"Round": chosen.reindex(last.index)})
    frame = frame.reset_index().rename(columns={"method": "Method", "seed": "Seed"}).astype({"Method": str})
    caption = (
        "Models of the round with the best validation Dice, compared with the last round, on test patients; mean over "
        "sites. All other tables are of the last round: with few validation patients the best round is partly chance"
    )
    return [Table("best_round", caption, frame, decimals=1)]


def received_models(rows: pd.DataFrame, whom: str = "each hospital") -> list[Table]:
    """``final_models`` and ``final_models_surfaces`` of final model selection, by method and site."""
    tested = {name: _by_site(rows, f"testing_{end}") for name, end in RECEIVED.items()}
    if tested["Final"].empty:
        return []
    validated = {name: _by_site(rows, f"validation_{end}") for name, end in RECEIVED.items()}
    dice = {f"{name}, {DICE}": table[DICE] for name, table in tested.items() if DICE in table}
    dice |= {f"{name}, validation {DICE}": table[DICE] for name, table in validated.items() if DICE in table}
    surfaces = {f"{name}, {other}": tested[name][other] for other in tested["Final"] if other != DICE
                for name in tested if other in tested[name]}  # fmt: skip
    caption = (
        f"Final model selection (final_model=selected): the model that {whom} received, its local-only model, and the "
        "final one: the best on its validation patients of these two and of the received model fine-tuned locally"
    )
    found = [_site_table("final_models", caption, dice)]
    if surfaces:
        caption = f"Surface distances of prediction and reference with the models of {whom}"
        found.append(_site_table("final_models_surfaces", caption, surfaces))
    return found


def _site_table(name: str, caption: str, columns: dict[str, pd.Series]) -> Table:
    frame = pd.DataFrame(columns).groupby(level=["method", "site"], observed=True).mean()
    frame = frame.reset_index().rename(columns={"method": "Method", "site": "Site"}).astype({"Method": str})
    return Table(name, caption, frame, decimals=1)


def _by_site(rows: pd.DataFrame, split: str) -> pd.DataFrame:
    """``(method, seed, site)`` x Dice and surfaces by heading: the mean over cases of the mean over labels."""
    dice = Dice(rows, split)
    if dice.rows.empty:
        return pd.DataFrame()
    return pd.DataFrame({DICE: 100 * dice.sites["dice"], **surface_columns(dice.sites)})
