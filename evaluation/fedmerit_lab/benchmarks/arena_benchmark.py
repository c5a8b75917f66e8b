"""The benchmark of detectors in the arena: false alarms by honest scenario, power and reward by attack.

``OUT/arena`` holds the result of each federation, so that an interrupted benchmark resumes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from scipy.stats import beta

from fedmerit.errors import BadInput
from fedmerit.schema.configuration.settings import GuardSettings
from fedmerit_evaluation.figures.tables import Table
from fedmerit_evaluation.statistics.resampling import LEVEL
from fedmerit_evaluation.studies.study import MethodSpec
from fedmerit_lab.benchmarks.benchmark import play_cases
from fedmerit_lab.detection.arena import Case, play
from fedmerit_lab.detection.detector import DETECTORS
from fedmerit_lab.detection.scenarios import ATTACKS, SCENARIOS, Scenario, attacked

USUAL = "usual"  # the scenario of attacks
RUN_GUARD = "guard"
Row = Mapping[str, Any]


@dataclass(frozen=True)
class ArenaBench:
    """The options of the benchmark: every combination is a federation."""

    methods: Sequence[MethodSpec]
    attacks: Sequence[str]  # names of `ATTACKS`, or specs of attacks of other packages
    sizes: Sequence[int]  # numbers of sites
    seeds: Sequence[int]
    rounds: int
    guard: GuardSettings

    @property
    def cases(self) -> list[tuple[str, str, str, Case]]:
        """The method, scenario and attack by name, and the case; seed by seed."""
        honest = [(name, "", scenario) for name, scenario in SCENARIOS.items()]
        named = [*honest, *((USUAL, name, find_attack(name)) for name in self.attacks)]
        return [
            (method.label, name, attack, self._case(method, sites, scenario, seed))
            for seed in self.seeds
            for sites in self.sizes
            for method in self.methods
            for name, attack, scenario in named
            if scenario.attackers < 2 or 2 * scenario.attackers < sites
        ]

    def _case(self, method: MethodSpec, sites: int, scenario: Scenario, seed: int) -> Case:
        return Case(method.method, sites, scenario, seed, self.rounds, method.settings, self.guard)


def find_attack(name: str) -> Scenario:
    """Return one of `ATTACKS`, or that of a spec of an attack; `BadInput` if it is neither."""
    if name in ATTACKS:
        return ATTACKS[name]
    try:
        scenario = attacked("by its spec", name)
    except BadInput:
        raise BadInput(f"--attacks {name}: unknown; there are {'; '.join(ATTACKS)}, and specs of attacks") from None
    return scenario


def play_all(bench: ArenaBench, out: Path, on_case: Callable[[str, int, int], None] = lambda *_: None) -> list[Row]:
    """Play every federation that is not done yet, and return a row for each and each detector.

    Raises:
        BadInput: an attack is unknown, or ``out`` holds federations of other options.
    """

    def player(method: str, scenario: str, attack: str, case: Case) -> Callable[[], list[Row]]:
        named = {"method": method, "sites": case.sites, "scenario": scenario, "attack": attack, "seed": case.seed}
        return lambda: [{**named, **row} for row in _play(case)]

    cases = {
        f"{method}, {case.sites} sites, {attack or scenario}, seed {case.seed}": player(method, scenario, attack, case)
        for method, scenario, attack, case in bench.cases
    }
    options = {"rounds": bench.rounds, "guard": asdict(bench.guard)}
    return [row for rows in play_cases(out / "arena", cases, options, on_case) for row in rows]


def _play(case: Case) -> list[Row]:
    detectors = {name: make() for name, make in DETECTORS.items()}
    flagged: dict[str, list[torch.Tensor]] = {name: [] for name in detectors}

    def see(round: Any) -> None:
        for name, detector in detectors.items():
            flagged[name].append(detector.see(round).flagged)

    played = play(case, see)
    attackers = list(case.attackers)
    honest = [row for row in range(case.sites) if row not in attackers]
    found = {RUN_GUARD: played.verdicts, **{name: torch.stack(each) for name, each in flagged.items()}}
    weights = played.weights.mean(dim=0)
    paid = {"weight": weights[attackers or honest[-1:]].sum().item()}
    paid["pair"] = weights[attackers or honest[-2:]].sum().item()
    accuracy = played.accuracy[[row for row in honest if row]].mean().item()
    return [
        {
            "detector": name,
            "false": bool(seen[:, honest].any()),
            "detected": bool(seen[:, attackers].any(dim=0).all()) if attackers else None,
            "first": int(seen[:, attackers].any(dim=1).long().argmax()) if seen[:, attackers].any() else None,
            "accuracy": accuracy,
            **paid,
        }
        for name, seen in found.items()
    ]


def arena_tables(rows: Sequence[Row]) -> list[Table]:
    """Return the tables of false alarms, of power, and of rewards."""
    frame = pd.DataFrame(rows)
    honest, attacked = frame[frame["attack"] == ""], frame[frame["attack"] != ""]
    tables = [_rates(honest, "scenario", "false", "False alarms: runs with a verdict against any site")]
    if len(attacked):
        tables += [_rates(attacked, "attack", "detected", "Power: runs in which all attackers are detected")]
        tables += [_rewards(honest, attacked[attacked["detector"] == RUN_GUARD])]
    return tables


def clopper_pearson(count: int, of: int) -> tuple[float, float]:
    """Return the interval of a proportion, from 0 to 1 (Clopper and Pearson 1934)."""
    tail = (1 - LEVEL) / 2
    low = float(beta.ppf(tail, count, of - count + 1)) if count else 0.0
    return low, float(beta.ppf(1 - tail, count + 1, of - count)) if count < of else 1.0


def _rates(frame: pd.DataFrame, by: str, what: str, caption: str) -> Table:
    rows, lows, highs = [], [], []
    for (method, detector, name), group in frame.groupby(["method", "detector", by], sort=False):
        kinds = {"Method": method, "Detector": detector, by.capitalize(): name, "Runs": len(group)}
        low, high = clopper_pearson(int(group[what].sum()), len(group))
        sizes = {f"{sites} sites [%]": 100 * float(part[what].mean()) for sites, part in group.groupby("sites")}
        rows.append({**kinds, "All [%]": 100 * float(group[what].mean()), **sizes})
        lows.append({"All [%]": 100 * low})
        highs.append({"All [%]": 100 * high})
    parts = [pd.DataFrame(part) for part in (rows, lows, highs)]
    named = f"{caption}, in percent with {100 * LEVEL:g} % CI"
    return Table(f"arena-{what}", named, parts[0], decimals=1, low=parts[1], high=parts[2])


def _rewards(honest: pd.DataFrame, attacked: pd.DataFrame) -> Table:
    """Return attackers' mean weight over rounds, less that of as many honest sites in their place."""
    keys = ["method", "sites", "seed"]
    usual = honest[(honest["scenario"] == USUAL) & (honest["detector"] == RUN_GUARD)]
    both = attacked.merge(usual[[*keys, "weight", "pair", "accuracy"]], on=keys, suffixes=("", "_honest"))
    several = both["attack"].map(lambda name: find_attack(name).attackers > 1 and not find_attack(name).is_copy)
    both["gain"] = 100 * (both["weight"] - both["weight_honest"].where(~several, both["pair_honest"]))
    both["harm"] = 100 * (both["accuracy"] - both["accuracy_honest"])
    rows = [
        {
            "Method": method,
            "Attack": attack,
            "Runs": len(group),
            "Detected in round": float(group["first"].median()),
            "Reward [points]": float(group["gain"].mean()),
            "Largest [points]": float(group["gain"].max()),
            "Others' accuracy [points]": float(group["harm"].mean()),
        }
        for (method, attack), group in both.groupby(["method", "attack"], sort=False)
    ]
    caption = "Rewards above honest: attackers' weight, mean over rounds, against the honest run of the same seed"
    return Table("arena-rewards", caption, pd.DataFrame(rows), decimals=1)
