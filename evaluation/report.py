"""The report of one or several runs: one HTML file that needs nothing else, with its tables and figures beside it."""

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from evaluation import figures, summary, tables
from evaluation.formats import DASH, MISSING, Table, csv_text, headed, latex_text
from evaluation.overlay import draw, overlays
from evaluation.runs import Run, open_runs, together
from fedmerit.errors import BadInput
from fedmerit.files import write_atomically, write_text
from fedmerit.ledger import Ledger


@dataclass(frozen=True)
class Picture:
    """A figure to show: its file's name, a caption, an address that holds the image itself."""

    name: str
    caption: str
    address: str


def write_report(
    runs: Sequence[Path], out: Path | None = None, *, sites: Path | None = None, images: bool = True
) -> Path:
    """Write report.html of one run or of several compared, with ``tables/`` and ``figures/`` beside it.

    Args:
        runs: run folders, on the same task and sites.
        out: where to; default ``RUN/report.html``, or report.html in the runs' common parent.
        sites: the prepared site folders; default those of the first run, where they are on this machine.
        images: whether to show test images with outlines. Such a report must not leave the hospital.

    Returns:
        The path of the HTML file.

    Raises:
        BadInput: a run is unusable or empty, or the runs do not belong together.
    """
    opened = open_runs(runs)
    results = together(opened)
    out = _default_out(opened) if out is None else Path(out)
    shown = _tables(opened, results)
    for table in shown.values():
        write_text(out.parent / "tables" / f"{table.name}.csv", csv_text(table))
        write_text(out.parent / "tables" / f"{table.name}.tex", latex_text(table))
    pictures = _pictures(results, out.parent / "figures")
    overlay, overlay_note = _overlay(opened, sites, out.parent / "figures", images=images)
    settings, differing = _settings(opened)
    page = _template().render(
        runs=opened,
        title=", ".join(dict.fromkeys(run.label for run in opened)),
        facts=summary.facts(results),
        sentences=summary.sentences(results),
        notes=summary.notes(opened, results),
        tables=shown,
        pictures=pictures,
        overlay=overlay,
        overlay_note=overlay_note,
        settings=settings,
        differing=Table("runs", "What differs between the runs", differing),
    )
    write_text(out, page)
    return out


def _default_out(runs: Sequence[Run]) -> Path:
    if len(runs) == 1:
        return runs[0].path / "report.html"
    paths = [run.path.resolve().parent for run in runs]
    common = [path for path in (paths[0], *paths[0].parents) if all(other.is_relative_to(path) for other in paths)]
    return common[0] / "report.html"


def _tables(runs: Sequence[Run], results: pd.DataFrame) -> dict[str, Table]:
    """The tables that the results can fill, by name."""
    several_seeds = len({run.seed for run in runs}) > 1
    over_seeds = ", mean ± standard deviation over seeds" if several_seeds else ""
    found: list[Table] = []
    dice = tables.site_dice(results)
    if not dice.empty:
        found.append(_comparison(results, over_seeds))
        found.append(
            Table("dice", f"Test Dice per site{', mean over seeds' * several_seeds}", headed(_over_seeds(dice)))
        )
        labels = tables.label_dice(results)
        if labels.shape[1] > 1:
            caption = f"Test Dice [%] per label{', mean over seeds' * several_seeds}"
            found.append(Table("labels", caption, headed(100 * _over_seeds(labels)), decimals=1))
        gains = tables.gains(results)
        if not gains.empty:
            frame = headed(100 * gains.assign(mean=gains.mean(axis=1), worst=gains.min(axis=1)))
            found.append(Table("gains", "Gain in test Dice over training alone [points]", frame, decimals=1))
    merit = tables.contributions(results)
    if not merit.empty:
        found.append(_contributions(merit, tables.contribution_ranks(results), several_seeds))
    marks = _marks(runs, results)
    if not marks.empty:
        found.append(Table("marks", "Flagged sites and rejected replies", marks))
    costs = tables.costs(results)
    if not costs.empty:
        caption = "Time and transfer per site and round" + ", mean over seeds" * several_seeds
        found.append(Table("costs", caption, headed(_over_seeds(costs))))
    return {table.name: table for table in found}


def _contributions(merit: pd.DataFrame, ranks: pd.DataFrame, several_seeds: bool) -> Table:
    frame = _over_seeds(merit)
    caption = "Contributions and weights of the sites"
    if several_seeds:
        caption += ", mean over seeds"
    if not ranks.empty:
        caption += "; ranks by mean contribution, from the best to the worst seed"
        spans = ranks.astype(int).apply(lambda rank: _ranges([*range(rank["best"], rank["worst"] + 1)]), axis=1)
        frame["Rank"] = spans.reindex(frame.index).fillna(MISSING)
    return Table("contributions", caption, headed(frame))


def _over_seeds(table: pd.DataFrame) -> pd.DataFrame:
    mean = table.groupby(level=["method", "site"]).mean()
    whole = [name for name in table.select_dtypes("integer") if (mean[name] % 1 == 0).all()]
    return mean.astype(dict.fromkeys(whole, int))


def _comparison(results: pd.DataFrame, over_seeds: str) -> Table:
    """Methods in rows, sites in columns, as the field's papers print it; the best of each column bold."""
    mean, spread = tables.comparison(results)
    lower = mean.columns == ("sites", "std")
    best = mean.eq(mean.max()) & ~lower | mean.eq(mean.min()) & lower
    if len(mean) < 2:
        best &= False

    def flat(table: pd.DataFrame, first: Any) -> pd.DataFrame:
        levels = zip(*(table.columns.get_level_values(level) for level in (0, 1)), strict=True)
        names = [name if level == "site" else name.title() for level, name in levels]
        table = table.set_axis(names, axis=1)
        table.insert(0, "Method", first, allow_duplicates=True)
        return table.reset_index(drop=True)

    return Table(
        "comparison",
        f"Test Dice [%] per site{over_seeds}; mean, standard deviation and worst over sites",
        flat(100 * mean, [str(name) for name in mean.index]),
        spread=flat(100 * spread, math.nan),
        best=flat(best, False),
        decimals=1,
    )


def _marks(runs: Sequence[Run], results: pd.DataFrame) -> pd.DataFrame:
    """Site by site what was flagged or rejected, in which rounds, and why."""
    marked = results[results["quantity"].isin(["flagged", "rejected"]) & (results["value"] > 0)]
    reasons = {(run.label, run.seed): _rejections(run.path) for run in runs}
    columns = ["method", "seed", "site", "quantity", "split", "round"]
    rows = [
        (method, seed, site, what, number, _reason(reasons[method, seed].get((number, site)), what, split))
        for method, seed, site, what, split, number in marked[columns].to_numpy()
    ]
    table = pd.DataFrame(rows, columns=["Method", "Seed", "Site", "What", "Rounds", "Reason"])
    keys = ["Method", "Seed", "Site", "What", "Reason"]
    grouped = table.groupby(keys, sort=False)["Rounds"].agg(_ranges).reset_index()
    return grouped[["Method", "Seed", "Site", "What", "Rounds", "Reason"]]


def _reason(recorded: str | None, what: str, split: str) -> str:
    if split:
        return "no usable reply to the final test"
    if what == "flagged":
        return "its claim differs from what the server computed"
    return recorded or "the ledger gives no reason"


def _ranges(numbers: Iterable[int]) -> str:
    """``0-2, 5`` of 0, 1, 2, 5."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{part[0]}{DASH}{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def _rejections(run: Path) -> dict[tuple[int, str], str]:
    """What the ledger says of rejected replies, by round and site."""
    path = run / "ledger.jsonl"
    try:
        records = Ledger(path).records
        return {(record["round"], site): str(why) for record in records for site, why in record["rejected"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{path}: not a ledger of rounds ({error}); check it with `fedmerit verify {run}`") from error


def _pictures(results: pd.DataFrame, folder: Path) -> dict[str, Picture]:
    """Every figure that the results can fill, saved as PNG, and held as SVG for the page."""
    quantities = {"weights": "weight", "contributions": "contribution", "reputation": "reputation"}
    drawn: dict[str, tuple[str, Figure]] = {}
    if not tables.site_dice(results).empty:
        drawn["dice"] = ("Test Dice per method and site; each dot is a case.", figures.dice_bars(results))
    if not tables.validation(results).empty:
        text = (
            "Validation Dice over the rounds, of the model each site receives. Mean of sites: thin as measured, "
            "thick smoothed (Savitzky-Golay); single sites are smoothed."
        )
        drawn["convergence"] = (text, figures.convergence(results))
    captions = {
        "weights": "Aggregation weight of each site over the rounds.",
        "contributions": "Contribution of each site as the method estimates it, round by round.",
        "reputation": "Reputation: contribution remembered over rounds.",
    }
    seen: dict[str, pd.DataFrame] = {}
    for name, quantity in quantities.items():
        rounds = tables.per_round(results, quantity)
        if rounds.isna().all(axis=None):
            continue
        if same := [other for other, shown in seen.items() if rounds.equals(shown)]:
            caption, figure = drawn[same[0]]
            drawn[same[0]] = (f"{caption} Here the {quantity} is the same number.", figure)
            (folder / f"{name}.png").unlink(missing_ok=True)
            continue
        figure = figures.over_rounds(results, quantity, quantity.title(), equal_share=quantity == "weight")
        drawn[name], seen[name] = (captions[name], figure), rounds
    for name, (_, figure) in drawn.items():
        _save(folder / f"{name}.png", figures.png(figure))
    return {
        name: Picture(name, caption, _address(figures.svg(figure), "svg+xml"))
        for name, (caption, figure) in drawn.items()
    }


def _overlay(runs: Sequence[Run], sites: Path | None, folder: Path, *, images: bool) -> tuple[Picture | None, str]:
    """The overlays, or why there are none. An older overlay file is removed where there are none."""
    file = folder / "overlays.png"
    file.unlink(missing_ok=True)
    if not images:
        return None, "Images were left out of this report on request. It holds no image, file name or patient."
    place = sites or (Path(runs[0].info["sites_folder"]) if runs[0].info.get("sites_folder") else None)
    if place is None or (sites is None and not place.is_dir()):
        return None, (
            "The sites' images are not on this machine, so no segmentation is shown. "
            "A hospital sees its own with `fedmerit report RUN --sites FOLDER`."
        )
    if not any(run.tested for run in runs):
        return None, "No segmentation is shown: the run has no test Dice yet."
    try:
        content = figures.png(draw(overlays([run for run in runs if run.tested], place)))
    except BadInput as error:
        if sites is not None:
            raise
        return None, f"No segmentation is shown: {error}."
    _save(file, content)
    caption = (
        "A typical test case of each site, the one with the median Dice in the first run, "
        "in the slice where the organ is largest. The Dice is that of the whole case."
    )
    return Picture("overlays", caption, _address(content, "png")), ""


def _save(path: Path, content: bytes) -> None:
    write_atomically(path, lambda file: file.write(content))


def _address(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _settings(runs: Sequence[Run]) -> tuple[dict[str, str], pd.DataFrame]:
    """run.json as (settings that all runs share, a row per run of those that differ)."""
    table = pd.DataFrame([_flat(_shown(run)) for run in runs]).fillna("")
    same = [name for name in table if table[name].nunique() == 1]
    return {str(name): table[name].iloc[0] for name in same}, table.drop(columns=same)


def _shown(run: Run) -> dict[str, Any]:
    """run.json, each setting once: the plan repeats all but the network, ``settings`` what was asked for."""
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


def _template() -> Any:
    environment = Environment(
        loader=PackageLoader("evaluation", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2")
