"""Tables of a study of attacks: pure functions of its runs and their results."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from fedmerit_evaluation.figures.tables import Table
from fedmerit_evaluation.results.views import Results
from fedmerit_lab.attacks import detection, detectors
from fedmerit_lab.attacks.attacked_runs import HONEST, AttackedRun
from fedmerit_lab.attacks.detectors import RULES

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
    last = {name: _last(detectors.of_rounds(results, name)) for name in ("weight", "quota")}
    values = detectors.accumulated(detectors.free_rider_values(results))
    flags = detection.first_flags(results, {attack.folder.name: attack.first for attack, _ in pairs})
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
        name = detection.highest_site(values.loc[[(run, until[run])]]).iloc[0]
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
