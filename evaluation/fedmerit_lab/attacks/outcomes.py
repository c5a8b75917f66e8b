"""Tables of a study of attacks: the gain from each attack, and how well detectors find the attackers.

A detector is right about a run if it flags only the attackers, wrong if it flags an honest site. All are pure functions
of the study's runs and their results.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import mannwhitneyu

from fedmerit_evaluation.figures.tables import Table
from fedmerit_evaluation.results.views import Results
from fedmerit_lab.attacks.attacked_runs import HONEST, AttackedRun
from fedmerit_lab.detection import rules
from fedmerit_lab.detection.detector import Detection
from fedmerit_lab.detection.rules import RULES

WITHIN = 10  # rounds of the attack after which detection is scored (Jiang et al. 2023)
DETECTOR_NAMES = [detector.name for detector in RULES]
KEY = ["Method", "Attack"]


def tables(attacks: Sequence[AttackedRun], results: Results) -> list[Table]:
    """Return the table of gain from attacks and their cost to the others; none without a finished honest run.

    For every method and attack, means over attackers, seeds and folds: the attacker's weight in the last round (the
    sum of its names) and its reward, and those of the same site in the honest run of that seed and fold; changes of
    the others' Dice and its own; runs in which any detector flags it within `WITHIN` rounds, and in which its
    free-rider value is the highest after these; the detectors that flag it in most runs, with the median number of
    rounds.
    """
    found = outcomes(attacks, results)
    if found.empty:
        return []
    return [Table("attacks", "Gain from attacks, compared with the honest run", _summary(found))]


def outcomes(attacks: Sequence[AttackedRun], results: Results) -> pd.DataFrame:
    """Return one row for each finished attacked run with a finished honest run: its key, changes, detections.

    Columns are those of `tables`, as fractions; for each detector the number of rounds after which the attacker is
    flagged, from 1, NaN if it is not within `WITHIN`; ``Highest value`` 1 if its free-rider value is the highest then.
    """
    there = set(results.rows["run"])
    controls = {_training(one): one for one in attacks if one.kind == HONEST and one.folder.name in there}
    pairs = [
        (attack, controls[_training(attack)])
        for attack in attacks
        if attack.kind != HONEST and attack.folder.name in there and _training(attack) in controls
    ]
    if not pairs:
        return pd.DataFrame()
    dice = results.read_folders.dice.sites["dice"].droplevel("seed")
    last = {name: _last(rules.of_rounds(results, name)) for name in ("weight", "quota")}
    values = rules.accumulated(rules.free_rider_values(results))
    flags = first_flags(results, {attack.folder.name: attack.first for attack, _ in pairs})
    until = horizons(attacks, results)
    rows = []
    for attack, control in pairs:
        run, honest = attack.folder.name, control.folder.name
        own, others = list(attack.attackers), [site for site in dice[honest].index if site != attack.site]
        row = {
            "Method": attack.label,
            "Attack": attack.kind,
            "Site": attack.site,
            "Seed": attack.seed,
            "Fold": attack.fold,
            "Weight": _sum(last["weight"], run, own),
            "Weight, honest": _sum(last["weight"], honest, [attack.site]),
            "Reward": _sum(last["quota"], run, own) / len(own),
            "Reward, honest": _sum(last["quota"], honest, [attack.site]),
            "Others": (dice[run] - dice[honest]).reindex(others).mean(),  # over the same sites
            "Own": dice[run][own].mean() - dice[honest][attack.site],
        }
        flagged = flags[(flags["run"] == run) & flags["site"].isin(own) & (flags["round"] <= until[run])]
        after = flagged.groupby("detector")["round"].min() - attack.first + 1
        name = highest_site(values.loc[[(run, until[run])]]).iloc[0]
        rows.append(
            row | {"Highest value": float(name in own)} | {detector: after.get(detector) for detector in DETECTOR_NAMES}
        )
    found = pd.DataFrame(rows).astype(dict.fromkeys(DETECTOR_NAMES, float))
    return found if found["Fold"].notna().any() else found.drop(columns="Fold")


def _training(attack: AttackedRun) -> tuple[str, int, int | None]:
    """Return what an attacked run and its honest run share."""
    return attack.label, attack.seed, attack.fold


def horizons(attacks: Sequence[AttackedRun], results: Results) -> dict[str, int]:
    """Return by run, the round in which detection is scored: the `WITHIN`-th of the attack, or the last."""
    last = results.rows.loc[results.rows["split"] == ""].groupby("run")["round"].max()
    first = {attack.folder.name: attack.first for attack in attacks}
    return {str(run): min(first[str(run)] + WITHIN - 1, int(round)) for run, round in last.items()}


def _summary(found: pd.DataFrame) -> pd.DataFrame:
    groups = found.groupby(KEY, sort=False)
    mean = (100 * groups[["Weight", "Weight, honest", "Reward", "Reward, honest"]].mean()).add_suffix(" [%]")
    for name, column in {
        "Others": "Others' Dice, change [points]",
        "Own": "Own Dice, change [points]",
        "Highest value": "Highest free-rider value [%]",
    }.items():
        mean[column] = 100 * groups[name].mean()
    flagged = found[DETECTOR_NAMES].notna().any(axis=1).groupby([found[name] for name in KEY], sort=False)
    mean["Flagged by any detector [%]"] = 100 * flagged.mean()
    mean.insert(0, "Runs", groups.size())
    mean["Flagged by (after rounds)"] = [_flagged_by(rows) for _, rows in groups]
    return mean.dropna(axis=1, how="all").reset_index()


def _flagged_by(rows: pd.DataFrame) -> str:
    """Return the detectors that flag the attacker in more than half of the runs, the earliest first."""
    usual = [name for name in DETECTOR_NAMES if rows[name].notna().mean() > 0.5]
    medians = {name: float(rows[name].median()) for name in usual}
    return ", ".join(f"{name} ({medians[name]:g})" for name in sorted(usual, key=lambda name: medians[name]))


def _last(rounds: pd.DataFrame) -> pd.DataFrame:
    """Return the last round of each run: runs x sites."""
    return rounds.groupby(level="run").tail(1).droplevel("round") if len(rounds) else rounds


def _sum(table: pd.DataFrame, run: str, sites: Sequence[str]) -> float:
    if run not in table.index:
        return float("nan")
    return float(np.sum(table.loc[run].reindex(list(sites)).to_numpy()))


def first_flags(results: Results, since: Mapping[str, int] | None = None) -> pd.DataFrame:
    """Return the first round in which each detector flags each site: columns ``run, site, detector, round``.

    Args:
        results: of any runs.
        since: by run, the round before which flags do not count; 0 for other runs.
    """
    found = []
    for detector in RULES:
        flagged = detector.see(results).flagged
        rows, columns = flagged.to_numpy().nonzero()
        for (run, round), site in zip(flagged.index[rows], flagged.columns[columns], strict=True):
            if round >= (since or {}).get(run, 0):
                found.append((run, site, detector.name, round))
    rounds = pd.DataFrame(found, columns=["run", "site", "detector", "round"])
    return rounds.groupby(["run", "site", "detector"], sort=False)["round"].min().reset_index()


def highest_site(values: pd.DataFrame) -> pd.Series:
    """Return the site of the highest positive value of each row, "" where none is positive."""
    highest = values.max(axis=1)
    return values.where(values.gt(0), -1.0).idxmax(axis=1).where(highest > 0, "")


def auroc(attackers: Iterable[float], honest: Iterable[float]) -> float:
    """Return the probability that an attacker's suspicion is above an honest site's, ties half (Mann-Whitney's U).

    NaN without values of both; unknown values are left out.
    """
    one, other = (np.array([value for value in values if not math.isnan(value)]) for values in (attackers, honest))
    if not len(one) or not len(other):
        return math.nan
    return float(mannwhitneyu(one, other).statistic) / (len(one) * len(other))


RIGHTLY, FALSELY = "Only attackers flagged [%]", "Honest site flagged [%]"


def detection_rates(attacks: Sequence[AttackedRun], results: Results, after: Sequence[int]) -> Table:
    """Return method, attack, rounds, rule: how often only the attackers are flagged, and how often an honest site is.

    Args:
        attacks: of a study; honest runs count for the honest sites.
        results: theirs, with Dice of the models that sites trained.
        after: numbers of rounds; those that the runs do not have are left out.

    Raises:
        BadInput: the results have no Dice of the models that sites trained.
    """
    there = [attack for attack in attacks if attack.folder.name in set(results.rows["run"])]
    by_rule = {rule.name: rule.see(results) for rule in RULES}
    rows = []
    for label, kind in dict.fromkeys((one.label, one.kind) for one in there if one.kind != HONEST):
        attacked = [one for one in there if (one.label, one.kind) == (label, kind)]
        honest = [one for one in there if (one.label, one.kind) == (label, HONEST)]
        for rounds in after:
            for rule, detection in by_rule.items():
                found = [_detect(one, detection, rounds) for one in (*attacked, *honest)]
                if any(one is None for one in found[: len(attacked)]):
                    continue
                rows.append(
                    {"Method": label, "Attack": kind, "After rounds": rounds, "Rule": rule}
                    | _rates([one for one in found[: len(attacked)] if one], [one for one in found if one])
                )
    caption = (
        "Of attacked runs: how often the rule flags only the attackers, how often an attacker is the most suspicious "
        "site, AUROC over sites; of all runs, honest ones included: how often an honest site is flagged. Scored after "
        "the stated number of rounds"
    )
    return Table("detection-rates", caption, pd.DataFrame(rows), decimals=2)


@dataclass(frozen=True)
class _Detected:
    attackers: frozenset[str]
    flagged: frozenset[str]
    suspicions: "pd.Series[float]"  # by site


def _detect(attack: AttackedRun, detection: Detection[pd.DataFrame], rounds: int) -> _Detected | None:
    """Return detection in a run after a number of rounds; None if it has fewer."""
    place, flags, suspicion = (attack.folder.name, rounds - 1), detection.flagged, detection.suspicion
    if place not in flags.index:
        return None
    flagged = flags.columns[flags.loc[[place]].to_numpy(bool)[0]]
    suspicions = suspicion.loc[[place]].iloc[0].dropna()
    return _Detected(frozenset(attack.attackers), frozenset(map(str, flagged)), suspicions)


def _rates(attacked: Sequence[_Detected], every: Sequence[_Detected]) -> dict[str, float]:
    values: dict[bool, list[float]] = {True: [], False: []}  # by whether the site attacks
    highest = 0.0
    for one in attacked:
        for site, value in one.suspicions.items():
            values[site in one.attackers].append(value)
        tied = one.suspicions.index[one.suspicions == one.suspicions.max()]
        highest += float(np.mean(tied.isin(one.attackers))) if len(tied) else 0.0
    return {
        "Runs": len(attacked),
        RIGHTLY: 100 * sum(one.flagged == one.attackers for one in attacked) / len(attacked),
        "Attacker highest [%]": 100 * highest / len(attacked),
        FALSELY: 100 * sum(bool(one.flagged - one.attackers) for one in every) / len(every),
        "AUROC": auroc(values[True], values[False]),
    }
