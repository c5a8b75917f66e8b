"""The assembly of a report's model from runs: what is shown of them, in numbers and codes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from fedmerit.evidence.closing_record import OBSERVED
from fedmerit.schema.scores import BEST
from fedmerit_evaluation.figures.tables import HEADINGS, UNITS
from fedmerit_evaluation.report.agreement import Agreement, compare_with_ground_truth
from fedmerit_evaluation.report.flags import Flags, collect_flags
from fedmerit_evaluation.report.limits import list_limits
from fedmerit_evaluation.report.model import (
    NONE,
    QUANTITIES,
    SHARE_DECIMALS,
    UNKNOWN,
    Condition,
    Hospital,
    ObservedValues,
    Payment,
    ReportModel,
    Study,
    Training,
    surface_columns,
)
from fedmerit_evaluation.report.verdicts import (
    CHANCE,
    FAILURE,
    ONE_SPLIT,
    collect_verdicts,
    contribution_shares,
    sample_size,
)
from fedmerit_evaluation.results.runs import Run, combine_results, has_same_training
from fedmerit_evaluation.results.views import OWN, POOLED, RUN, STANDALONE, SURFACES, Dice, Results
from fedmerit_evaluation.statistics.family import Question, Verdict
from fedmerit_evaluation.statistics.inference import MIN_SEEDS, Estimate
from fedmerit_evaluation.statistics.intervals import estimates, select_sites
from fedmerit_evaluation.statistics.ranks import Ranking
from fedmerit_evaluation.valuation.valued_runs import observed_estimators, units, value_runs

KINDS = {STANDALONE: "local", POOLED: "pooled"}  # of training, by method; others are federated
SAME = 1e-6  # shares that differ by less, relative to the largest, are the same
DRAWS = 200  # for the values of observed runs
RECEIVED = {"Received": "given", "Local": "local_only", "Final": "selected"}  # by the ends of the splits' names


def build_model(runs: Sequence[Run], ground_truth: Path | None = None, failure: float = FAILURE) -> ReportModel:
    """Return the model of a report on all hospitals.

    Args:
        runs: opened runs, on the same task and sites, labelled by `align_local_only`.
        ground_truth: folder of `fedmerit value leave-one-out` or `fedmerit value shapley`, on the same sites.
        failure: the Dice of a patient below which the segmentation counts as failed.

    Raises:
        BadInput: the ground truth is not of these runs.
    """
    honest = honest_runs(runs)
    everything = combine_results(runs)
    results = everything if len(honest) == len(runs) else combine_results(honest)
    return model_of_results(runs, results, everything, ground_truth, failure)


def model_of_results(
    runs: Sequence[Run],
    results: Results,
    everything: Results,
    ground_truth: Path | None = None,
    failure: float = FAILURE,
) -> ReportModel:
    """Return the model of a report on all hospitals from combined results.

    Args:
        runs: as of `build_model`.
        results: the results of runs without simulated attacks: Dice and verdicts are of these.
        everything: the results of all runs: rounds, flags and costs are of these.
        ground_truth: as of `build_model`.
        failure: as of `build_model`.

    Raises:
        BadInput: the ground truth is not of these runs.
    """
    honest, dice, rounds = honest_runs(runs), results.dice, everything.rounds
    agreements, ground_limits = (
        ([], []) if ground_truth is None else compare_with_ground_truth(honest, results, ground_truth)
    )
    primary = choose_method(honest, results)
    by_images = methods_by_image_count(runs)
    found, (notes, limits) = collect_flags(runs), list_limits(runs, honest, results)
    verdicts = collect_verdicts(results, primary, agreements, failure)
    hospitals = list_hospitals(honest, results, primary, agreements, found, verdicts) if primary else []
    mean_gains = [one.estimate for one in verdicts if one.question == Question.MEAN_GAIN]
    is_tested = not dice.rows.empty
    model = ReportModel(
        site="",
        study=_study(runs, results),
        number_of_sites=len(runs[0].sites),
        trainings=tuple(_trainings(runs, primary)),
        hospitals=tuple(hospitals),
        primary=primary,
        is_ambiguous=has_ambiguous_baseline(honest),
        counts_images=primary in by_images,
        payment=Payment(()),
        sample=sample_size(results),
        verdicts=verdicts,
        failure=failure,
        flags=found,
        settings=tuple((run.label, _settings(run)) for run in runs),
        intervals=dice.intervals,
        cases=dice.cases if is_tested else pd.Series(dtype=float),
        curves=rounds.validation,
        contributions=averaged(rounds.contributions) if not rounds.contributions.empty else NONE,
        costs=averaged(rounds.costs) if not rounds.costs.empty else NONE,
        rounds={name: rounds.of(name) for name in QUANTITIES if not rounds.of(name).isna().all(axis=None)},
        notes=notes,
        limits=[*limits, *(limit for one in agreements for limit in one.limits), *ground_limits],
        mean_gain=next(iter(mean_gains), UNKNOWN),
        sample_of_gain=sample_size(results, methods=[primary or "", STANDALONE]),
        comparison=dice.comparison if is_tested else None,
        ends=select_sites(rounds.intervals, "contribution"),
        cross_site={name: averaged(matrix) for name, matrix in results.union.cross_site.items()} if is_tested else {},
        by_images=by_images,
        best_round=_best_round(results.rows),
        final_models=_final_models(results.rows),
        agreements=agreements,
        observed=_observed_values(runs),
        flagged_sites=_sites_with(results, "flagged"),
        rejected_sites=_sites_with(results, "rejected"),
    )
    if is_tested:
        fewest = dice.sites["patients"].groupby(level=["method", "site"], observed=True).min()
        changes = dice.surface_changes
        model = replace(
            model,
            tested=averaged(dice.sites).assign(fewest_patients=fewest),
            failures=dice.failures(failure),
            all_failures=dice.failures(failure, ["method"]),
            labels=_labels(dice) if dice.labels.shape[1] > 1 else NONE,
            surface_means=_surface_means(dice.sites),
            surface_changes=changes if select_sites(dice.intervals, "gain")["mean"].notna().any() else NONE,
        )
    same = _same_quantities(model.rounds)
    return replace(model, same_quantities=same, payment=_judge_payment(model))


def honest_runs(runs: Sequence[Run]) -> list[Run]:
    """Return the runs without simulated attacks, or all if there is no other."""
    return [run for run in runs if not run.attacks] or list(runs)


def choose_method(runs: Sequence[Run], results: Results) -> str | None:
    """Return the method that a report judges: the first that estimates contributions, else the first federated one.

    Shares of training images are no estimate. None: no run is federated.
    """
    labels = {run.label: str(run.info["method"]) for run in runs}
    federated = [label for label in labels if labels[label] not in KINDS]
    counted = methods_by_image_count(runs)
    estimating = [label for label in federated if label not in counted and label in contribution_shares(results)]
    return next(iter([*estimating, *federated]), None)


def align_local_only(runs: Sequence[Run]) -> list[Run]:
    """Return the runs, those of local training that hospitals are compared with under the plain label of it.

    Of runs of local training with several settings these are the ones with the settings of the report's method; none
    if no run has them, or runs of several labels.
    """
    honest = honest_runs(runs)
    local = {run.label: run for run in honest if run.info["method"] == STANDALONE and not run.attacks}
    if not local or STANDALONE in local:
        return list(runs)
    matching = list(local)
    if len(local) > 1:
        method = choose_method(honest, combine_results(honest))
        chosen = [run for run in honest if run.label == method][:1]
        matching = [label for label, run in local.items() if any(has_same_training(run, other) for other in chosen)]
    return [replace(run, label=STANDALONE) if matching == [run.label] else run for run in runs]


def has_ambiguous_baseline(runs: Sequence[Run]) -> bool:
    """Return whether there are runs of local training among those of `align_local_only`, but none to compare with."""
    labels = {run.label for run in runs if run.info["method"] == STANDALONE and not run.attacks}
    return bool(labels) and STANDALONE not in labels


def list_hospitals(
    runs: Sequence[Run],
    results: Results,
    method: str,
    agreements: Sequence[Agreement],
    flags: Flags,
    verdicts: Sequence[Verdict],
) -> list[Hospital]:
    """Return the hospitals with one method, by name.

    Args:
        runs: runs without simulated attacks.
        results: their results.
        method: the method, as of `choose_method`.
        agreements: agreement with each ground truth, if there is any.
        flags: what was found of the sites.
        verdicts: of `collect_verdicts`.
    """
    dice, sites = results.dice, runs[0].sites
    local = pd.Series(dtype=float)
    if not dice.rows.empty and STANDALONE in dice.by_site.index.get_level_values("method"):
        local = pd.Series(pd.DataFrame(dice.by_site.loc[STANDALONE]).mean())
    federated, gain = (_select_method(select_sites(dice.intervals, name), method) for name in ("dice", "gain"))
    surfaces = _surfaces(results, method)
    shares = contribution_shares(results).get(method, {})
    gain_of, share_of = (
        {one.subject: one for one in verdicts if one.question == of} for of in (Question.GAIN, Question.SHARE)
    )
    gain = {name: replace(one, p=gain_of[name].estimate.p) for name, one in gain.items() if name in gain_of}
    shares = {name: replace(one, p=share_of[name].estimate.p) for name, one in shares.items()}
    hospitals = []
    for site in sites:
        server_flags, of_guard = flags.of(method, site)
        tested = site in federated and not math.isnan(federated[site].mean)
        has_local = not math.isnan(local.get(site, math.nan))
        no_local = "ambiguous" if has_ambiguous_baseline(runs) else "no_local"
        hospitals.append(
            Hospital(
                name=site,
                local=float(local.get(site, math.nan)),
                federated=federated.get(site, UNKNOWN),
                surfaces=surfaces.get(site, {}),
                gain=gain.get(site, UNKNOWN),
                sample=sample_size(results, site, [method, STANDALONE]),
                lacking="untested" if not tested else "no_seed" if has_local else no_local,
                share=shares.get(site, UNKNOWN),
                equal=round(1 / len(sites), SHARE_DECIMALS),
                share_seeds=count_share_seeds(results).get(method, 0),
                counts_images=method in methods_by_image_count(runs),
                values={one.reference: float(one.values[site].mean()) / 100 for one in agreements},
                detectable=gain_of[site].detectable if site in gain_of else math.nan,
                share_untested=share_of[site].insufficient_data if site in share_of else "",
                flags=server_flags,
                verdicts=of_guard,
                needs_review=bool(server_flags) or any(one.lifted is None for one in of_guard),
            )
        )
    return hospitals


def count_share_seeds(results: Results) -> dict[str, int]:
    """Return, by method, the number of seeds of its `contribution_shares`."""
    seeds = results.rounds.share_intervals["seeds"].groupby(level="method").max()
    return {str(method): int(number) for method, number in seeds.items()}


def methods_by_image_count(runs: Sequence[Run]) -> list[str]:
    """Return the labels of the runs whose method declares that its contributions are shares of training images."""
    return list(dict.fromkeys(run.label for run in runs if run.counts_images))


def image_shares(results: Results, quantity: str) -> "pd.Series[bool]":
    """Return whether all positive numbers of a round are the same multiple of the training images.

    The index is ``(method, seed or fold, round)``, without rounds in which only one number is positive (such as the
    one update that Krum takes).
    """
    rounds = results.rounds if results.folds is None else results.rounds.over_folds  # images differ by fold
    images, table = rounds.of("num_samples"), rounds.of(quantity)
    ratio = table.where(table > 0) / images.reindex(table.index)
    ratio = ratio[ratio.notna().sum(axis=1) != 1]
    return pd.Series(ratio.max(axis=1) - ratio.min(axis=1) <= SAME * ratio.max(axis=1))


def averaged(table: pd.DataFrame) -> pd.DataFrame:
    """Return the mean over seeds, ``(method, site)`` x columns; counts stay whole if they are the same in all."""
    mean = table.groupby(level=["method", "site"], observed=True).mean()
    whole = [name for name in table.select_dtypes("integer") if (mean[name] % 1 == 0).all()]
    return mean.astype(dict.fromkeys(whole, int))


def training_days(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return the first and the last day on which the runs were started: one if they are the same, () if unknown."""
    days = sorted({str(run.info["started"])[:10] for run in runs if run.info.get("started")})
    return tuple(dict.fromkeys((days[0], days[-1]))) if days else ()


def _study(runs: Sequence[Run], results: Results) -> Study:
    info, is_tested = runs[0].info, not results.dice.rows.empty
    return Study(
        task=str(info["task"]) if "task" in info else "",
        labels=tuple(map(str, info.get("labels", ()))),
        sites=tuple(runs[0].sites),
        runs=len(runs),
        rounds=tuple(dict.fromkeys(run.rounds for run in runs)),
        seeds=tuple(dict.fromkeys(run.seed for run in runs)),
        days=training_days(runs),
        seeds_tested=results.dice.rows["seed"].nunique() if is_tested else 0,
        folds=results.dice.clusters.folds if is_tested else 0,
        repeats=results.repeats,
    )


def _trainings(runs: Sequence[Run], primary: str | None) -> Iterator[Training]:
    for run in {run.label: run for run in runs}.values():
        kind = KINDS.get(str(run.info["method"]), "federated")
        yield Training(run.label, kind, run.label == primary, bool(run.attacks))


def _settings(run: Run) -> dict[str, Any]:
    """Return run.json, each setting once: its configuration repeats all but the network."""
    shown = {name: value for name, value in run.info.items() if name not in ("plan", "settings")}
    return shown | {"network": run.info.get("plan", {}).get("network", {})}


def _judge_payment(model: ReportModel) -> Payment:
    """Return the conditions of payment by the method's estimate that are not met."""
    if model.primary is None:
        return Payment(())
    if model.counts_images or any(math.isnan(one.share.mean) for one in model.hospitals):
        return Payment((Condition("no_estimate"),))
    conditions = []
    if model.share_seeds < MIN_SEEDS:
        conditions.append(Condition("one_seed"))
    elif any(one.share_untested == ONE_SPLIT for one in model.hospitals):
        conditions.append(Condition("one_split"))
    elif not any(one.share_sign for one in model.hospitals):
        conditions.append(Condition("no_order"))
    compared = model.verdicts_on(Question.AGREEMENT)
    if not compared:
        conditions.append(Condition("no_ground_truth"))
    for one in compared:
        if one.insufficient_data == CHANCE:
            conditions.append(Condition("chance", one.other))
        elif one.sign < 1:
            conditions.append(Condition("disagreement" if one.sign else "no_agreement", one.other))
    return Payment(tuple(conditions))


def _labels(dice: Dice) -> pd.DataFrame:
    surfaces = {
        f"{label}, {HEADINGS[name]}": table[label] * UNITS.get(name, 1.0)
        for label in dice.labels
        for name, table in dice.label_surfaces.items()
    }
    return averaged((100 * dice.labels).assign(**surfaces))


def _surfaces(results: Results, method: str) -> dict[str, dict[str, float]]:
    """Return, by site, HD95 and NSD of a method by their headings, means over seeds."""
    if results.dice.rows.empty:
        return {}
    sites = averaged(results.dice.sites)
    own = sites[sites.index.get_level_values("method") == method].droplevel("method")
    table = pd.DataFrame(surface_columns(own)).dropna(axis=1, how="all").T
    return {str(site): {str(name): float(value) for name, value in column.items()} for site, column in table.items()}


def _surface_means(sites: pd.DataFrame) -> pd.DataFrame:
    runs = sites[[name for name in SURFACES if name in sites]].groupby(level=RUN).mean()
    return runs.groupby(level="method").mean()


def _select_method(table: pd.DataFrame, method: str) -> dict[str, Estimate]:
    return estimates(table[table.index.get_level_values("method") == method].droplevel("method"))


def _same_quantities(rounds: Mapping[str, pd.DataFrame]) -> dict[str, list[str]]:
    """Return the recorded quantities of rounds, each with those that are the same numbers."""
    seen: dict[str, list[str]] = {}
    for quantity, table in rounds.items():
        same = [other for other in seen if table.equals(rounds[other])]
        if same:
            seen[same[0]].append(quantity)
        else:
            seen[quantity] = []
    return seen


def _best_round(rows: pd.DataFrame) -> pd.DataFrame:
    """Return means over sites in the last and the best round, a row per run; if they are the same round, it is both."""
    best = _by_site(rows, BEST)
    if best.empty:
        return NONE
    chosen = rows[(rows["split"] == BEST) & (rows["quantity"] == "dice")].groupby(RUN, observed=True)["round"].first()
    last, best = (table.groupby(level=RUN, observed=True).mean() for table in (_by_site(rows, OWN), best))
    both = {"Last round": last, "Best round": best.reindex(last.index).fillna(last)}
    shown = {f"{when}, {name}": table[name] for name in best if name in last for when, table in both.items()}
    return pd.DataFrame(shown | {"Round": chosen.reindex(last.index)})


def _final_models(rows: pd.DataFrame) -> pd.DataFrame:
    """Return Dice and surfaces of the models of final model selection, by heading."""
    tested = {name: _by_site(rows, f"testing_{end}") for name, end in RECEIVED.items()}
    if tested["Final"].empty:
        return NONE
    validated = {name: _by_site(rows, f"validation_{end}") for name, end in RECEIVED.items()}
    dice = HEADINGS["dice"]
    columns = {f"{name}, {dice}": table[dice] for name, table in tested.items() if dice in table}
    columns |= {f"{name}, validation {dice}": table[dice] for name, table in validated.items() if dice in table}
    columns |= {f"{name}, {other}": tested[name][other] for other in tested["Final"] if other != dice
                for name in tested if other in tested[name]}  # fmt: skip
    return pd.DataFrame(columns).groupby(level=["method", "site"], observed=True).mean()


def _by_site(rows: pd.DataFrame, split: str) -> pd.DataFrame:
    """Return ``(method, seed, site)`` x Dice and surfaces by heading: means over cases of means over labels."""
    dice = Dice(rows, split)
    if dice.rows.empty:
        return NONE
    return pd.DataFrame({HEADINGS["dice"]: 100 * dice.sites["dice"], **surface_columns(dice.sites)})


def _observed_values(runs: Sequence[Run]) -> ObservedValues:
    """Return the values of methods whose runs were all observed."""
    rankings, named_units = dict[str, Ranking](), dict[str, str]()
    labels = list(dict.fromkeys(run.label for run in runs))
    for label in labels:
        folders = [run.path for run in runs if run.label == label and run.tested]
        if not folders or not all((folder / OBSERVED).exists() for folder in folders):
            continue
        if specs := observed_estimators(folders):
            valued = value_runs(folders, specs, DRAWS)
            names = {spec: spec if len(labels) == 1 else f"{label}: {spec}" for spec in specs}
            rankings |= {names[spec]: one for spec, one in valued.shown.items()}
            named_units |= {names[spec]: unit for spec, unit in units(valued).items()}
    return ObservedValues(rankings, named_units)


def _sites_with(results: Results, quantity: str) -> list[str]:
    """Return the sites with a positive quantity in any round of any run."""
    is_positive = (results.rows["quantity"] == quantity) & (results.rows["value"] > 0)
    return sorted(map(str, results.rows.loc[is_positive, "site"].unique()))
