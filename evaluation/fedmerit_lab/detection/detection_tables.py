"""What detectors tell, and what attacks pay: functions of watched federations, no files.

AUROC and F1 are of one federation and round, its attackers against its honest sites; means and intervals over seeds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pandas as pd

from fedmerit.records.results import COLUMNS
from fedmerit_evaluation.figures.tables import Table
from fedmerit_evaluation.freeriders.detectors import DETECTORS, Detector, auroc, flags
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.statistics.bootstrap import LEVEL
from fedmerit_evaluation.statistics.ranks import resample
from fedmerit_lab.detection.monitored_federation import EVIDENCE, HONEST, MonitoredFederation, Rows

OF_EVIDENCE = ("small norm", "large norm", "previous step", "near duplicate", "opposed")  # of `DETECTORS`
KEY = ["Method", "Attack", "Detector"]
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class DetectorResult:
    """One detector on one federation."""

    watched: MonitoredFederation
    detector: str
    suspicion: Rows
    flagged: Rows

    def auroc(self, round: int) -> float:
        """Of attackers against honest sites in a round; NaN before the attack, or where nothing is known."""
        return auroc(*self._parted(self.suspicion, round)) if round >= self.watched.first else float("nan")

    def f1(self, round: int) -> float:
        """Of flags on attackers, likewise; nobody flagged: 0."""
        if round < self.watched.first or not self.watched.attackers:
            return float("nan")
        riders, honest = (np.nansum(values) for values in self._parted(self.flagged, round))
        return float(2 * riders / (riders + honest + len(self.watched.attackers)))

    def _parted(self, rows: Rows, round: int) -> tuple[list[float], list[float]]:
        both = list(zip(self.watched.sites, rows[round], strict=True))
        riders = [value for site, value in both if site in self.watched.attackers]
        return riders, [value for site, value in both if site not in self.watched.attackers]

    def detected_within(self, until: int) -> float:
        """1 where all attackers were flagged in some round of the attack up to ``until``; NaN: there are none."""
        if not self.watched.attackers:
            return float("nan")
        places = [self.watched.sites.index(site) for site in self.watched.attackers]
        seen = np.array(self.flagged)[self.watched.first : until + 1, places]
        return float(seen.any(axis=0).all())

    def false_positives(self) -> dict[str, bool]:
        """By honest site, whether it was flagged in any round."""
        ever = dict(zip(self.watched.sites, np.array(self.flagged).sum(axis=0) > 0, strict=True))
        return {site: bool(flag) for site, flag in ever.items() if site not in self.watched.attackers}


def detector_results(federations: Sequence[MonitoredFederation]) -> list[DetectorResult]:
    """Every detector on every federation: those that watched, and those of `DETECTORS` that need evidence alone."""
    said = [
        DetectorResult(one, name, one.suspicion[name], one.flagged[name])
        for one in federations
        for name in one.suspicion
    ]
    results = _results(federations)
    for detector in (one for one in DETECTORS if one.name in OF_EVIDENCE):
        said += _by_evidence(detector, federations, results)
    methods = list(dict.fromkeys(one.method for one in federations))
    attacks = list(dict.fromkeys(one.attack for one in federations))
    return sorted(said, key=lambda one: (methods.index(one.watched.method), attacks.index(one.watched.attack)))


def _by_evidence(
    detector: Detector, federations: Sequence[MonitoredFederation], results: Results
) -> Iterator[DetectorResult]:
    suspicion = detector.suspicion(results)
    tables = suspicion, flags(detector, suspicion).astype(float)
    for number, one in enumerate(federations):
        said, flagged = (
            table[table.index.get_level_values("run") == str(number)]
            .droplevel("run")
            .reindex(index=range(one.rounds), columns=one.sites)  # a round of which nothing is known has no row
            .to_numpy(float)
            for table in tables
        )
        yield DetectorResult(one, detector.name, said.tolist(), np.nan_to_num(flagged).tolist())


def _results(federations: Sequence[MonitoredFederation]) -> Results:
    """The evidence as rows of results; runs are called by their places."""
    parts = []
    for number, one in enumerate(federations):
        for quantity in EVIDENCE:
            table = pd.DataFrame(one.evidence[quantity], columns=one.sites).rename_axis("round").reset_index()
            rows = table.melt(id_vars="round", var_name="site").dropna(subset="value")
            parts.append(rows.assign(run=str(number), method=one.method, seed=one.seed, quantity=quantity))
    rows = pd.concat(parts, ignore_index=True)
    for column in (name for name in COLUMNS if name not in rows):
        rows[column] = ""
    return Results(rows[list(COLUMNS)])


def latest_common_round(watched: MonitoredFederation, after: int) -> int:
    """The last round within which attackers are to be told: ``after`` rounds of the attack, or the last there is."""
    return min(watched.first + after, watched.rounds) - 1


def detection_table(said: Sequence[DetectorResult], after: int) -> Table:
    """Method, attack, detector: AUROC, F1 and who was named within ``after`` rounds of the attack."""
    measures: Mapping[str, tuple[float, Callable[[DetectorResult], float]]] = {  # by name, of which unit
        "AUROC": (1, lambda one: one.auroc(latest_common_round(one.watched, after))),
        "F1": (1, lambda one: one.f1(latest_common_round(one.watched, after))),
        "Named [%]": (100, lambda one: one.detected_within(latest_common_round(one.watched, after))),
    }
    rows, lows, highs = [], [], []
    for key, group in _grouped([one for one in said if one.watched.attackers]).items():
        row: dict[str, object] = {**dict(zip(KEY, key, strict=True)), "Seeds": len(group)}
        low: dict[str, float] = dict.fromkeys([*KEY, "Seeds"], float("nan"))
        high = dict(low)
        for name, (unit, measure) in measures.items():
            row[name], low[name], high[name] = (unit * end for end in over_seeds([measure(one) for one in group]))
        rows.append(row)
        lows.append(low)
        highs.append(high)
    caption = (
        f"Attackers against the honest sites of their federation after {after} rounds of the attack: means over seeds, "
        f"and their {100 * LEVEL:g} % intervals; named: flagged in some round until then"
    )
    parts = [pd.DataFrame(part) for part in (rows, lows, highs)]
    return Table("detection", caption, parts[0], decimals=2, low=parts[1], high=parts[2])


def false_positive_table(said: Sequence[DetectorResult]) -> Table:
    """Method, detector: honest sites flagged in any round, in honest federations and in all, the outlier by itself."""
    rows = []
    for (method, detector), group in _by(said, lambda one: (one.watched.method, one.detector)).items():
        row: dict[str, object] = {"Method": method, "Detector": detector}
        for what, chosen in (("honest runs", [one for one in group if not one.watched.attackers]), ("all runs", group)):
            outliers = [
                flag for one in chosen for site, flag in one.false_positives().items() if site == one.watched.outlier
            ]
            others = [
                flag for one in chosen for site, flag in one.false_positives().items() if site != one.watched.outlier
            ]
            row[f"Honest flagged, {what} [%]"] = 100 * np.mean(others) if others else np.nan
            row[f"Honest outlier flagged, {what} [%]"] = 100 * np.mean(outliers) if outliers else np.nan
        rows.append(row)
    caption = "False alarms: honest sites that a detector flags in any round, percent of sites; the outlier by itself"
    return Table("false-alarms", caption, pd.DataFrame(rows))


def by_round(said: Sequence[DetectorResult]) -> pd.DataFrame:
    """Method, attack, detector, round: AUROC and F1, means over seeds with their intervals."""
    rows = []
    for key, group in _grouped([one for one in said if one.watched.attackers]).items():
        for round in range(min(one.watched.rounds for one in group)):
            row: dict[str, object] = {**dict(zip(KEY, key, strict=True)), "Round": round, "Seeds": len(group)}
            for name, values in (
                ("AUROC", [one.auroc(round) for one in group]),
                ("F1", [one.f1(round) for one in group]),
            ):
                row[name], row[f"{name}, low"], row[f"{name}, high"] = over_seeds(values)
            rows.append(row)
    return pd.DataFrame(rows)


def attack_reward_table(federations: Sequence[MonitoredFederation], after: int) -> Table:
    """Method, attack: what it pays beside the same site's honest run of the seed, who the guard named, what it cost.

    Weight and Dice are differences; of sites that stand twice or as two the sum of both names is taken.
    """
    honest = {(one.method, one.seed): one for one in federations if one.attack == HONEST}
    pairs = [
        (one, honest[one.method, one.seed])
        for one in federations
        if one.attack != HONEST and (one.method, one.seed) in honest
    ]
    groups = _by(pairs, lambda pair: (pair[0].method, pair[0].attack))
    rows = [
        {"Method": method, "Attack": attack, **_attack_rewards(group, after)}
        for (method, attack), group in groups.items()
    ]
    caption = (
        "Attacks against the honest run of the same seed, means over seeds: change of the attackers' weight in the "
        "last round (largest), of the part of the aggregate that they download, of Dice of the honest sites (lowest); "
        f"in how many runs the guard named all attackers within {after} rounds of the attack; honest sites accused"
    )
    return Table("paid", caption, pd.DataFrame(rows), decimals=3)


def _attack_rewards(pairs: Sequence[tuple[MonitoredFederation, MonitoredFederation]], after: int) -> dict[str, object]:
    weights, rewards, dice, named, accused = [], [], [], [], 0
    for one, honest in pairs:
        own = [site for site in honest.sites if site in _site_roles(one, honest)]
        weights.append(_of(one, one.weights, one.attackers) - _of(honest, honest.weights, own))
        mean = [_of(one, one.rewards, one.attackers) / len(one.attackers), _of(honest, honest.rewards, own) / len(own)]
        rewards.append(mean[0] - mean[1])
        others = [site for site in honest.sites if site in one.sites and site not in {*own, *one.attackers}]
        changes = [_of(one, one.dice, [site]) - _of(honest, honest.dice, [site]) for site in others]
        dice.append(float(np.mean(changes)))
        verdicts = DetectorResult(one, "", [], one.verdicts)
        named.append(verdicts.detected_within(latest_common_round(one, after)))
        accused += sum(verdicts.false_positives().values())
    return {
        "Runs": len(pairs),
        "Weight [points]": 100 * np.mean(weights),
        "Largest [points]": 100 * np.max(weights),
        "Reward [points]": 100 * np.mean(rewards),
        "Named [%]": 100 * np.mean(named),
        "Honest sites accused": str(accused),
        "Others' Dice [points]": 100 * np.mean(dice),
        "Lowest [points]": 100 * np.min(dice),
    }


def _site_roles(one: MonitoredFederation, honest: MonitoredFederation) -> set[str]:
    """The honest run's names of those that attack: site4 of site4-a and site4-b, or of site4 and site4-copy."""
    gone = {site for site in honest.sites if site not in one.sites}
    return gone | {site for site in one.attackers if site in honest.sites} or {honest.sites[-1]}


def _of(one: MonitoredFederation, values: Sequence[float], sites: Sequence[str]) -> float:
    return float(sum(values[one.sites.index(site)] for site in sites))


def over_seeds(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean of what is known, 0 to 1, and the ends of its interval by other seeds; NaN where one has none."""
    known = np.array([value for value in values if np.isfinite(value)])
    if len(known) < 2:
        return (float(known.mean()) if len(known) else float("nan"), float("nan"), float("nan"))
    drawn = resample(known[:, None, None])[:, 0]
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).clip(0, 1)
    return float(known.mean()), float(low), float(high)


def _grouped(said: Sequence[DetectorResult]) -> dict[tuple[str, str, str], list[DetectorResult]]:
    return _by(said, lambda one: (one.watched.method, one.watched.attack, one.detector))


def _by(values: Sequence[V], key: Callable[[V], K]) -> dict[K, list[V]]:
    groups: dict[K, list[V]] = {}
    for value in values:
        groups.setdefault(key(value), []).append(value)
    return groups
