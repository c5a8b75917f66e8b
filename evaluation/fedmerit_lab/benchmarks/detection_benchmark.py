"""The comparison of detectors: methods, attacks and seeds crossed; all detectors monitor every federation.

``OUT/federations`` holds the results of each federation, so that an interrupted benchmark resumes; ``OUT/runs`` the run
folders. `fedmerit_lab.benchmarks.arena_benchmark` needs no site folders.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from fedmerit.errors import BadInput
from fedmerit.schema.results import COLUMNS
from fedmerit_evaluation.figures.tables import Table, file_name
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.statistics.resampling import LEVEL, draw_over_seeds
from fedmerit_evaluation.studies.study import MethodSpec
from fedmerit_lab.attacks.attacked_runs import HONEST
from fedmerit_lab.attacks.detection import auroc
from fedmerit_lab.attacks.detectors import DETECTORS, ThresholdDetector
from fedmerit_lab.benchmarks.benchmark import play_cases
from fedmerit_lab.detection.monitored_federation import EVIDENCE, MonitoredFederation, Rows, Training, monitor
from fedmerit_lab.detection.scenarios import SITE_ATTACKS, assign_roles


@dataclass(frozen=True)
class DetectionBench:
    """The options of the benchmark.

    Args:
        sites: folder of site folders.
        methods: of every federation.
        attacks: names of `SITE_ATTACKS`.
        seeds: of every federation.
        after: rounds of an attack after which detection is scored.
        attacker: the site that attacks; None: the last.
        outlier: the honest site of other images; None: none is known.
        rounds: of every federation.
        settings: of every run.
    """

    sites: Path
    methods: Sequence[MethodSpec]
    attacks: Sequence[str]
    seeds: Sequence[int]
    after: int = 10
    attacker: str | None = None
    outlier: str | None = None
    rounds: int = 15
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def cases(self) -> list[tuple[MethodSpec, str, int]]:
        """The method, attack and seed of every federation; the honest federations of a seed come first."""
        attacks = [HONEST, *(attack for attack in self.attacks if attack != HONEST)]
        return [(method, attack, seed) for seed in self.seeds for attack in attacks for method in self.methods]

    def to_dict(self) -> dict[str, Any]:
        """Return all that a federation depends on except method, attack and seed, as JSON has it."""
        return {
            "sites": str(self.sites.resolve()),
            "attacker": self.attacker,
            "outlier": self.outlier,
            "rounds": self.rounds,
            "settings": dict(self.settings),
        }

    def training(self, method: MethodSpec) -> Training:
        """Return how the federations of a method are trained; `BadInput` if a site is not there."""
        roles = assign_roles(self.sites, self.attacker, self.outlier)
        return Training(self.sites, roles, self.rounds, self.settings, method.method, method.settings)


def federations(
    bench: DetectionBench, out: Path, on_case: Callable[[str, int, int], None] = lambda case, done, total: None
) -> list[MonitoredFederation]:
    """Train every federation that is not done yet, and return all.

    Args:
        bench: the options.
        out: the benchmark's folder.
        on_case: called before each federation with its description, how many are done, and how many there are.

    Raises:
        BadInput: an option cannot be used, or ``out`` holds federations of other options.
    """
    for attack in bench.attacks:
        if attack not in SITE_ATTACKS:
            raise BadInput(f"--attacks {attack}: unknown; there are {'; '.join(SITE_ATTACKS)}")
    assign_roles(bench.sites, bench.attacker, bench.outlier)  # before anything is written

    def player(what: str, method: MethodSpec, attack: str, seed: int) -> Callable[[], Mapping[str, Any]]:
        run = out / "runs" / file_name(what)
        return lambda: monitor(bench.training(method), method.label, attack, seed, run).to_json()

    named = {f"{method.label}, {attack}, seed {seed}": (method, attack, seed) for method, attack, seed in bench.cases}
    cases = {what: player(what, *case) for what, case in named.items()}
    played = play_cases(out / "federations", cases, bench.to_dict(), on_case)
    return [MonitoredFederation.from_json(content) for content in played]


def detection_tables(bench: DetectionBench, found: Sequence[MonitoredFederation]) -> list[Table]:
    """Return the tables of the detectors, of false positives, and of rewards from attacks."""
    results = detector_results(found)
    return [
        detection_table(results, bench.after),
        false_positive_table(results),
        attack_reward_table(found, bench.after),
    ]


BY_EVIDENCE = ("small norm", "large norm", "previous step", "near duplicate", "opposed")  # of `DETECTORS`
KEY = ["Method", "Attack", "Detector"]
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class DetectorResult:
    """A detector on one federation."""

    federation: MonitoredFederation
    detector: str
    suspicion: Rows
    flagged: Rows

    def auroc(self, round: int) -> float:
        """Return AUROC of a round; NaN before the attack, or if no suspicion is known."""
        return auroc(*self._split(self.suspicion, round)) if round >= self.federation.first else float("nan")

    def f1(self, round: int) -> float:
        """Return F1 of the flags of a round; NaN before the attack, 0 if no site is flagged."""
        if round < self.federation.first or not self.federation.attackers:
            return float("nan")
        attackers, honest = (np.nansum(values) for values in self._split(self.flagged, round))
        return float(2 * attackers / (attackers + honest + len(self.federation.attackers)))

    def _split(self, rows: Rows, round: int) -> tuple[list[float], list[float]]:
        """Return attackers' values and honest sites' values."""
        both: tuple[list[float], list[float]] = ([], [])
        for site, value in zip(self.federation.sites, rows[round], strict=True):
            both[site not in self.federation.attackers].append(value)
        return both

    def is_detected(self, until: int) -> float:
        """Return 1 if every attacker was flagged in some round of the attack up to ``until``; NaN without attackers."""
        if not self.federation.attackers:
            return float("nan")
        columns = [self.federation.sites.index(site) for site in self.federation.attackers]
        seen = np.array(self.flagged)[self.federation.first : until + 1, columns]
        return float(seen.any(axis=0).all())

    def false_positives(self) -> dict[str, bool]:
        """Return by honest site, whether it was flagged in any round."""
        flagged = dict(zip(self.federation.sites, np.array(self.flagged).sum(axis=0) > 0, strict=True))
        return {site: bool(flag) for site, flag in flagged.items() if site not in self.federation.attackers}


def detector_results(federations: Sequence[MonitoredFederation]) -> list[DetectorResult]:
    """Return every detector on every federation: round detectors, and those of `DETECTORS` that need only evidence."""
    found = [
        DetectorResult(federation, name, federation.suspicion[name], federation.flagged[name])
        for federation in federations
        for name in federation.suspicion
    ]
    results = _evidence(federations)
    for detector in (one for one in DETECTORS if one.name in BY_EVIDENCE):
        found += _detect_by_evidence(detector, federations, results)
    methods = list(dict.fromkeys(federation.method for federation in federations))
    attacks = list(dict.fromkeys(federation.attack for federation in federations))
    return sorted(found, key=lambda one: (methods.index(one.federation.method), attacks.index(one.federation.attack)))


def _detect_by_evidence(
    detector: ThresholdDetector, federations: Sequence[MonitoredFederation], results: Results
) -> Iterator[DetectorResult]:
    found = detector.see(results)
    tables = found.suspicion, found.flagged.astype(float)
    for number, one in enumerate(federations):
        own, flagged = (
            table[table.index.get_level_values("run") == str(number)]
            .droplevel("run")
            .reindex(index=range(one.rounds), columns=one.sites)  # a round without evidence has no row
            .to_numpy(float)
            for table in tables
        )
        yield DetectorResult(one, detector.name, own.tolist(), np.nan_to_num(flagged).tolist())


def _evidence(federations: Sequence[MonitoredFederation]) -> Results:
    """Return the evidence as rows of results; a run's name is the federation's place."""
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


def last_scored_round(federation: MonitoredFederation, after: int) -> int:
    """Return the round in which detection is scored: the ``after``-th of the attack, or the last there is."""
    return min(federation.first + after, federation.rounds) - 1


def detection_table(found: Sequence[DetectorResult], after: int) -> Table:
    """Return method, attack, detector: AUROC, F1 and detected attackers within ``after`` rounds of the attack."""
    measures: Mapping[str, tuple[float, Callable[[DetectorResult], float]]] = {  # by name, with the unit
        "AUROC": (1, lambda one: one.auroc(last_scored_round(one.federation, after))),
        "F1": (1, lambda one: one.f1(last_scored_round(one.federation, after))),
        "Detected [%]": (100, lambda one: one.is_detected(last_scored_round(one.federation, after))),
    }
    rows, lows, highs = [], [], []
    for key, group in _by(_attacked(found), _key).items():
        row: dict[str, object] = {**dict(zip(KEY, key, strict=True)), "Seeds": len(group)}
        low, high = dict[str, float](), dict[str, float]()
        for name, (unit, measure) in measures.items():
            row[name], low[name], high[name] = (unit * end for end in mean_over_seeds([measure(one) for one in group]))
        rows.append(row)
        lows.append(low)
        highs.append(high)
    caption = (
        f"Attackers against the honest sites of their federation after {after} rounds of the attack: means over seeds "
        f"with {100 * LEVEL:g} % CI over seeds; detected: flagged in some round until then"
    )
    parts = [pd.DataFrame(part) for part in (rows, lows, highs)]
    return Table("detection", caption, parts[0], decimals=2, low=parts[1], high=parts[2])


def false_positive_table(found: Sequence[DetectorResult]) -> Table:
    """Return by method and detector the honest sites flagged in any round; the outlier separately."""
    rows = []
    for (method, detector), group in _by(found, lambda one: (one.federation.method, one.detector)).items():
        row: dict[str, object] = {"Method": method, "Detector": detector}
        honest_runs = [one for one in group if not one.federation.attackers]
        for runs, chosen in (("honest runs", honest_runs), ("all runs", group)):
            flagged: dict[bool, list[bool]] = {False: [], True: []}  # by whether the site is the outlier
            for one in chosen:
                for site, flag in one.false_positives().items():
                    flagged[site == one.federation.outlier].append(flag)
            row[f"Honest flagged, {runs} [%]"] = _percent(flagged[False])
            row[f"Honest outlier flagged, {runs} [%]"] = _percent(flagged[True])
        rows.append(row)
    caption = "False positives: honest sites flagged in any round, percent of sites; the outlier separately"
    return Table("false-positives", caption, pd.DataFrame(rows))


def _percent(flags: Sequence[bool]) -> float:
    return 100 * float(np.mean(flags)) if flags else float("nan")


def attack_reward_table(federations: Sequence[MonitoredFederation], after: int) -> Table:
    """Return method, attack: the gain from the attack, its cost to the others, and the guard's detections.

    Differences are to the honest run of the same method and seed. If a site takes part under two names, their weights
    are summed.
    """
    honest = {
        (federation.method, federation.seed): federation for federation in federations if federation.attack == HONEST
    }
    pairs = [
        (federation, honest[federation.method, federation.seed])
        for federation in federations
        if federation.attack != HONEST and (federation.method, federation.seed) in honest
    ]
    groups = _by(pairs, lambda pair: (pair[0].method, pair[0].attack))
    rows = [
        {"Method": method, "Attack": attack, **_attack_rewards(group, after)}
        for (method, attack), group in groups.items()
    ]
    caption = (
        "Attacks against the honest run of the same seed, means over seeds: change of the attackers' weight in the "
        "last round (and the largest), of the share of the aggregate that they download, of the honest sites' Dice "
        f"(and the lowest); runs in which the guard detected all attackers within {after} rounds of the attack; honest "
        "sites that the guard flagged"
    )
    return Table("attack-rewards", caption, pd.DataFrame(rows), decimals=3)


def _attack_rewards(pairs: Sequence[tuple[MonitoredFederation, MonitoredFederation]], after: int) -> dict[str, object]:
    weights, rewards, dice, detected, false_positives = [], [], [], [], 0
    for one, honest in pairs:
        own = [site for site in honest.sites if site in _attackers_when_honest(one, honest)]
        weights.append(_sum(one, one.weights, one.attackers) - _sum(honest, honest.weights, own))
        mean = _sum(one, one.rewards, one.attackers) / len(one.attackers)
        rewards.append(mean - _sum(honest, honest.rewards, own) / len(own))
        others = [site for site in honest.sites if site in one.sites and site not in {*own, *one.attackers}]
        changes = [_sum(one, one.dice, [site]) - _sum(honest, honest.dice, [site]) for site in others]
        dice.append(float(np.mean(changes)))
        verdicts = DetectorResult(one, "", [], one.verdicts)
        detected.append(verdicts.is_detected(last_scored_round(one, after)))
        false_positives += sum(verdicts.false_positives().values())
    return {
        "Runs": len(pairs),
        "Weight [points]": 100 * np.mean(weights),
        "Largest [points]": 100 * np.max(weights),
        "Reward [points]": 100 * np.mean(rewards),
        "Detected [%]": 100 * np.mean(detected),
        "False positives": str(false_positives),
        "Others' Dice [points]": 100 * np.mean(dice),
        "Lowest [points]": 100 * np.min(dice),
    }


def _attackers_when_honest(one: MonitoredFederation, honest: MonitoredFederation) -> set[str]:
    """Return the attackers' names in the honest run: site4 for site4-a and site4-b, or for site4 and site4-copy."""
    absent = {site for site in honest.sites if site not in one.sites}
    return absent | {site for site in one.attackers if site in honest.sites} or {honest.sites[-1]}


def _sum(one: MonitoredFederation, values: Sequence[float], sites: Sequence[str]) -> float:
    return float(sum(values[one.sites.index(site)] for site in sites))


def mean_over_seeds(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean of the known values, 0 to 1, and the ends of its CI over seeds; NaN with fewer than two."""
    known = np.array([value for value in values if np.isfinite(value)])
    if len(known) < 2:
        return (float(known.mean()) if len(known) else float("nan"), float("nan"), float("nan"))
    drawn = draw_over_seeds(known[:, None, None])[:, 0]
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).clip(0, 1)
    return float(known.mean()), float(low), float(high)


def _attacked(found: Sequence[DetectorResult]) -> list[DetectorResult]:
    return [one for one in found if one.federation.attackers]


def _key(one: DetectorResult) -> tuple[str, str, str]:
    return one.federation.method, one.federation.attack, one.detector


def _by(values: Sequence[V], key: Callable[[V], K]) -> dict[K, list[V]]:
    groups: dict[K, list[V]] = {}
    for value in values:
        groups.setdefault(key(value), []).append(value)
    return groups
