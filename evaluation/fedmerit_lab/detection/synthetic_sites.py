"""A federation of made-up sites, played on the contract of methods: updates are vectors, Dice has a formula.

Site i pulls the model towards its own optimum c_i, with noise, and has Dice 1 / (1 + ‖w - c_i‖²) of a model w. One
site's optimum lies the other way: the honest outlier. No network is trained, so that attacks, methods and seeds can
be crossed in minutes; what it shows has to be shown on trained models too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from fedmerit.capabilities import Candidates, OwnUpdate, capabilities
from fedmerit.core import CandidateResults, Layout, Method, Outcome, Reports, SiteView
from fedmerit.guard import cross_evaluation
from fedmerit.guard.guard import Guard, RoundReplies, Ruling
from fedmerit.guard.history import History
from fedmerit.seeds import random_seed
from fedmerit.vectors import gram, histogram
from fedmerit_lab.detection.detector import MonitoredRound

SIZE = 3000  # d
SITES = 6
OUTLIER = 3
STEP = 0.04  # of the way to the optimum that a round goes
NOISE = 2.2  # of an update, in ways to the optimum at the start
IMAGES = 100
SPREAD = torch.linspace(0.5, 1.5, 20, dtype=torch.float64)  # of the losses of a site's images, around their mean


@dataclass(frozen=True)
class Player:
    """What one name in the federation does: an honest site, unless hooks are replaced."""

    site: int  # whose optimum it has
    images: float = IMAGES

    def update(self, honest: Tensor, seen: "Seen") -> Tensor:
        """(d,) what it sends; ``honest`` (d,) is what training gives."""
        return honest

    def claim(self, values: dict[str, float]) -> dict[str, float]:
        """What it says of itself."""
        return values

    def rate(self, dice: Tensor, members: Tensor) -> Tensor:
        """(k,) Dice that it says candidates have; ``members`` (k, n) bool are the names that have a part in each."""
        return dice


@dataclass(frozen=True)
class Seen:
    """What a player knows."""

    round: int
    step: Tensor  # (d,) how the model it has moved last
    last: Tensor | None  # (d,) what it sent last
    first: Tensor | None  # (d,) what it sent in round 0
    peers: Tensor  # (n, d) honest updates of all names: a copier looks at its twin's
    random: torch.Generator


@dataclass(frozen=True)
class SimulatedRounds:
    """What came of it, (rounds, names) each."""

    weights: Tensor
    reputation: Tensor
    reward: Tensor  # part of the aggregate that is downloaded; of one model for all 1, 0 where it is withheld
    verdicts: Tensor
    dice: Tensor  # (names,) of the final models, each at its own site


def play(
    method: Method,
    players: Sequence[Player],
    seed: int,
    rounds: int,
    guard: Guard | None,
    on_round: Callable[[MonitoredRound], None] = lambda seen: None,
) -> SimulatedRounds:
    """Rounds of one federation; ``guard`` None: without one; ``on_round`` is called with what a server sees of each."""
    if guard is not None and (trusting := capabilities(method).self_reports):
        method = trusting.without_self_reports
    can = capabilities(method)
    n, draw = len(players), torch.Generator().manual_seed(random_seed(seed, "made-up sites"))
    optima = _optima(draw)
    models = torch.zeros(SIZE)
    state = method.start(models, n, Layout.of(SIZE))
    history, last_step, before, weights = History.empty(n), None, None, None
    sent: list[Tensor | None] = [None] * n
    first: list[Tensor | None] = [None] * n
    wrong = alone = torch.zeros(n, dtype=torch.bool)
    own_optima = optima[[player.site for player in players]]
    dice = [partial(_dice, optimum) for optimum in own_optima]
    trained = torch.zeros(n, SIZE)
    steps = torch.zeros(n, SIZE)
    rows: dict[str, list[Tensor]] = {name: [] for name in ("weights", "reputation", "reward", "verdicts")}
    for number in range(rounds):
        held = models.expand(n, -1)
        noise = torch.randn(n, SIZE, generator=draw) * (NOISE / SIZE**0.5)
        honest = torch.stack([STEP * (optima[p.site] - held[i] + noise[i]) for i, p in enumerate(players)])
        updates = torch.empty(n, SIZE)
        values = {name: torch.full((n,), torch.nan, dtype=torch.float64) for name in method.asks}
        for i, player in enumerate(players):
            losses = ((1 - dice[i](held[i])) * SPREAD).clamp(0, 1)
            view = SiteView(held[i], partial(torch.clone, losses))
            said = method.report(view) if method.asks else {}
            if can.leave_one_out and before is not None and weights is not None and 0 < weights[i] < 1:
                said |= can.leave_one_out.measure(view, OwnUpdate(before[i], trained[i], float(weights[i]), dice[i]))
            for name, value in player.claim(dict(said)).items():
                values[name][i] = value
            random = torch.Generator().manual_seed(random_seed(seed, number, i, "player"))
            updates[i] = player.update(honest[i], Seen(number, steps[i], sent[i], first[i], honest, random))
            sent[i] = updates[i]
            if number == 0:
                first[i] = updates[i]
        images = torch.tensor([player.images for player in players], dtype=torch.float64)
        reports = Reports(images, torch.ones(n, dtype=torch.bool), values, products=gram(updates))
        known = 1 - 1 / (1 + torch.cdist((held + updates).double(), own_optima.double()).square())
        on_round(MonitoredRound(number, held, updates, reports.present, images, last_step, wrong, alone, known))
        ruling = None
        if guard:
            history, ruling = guard.rule(history, RoundReplies(updates, reports, last_step))
            updates, reports = ruling.updates, ruling.reports
        if can.candidates:
            candidates = can.candidates.candidates(state, updates, reports)
            if candidates is not None:
                ratings, losses_of = _rated(candidates, players, optima)
                results = CandidateResults(ratings.mean(dim=0), losses_of)
                if guard and ruling:
                    history, results = _judged(guard, history, ruling, candidates, ratings, losses_of)
                reports = replace(reports, candidates=results)
        state, outcome = method.round(state, updates, reports)
        last_step = outcome.weights.float() @ updates
        if guard and ruling:
            history = guard.after(history, ruling, outcome)
            if can.leave_one_out and can.leave_one_out.measured_by_others and number % guard.settings.rate_every == 0:
                history = _measured(guard, history, ruling, outcome, held, updates, players, optima)
            updates = ruling.own
            given, outcome = outcome, ruling.settled(outcome, held)
            if outcome.models is not given.models:
                state = method.restart_from(state, outcome.models)
            alone = ruling.withheld
        before, weights, trained = held, outcome.weights, held + updates
        models = outcome.models
        steps = models.expand(n, -1) - held
        whole = (~alone).double()  # of the aggregate, where no method gives parts of it
        flagged = outcome.quantities.get("flagged", torch.zeros(n)).nan_to_num(0.0)
        wrong = flagged > 0
        rows["weights"].append(outcome.weights)
        rows["reputation"].append(outcome.reputation)
        rows["reward"].append(outcome.quantities.get("quota", whole))
        rows["verdicts"].append(history.verdicts.against.double() if guard else flagged)
    final = torch.tensor([of(model) for of, model in zip(dice, models.expand(n, -1), strict=True)])
    return SimulatedRounds(**{name: torch.stack(values) for name, values in rows.items()}, dice=final)


def _dice(optimum: Tensor, model: Tensor) -> float:
    return float(1 / (1 + (model.double() - optimum.double()).square().sum()))


def _optima(draw: torch.Generator) -> Tensor:
    """(SITES, SIZE) where the loss of each site is least; the outlier's lies apart."""
    centre = torch.randn(SIZE, generator=draw) / SIZE**0.5
    own = torch.randn(SITES, SIZE, generator=draw) / SIZE**0.5
    optima: Tensor = centre + 0.7 * own
    optima[OUTLIER] = 1.3 * own[OUTLIER] - 0.25 * centre
    return optima


def _judged(
    guard: Guard, history: History, ruling: Ruling, candidates: Candidates, ratings: Tensor, losses: Tensor
) -> tuple[History, CandidateResults]:
    """What the guard makes of ``ratings`` (n, k) of candidates, and of their ``losses`` (k, bins)."""
    scores = cross_evaluation.rating_matrix(candidates, ratings, ruling.reports.present)
    history, *judgement = guard.judge(history, ruling.reward_groups, scores)
    return history, cross_evaluation.candidate_results(candidates, ratings, losses, *judgement)


def _measured(
    guard: Guard,
    history: History,
    ruling: Ruling,
    outcome: Outcome,
    held: Tensor,
    updates: Tensor,
    players: Sequence[Player],
    optima: Tensor,
) -> History:
    """With what the others say of the model without each name, who began with ``held`` (n, d)."""
    reports = ruling.reports
    there = reports.present
    without = cross_evaluation.leave_one_out_models(
        outcome.models, held, updates, outcome.weights, reports.data_share, there
    )
    ratings, _ = _rated(without, players, optima, there.nonzero().flatten().tolist())
    scores = torch.full((len(players), len(players)), torch.nan, dtype=torch.float64)
    scores[:, there] = 1 - ratings
    history, judged, _, _ = guard.judge(history, ruling.reward_groups, scores)
    return replace(history, measured=judged.clamp(0, 1).where(there, history.measured))


def _rated(
    candidates: Candidates, players: Sequence[Player], optima: Tensor, without: Sequence[int] | None = None
) -> tuple[Tensor, Tensor]:
    """(n, k) the Dice that all players say candidates have, and (k, bins) their losses.

    ``without``: the name that each candidate is without, where they are that.
    """
    models = candidates.mixtures @ candidates.models.double()
    at = optima[[player.site for player in players]].double()
    dice = 1 / (1 + torch.cdist(at, models).square())
    members = candidates.shares > 0
    if without is not None:  # what is said of such a model speaks against the site that it is without
        members = ~torch.eye(len(players), dtype=torch.bool)[list(without)]
    said = torch.stack([player.rate(row, members) for player, row in zip(players, dice, strict=True)])
    losses = torch.zeros(len(models), candidates.bins, dtype=torch.float64)
    if candidates.bins:
        of_images = ((1 - dice[:, :, None]) * SPREAD).clamp(0, 1)
        losses += torch.stack([histogram(row.flatten(), candidates.bins) for row in of_images.transpose(0, 1)])
    return said.clamp(0, 1), losses
