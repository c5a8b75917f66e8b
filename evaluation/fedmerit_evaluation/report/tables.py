"""The tables of a report, from its model: one path for the page, CSV and LaTeX."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from fedmerit_evaluation.figures.tables import DASH, HEADINGS, UNITS, Table, with_headings
from fedmerit_evaluation.report.flags import explain_bounds
from fedmerit_evaluation.report.groups import FLOOR
from fedmerit_evaluation.report.model import Hospital, ReportModel, surface_columns
from fedmerit_evaluation.report.words import count_failures, join_words, p_text, resampling_units, say
from fedmerit_evaluation.results.runs import DIGESTS, SERVER_DIGESTS
from fedmerit_evaluation.results.views import STANDALONE
from fedmerit_evaluation.statistics.family import Question
from fedmerit_evaluation.statistics.inference import Estimate
from fedmerit_evaluation.statistics.intervals import select_methods, select_sites, sort_by_mean
from fedmerit_evaluation.valuation.estimators import LEAVE_ONE_OUT, coverage_matrix

FOLDERS = ("sites_folder", "server_sites")  # of run.json: places on one machine
SINGLE_RUN_SETTINGS = ("run", "method", "command", "started")  # of run.json: not in the table of settings that differ
Columns = Mapping[str, "pd.DataFrame | pd.Series[Any]"]  # by heading, in the unit shown: numbers, or mean, low, high


def report_tables(model: ReportModel) -> dict[str, Table]:
    """Return the tables that the model can fill, by name, in the order of the page."""
    tables = [*_first_tables(model), *_dice_tables(model), *_other_tables(model)]
    if model.site:  # numbers of the page and its files are the same, so no digit tells more than the page
        tables = [_rounded(table) for table in tables]
    return {table.name: table for table in tables}


def _first_tables(model: ReportModel) -> Iterator[Table]:
    """Yield what each hospital gained and contributed."""
    if not model.hospitals:
        return
    rows, names = model.hospitals, {"Hospital": [one.name for one in model.hospitals]}
    surfaces = dict.fromkeys(name for row in rows for name in row.surfaces)
    caption = (
        f"Benefit: test Dice of each hospital with local training and with federated training by {model.primary}; in "
        f"brackets the 95 % confidence interval (CI) over {_over(model)}"
    )

    def failed(when: str, method: str | None) -> Columns:
        texts = pd.Series([_failed(model, method, row.name) for row in rows])
        return {} if model.failures.empty else {f"{when}, failed": texts}

    yield _table("benefit", caption, names, {
        "Local, Dice [%]": 100 * pd.Series([row.local for row in rows]),
        **failed("Local", STANDALONE),
        "Federated, Dice [%]": 100 * _ends([row.federated for row in rows]),
        **failed("Federated", model.primary),
        **{f"Federated, {name}": pd.Series([row.surfaces.get(name, math.nan) for row in rows]) for name in surfaces},
        "Gain [points]": 100 * _ends([row.gain for row in rows]),
        **_p_values(model, [row.gain for row in rows]),
        "Result": pd.Series([say("gain", row) for row in rows]),
    })  # fmt: skip
    estimate = f"the estimate of {model.primary}"
    if model.counts_images:
        estimate = "number of images: the method makes no estimate"
    has_ends = model.shares_have_intervals and not model.counts_images
    ends = f"; in brackets the 95 % CI over {model.study.repeats}" * has_ends
    heading = "Share of images [%]" if model.counts_images else HEADINGS["share"]
    yield _table("contribution", f"Contribution: share of each hospital by {estimate}{ends}", names, {
        heading: 100 * _ends([row.share for row in rows]),
        **_p_values(model, [row.share for row in rows]),
        **{f"Value, {reference} [points]": 100 * pd.Series([row.values[reference] for row in rows])
           for reference in rows[0].values},
        "Flagged": pd.Series([say("flagged", row) or "no" for row in rows]),
        "Result": pd.Series([_contribution(row) for row in rows]),
    })  # fmt: skip


def _failed(model: ReportModel, method: str | None, site: str) -> str:
    """Return the failed patients of a method at a site as text; a dash if none was tested."""
    if (method, site) not in model.failures.index:
        return DASH
    return count_failures(pd.Series(model.failures.T[(method, site)]))


def _p_values(model: ReportModel, numbers: Sequence[Estimate]) -> Columns:
    """Return the column of corrected p-values, if any is known; none for one hospital: others' numbers are in them."""
    texts = [p_text(one.p) or DASH for one in numbers]
    return {} if model.site or set(texts) == {DASH} else {"p": pd.Series(texts)}


def _contribution(row: Hospital) -> str:
    return say("contribution", row) or DASH


def _dice_tables(model: ReportModel) -> Iterator[Table]:
    """Yield what was measured of test Dice and surfaces."""
    if not model.tested.empty:
        if model.comparison is not None:
            yield from (_methods(model), _comparison(*model.comparison, model))
            yield from _differences(model)
        yield _dice(model)
        if not model.labels.empty:
            yield Table(
                "labels", f"Test Dice [%] per label{_over_seeds(model)}", with_headings(model.labels), decimals=1
            )
        if not model.groups.empty:
            yield _groups(model)
        for name, matrix in model.cross_site.items():
            text = f"Test {HEADINGS[name]} of each site's own final model (row) at every site (column)"
            frame = with_headings(matrix * UNITS.get(name, 1.0))
            table = "cross_site" if name == "dice" else f"cross_site_{name}"
            yield Table(table, f"{text}{_over_seeds(model)}", frame, decimals=1)
        yield from _needs(model)
        if select_sites(model.intervals, "gain")["mean"].notna().any():
            yield _gains(model)
        if not model.surface_changes.empty:
            yield _surface_changes(model.surface_changes)
    if not model.best_round.empty:
        caption = (
            "Models of the round with the best validation Dice, compared with the last round, on test patients; mean "
            "over sites. All other tables are of the last round: with few validation patients the best round is partly "
            "chance"
        )
        yield Table("best_round", caption, _plain(model.best_round), decimals=1)
    if not model.final_models.empty:
        yield from _final_models(model.final_models, model.site or "each hospital")


def _needs(model: ReportModel) -> Iterator[Table]:
    """Yield what each hospital would lose without each local-only model, if all sites tested all of them."""
    matrix = model.cross_site.get("dice", pd.DataFrame())
    if matrix.empty or STANDALONE not in matrix.index.get_level_values("method"):
        return
    sites = list(model.study.sites)
    dice = pd.DataFrame(matrix.loc[STANDALONE]).reindex(index=sites, columns=sites)
    if len(sites) < 2 or dice.isna().any(axis=None):
        return
    lost = pd.DataFrame(100 * coverage_matrix(dice.to_numpy()[..., None], LEAVE_ONE_OUT)[..., 0], columns=sites)
    caption = (
        "Who needs whom: test Dice [points] that a hospital (column) loses if the local-only model of another (row) is "
        "missing and the next best is used instead; 0: another is better there. On the diagonal the lead of its own "
        f"model{_over_seeds(model)}. Leads of the best of several are biased upward by chance; no basis for payment"
    )
    names = pd.DataFrame({"Without the model of": sites})
    yield Table("needs", caption, pd.concat([names, lost], axis=1).assign(Mean=lost.mean(axis=1)), decimals=1)


def _other_tables(model: ReportModel) -> Iterator[Table]:
    """Yield what is shown of other hospitals, contributions, flags, bounds and costs."""
    if not model.others.empty:
        beside = model.others.drop(columns=["quantity", "method", "own", "third"])
        rest = {f"Others, {name} [%]": 100 * beside[name] for name in beside}
        is_fraction = model.others["quantity"].str.contains("[%]", regex=False) | (
            model.others["quantity"] == "Gain [points]"
        )
        frame = pd.DataFrame({
            "Quantity": model.others["quantity"], "Method": model.others["method"],
            model.site: model.others["own"] * is_fraction.map({True: 100.0, False: 1.0}),
            "Rank among all sites": model.others["third"], **rest,
        })  # fmt: skip
        caption = f"{model.site} among all sites"
        yield Table("others", caption + "; of the others only the median, rounded to 5" * bool(rest), frame, decimals=1)
    if not model.contributions.empty and model.contributions.shape[1]:
        yield _contributions(model)
    flags, bounds = model.flags.table.reset_index(drop=True), model.flags.bounds.reset_index(drop=True)
    if not flags.empty:
        yield Table("flags", "Flagged or excluded sites, and rejected replies", flags)
    if len(failures := model.flags.failures):
        caption = "Sites without an answer: what failed there shows nothing of their updates"
        yield Table("failures", caption, failures.drop(columns="What").reset_index(drop=True))
    if not bounds.empty:
        kept = ", with the smallest fraction kept" if "Least [%]" in bounds else ""
        caption = f"What the guard clipped or capped{kept}{explain_bounds(bounds['What'])}"
        yield Table("bounds", caption, bounds, decimals=0)
    if not model.flags.repeated_steps.empty:
        caption = "Drawn steps of the training that an auditor repeated; `fedmerit verify` checks the statements"
        yield Table("repeated_steps", caption, model.flags.repeated_steps)
    if not model.flags.spent_privacy.empty:
        caption = "Differential privacy of updates, (ε, δ) for each patient, as each site accounts for it"
        yield Table("spent_privacy", caption, model.flags.spent_privacy, decimals=3)
    if not model.costs.empty:
        yield Table("costs", f"Time and transfer per site and round{_over_seeds(model)}", with_headings(model.costs))


def _methods(model: ReportModel) -> Table:
    """Return the methods by mean Dice, with ranks, worst site, gain and surfaces."""
    assert model.comparison is not None
    intervals = model.intervals
    order = sort_by_mean(select_methods(intervals, "mean"))
    columns: dict[str, pd.DataFrame | pd.Series[Any]] = {
        "Mean Dice [%]": 100 * select_methods(intervals, "mean").loc[order],
        "Rank": _ranks(model).reindex(order),
        "Worst site [%]": 100 * pd.DataFrame(model.comparison[0]["sites"])["worst"].loc[order],
    }
    if not model.all_failures.empty:
        columns["Failed"] = model.all_failures.apply(count_failures, axis=1).reindex(order)
    gain = select_methods(intervals, "mean_gain")
    if not gain.empty:
        columns["Mean gain over local training [points]"] = 100 * gain.reindex(order)
        against = [one for one in model.verdicts if STANDALONE in (one.subject, one.other)]
        p = {method: one.estimate.p for one in against if one.question in (Question.MEAN_GAIN, Question.METHODS)
             for method in (one.subject, one.other)}  # fmt: skip
        columns |= _p_values(model, [Estimate(0.0, p=math.nan if method == STANDALONE else p.get(method, math.nan))
                                     for method in order])  # fmt: skip
    columns |= surface_columns(model.surface_means.reindex(order))
    return _table("methods", f"Methods by mean test Dice; {_level_note(model)}", {"Method": order}, columns)


def _differences(model: ReportModel) -> Iterator[Table]:
    """Yield the differences of every two methods, if there are three or more."""
    found = model.verdicts_on(Question.METHODS)
    if not found:
        return
    caption = (
        f"Differences of methods in mean test Dice; {_level_note(model)}, p corrected for all verdicts of the report; "
        "detectable: the difference that four of five such studies would show"
    )
    estimates = [one.estimate for one in found]
    names = {"Method": [one.subject for one in found], "Less": [one.other for one in found]}
    yield _table("differences", caption, names, {
        "Difference [points]": 100 * _ends(estimates),
        "p": pd.Series([p_text(one.p) or DASH for one in estimates]),
        "Detectable [points]": 100 * pd.Series([one.detectable for one in found]),
    })  # fmt: skip


def _ranks(model: ReportModel) -> "pd.DataFrame | pd.Series[Any]":
    """Return the ranks of methods by mean Dice with their CIs; or why there are none."""
    ranks = select_methods(model.intervals, "rank")
    if insufficient_data := model.sample.insufficient_data:
        return pd.Series(insufficient_data.partition(" (")[0], ranks.index, dtype=object)
    return ranks.round()


def _comparison(mean: pd.DataFrame, spread: pd.DataFrame, model: ReportModel) -> Table:
    """Return methods in rows and sites in columns, as papers print it."""

    def flat(table: pd.DataFrame, first: Any) -> pd.DataFrame:
        levels = (map(str, table.columns.get_level_values(level)) for level in (0, 1))
        names = [name if level == "site" else name.title() for level, name in zip(*levels, strict=True)]
        table = table.set_axis(names, axis=1)
        table.insert(0, "Method", first, allow_duplicates=True)
        return table.reset_index(drop=True)

    over_seeds = ", each mean ± standard deviation over seeds" * (len(model.study.seeds) > 1)
    return Table(
        "comparison",
        f"Test Dice [%] per site{over_seeds}; mean, standard deviation and worst over sites",
        flat(100 * mean, [str(name) for name in mean.index]),
        spread=flat(100 * spread, math.nan),
        decimals=1,
    )


def _dice(model: ReportModel) -> Table:
    dice = model.tested
    methods, sites = ([str(name) for name in dice.index.get_level_values(level)] for level in ("method", "site"))
    ends = select_sites(model.intervals, "dice").reindex(pd.MultiIndex.from_arrays([methods, sites]))
    counts = ("cases", "both_empty", "one_empty")
    caption = f"Test Dice per site{_over_seeds(model)}; {_level_note(model)}"
    return _table("dice", caption, {"Method": methods, "Site": sites}, {
        "Dice [%]": 100 * ends.assign(mean=dice["dice"].to_numpy()),
        "Failed": pd.Series([_failed(model, method, site) for method, site in zip(methods, sites, strict=True)]),
        "Lowest case [%]": 100 * dice["lowest"],
        **surface_columns(dice),
        **{HEADINGS[name]: dice[name] for name in counts if name in dice},
    })  # fmt: skip


def _groups(model: ReportModel) -> Table:
    """Return the Dice of groups of patients, and their gaps."""
    rows = model.groups.reset_index()
    caption = (
        f"Groups of patients: test Dice with {model.primary}, and the gap to the other groups of the column; in "
        f"brackets the 95 % CI over {_over(model)}, of one group each and no test. A hospital counts in groups of "
        f"{FLOOR} or more of its patients that leave {FLOOR} or none. Hospitals differ, too: a gap need not be due to "
        "the group"
    )
    return _table("groups", caption, {"Column": rows["column"].tolist(), "Group": rows["group"].tolist()}, {
        "Patients": rows["patients"].astype(float),
        "Dice [%]": 100 * rows[["mean", "low", "high"]],
        "Gap [points]": 100 * rows[["gap", "gap_low", "gap_high"]].set_axis(["mean", "low", "high"], axis=1),
    })  # fmt: skip


def _gains(model: ReportModel) -> Table:
    """Return methods in rows and sites in columns."""
    gain, mean = select_sites(model.intervals, "gain"), select_methods(model.intervals, "mean_gain")
    methods = sort_by_mean(mean) or [str(method) for method in gain.index.unique("method")]
    columns: dict[str, pd.DataFrame | pd.Series[Any]] = {
        str(site): 100 * rows.droplevel("of").reindex(methods) for site, rows in gain.groupby(level="of")
    }
    if not mean.empty:
        columns["Mean"] = 100 * mean.reindex(methods)
        columns["Lowest"] = 100 * gain["mean"].groupby(level="method").min().reindex(methods)
    caption = f"Gain in test Dice over local training [points]; {_level_note(model)}, not corrected and not tested here"
    return replace(_table("gains", caption, {"Method": methods}, columns), decimals=1)


def _surface_changes(changes: pd.DataFrame) -> Table:
    caption = (
        "Change in HD95 and NSD compared with local training, over the cases that both have, mean over seeds; a lower "
        "HD95 is better"
    )
    frame = _plain(pd.DataFrame(surface_columns(changes)))
    frame = frame.rename(columns=lambda heading: heading.replace("[%]", "[points]"))
    return Table("surface_changes", caption, frame, decimals=1)


def _final_models(models: pd.DataFrame, whom: str) -> Iterator[Table]:
    """Yield Dice, and surfaces if they were measured, of received, local and final models."""
    is_dice = [str(heading).endswith(HEADINGS["dice"]) for heading in models]
    caption = (
        f"Final model selection (final_model=selected): the model that {whom} received, its local-only model, and the "
        "final one: the best on its validation patients of these two and of the received model fine-tuned locally"
    )
    yield Table("final_models", caption, _plain(models.loc[:, is_dice]), decimals=1)
    surfaces = models.loc[:, [not one for one in is_dice]]
    if surfaces.shape[1]:
        caption = f"Surface distances of prediction and reference with the models of {whom}"
        yield Table("final_models_surfaces", caption, _plain(surfaces), decimals=1)


def _contributions(model: ReportModel) -> Table:
    frame = model.contributions.drop(
        columns=["contribution", "mean_reputation"] if not model.site else [], errors="ignore"
    )
    frame = frame[frame.drop(columns="num_samples", errors="ignore").notna().any(axis=1)]
    keys = pd.MultiIndex.from_tuples([(str(method), str(site)) for method, site in frame.index], names=["method", "of"])
    caption, low, high = "Contributions and weights of the sites", None, None
    if len(model.study.seeds) > 1:
        caption += ", mean over seeds"
        if not model.ends.empty and model.ends["low"].notna().any():
            is_wide = (model.ends["seeds"] > 1) & (model.ends["high"] > model.ends["low"])
            low, high = (
                pd.DataFrame({HEADINGS["mean_contribution"]: model.ends[end].where(is_wide).reindex(keys).to_numpy()})
                for end in ("low", "high")
            )
            caption += f"; in brackets the 95 % confidence interval of the contribution over {model.study.repeats}"
    if model.by_images:
        caption += f"; contribution is the share of images (no estimate) with {join_words(model.by_images)}"
    return Table("contributions", caption, with_headings(frame), low=low, high=high)


def settings_tables(model: ReportModel) -> tuple[dict[str, str], Table]:
    """Return the settings that all runs share, and a row per method of those that differ, with all of its values."""
    table = pd.DataFrame([_flat(values) for _, values in model.settings]).fillna("")
    same = [name for name in table if table[name].nunique() == 1]
    single_run = [name for name in SINGLE_RUN_SETTINGS if name in table and name not in same]
    differing = table.drop(columns=[*same, *single_run])
    rows = [
        {"Method": label} | {name: ", ".join(filter(None, dict.fromkeys(part[name]))) or DASH for name in differing}
        for label, part in differing.groupby([label for label, _ in model.settings], sort=False)
    ]
    shared = {str(name): str(table[name].iloc[0]) for name in same}
    return shared, Table("runs", "Settings that differ between the runs", pd.DataFrame(rows))


def _flat(info: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return settings by name, without digests, empty settings and folders of this machine."""
    flat: dict[str, str] = {}
    for name, value in info.items():
        if name in (DIGESTS, SERVER_DIGESTS):
            continue
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}: ")
        elif value in (None, "", []) or name in FOLDERS:
            continue
        elif isinstance(value, list) and all(isinstance(part, str) for part in value):
            joint = " " if name == "command" else ", "
            flat[prefix + name] = joint.join(map(_without_folder, value))
        else:
            words = value.split(" ") if name == "command" and isinstance(value, str) else [value]
            flat[prefix + name] = " ".join(
                _without_folder(one) if isinstance(one, str) else json.dumps(one) for one in words
            )
    return flat


def _without_folder(text: str) -> str:
    """Return the last part of a path, of an option's value too; else the text."""
    return re.sub(r"(^|=)[^=\s]*/([^/=\s]+)/?$", r"\1\2", text) if "://" not in text else text


def _table(name: str, caption: str, names: Mapping[str, Sequence[str]], columns: Columns) -> Table:
    """Return a table of columns of one index; the names, by heading, are its first columns."""
    means = {heading: column["mean"] if isinstance(column, pd.DataFrame) else column
             for heading, column in columns.items()}  # fmt: skip
    low, high = (
        pd.DataFrame({heading: column[end].to_numpy() for heading, column in columns.items()
                      if isinstance(column, pd.DataFrame)})
        for end in ("low", "high")
    )  # fmt: skip
    frame = pd.DataFrame({**names, **{heading: column.to_numpy() for heading, column in means.items()}})
    return Table(name, caption, frame, low=low, high=high)


def _plain(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with its index as headed columns of plain text."""
    frame = table.reset_index().rename(columns={"method": "Method", "site": "Site", "seed": "Seed"})
    return frame.astype({name: str for name in ("Method", "Site") if name in frame})


def _ends(numbers: Sequence[Estimate]) -> pd.DataFrame:
    return pd.DataFrame([(one.mean, one.low, one.high) for one in numbers], columns=["mean", "low", "high"])


def _over(model: ReportModel) -> str:
    return resampling_units(model.study.seeds_tested, model.study.folds)


def _level_note(model: ReportModel) -> str:
    return f"in brackets the 95 % confidence interval over {_over(model)}"


def _over_seeds(model: ReportModel) -> str:
    return ", mean over seeds" * (len(model.study.seeds) > 1)


def _rounded(table: Table) -> Table:
    parts = {name: part.round(1) for name in ("frame", "low", "high") if (part := getattr(table, name)) is not None}
    return replace(table, **parts)
