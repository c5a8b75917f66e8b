"""The guard between a round's replies and the method. It is pure: history and replies in, history and `Admission` out.

`Guard.admit` bounds the replies, looks for indicators of free riders and finds verdicts; `Guard.after` notes what the
method made of them; `Guard.judge` turns the sites' ratings of each other into one score a site.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedmerit.core import Outcome, Reports, inner_products
from fedmerit.errors import RunFailed
from fedmerit.guard import bounds, cross_evaluation, indicators
from fedmerit.guard.admission import Admission
from fedmerit.guard.bounds import fill_unknown, median_of_others
from fedmerit.guard.history import WIDTH, History, running_mean, sketch
from fedmerit.guard.indicators import Measurements
from fedmerit.guard.reward_groups import RewardGroups, find_near_copies, find_reward_groups
from fedmerit.guard.settings import GuardSettings
from fedmerit.vectors import BLOCK, norms, ratio

ALL_EXCLUDED = (
    "only sites answered that verdicts have excluded; `fedmerit run --resume` continues when others answer, or begin a "
    "run without these"
)


@dataclass(frozen=True)
class Enrolled:
    """What the n sites committed to before round 0."""

    counts: Tensor  # (n,) training images, float64; 0: not known
    organisations: Tensor  # (n,) a number for each organisation; unknown ones differ from all others
    shared: Tensor  # (n, n) bool: `shared_cases.find_shared_cases`

    @classmethod
    def nothing(cls, sites: int) -> "Enrolled":
        """Sites that committed to nothing."""
        pairs = torch.zeros(sites, sites, dtype=torch.bool)
        return cls(torch.zeros(sites, dtype=torch.float64), torch.arange(sites), pairs)


@dataclass(frozen=True)
class Guard:
    """The rules of one run."""

    settings: GuardSettings
    enrolled: Enrolled
    merges: bool = True  # sites of one reward group may be one site to the method
    measures: bool = True  # other sites measure what FedCE's sites would claim
    seed: int = 0  # of sketches

    def admit(
        self,
        history: History,
        updates: Tensor,
        reports: Reports,
        last_step: Tensor | None = None,
        measured: Measurements | None = None,
    ) -> tuple[History, Admission]:
        """Bound a round's replies, look for indicators, find verdicts and reward groups.

        Args:
            history: before the round.
            updates: (n, d); d = 0: the server does not see them.
            reports: what the sites reported beside.
            last_step: (d,) the mean update of the round before; None: there is none.
            measured: of the updates, if they were measured before.

        Raises:
            RunFailed: ``on_verdict`` is "exclude", and only excluded sites answered.
        """
        present, products = reports.present, inner_products(updates, reports)
        lengths = norms(products)
        factors = bounds.clip_norms(lengths, present, history.usual)
        history = replace(history, usual=fill_unknown(median_of_others(lengths, present), history.usual))
        own, products = _clip(updates, products, factors)
        if updates.shape[1]:
            history, measured = (
                (history, measured) if measured else self._measure(history, updates, present, last_step, factors)
            )
            history = self._update_history(history, measured, present, products, factors)
        withheld = torch.zeros_like(present)
        if self.settings.on_verdict != "show":
            withheld = history.verdicts.against  # also of an absent site, which would otherwise get the model
        if (withheld | ~present).all():  # somebody has to continue
            if self.settings.on_verdict == "exclude":
                raise RunFailed(ALL_EXCLUDED)
            withheld = torch.zeros_like(present)
        worked = present & ~withheld & ~indicators.is_too_short(lengths, present)
        history = history.after_work(worked)
        counts = self.enrolled.counts.where(self.enrolled.counts > 0, reports.num_samples)
        counted = present & ~withheld
        groups, enrolled = RewardGroups.singles(len(counted)), self.enrolled
        if self.merges:
            groups = find_reward_groups(counted, counts, history.copied | enrolled.shared, enrolled.organisations)
        images = bounds.bound_counts(
            counts.masked_fill(groups.parts == 0, 0.0), groups.first, groups.parts, groups.copies
        )
        if self.settings.on_verdict != "show":
            images = images * history.credit
        merged, for_method = self._merge(own, reports, products, groups, withheld, images, history)
        return history, Admission(
            merged,
            for_method,
            own,
            products,
            present,
            groups,
            withheld,
            counted,
            quantities={
                "clipped": factors.where(present, torch.nan),
                "counted_images": images.where(present, torch.nan),
                "indicators": history.verdicts.now.sum(dim=0).double(),
                "verdict": history.verdicts.against.double(),
                "worked": worked.double(),
                "reward_group_share": groups.parts.masked_fill(groups.parts == 0, 1.0),
            },
            indicators=history.verdicts.standing,
            measured=measured,
        )

    def _measure(
        self, history: History, updates: Tensor, present: Tensor, last_step: Tensor | None, factors: Tensor
    ) -> tuple[History, Measurements]:
        """What the ``updates`` (n, d) show beside their Gram matrix; they are clipped by ``factors`` (n,)."""
        now, known = sketch(updates, self.seed), present & history.sketches.any(dim=1)
        one, last = now.double(), history.sketches.double()
        unknown = torch.full((len(updates),), torch.nan, dtype=torch.float64)
        inner, squared = (unknown, 0.0) if last_step is None else _inner(updates, last_step)
        separate, own_direction = known & history.keeps_own_model, unknown
        if separate.any():
            others = present & ~history.keeps_own_model
            found = indicators.residual_own_cosines(now, history.sketches, others)
            own_direction = found.where(separate, torch.nan)
        measured = Measurements(
            updates.shape[1],
            ratio((one * last).sum(dim=1), one.norm(dim=1) * last.norm(dim=1)).where(known, torch.nan),
            inner.where(present, torch.nan),
            squared,
            own_direction,
            history.responses.cosines(now * factors[:, None]).where(present, torch.nan),
            indicators.likeness(updates, present),
        )
        return replace(history, sketches=torch.where(present[:, None], now, history.sketches)), measured

    def _update_history(
        self, history: History, measured: Measurements, present: Tensor, products: Tensor, factors: Tensor
    ) -> History:
        """Add what ``measured`` shows; ``products`` (n, n) are those of the clipped updates, by ``factors`` (n,)."""
        made, lengths, d, to_own = history.dominates_step, norms(products), measured.size, measured.to_own
        inner = measured.inner * factors
        to_step = ratio(inner, lengths * measured.squared**0.5).where(inner.isfinite(), torch.nan)
        against = history.verdicts.against
        inner = inner.where(present, 0.0)
        direction = indicators.residual_cosines(products, inner, measured.squared, present & ~against)
        direction = direction.masked_fill(to_own > indicators.REPLAY_COSINE, 0.0)  # nothing new
        separate = to_own.isfinite() & history.keeps_own_model  # the model last took only the site's own step
        to_step = torch.where(separate, to_own, to_step).masked_fill(made, torch.nan)
        direction = torch.where(separate, measured.own_direction, direction)
        nothing = present & (direction == 0)  # no direction of its own: earlier rounds no longer support it
        cosines = ratio(products, torch.outer(lengths, lengths))
        pairs = present[:, None] & present
        nearness = running_mean(history.nearness, cosines.where(pairs, torch.nan))
        history = replace(
            history,
            nearness=nearness,
            copied=torch.where(pairs, find_near_copies(cosines, nearness, present), history.copied),
            direction=running_mean(history.direction, direction.where(present, torch.nan)).masked_fill(nothing, 0.0),
            own_cosine=running_mean(history.own_cosine, to_own.masked_fill(made, torch.nan)),
            response=running_mean(history.response, measured.response),
            likeness=running_mean(history.likeness, measured.likeness),
            keeps_own_model=present & history.keeps_own_model,
            dominates_step=torch.zeros_like(made),
        )
        short = indicators.is_too_short(lengths, present)
        empty = indicators.is_too_short(lengths, present, indicators.NOTHING)
        stale = indicators.is_stale(to_step, to_own, history.own_cosine.masked_fill(made, torch.nan), present)
        other = indicators.is_other_direction(history.direction, present, against)
        opposed = indicators.is_opposed(history.response, present, min(d, WIDTH), against)
        unlike = indicators.is_unlike(history.likeness, present, d, against)
        seen = torch.stack([short, stale, other | empty, present & history.claim_was_wrong, opposed, unlike])
        comparable = torch.stack(
            [
                indicators.has_reference(lengths, present),
                stale
                | indicators.has_reference(to_step, present)
                | indicators.has_reference(history.own_cosine, present),
                indicators.is_direction_comparable(history.direction, present) | empty,
                torch.ones_like(present),
                indicators.is_response_comparable(history.response, present, min(d, WIDTH)),
                indicators.is_profile_comparable(history.likeness, present, d),
            ]
        )
        permanent = self.settings.on_verdict == "exclude"
        return replace(history, verdicts=history.verdicts.after(seen, comparable, present, permanent))

    def _merge(
        self,
        updates: Tensor,
        reports: Reports,
        products: Tensor,
        groups: RewardGroups,
        withheld: Tensor,
        images: Tensor,
        history: History,
    ) -> tuple[Tensor, Reports]:
        """What the method gets: a reward group's mean in the row of its first site, zeros of withheld sites.

        ``images`` (n,) are the bounded counts, site by site.
        """
        vectors, values, counted = reports.vectors, reports.values, reports.present & ~withheld
        if groups.has_groups:
            averaging_matrix = groups.averaging_matrix
            updates = _average_groups(averaging_matrix, updates)
            vectors = {name: _average_groups(averaging_matrix, vector) for name, vector in vectors.items()}
            values = {name: _group_means(averaging_matrix, value) for name, value in values.items()}
            products = averaging_matrix @ products @ averaging_matrix.T
        present = torch.zeros_like(counted)
        present[groups.first[counted]] = True
        samples = torch.zeros_like(images).index_add_(0, groups.first, images)
        if withheld.any():
            updates = updates.where(present[:, None], 0.0)
            vectors = {name: vector.where(present[:, None], 0.0) for name, vector in vectors.items()}
            products = products * torch.outer(present.double(), present.double())
        values = bounds.bound_claims(values, present, history.leave_one_out_error if self.measures else None)
        return updates, replace(
            reports,
            num_samples=samples.where(present, 0.0),
            present=present,
            values={name: value.where(present, torch.nan) for name, value in values.items()},
            products=products,
            vectors=vectors,
        )

    def after(self, history: History, admission: Admission, outcome: Outcome) -> History:
        """Add what the method made of the round.

        A claim that the method found wrong is about the aggregation before. It counts if that aggregation had the
        site's update as the site sent it.
        """
        flagged = outcome.quantities.get("flagged")
        wrong = torch.zeros_like(admission.withheld) if flagged is None else flagged.nan_to_num(0.0) > 0
        history = replace(
            history,
            claim_was_wrong=wrong & ~history.update_was_changed,
            update_was_changed=~admission.is_unchanged,
            keeps_own_model=admission.withheld,
        )
        if not admission.own.shape[1] or outcome.models.ndim == 2:  # others move parts of a site's model
            return history
        updates = history.sketches * admission.quantities["clipped"].nan_to_num(0.0)[:, None]
        weights = admission.divide(outcome.weights).masked_fill(~admission.counted, 0.0)
        found = history.responses.after(updates, updates * weights[:, None], admission.answered, admission.withheld)
        dominates = weights > indicators.MAX_OWN_WEIGHT
        return replace(history, responses=found.keep(~dominates), dominates_step=dominates)

    def judge(self, history: History, groups: RewardGroups, scores: Tensor) -> tuple[History, Tensor, Tensor, Tensor]:
        """Combine the sites' ratings of each other.

        Args:
            history: of the guard.
            groups: the reward groups; no site of a group rates another of it.
            scores: (n, n) float64, by the rater of each row, of the site of each column; NaN: no rating.

        Returns:
            The history; (n,) the combined rating of each site; (n, n) weight of the rater of each column for the site
            of each row; (n,) by how much each rater was moved to a common level.
        """
        scores = scores.masked_fill(groups.first[:, None] == groups.first, torch.nan)
        rated = scores.isfinite().any(dim=1)
        heard = rated & ~history.verdicts.against
        voice, offsets = cross_evaluation.voices(scores, heard)
        judged = cross_evaluation.aggregate_ratings(voice, offsets, scores)
        away = cross_evaluation.distances(scores, offsets, judged, heard)
        outliers = cross_evaluation.find_outlier_raters(away)
        if outliers.any():
            voice, offsets = cross_evaluation.voices(scores, heard & ~outliers)
            judged = cross_evaluation.aggregate_ratings(voice, offsets, scores)
        history = replace(
            history,
            is_outlier_rater=torch.where(rated, outliers, history.is_outlier_rater),
            rater_distance=torch.where(rated, away, history.rater_distance),
        )
        return history, judged, voice, offsets


def _clip(updates: Tensor, products: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    """Updates (n, d) and their Gram matrix, rows times ``factors`` (n,); those of factor 1 keep their bits."""
    if bool((factors == 1).all()):
        return updates, products
    updates = updates.clone()
    for row in (factors != 1).nonzero().flatten():
        updates[row] *= factors[row].to(updates.dtype)
    return updates, products * torch.outer(factors, factors)


def _average_groups(averaging_matrix: Tensor, rows: Tensor) -> Tensor:
    """(n, d) the product; a row of one site only keeps its bits."""
    result = torch.zeros_like(rows)
    for place, parts in enumerate(averaging_matrix):
        for other in parts.nonzero().flatten().tolist():
            result[place] += rows[other] if parts[other] == 1 else rows[other] * float(parts[other])
    return result


def _group_means(averaging_matrix: Tensor, values: Tensor) -> Tensor:
    """(n,) the product; NaN if one of those that are merged is."""
    unknown = ((averaging_matrix > 0) & values.isnan()).any(dim=1)
    return (averaging_matrix @ values.double().nan_to_num(0.0)).masked_fill(unknown, torch.nan)


def _inner(updates: Tensor, step: Tensor) -> tuple[Tensor, float]:
    """(n,) inner products of ``updates`` (n, d) and ``step`` (d,), and its squared norm, float64."""
    inner, squared = torch.zeros(len(updates), dtype=torch.float64), 0.0
    for rows, part in zip(torch.split(updates, BLOCK, dim=1), torch.split(step, BLOCK), strict=True):
        inner += rows.double() @ part.double()
        squared += float(part.double().square().sum())
    return inner, squared
