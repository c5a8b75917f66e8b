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
from fedmerit.files import read_json, write_json
from fedmerit.schema.configuration.settings import GuardSettings
from fedmerit_evaluation.figures.tables import Table, file_name
from fedmerit_lab.attacks.forecasters import Forecaster
from fedmerit_lab.attacks.free_riders import Delta, Noise, Replay, Zero
from fedmerit_lab.benchmarks.benchmark import Benchmark
from fedmerit_lab.detection.arena import Case, Federation
from fedmerit_lab.detection.scenarios import ATTACKS, SCENARIOS, Scenario, unchanged
from fedmerit_lab.detection.small_trainings import generate_images, soft_scores

METHOD, USUAL = "innovation", "usual"
MOST_RETRAINED = 4  # sites of federations whose Shapley values are computed by retraining
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
    retrained: int = 2  # seeds of honest scenarios, the first ones, at the smallest size

    @property
    def cases(self) -> list[tuple[str, str, Case]]:
        """The kind, honest or attack, the name, and the case; seed by seed."""
        paid = [("honest", USUAL), *(("attack", name) for name, scenario in ATTACKS.items() if _pays(scenario))]
        odd = [("honest", name) for name in SCENARIOS if name != USUAL]
        scenarios = {**SCENARIOS, **ATTACKS}
        return [
            (kind, name, self._case(scenarios[name], sites, seed))
            for place, seed in enumerate(self.seeds)
            for names, sizes in ((paid, self.sizes), (odd, [min(self.sizes)] if place < self.retrained else []))
            for sites in sizes
            for kind, name in names
        ]

    def _case(self, scenario: Scenario, sites: int, seed: int) -> Case:
        guard = GuardSettings("on", "show")
        return Case(METHOD, sites, scenario, seed, self.rounds, guard=guard, server_images=self.images)


def _pays(scenario: Scenario) -> bool:
    """Return whether the attack is on what an update is paid, and not found otherwise: by length, counts or names."""
    is_known = isinstance(scenario.attack, Forecaster | Zero | Noise | Delta | Replay)
    return scenario.attackers == 1 and (
        is_known or scenario.work is not None or bool(scenario.data[0] is not unchanged)
    )


def play_all(bench: PayBench, out: Path, on_case: Callable[[str, int, int], None] = lambda *_: None) -> list[Row]:
    """Play every federation that is not done yet, and return a row for each."""
    folder, cases = out / "pay", bench.cases
    rows: list[Row] = []
    for number, (kind, name, case) in enumerate(cases):
        what = (
            f"{kind}, {name}, {case.sites} sites, seed {case.seed}, {case.rounds} rounds, {case.server_images} images"
        )
        file = folder / f"{file_name(what)}.json"
        if not file.exists():
            on_case(what, number, len(cases))
            found = {"kind": kind, "name": name, "sites": case.sites, "seed": case.seed, **_play(kind, name, case)}
            write_json(file, found)
        rows.append(read_json(file))
    return rows


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
    return found


class _Coalition(Federation):
    """A federation of some of the sites."""

    def __init__(self, case: Case, members: Sequence[int]):
        self.members = list(members)
        super().__init__(case)

    def _present(self, number: int) -> torch.Tensor:
        there = torch.zeros(self.case.sites, dtype=torch.bool)
        there[self.members] = True
        return super()._present(number) & there


def retrained_shares(case: Case) -> NDArray[np.float64]:
    """Return (n,) shares of Shapley values by retraining FedAvg without each coalition, negative ones 0.

    The utility is the mean over rounds of the scores on `TEST_IMAGES` images that are neither the sites' nor the
    server's.
    """
    plain = replace(case, method="fedavg", guard=GuardSettings(), server_images=0)
    utilities = torch.zeros(2**case.sites, dtype=torch.float64)
    for code in range(len(utilities)):
        federation = _Coalition(plain, [row for row in range(case.sites) if code >> row & 1])
        images = generate_images(TEST_IMAGES, federation._random("data"), federation._random("test"))
        models = [federation.models]
        for number in range(case.rounds if code else 0):
            if federation._present(number).any():
                federation.play(number)
            models.append(federation.models)
        utilities[code] = soft_scores(torch.stack(models[1:] or models), *images).mean()
    values = compute_values(utilities, case.sites).clamp(min=0).numpy()
    return np.asarray(values / values.sum())


def pay_tables(bench: PayBench, rows: Sequence[Row], out: Path) -> list[Table]:
    """Write all rows as JSON, and return the tables of attackers' and of honest sites' pay."""
    options = {"rounds": bench.rounds, "seeds": list(bench.seeds), "images": bench.images}
    benchmark = Benchmark("pay", options)
    benchmark.rows.extend(dict(row) for row in rows)
    frame = pd.DataFrame(rows)
    usual = frame[frame["name"] == USUAL].set_index(["sites", "seed"])
    tables = [_attackers(frame[frame["kind"] == "attack"], usual), _honest(frame[frame["kind"] == "honest"])]
    benchmark.write_with(out, tables[0].frame)
    return tables


def _attackers(frame: pd.DataFrame, usual: pd.DataFrame) -> Table:
    """Return pay of the last site as an attacker, by the mean of its honest pay, over the seeds of each size."""
    rows = []
    for name, group in frame.groupby("name", sort=False):
        row: dict[str, Any] = {"Attack": name, "Runs": len(group)}
        for sites, part in group.groupby("sites"):
            pay = np.array([share[-1] for share in part["share"]])
            honest = np.array([usual.loc[key, "share"][-1] for key in zip(part["sites"], part["seed"], strict=True)])
            row[f"{sites} sites [%]"] = 100 * pay.mean() / honest.mean()
        pay = np.array([share[-1] for share in group["share"]])
        honest = np.array([usual.loc[key, "share"][-1] for key in zip(group["sites"], group["seed"], strict=True)])
        row["All [%]"] = 100 * pay.mean() / honest.mean()
        row["Standard error"] = (
            100 * (pay - pay.mean() / honest.mean() * honest).std(ddof=1) / (math.sqrt(len(pay)) * honest.mean())
        )
        audited = np.array([share[-1] for share in group["audited_share"]])
        row["If steps are repeated [%]"] = 100 * audited.mean() / honest.mean()
        row["Rounds trained"] = float(np.mean([rounds[-1] for rounds in group["rounds_trained"]]))
        shown = [value[-1] >= 2 * error[-1] for value, error in zip(group["value"], group["error"], strict=True)]
        row["Shown [%]"] = 100 * float(np.mean(shown))
        row["Flagged [%]"] = 100 * float(np.mean([verdict[-1] for verdict in group["verdict"]]))
        rows.append(row)
    return Table(
        "pay-attackers", "Attackers' pay by innovation, of the same site's honest pay", pd.DataFrame(rows), decimals=1
    )


def _honest(frame: pd.DataFrame) -> Table:
    """Return shares of the first site, which is the unusual one, and distances from shares by retraining."""
    rows = []
    for name, group in frame.groupby("name", sort=False):
        retrained = group[group["shapley"].notna()] if "shapley" in group else group[:0]
        rows.append({"Scenario": name, "Runs": len(group), **_first_site(group), **_distances(retrained)})
    everything = frame[frame["shapley"].notna()] if "shapley" in frame else frame[:0]
    rows.append({"Scenario": "all", "Runs": len(frame), **_first_site(frame), **_distances(everything)})
    return Table(
        "pay-honest", "Honest sites: shares of pay, and of Shapley values by retraining", pd.DataFrame(rows), decimals=1
    )


def _first_site(group: pd.DataFrame) -> dict[str, float]:
    return {
        "Weight of site 1 [%]": 100 * float(np.mean([share[0] for share in group["weight"]])),
        "Pay of site 1 [%]": 100 * float(np.mean([share[0] for share in group["share"]])),
        "Flagged [%]": 100 * float(np.mean([any(one) for one in group["verdict"]])),
    }


def _distances(group: pd.DataFrame) -> dict[str, float]:
    """Return mean distances of shares from those by retraining, in points, and correlations."""
    if not len(group):
        return {}
    pay, weight, retrained = (np.array(group[name].tolist()) for name in ("share", "weight", "shapley"))
    return {
        "Retrained runs": len(group),
        "Pay of site 1 there [%]": 100 * float(pay[:, 0].mean()),
        "Shapley of site 1 [%]": 100 * float(retrained[:, 0].mean()),
        "Distance [points]": 100 * float(np.abs(pay - retrained).mean()),
        "Of weights [points]": 100 * float(np.abs(weight - retrained).mean()),
        "Of site 1 [points]": 100 * float(np.abs(pay - retrained)[:, 0].mean()),
        "Of its weight [points]": 100 * float(np.abs(weight - retrained)[:, 0].mean()),
        "Correlation": float(pearsonr(pay.ravel(), retrained.ravel()).statistic),
        "Of weights": float(pearsonr(weight.ravel(), retrained.ravel()).statistic),
    }
