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
from fedmerit.server.round_inputs import SERVER, Rating, Ratings, pool_ratings
from fedmerit.server.round_updates import measure_updates
from fedmerit.server.run_guard import RunGuard
from fedmerit.trainers.memory import Learned, Memory
from fedmerit_lab.attacks.attack import AttackerView
from fedmerit_lab.detection.detector import MonitoredRound
from fedmerit_lab.detection.scenarios import Scenario, Work
from fedmerit_lab.detection.small_trainings import (
    SIZES,
    VALIDATION,
    Recipe,
    SiteData,
    accuracies,
    generate_images,
    generate_sites,
    initial_model,
    logits,
    soft_scores,
    train,
)

TRAINING = ("model", "train", "present", "filter")  # draws that `Case.training_seed` changes
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
    server_images: int = 0  # that no site chose, of four scanners and all classes
    training_seed: int = 0  # of the first model, batches, absences and noise; the images stay

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
        self.guard = RunGuard(config, self.method, self.can, self.names, True, True, tensor_sizes=SIZES)
        if case.scenario.filter_noise:  # the first site declares the filter
            inner = self.guard.guard
            enrolled = replace(inner.enrolled, filtered=torch.arange(n) == 0)
            self.guard.guard = replace(inner, enrolled=enrolled)
        self.images = generate_images(case.server_images, self._random("data"), self._random("server"))
        self.models = initial_model(self._random("model"))
        self.state = self.method.start(self.models, n, Layout.of(*SIZES))
        self.past: list[Tensor] = []  # (n, d) models received
        self.own: list[Tensor] = []  # (n, d) updates of training
        self.memories: list[dict[str, Any]] = [{} for _ in range(n)]
        self.mean: Tensor | None = None
        self.leave_one_out = torch.full((n,), torch.nan, dtype=torch.float64)  # errors of models without each site
        self.last: MonitoredRound | None = None

    def _random(self, *what: object) -> np.random.Generator:
        again = ("training", self.case.training_seed) if self.case.training_seed and what[0] in TRAINING else ()
        return np.random.default_rng(random_seed(self.case.seed, *again, *what))

    def _data(self) -> tuple[list[SiteData], Tensor]:
        scenario, n = self.case.scenario, self.case.sites
        counts = [scenario.counts[row % len(scenario.counts)] for row in range(n)]
        sites = generate_sites(counts, scenario.concentration, self._random("data"))
        sites = [scenario.all(site, self._random("all", row)) for row, site in enumerate(sites)]
        sites[0] = scenario.odd(sites[0], self._random("odd"))
        if scenario.twins:
            sites[0] = sites[1] = self._public(sites[0])
        claims = [float(site.count) for site in sites]
        origins = {row: sites[self.case.attackers[0] if scenario.is_copy else row] for row in self.case.attackers}
        for place, (row, origin) in enumerate(origins.items()):
            change = scenario.data[place % len(scenario.data)]
            sites[row] = change(origin, self._random("attack", row))
            claims[row] = sites[row].count * scenario.claims
        return sites, torch.tensor(claims, dtype=torch.float64)

    def _public(self, like: SiteData) -> SiteData:
        """Return ``like`` with public training images."""
        images, labels = generate_images(like.count, self._random("data"), self._random("public"))
        return replace(like, images=images.numpy(), labels=labels.numpy())

    def _work(self, number: int, received: Tensor, honest: Tensor, work: Work, row: int) -> Tensor:
        """Return (d,) what an attacker's `Work` gives, of the length of ``honest`` (d,) times its factor."""
        data = replace(self._public(self.data[row]) if work.is_public else self.data[row], batch_size=work.batch_size)
        if work.is_predicted:
            found = logits(received[None], torch.from_numpy(data.images)).argmax(dim=2)[0]
            data = replace(data, labels=found.numpy())
        recipe = replace(self.recipe, steps=work.steps)
        update = train(received[None], [data], recipe, [self._random("work", row, number)])[0]
        return update * (work.length * float(honest.norm() / update.norm().clamp(min=1e-30)))

    def _train(self, number: int, received: Tensor) -> Tensor:
        """Return honest updates from ``received`` (k n, d): k times those of all n sites; exact copies draw the same
        batches.
        """
        names, copies = list(self.names), len(received) // self.case.sites
        if self.case.scenario.is_copy and len(self.data[-1].labels) == len(self.data[-2].labels):
            names[-1] = names[-2]
        randoms = [self._random("train", name, number) for name in names * copies]
        updates = train(received, self.data * copies, self.recipe, randoms)
        scenario = self.case.scenario
        if scenario.filter_noise:
            noise = torch.from_numpy(self._random("filter", number).normal(size=updates.shape[1])).float()
            for row in range(0, len(updates), self.case.sites):
                updates[row] += noise * (scenario.filter_noise * updates[row].norm() / noise.norm())
        if work := scenario.work:
            for row in self.case.attackers:
                updates[row] = self._work(number, received[row], updates[row], work, row)
        return updates

    def _present(self, number: int) -> Tensor:
        n, scenario = self.case.sites, self.case.scenario
        drawn = torch.from_numpy(self._random("present", number).random(n))
        missing = torch.full((n,), scenario.away, dtype=torch.float64)
        missing[0] = max(scenario.away, scenario.absent)
        present = drawn >= missing
        present[0] &= number >= scenario.joins
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
        admission = self.guard.admit(updates, reports, [None] * n, [{}] * n, step, models=received)
        places = self.method.parts(self.state)
        parts = part_products(admission.updates, admission.reports, places) if len(places) else None
        reports = replace(admission.reports, parts=parts)
        if self.can.candidates and (wanted := self.can.candidates.candidates(self.state, admission.updates, reports)):
            rated = self._rate(wanted)
            if self.guard.on and SERVER not in rated:
                results = self.guard.judge_candidates(admission, wanted, rated)
            else:
                results = pool_ratings(rated, self.names)
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
        self.last = MonitoredRound(number, sent, updates, present, counts, step, separate)
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
        """Return the ratings of all candidates: by the server on its images, or by every site.

        By accuracy with the histogram of wrong images, or where soft Dice is wanted by `soft_scores`.
        """
        models = (wanted.mixtures @ wanted.models.double()).float()
        if self.case.server_images:
            return {SERVER: self._rating(wanted, models, *self.images)}
        if wanted.soft:
            rows = [(torch.from_numpy(one.validation), torch.from_numpy(one.validation_labels)) for one in self.data]
            return {name: self._rating(wanted, models, *images) for name, images in zip(self.names, rows, strict=True)}
        found = accuracies(models, self.data)
        ratings = {}
        for name, row in zip(self.names, found, strict=True):
            losses = torch.zeros(len(models), wanted.bins, dtype=torch.float64)
            if wanted.bins:
                losses[:, 0], losses[:, -1] = row * VALIDATION, (1 - row) * VALIDATION
            ratings[name] = Rating(tuple(row.tolist()), (VALIDATION,) * len(models), losses)
        return ratings

    def _rating(self, wanted: Candidates, models: Tensor, images: Tensor, labels: Tensor) -> Rating:
        """Return the rating of ``models`` (k, d) on images."""
        known = soft_scores(models, images, labels)
        right = known if wanted.soft else (logits(models, images).argmax(dim=2) == labels).double()
        count, losses = len(labels), torch.zeros(len(models), wanted.bins, dtype=torch.float64)
        if wanted.bins:
            losses[:, 0], losses[:, -1] = right.sum(dim=1), (1 - right).sum(dim=1)
        rating = Rating(tuple(right.mean(dim=1).tolist()), (count,) * len(models), losses)
        return replace(rating, soft=known, patients=tuple(range(count))) if wanted.soft else rating


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
