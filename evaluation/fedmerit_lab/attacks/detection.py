"""How well detectors find free riders: first flags, and detection rates and AUROC after some rounds.

A detector is right about a run if it flags only the attackers, wrong if it flags an honest site. Only the functions
about scores know which sites attack.
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
from fedmerit_lab.attacks.detectors import RULES
from fedmerit_lab.detection.detector import Detection


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
                    | _summary([one for one in found[: len(attacked)] if one], [one for one in found if one])
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


def _summary(attacked: Sequence[_Detected], every: Sequence[_Detected]) -> dict[str, float]:
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
