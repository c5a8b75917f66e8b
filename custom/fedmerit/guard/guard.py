"""The guard: between a round's answers and the method. Pure: history and answers in, history and a ruling out."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedmerit.core import Outcome, Reports, inner_products
from fedmerit.errors import RunFailed
from fedmerit.guard import bounds, cross_evaluation, history, indicators, reward_groups
from fedmerit.guard.history import WIDTH, History, running_mean, sketch
from fedmerit.guard.indicators import KINDS
from fedmerit.guard.reward_groups import RewardGroups, find_near_copies, find_reward_groups
from fedmerit.guard.rule import fill_unknown, median_of_others
from fedmerit.guard.settings import GuardSettings
from fedmerit.vectors import BLOCK, norms

ALL_EXCLUDED = (
    "only sites answered that verdicts have excluded; `fedmerit run --resume` goes on when others answer, or begin a "
    "run without these"
)
RULES = (
    bounds.COUNT_RULE,
    cross_evaluation.RATER_RULE,
    bounds.CLAIM_RULE,
    bounds.NORM_RULE,
    bounds.STATISTICS_RULE,
    reward_groups.ORGANISATIONS,
    reward_groups.COPIES,
    indicators.LENGTH,
    indicators.STALENESS,
    indicators.DIRECTION,
    indicators.CLAIM,
    indicators.RESPONSE_RULE,
    indicators.PROFILE_RULE,
    history.VERDICT_RULE,
)  # in the order of docs/trust.md


@dataclass(frozen=True)
class Enrolled:
    """What the n sites committed to before round 0."""

    counts: Tensor  # (n,) training images, float64; 0: not known
    organisations: Tensor  # (n,) their numbers; each its own: not known
    shared: Tensor  # (n, n) bool: `earners.find_shared_cases`

    @classmethod
    def nothing(cls, sites: int) -> "Enrolled":
        """Where sites committed to nothing."""
        pairs = torch.zeros(sites, sites, dtype=torch.bool)
        return cls(torch.zeros(sites, dtype=torch.float64), torch.arange(sites), pairs)


@dataclass(frozen=True)
class RoundReplies:
    """What a round brought."""

    updates: Tensor  # (n, d); d = 0: not seen here
    reports: Reports
    last_step: Tensor | None = None  # (d,) the mean update of the round before


@dataclass(frozen=True)
class Ruling:
    """What of a round's answers the method gets, and what comes of it."""

    updates: Tensor  # (n, d) for the method
    reports: Reports  # likewise: bounded, without those who are withheld, groups as their first site
    own: Tensor  # (n, d) the bounded updates, site by site
    own_products: Tensor  # (n, n) their Gram matrix
    answered: Tensor  # (n,) bool: whose update came
    reward_groups: RewardGroups
    withheld: Tensor  # (n,) bool: who goes on from its own model, whether it answered or not
    counted: Tensor  # (n,) bool: has a part in the aggregation
    quantities: Mapping[str, Tensor] = field(default_factory=dict)  # (n,) for results.csv
    signs: Tensor = field(default_factory=lambda: torch.zeros(len(KINDS), 0, dtype=torch.bool))  # (kinds, n) bool

    @property
    def is_unchanged(self) -> Tensor:
        """(n,) bool: whose update is the method's as the site sent it: neither shortened, nor one with others'."""
        first = self.reward_groups.first
        alone = torch.bincount(first[self.reward_groups.parts > 0], minlength=len(first))[first] == 1
        return alone & ~(self.quantities["clipped"] < 1)

    @property
    def site_reports(self) -> Reports:
        """The reports with each site's own part of the images."""
        parts = self.reports.num_samples[self.reward_groups.first] * self.reward_groups.parts
        return replace(self.reports, num_samples=parts.where(self.counted, 0.0), present=self.counted)

    @property
    def represented(self) -> Tensor:
        """(n,) bool: who has no part itself, but others of its group have."""
        return self.reward_groups.parts == 0

    def divided(self, earned: Tensor, without: float = 0.0) -> Tensor:
        """(n,) by site: groups divide what is ``earned`` (n,) in their row; who is withheld from has nothing.

        Whose group goes on without it has ``without``.
        """
        shares = (earned[self.reward_groups.first] * self.reward_groups.parts).where(self.counted, earned)
        return shares.masked_fill(self.represented, without).masked_fill(self.withheld & self.answered, 0.0)

    def settled(self, outcome: Outcome, received: Tensor) -> Outcome:
        """The outcome by site; ``received`` (d,) or (n, d) is what they started from.

        Groups divide what is earned in the row of their first site, and share its model. Who is withheld from has
        earned nothing and keeps the model that it trained.
        """
        if not self.reward_groups.grouped and not self.withheld.any():
            return outcome
        first, nothing = self.reward_groups.first, self.withheld
        one, statistics = outcome.models.ndim == 1, outcome.statistics
        models = outcome.models if one else outcome.models[first]
        if one and statistics == "models":
            statistics = "shared"  # the others still have one model, and with it the mean
        if nothing.any():
            models = models.expand(len(first), -1).clone()
            models[nothing] = (received.expand(len(first), -1) + self.own)[nothing]

        quantities = {
            name: values[first].double().masked_fill(self.represented, torch.nan)
            for name, values in outcome.quantities.items()
        }
        if "quota" in quantities:
            quantities["quota"] = quantities["quota"].masked_fill(nothing & self.answered, 0.0)
        vectors = {name: vector if vector.ndim == 1 else vector[first] for name, vector in outcome.vectors.items()}
        return replace(
            outcome,
            contribution=self.divided(outcome.contribution, torch.nan),
            reputation=self.divided(outcome.reputation),
            weights=self.divided(outcome.weights),
            models=models,
            quantities=quantities,
            statistics=statistics,
            vectors=vectors,
        )


class Guard:
    """The rules of one run.

    Args:
        settings: of the run.
        enrolled: what the sites committed to.
        merges: whether sites that earn as one may be one site to the method.
        measures: whether others measure what FedCE's sites would claim.
        seed: of sketches.
    """

    def __init__(
        self, settings: GuardSettings, enrolled: Enrolled, merges: bool = True, measures: bool = True, seed: int = 0
    ):
        self.settings, self.enrolled, self.merges, self.measures, self.seed = (
            settings, enrolled, merges, measures, seed,
        )  # fmt: skip

    def rule(self, history: History, answers: RoundReplies) -> tuple[History, Ruling]:
        """Bound the answers, look for signs, find verdicts and who earns as one."""
        present, reports = answers.reports.present, answers.reports
        products = inner_products(answers.updates, reports)
        lengths = norms(products)
        factors = bounds.clip_norms(lengths, present, history.usual)
        history = replace(history, usual=fill_unknown(median_of_others(lengths, present), history.usual))
        updates, products = _shorten(answers.updates, products, factors)
        if updates.shape[1]:
            history = self._update_history(history, answers, products, factors)
        withheld = torch.zeros_like(present)
        if self.settings.on_verdict != "show":
            withheld = history.verdicts.against  # also of who misses a round, or it would get the model by that
        if (withheld | ~present).all():  # somebody has to go on
            if self.settings.on_verdict == "exclude":
                raise RunFailed(ALL_EXCLUDED)
            withheld = torch.zeros_like(present)
        group = self._reward_groups(present & ~withheld, self._counts(reports), history)
        known = self._counts(reports).masked_fill(group.parts == 0, 0.0)
        images = bounds.bound_counts(known, group.first, group.parts, group.copies)
        ruling = self._ruling(answers, updates, products, group, withheld, images, history)
        return history, replace(
            ruling,
            quantities={
                "clipped": factors.where(present, torch.nan),
                "counted_images": images.where(present, torch.nan),
                "indicators": history.verdicts.now.sum(dim=0).double(),
                "verdict": history.verdicts.against.double(),
                "reward_group_share": ruling.reward_groups.parts.masked_fill(ruling.represented, 1.0),
            },
            signs=history.verdicts.standing,
        )

    def _counts(self, reports: Reports) -> Tensor:
        """(n,) as enrolled; as said this round, where that is not known."""
        return self.enrolled.counts.where(self.enrolled.counts > 0, reports.num_samples)

    def _update_history(self, history: History, answers: RoundReplies, products: Tensor, factors: Tensor) -> History:
        """With what the updates show; ``products`` (n, n) theirs as bounded, ``factors`` (n,) of that."""
        present, n = answers.reports.present, len(products)
        lengths = norms(products)
        now = sketch(answers.updates, self.seed)
        there, made = present & history.sketches.any(dim=1), history.made
        to_own = _row_cosines(now, history.sketches).where(there, torch.nan)
        inner, squared, to_step = None, 0.0, torch.full((n,), torch.nan, dtype=torch.float64)
        if answers.last_step is not None:
            inner, squared = _inner(answers.updates, answers.last_step)
            inner = inner * factors
            scale = lengths * squared**0.5
            to_step = torch.where(scale > 0, inner / scale.where(scale > 0, 1.0), 0.0).where(present, torch.nan)
        direction = indicators.residual_cosines(products, inner, squared, present & ~history.verdicts.against)
        direction = direction.masked_fill(to_own > indicators.REPLAY_COSINE, 0.0)  # nothing new
        alone = there & history.alone  # whose model last took its own step
        to_step = torch.where(alone, to_own, to_step).masked_fill(made, torch.nan)
        if alone.any():
            others = present & ~history.alone
            direction = torch.where(alone, indicators.residual_own_cosines(now, history.sketches, others), direction)
        d = answers.updates.shape[1]
        nothing = present & (direction == 0)  # of its own: what it did before speaks for it no more
        size = min(d, WIDTH)  # of what a sketch holds
        response = history.responses.cosines(now * factors[:, None])
        scale = torch.outer(lengths, lengths)
        cosines = torch.where(scale > 0, products / scale.where(scale > 0, 1.0), 0.0)
        pairs = present[:, None] & present
        nearness = running_mean(history.nearness, cosines.where(pairs, torch.nan))
        history = replace(
            history,
            sketches=torch.where(present[:, None], now, history.sketches),
            nearness=nearness,
            copied=torch.where(pairs, find_near_copies(cosines, nearness, present), history.copied),
            direction=running_mean(history.direction, direction.where(present, torch.nan)).masked_fill(nothing, 0.0),
            lasting=running_mean(history.lasting, to_own.masked_fill(made, torch.nan)),
            response=running_mean(history.response, response.where(present, torch.nan)),
            likeness=running_mean(history.likeness, indicators.likeness(answers.updates, present)),
            alone=present & history.alone,
            made=torch.zeros_like(made),
        )
        empty = indicators.is_too_short(lengths, present, indicators.NOTHING)
        seen = torch.stack(
            [
                indicators.is_too_short(lengths, present),
                indicators.is_stale(to_step, to_own, history.lasting.masked_fill(made, torch.nan), present),
                indicators.is_other_direction(history.direction, present, history.verdicts.against) | empty,
                present & history.claimed,
                indicators.is_opposed(history.response, present, size, history.verdicts.against),
                indicators.is_unlike(history.likeness, present, d, history.verdicts.against),
            ]
        )
        known = torch.ones_like(seen)
        known[KINDS.index("length")] = indicators.has_reference(lengths, present)
        stale = KINDS.index("staleness")
        known[stale] = (
            seen[stale]
            | indicators.has_reference(to_step, present)
            | indicators.has_reference(history.lasting, present)
        )
        known[KINDS.index("direction")] = indicators.is_direction_comparable(history.direction, present) | empty
        known[KINDS.index("response")] = indicators.is_response_comparable(history.response, present, size)
        known[KINDS.index("profile")] = indicators.is_profile_comparable(history.likeness, present, d)
        found = history.verdicts.after(seen, known, present, self.settings.on_verdict == "exclude")
        return replace(history, verdicts=found)

    def _reward_groups(self, counted: Tensor, images: Tensor, history: History) -> RewardGroups:
        if not self.merges:
            n = len(counted)
            return RewardGroups(torch.arange(n), torch.ones(n, dtype=torch.float64), torch.zeros(n, dtype=torch.bool))
        return find_reward_groups(counted, images, history.copied | self.enrolled.shared, self.enrolled.organisations)

    def _ruling(
        self,
        answers: RoundReplies,
        updates: Tensor,
        products: Tensor,
        group: RewardGroups,
        withheld: Tensor,
        images: Tensor,
        history: History,
    ) -> Ruling:
        reports, own, own_products = answers.reports, updates, products
        counted = reports.present & ~withheld
        vectors, values = reports.vectors, reports.values
        if group.grouped:
            averaging_matrix = group.averaging_matrix
            updates = _average_groups(averaging_matrix, updates)
            vectors = {name: _average_groups(averaging_matrix, vector) for name, vector in vectors.items()}
            values = {name: _group_means(averaging_matrix, value) for name, value in values.items()}
            products = averaging_matrix @ products @ averaging_matrix.T
        present = torch.zeros_like(counted)
        present[group.first[counted]] = True
        samples = torch.zeros_like(images).index_add_(0, group.first, images)
        if withheld.any():
            updates = updates.where(present[:, None], 0.0)
            vectors = {name: vector.where(present[:, None], 0.0) for name, vector in vectors.items()}
            products = products * torch.outer(present.double(), present.double())
        measured = history.measured if self.measures else None
        values = bounds.bound_claims(values, present, measured)
        values = {name: value.where(present, torch.nan) for name, value in values.items()}
        reports = replace(
            reports,
            num_samples=samples.where(present, 0.0),
            present=present,
            values=values,
            products=products,
            vectors=vectors,
        )
        return Ruling(updates, reports, own, own_products, answers.reports.present, group, withheld, counted)

    def after(self, history: History, ruling: Ruling, outcome: Outcome) -> History:
        """With what the method made of the round.

        What it found wrong, a site's claim of the aggregation before, counts where the site's update was in that as it
        sent it.
        """
        flagged = outcome.quantities.get("flagged")
        wrong = torch.zeros_like(history.claimed) if flagged is None else flagged.nan_to_num(0.0) > 0
        history = replace(
            history, claimed=wrong & ~history.bounded, bounded=~ruling.is_unchanged, alone=ruling.withheld
        )
        if not ruling.own.shape[1] or outcome.models.ndim == 2:  # others move parts of a site's model
            return history
        updates = history.sketches * ruling.quantities["clipped"].nan_to_num(0.0)[:, None]
        weights = ruling.divided(outcome.weights).masked_fill(~ruling.counted, 0.0)
        found = history.responses.after(updates, updates * weights[:, None], ruling.answered, ruling.withheld)
        made = weights > indicators.MAX_OWN_WEIGHT
        return replace(history, responses=found.of(~made), made=made)

    def judge(self, history: History, group: RewardGroups, scores: Tensor) -> tuple[History, Tensor, Tensor, Tensor]:
        """What the raters found of each site.

        Args:
            history: of the guard.
            group: who earns as one: none of them rates another.
            scores: (n, n) float64, of the rater of each row, of the site of each column; NaN: nothing.

        Returns:
            The history; (n,) what they found; (n, n) how much the rater of each column said of the site of each row;
            (n,) how far every rater was moved to be on one level.
        """
        scores = scores.masked_fill(group.first[:, None] == group.first, torch.nan)
        rated = scores.isfinite().any(dim=1)
        heard = rated & ~history.verdicts.against
        voice, offsets = cross_evaluation.voices(scores, heard)
        judged = cross_evaluation.aggregate_ratings(voice, offsets, scores)
        away = cross_evaluation.distances(scores, offsets, judged, heard)
        apart = cross_evaluation.find_outlier_raters(away)
        if apart.any():
            voice, offsets = cross_evaluation.voices(scores, heard & ~apart)
            judged = cross_evaluation.aggregate_ratings(voice, offsets, scores)
        history = replace(
            history,
            apart=torch.where(rated, apart, history.apart),
            rater_distance=torch.where(rated, away, history.rater_distance),
        )
        return history, judged, voice, offsets


def _shorten(updates: Tensor, products: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    """Updates (n, d) and their Gram matrix, rows times ``factors`` (n,); those of factor 1 keep their bits."""
    if bool((factors == 1).all()):
        return updates, products
    updates = updates.clone()
    for row in (factors != 1).nonzero().flatten():
        updates[row] *= factors[row].to(updates.dtype)
    return updates, products * torch.outer(factors, factors)


def _average_groups(averaging_matrix: Tensor, rows: Tensor) -> Tensor:
    """(n, d) the product; a row that is one row alone keeps its bits."""
    result = torch.zeros_like(rows)
    for place, parts in enumerate(averaging_matrix):
        for other in parts.nonzero().flatten().tolist():
            result[place] += rows[other] if parts[other] == 1 else rows[other] * float(parts[other])
    return result


def _group_means(averaging_matrix: Tensor, values: Tensor) -> Tensor:
    """(n,) the product; NaN where one of those that are merged is."""
    unknown = ((averaging_matrix > 0) & values.isnan()).any(dim=1)
    return (averaging_matrix @ values.double().nan_to_num(0.0)).masked_fill(unknown, torch.nan)


def _inner(updates: Tensor, step: Tensor) -> tuple[Tensor, float]:
    """(n,) inner products of ``updates`` (n, d) and ``step`` (d,), and its squared norm, float64."""
    inner, squared = torch.zeros(len(updates), dtype=torch.float64), 0.0
    for rows, part in zip(torch.split(updates, BLOCK, dim=1), torch.split(step, BLOCK), strict=True):
        inner += rows.double() @ part.double()
        squared += float(part.double().square().sum())
    return inner, squared


def _row_cosines(one: Tensor, other: Tensor) -> Tensor:
    one, other = one.double(), other.double()
    scale = one.norm(dim=1) * other.norm(dim=1)
    return torch.where(scale > 0, (one * other).sum(dim=1) / scale.where(scale > 0, 1.0), 0.0)
