"""The arena: federations of small trainings under the product's own guard and methods, in memory."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fedmerit.contract.capabilities import Candidates, capabilities
from fedmerit.contract.method import Layout, Outcome, Reports, part_products
from fedmerit.contract.vectors import gram
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.configuration.settings import GuardSettings, Network
from fedmerit.seeds import random_seed
from fedmerit.server.round_inputs import Rating, Ratings, pool_ratings
from fedmerit.server.round_updates import measure_updates
from fedmerit.server.run_guard import RunGuard
from fedmerit.trainers.memory import Learned, Memory
from fedmerit_lab.attacks.attack import AttackerView
from fedmerit_lab.detection.detector import MonitoredRound
from fedmerit_lab.detection.scenarios import Scenario
from fedmerit_lab.detection.small_trainings import (
    SIZES,
    VALIDATION,
    Recipe,
    SiteData,
    accuracies,
    generate_sites,
    initial_model,
    train,
)

NO_BUFFERS: Mapping[str, Tensor] = {}


@dataclass(frozen=True)
class Case:
    """A federation of the arena."""

    method: str
    sites: int
    scenario: Scenario
    seed: int = 0
    rounds: int = 20
    parameters: Mapping[str, Any] = field(default_factory=dict)
    guard: GuardSettings = field(default_factory=lambda: GuardSettings("on"))

    @property
    def attackers(self) -> range:
        """The rows of the attackers: the last ones."""
        return range(self.sites - self.scenario.attackers, self.sites)


@dataclass(frozen=True)
class Played:
    """The results of a federation; rows are rounds."""

    verdicts: Tensor  # (rounds, n) bool
    weights: Tensor  # (rounds, n) float64
    rewards: Tensor  # (rounds, n) float64 reputation, or quota
    accuracy: Tensor  # (n,) of each site's last model, on all sites' validation images


class Federation:
    """A federation, round by round."""

    def __init__(self, case: Case):
        self.case, n = case, case.sites
        self.names = [f"site{number:02}" for number in range(1, n + 1)]
        self.data, self.claims = self._data()
        self.recipe = Recipe(lr=case.scenario.lr, adam=case.scenario.adam)
        config = RunConfiguration(
            case.method, "arena", case.rounds, case.seed, Network(1, ("class",)), parameters=case.parameters,
            guard=case.guard, share_models=True,
        )  # fmt: skip
        self.method = config.build_guarded_method()
        self.can = capabilities(self.method)
        self.guard = RunGuard(config, self.method, self.can, self.names, True, True)
        self.models = initial_model(self._random("model"))
        self.state = self.method.start(self.models, n, Layout.of(*SIZES))
        self.past: list[Tensor] = []  # (n, d) models received
        self.own: list[Tensor] = []  # (n, d) updates of training
        self.memories: list[dict[str, Any]] = [{} for _ in range(n)]
        self.mean: Tensor | None = None
        self.leave_one_out = torch.full((n,), torch.nan, dtype=torch.float64)  # errors of models without each site
        self.last: MonitoredRound | None = None

    def _random(self, *what: object) -> np.random.Generator:
        return np.random.default_rng(random_seed(self.case.seed, *what))

    def _data(self) -> tuple[list[SiteData], Tensor]:
        scenario, n = self.case.scenario, self.case.sites
        counts = [scenario.counts[row % len(scenario.counts)] for row in range(n)]
        sites = generate_sites(counts, scenario.concentration, self._random("data"))
        sites = [scenario.all(site, self._random("all", row)) for row, site in enumerate(sites)]
        sites[0] = scenario.odd(sites[0], self._random("odd"))
        claims = [float(site.count) for site in sites]
        origins = {row: sites[self.case.attackers[0] if scenario.is_copy else row] for row in self.case.attackers}
        for place, (row, origin) in enumerate(origins.items()):
            change = scenario.data[place % len(scenario.data)]
            sites[row] = change(origin, self._random("attack", row))
            claims[row] = sites[row].count * scenario.claims
        return sites, torch.tensor(claims, dtype=torch.float64)

    def _train(self, number: int, received: Tensor) -> Tensor:
        """Return (n, d) honest updates; exact copies draw the same batches."""
        names = list(self.names)
        if self.case.scenario.is_copy and len(self.data[-1].labels) == len(self.data[-2].labels):
            names[-1] = names[-2]
        return train(received, self.data, self.recipe, [self._random("train", name, number) for name in names])

    def _present(self, number: int) -> Tensor:
        n, scenario = self.case.sites, self.case.scenario
        drawn = torch.from_numpy(self._random("present", number).random(n))
        missing = torch.full((n,), scenario.away, dtype=torch.float64)
        missing[0] = max(scenario.away, scenario.absent)
        present = drawn >= missing
        return present if present.sum() >= 2 else torch.ones_like(present)

    def play(self, number: int) -> Outcome:
        """Return the next round: its outcome by site."""
        n, received = self.case.sites, self.models
        sent = received.expand(n, -1).contiguous()
        present, honest = self._present(number), self._train(number, sent)
        updates = self._attacked(number, sent, honest) * present[:, None]
        step = self.mean
        values = {name: torch.full((n,), torch.nan, dtype=torch.float64) for name in self.method.asks}
        self._claim(values, received)
        counts = self.claims.where(present, 0.0)
        nothing = {name: torch.zeros_like(updates) for name in self.can.vectors}
        reports = Reports(counts, present, values, products=gram(updates), vectors=nothing)
        admission = self.guard.admit(updates, reports, [None] * n, [{}] * n, step)
        places = self.method.parts(self.state)
        parts = part_products(admission.updates, admission.reports, places) if len(places) else None
        reports = replace(admission.reports, parts=parts)
        if self.can.candidates and (wanted := self.can.candidates.candidates(self.state, admission.updates, reports)):
            rated = self._rate(wanted)
            results = self.guard.judge_candidates(admission, wanted, rated) if self.guard.on else pool_ratings(rated)
            reports = replace(reports, candidates=results)
        self.state, given = self.method.round(self.state, admission.updates, reports)
        outcome = self.guard.divide_outcome(admission, given, received)
        if outcome.models is not given.models:
            self.state = self.method.restart_from(self.state, outcome.models)
        asked = self.guard.leave_one_out_models(number, given, admission, received)
        if asked is not None:
            self.guard.take_leave_one_out(admission, self._rate(asked))
        separate = admission.withheld
        self.admission = admission
        self.last = MonitoredRound(
            number, sent, updates, present, counts, step, torch.zeros_like(present), separate, None
        )
        equal = admission.answered
        self.mean, _ = measure_updates(admission.own, admission.own_products, outcome.weights, equal, self.mean)
        self.past.append(sent)
        self.own.append(honest)
        self.models = outcome.models
        return outcome

    def _attacked(self, number: int, sent: Tensor, honest: Tensor) -> Tensor:
        attack, updates = self.case.scenario.attack, honest.clone()
        for row in self.case.attackers if number >= attack.first else ():
            received, update, kept = sent[row], honest[row], self.memories[row]
            before = self.past[-1][row] if self.past else received
            if number == attack.first and self.past:
                kept |= attack.keep(Memory(before, before + self.own[-1][row], NO_BUFFERS), received)
            learned = Learned(update, received + update, NO_BUFFERS, 0.0)
            task = cast(Any, SimpleNamespace(round=number))
            view = AttackerView(
                task, received, received - before, kept, lambda learned=learned: learned,  # type: ignore[misc]
                self._random("attacker", row, number),
            )  # fmt: skip
            result = attack.update(view)
            updates[row] = result.update if isinstance(result, Learned) else result
        return updates

    def _claim(self, values: dict[str, Tensor], received: Tensor) -> None:
        """Add what sites say of themselves, as far as methods ask."""
        if not values:
            return
        models = received.expand(self.case.sites, -1)
        error = 1 - accuracies(models, self.data).diagonal()
        for name in values:
            if name in ("error", "loss"):
                values[name] = error
            elif name == "minus_error":
                values[name] = error.where(torch.tensor(len(self.past) > 0), torch.nan)

    def _rate(self, wanted: Candidates) -> Ratings:
        """Return every site's accuracies of all candidates, and the histogram of wrong images."""
        models = (wanted.mixtures @ wanted.models.double()).float()
        found = accuracies(models, self.data)
        ratings = {}
        for name, row in zip(self.names, found, strict=True):
            losses = torch.zeros(len(models), wanted.bins, dtype=torch.float64)
            if wanted.bins:
                losses[:, 0], losses[:, -1] = row * VALIDATION, (1 - row) * VALIDATION
            ratings[name] = Rating(tuple(row.tolist()), (VALIDATION,) * len(models), losses)
        return ratings


def play(case: Case, see: Any = None) -> Played:
    """Return all rounds of a federation; ``see`` gets each `MonitoredRound`."""
    federation, verdicts, weights, rewards = Federation(case), [], [], []
    for number in range(case.rounds):
        outcome = federation.play(number)
        verdicts.append(outcome.quantities.get("verdict", torch.zeros(case.sites)) > 0)
        weights.append(outcome.weights.double())
        rewards.append(outcome.quantities.get("quota", outcome.reputation).double())
        if see and federation.last:
            see(federation.last)
    found = accuracies(federation.models.expand(case.sites, -1), federation.data).mean(dim=0)
    return Played(torch.stack(verdicts), torch.stack(weights), torch.stack(rewards), found)
