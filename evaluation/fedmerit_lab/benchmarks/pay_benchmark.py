"""The benchmark of pay in the arena: what innovation pays to attackers and to honest unusual sites.

``OUT/pay`` holds the result of each federation, so that an interrupted benchmark resumes. All federations are of the
method ``innovation``, which trains as FedAvg does; verdicts are only shown, so that they do not change pay.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.stats import pearsonr

from fedmerit.contract.games import compute_values
from fedmerit.contract.vectors import aggregate
from fedmerit.schema.configuration.settings import GuardSettings
from fedmerit_evaluation.figures.tables import Table
from fedmerit_lab.attacks.faults import Scaled
from fedmerit_lab.attacks.free_riders import Delta, Forecaster, Noise, Replay, Zero
from fedmerit_lab.benchmarks.arena_benchmark import USUAL
from fedmerit_lab.benchmarks.benchmark import play_cases
from fedmerit_lab.detection.arena import Case, Federation
from fedmerit_lab.detection.scenarios import ATTACKS, SCENARIOS, Scenario, unchanged
from fedmerit_lab.detection.small_trainings import generate_images, soft_scores

METHOD = "innovation"
MOST_RETRAINED = 6  # sites of federations whose Shapley values are computed by retraining: 64 trainings
LATE = "joins in round 10"  # paid by policy, and not by what it would be worth from the beginning
TEST_IMAGES = 2000
TRAINED = 0.999  # cosine to what training gives
Row = Mapping[str, Any]


@dataclass(frozen=True)
class PayBench:
    """The options of the benchmark."""

    sizes: Sequence[int]  # numbers of sites
    seeds: Sequence[int]
    rounds: int
    images: int  # of the server
    retrained: int = 2  # seeds of honest scenarios, the first ones, at sizes up to `MOST_RETRAINED`

    @property
    def cases(self) -> list[tuple[str, str, Case]]:
        """The kind, honest or attack, the name, and the case; seed by seed."""
        paid = [("honest", USUAL), *(("attack", name) for name, scenario in ATTACKS.items() if _pays(scenario))]
        odd = [("honest", name) for name in SCENARIOS if name != USUAL]
        scenarios, small = {**SCENARIOS, **ATTACKS}, [size for size in self.sizes if size <= MOST_RETRAINED]
        return [
            (kind, name, self._case(scenarios[name], sites, seed))
            for place, seed in enumerate(self.seeds)
            for names, sizes in ((paid, self.sizes), (odd, small if place < self.retrained else []))
            for sites in sizes
            for kind, name in names
        ]

    def _case(self, scenario: Scenario, sites: int, seed: int) -> Case:
        guard = GuardSettings("on", "show")
        return Case(METHOD, sites, scenario, seed, self.rounds, guard=guard, server_images=self.images)


def _pays(scenario: Scenario) -> bool:
    """Return whether the attack is on what an update is paid, and not found otherwise: by counts or names."""
    is_known = isinstance(scenario.attack, Forecaster | Zero | Noise | Delta | Replay | Scaled)
    return scenario.attackers == 1 and (
        is_known or scenario.work is not None or bool(scenario.data[0] is not unchanged)
    )


def play_all(bench: PayBench, out: Path, on_case: Callable[[str, int, int], None] = lambda *_: None) -> list[Row]:
    """Play every federation that is not done yet, and return a row for each.

    Raises:
        BadInput: ``out`` holds federations of other options.
    """

    def player(kind: str, name: str, case: Case) -> Callable[[], Row]:
        named = {"kind": kind, "name": name, "sites": case.sites, "seed": case.seed}
        return lambda: {**named, **_play(kind, name, case)}

    cases = {
        f"{kind}, {name}, {case.sites} sites, seed {case.seed}": player(kind, name, case)
        for kind, name, case in bench.cases
    }
    return play_cases(out / "pay", cases, {"rounds": bench.rounds, "images": bench.images}, on_case)


def _play(kind: str, name: str, case: Case) -> dict[str, Any]:
    federation = Federation(case)
    verdicts, trained = torch.zeros(case.sites, dtype=torch.bool), torch.zeros(case.sites, dtype=torch.float64)
    for number in range(case.rounds):
        outcome = federation.play(number)
        verdicts |= outcome.quantities["verdict"] > 0
        assert federation.last
        cosines = torch.cosine_similarity(federation.last.updates.double(), federation.own[-1].double())
        trained += cosines > TRAINED
    repeated = torch.where(torch.tensor([row in case.attackers for row in range(case.sites)]), trained, case.rounds)
    found = {
        "rounds_trained": trained.tolist(),
        "audited_share": federation.state.innovations.shares(repeated / case.rounds).tolist(),
        "share": outcome.reputation.tolist(),
        "weight": federation.claims.div(federation.claims.sum()).tolist(),
        "value": outcome.quantities["innovation"].tolist(),
        "error": outcome.quantities["standard_error"].tolist(),
        "verdict": verdicts.tolist(),
    }
    if kind == "honest" and name != USUAL and case.sites <= MOST_RETRAINED:
        found["shapley"] = retrained_shares(case).tolist()
        found["again"] = retrained_shares(replace(case, training_seed=1)).tolist()
    return found


def retrained_shares(case: Case) -> NDArray[np.float64]:
    """Return (n,) shares of Shapley values by training FedAvg with every coalition, negative ones 0.

    The utility is the mean over rounds of the scores on `TEST_IMAGES` images that are neither the sites' nor the
    server's. All 2^n models are trained side by side.
    """
    n = case.sites
    federation = Federation(replace(case, method="fedavg", guard=GuardSettings(), server_images=0))
    images = generate_images(TEST_IMAGES, federation._random("data"), federation._random("test"))
    members = torch.tensor([[code >> row & 1 for row in range(n)] for code in range(2**n)], dtype=torch.bool)
    models = federation.models.expand(2**n, -1)
    utilities = torch.zeros(2**n, dtype=torch.float64)
    for number in range(case.rounds):
        updates = federation._train(number, models.repeat_interleave(n, dim=0)).view(2**n, n, -1)
        counts = federation.claims * (members & federation._present(number))
        weights = counts / counts.sum(dim=1, keepdim=True).clamp(min=1)
        models = torch.stack([aggregate(*each) for each in zip(models, weights, updates, strict=True)])
        utilities += soft_scores(models, *images).mean(dim=1) / case.rounds
    values = compute_values(utilities, n).clamp(min=0).numpy()
    return np.asarray(values / values.sum())


def pay_tables(rows: Sequence[Row]) -> list[Table]:
    """Return the tables of attackers' and of honest sites' pay."""
    frame = pd.DataFrame(rows)
    usual = frame[frame["name"] == USUAL].set_index(["sites", "seed"])
    return [_attackers(frame[frame["kind"] == "attack"], usual), _honest(frame[frame["kind"] == "honest"])]


def _attackers(frame: pd.DataFrame, usual: pd.DataFrame) -> Table:
    """Return pay of the last site as an attacker, by the mean of its honest pay, over the seeds of each size."""
    rows = []
    for name, group in frame.groupby("name", sort=False):
        row: dict[str, Any] = {"Attack": name, "Runs": len(group)}
        pay, audited = _of_last(group, "share"), _of_last(group, "audited_share")
        honest = np.array([usual.loc[key, "share"][-1] for key in zip(group["sites"], group["seed"], strict=True)])
        for sites in sorted(group["sites"].unique()):
            of_size = (group["sites"] == sites).to_numpy()
            row[f"{sites} sites [%]"] = 100 * pay[of_size].mean() / honest[of_size].mean()
        row["All [%]"] = 100 * pay.mean() / honest.mean()
        row["Standard error"] = (
            100 * (pay - pay.mean() / honest.mean() * honest).std(ddof=1) / (math.sqrt(len(pay)) * honest.mean())
        )
        row["If steps are repeated [%]"] = 100 * audited.mean() / honest.mean()
        row["Rounds trained"] = _of_last(group, "rounds_trained").mean()
        row["Shown [%]"] = 100 * (_of_last(group, "value") >= 2 * _of_last(group, "error")).mean()
        row["Flagged [%]"] = 100 * _of_last(group, "verdict").mean()
        rows.append(row)
    return Table(
        "pay-attackers", "Attackers' pay by innovation, of the same site's honest pay", pd.DataFrame(rows), decimals=1
    )


def _of_last(frame: pd.DataFrame, column: str) -> NDArray[np.float64]:
    """Return (runs,) numbers of the last site of each run."""
    return np.array([values[-1] for values in frame[column]], dtype=np.float64)


def _honest(frame: pd.DataFrame) -> Table:
    """Return shares of the first site, which is the unusual one, and distances from shares by retraining.

    Those of two retrainings, which differ in what training draws, are the least that can be asked of an estimate.
    """
    rows = []
    for sites, group in frame.groupby("sites"):
        for name, part in group.groupby("name", sort=False):
            rows.append({"Sites": sites, "Scenario": name, **_first_site(part), **_distances(part)})
        rows.append({"Sites": sites, "Scenario": "all", **_first_site(group), **_distances(group)})
        prompt = group[group["name"] != LATE]
        rows.append({"Sites": sites, "Scenario": f"all but {LATE}", **_first_site(prompt), **_distances(prompt)})
    return Table(
        "pay-honest", "Honest sites: shares of pay, and of Shapley values by retraining", pd.DataFrame(rows), decimals=1
    )


def _first_site(group: pd.DataFrame) -> dict[str, float]:
    return {
        "Runs": len(group),
        "Weight of site 1 [%]": 100 * float(np.mean([share[0] for share in group["weight"]])),
        "Pay of site 1 [%]": 100 * float(np.mean([share[0] for share in group["share"]])),
        "Flagged [%]": 100 * float(np.mean([any(one) for one in group["verdict"]])),
    }


def _distances(frame: pd.DataFrame) -> dict[str, float]:
    """Return mean distances of shares from those by retraining, in points, and correlations."""
    group = frame[frame["shapley"].notna()] if "shapley" in frame else frame[:0]
    if not len(group):
        return {}
    names = {"pay": "share", "weights": "weight", "retraining": "again"}
    estimates = {name: np.array(group[column].tolist()) for name, column in names.items()}
    retrained = np.array(group["shapley"].tolist())
    of_first, of_all = (
        {name: 100 * np.abs(one - retrained)[:, part].mean() for name, one in estimates.items()}
        for part in (slice(1), slice(None))
    )
    return {
        "Retrained runs": len(group),
        "Pay of site 1 there [%]": 100 * float(estimates["pay"][:, 0].mean()),
        "Shapley of site 1 [%]": 100 * float(retrained[:, 0].mean()),
        **{f"Site 1: {name} [points]": float(distance) for name, distance in of_first.items()},
        **{f"All sites: {name} [points]": float(distance) for name, distance in of_all.items()},
        **{
            f"Correlation of {name}": float(pearsonr(one.ravel(), retrained.ravel()).statistic)
            for name, one in estimates.items()
        },
    }
