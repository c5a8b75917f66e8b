"""The guard between a round's replies and the method. It is pure: history and replies in, history and `Admission` out.

`Guard.admit` bounds the replies and finds who does not work; `Guard.judge` turns the sites' ratings of each other into
one score a site.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedmerit.contract.innovation import Broadcast, find_rests
from fedmerit.contract.method import Reports, inner_products
from fedmerit.contract.vectors import gram, norms, ratio
from fedmerit.errors import RunFailed
from fedmerit.guard import bounds, cross_evaluation
from fedmerit.guard.admission import Admission
from fedmerit.guard.bounds import fill_unknown, median_of_others
from fedmerit.guard.history import History, running_mean
from fedmerit.guard.reward_groups import RewardGroups, find_near_copies, find_reward_groups, partial_correlations
from fedmerit.guard.work import Measurements, log_e_values, shared_parts
from fedmerit.schema.configuration.settings import COUNT_FACTOR, GuardSettings

ALL_EXCLUDED = (
    "only sites answered that verdicts have excluded; `fedmerit run --resume` continues when others answer, or begin a "
    "run without these"
)


class EnrolledSite(NamedTuple):
    """The commitments of one site."""

    counted: float = 0.0  # training images, each once among all sites
    held: float = 0.0  # training images, counted in full at each site
    organisation: str = ""
    is_filtered: bool = False  # whether the site declares a privacy filter


@dataclass(frozen=True)
class Enrolled:
    """The commitments of n sites before round 0."""

    counts: Tensor  # (n,) training images, each once among all sites, float64; 0: not known
    organisations: Tensor  # (n,) a number for each organisation; unknown ones differ from all others
    shared: Tensor  # (n, n) bool, of `fedmerit.guard.enrolment.find_shared_cases`
    filtered: Tensor = field(default_factory=lambda: torch.tensor(False))  # (n,) bool: the site declares a privacy
    # filter, under which work does not show; (): no site does
    held: Tensor | None = None  # (n,) training images, counted in full at each site; None: `counts`

    @classmethod
    def nothing(cls, sites: int) -> "Enrolled":
        """Return the commitments of sites that committed to nothing."""
        pairs = torch.zeros(sites, sites, dtype=torch.bool)
        return cls(torch.zeros(sites, dtype=torch.float64), torch.arange(sites), pairs)

    @classmethod
    def of_sites(cls, sites: Sequence[str], enrolled: Mapping[str, EnrolledSite], shared: Tensor) -> "Enrolled":
        """Return the commitments of ``sites``, in order, also of those that are not ``enrolled``.

        If all are of one organisation, each is rewarded for itself. ``shared`` (n, n) bool is of
        `fedmerit.guard.enrolment.find_shared_cases`.
        """
        differ = len({one.organisation for one in enrolled.values()}) > 1
        names = [enrolled[site].organisation if differ and site in enrolled else f"site {site}" for site in sites]
        rows = [enrolled.get(site, EnrolledSite()) for site in sites]
        counted = torch.tensor([one.counted for one in rows], dtype=torch.float64)
        held = torch.tensor([one.held for one in rows], dtype=torch.float64)
        filtered = torch.tensor([one.is_filtered for one in rows])
        return cls(counted, torch.tensor([names.index(name) for name in names]), shared, filtered, held)

    def shares_once(self, groups: RewardGroups) -> Tensor:
        """Return (n,) the share of each site's cases that count, of a reward group's sites together, 0 to 1.

        A case that k sites enrolled counts one k-th at each: what sites share is paid once, whatever they are paid by.
        """
        if self.held is None:
            return torch.ones_like(self.counts)
        shares = torch.where(self.held > 0, self.counts / self.held, 1.0)
        return torch.zeros_like(shares).index_add_(0, groups.first, shares)[groups.first].clamp(max=1.0)


@dataclass(frozen=True)
class Guard:
    """The rules of one run."""

    settings: GuardSettings
    enrolled: Enrolled
    merges: bool = True  # sites of one reward group may be one site to the method
    measures: bool = True  # other sites measure what FedCE's sites would claim
    seed: int = 0  # of sketches
    rounds: int = 100  # of the run
    tensor_sizes: tuple[int, ...] = ()  # of updates, if the method has contributions of their rests; none: it has not

    def admit(
        self,
        history: History,
        updates: Tensor,
        reports: Reports,
        last_step: Tensor | None = None,
        measured: Measurements | None = None,
        models: Tensor | None = None,
    ) -> tuple[History, Admission]:
        """Bound a round's replies, find verdicts and reward groups.

        Args:
            history: before the round.
            updates: (n, d); d = 0: the server does not see them.
            reports: what the sites reported beside.
            last_step: (d,) the mean update of the round before; None: there is none.
            measured: of the updates, if they were measured before.
            models: (d,) or (n, d) that sites trained from; None: not known, and nothing is forecast.

        Raises:
            RunFailed: ``on_verdict`` is "exclude", and only excluded sites answered.
        """
        present, products = reports.present, inner_products(updates, reports)
        lengths = norms(products)
        factors = bounds.clip_norms(lengths, present, history.usual)
        history = replace(history, usual=fill_unknown(median_of_others(lengths, present), history.usual))
        own, products = _clip(updates, products, factors)
        something, log_e = lengths > 0, torch.zeros_like(lengths)
        if updates.shape[1]:
            if measured is None:
                known, scores = history.known.measure(updates, present, last_step, self.seed)
                history, rests = self._find_rests(replace(history, known=known), updates, models)
                measured = Measurements(updates.shape[1], scores, rests)
            log_e = self._log_e_values(measured)
            history = self._remember(history, measured, products, log_e)
            something = something & measured.scores.nan_to_num(0.0).any(dim=1)
        withheld = torch.zeros_like(present)
        if self.settings.on_verdict != "show":
            withheld = history.evidence.against  # also of an absent site, which would otherwise get the model
        if (withheld | ~present).all():  # somebody has to continue
            if self.settings.on_verdict == "exclude":
                raise RunFailed(ALL_EXCLUDED)
            withheld = torch.zeros_like(present)
        worked = present & ~withheld & something
        history = history.after_work(worked & (log_e <= 0))
        counts = self.enrolled.counts.where(self.enrolled.counts > 0, reports.num_samples)
        counted = present & ~withheld
        groups, enrolled = RewardGroups.singles(len(counted)), self.enrolled
        if self.merges:
            groups = find_reward_groups(counted, counts, history.copied, enrolled.organisations, enrolled.shared)
        shown = self.settings.counts == "shown"
        times = bounds.shown_factors(history.shared, counted) if shown else COUNT_FACTOR
        images = bounds.bound_counts(
            counts.masked_fill(groups.parts == 0, 0.0), groups.first, groups.parts, groups.copies, times, enrolled.held
        )
        if self.settings.on_verdict != "show":
            images = images * history.credit
        rests = measured.rests if measured else None
        if rests is not None:
            paid = factors * self.enrolled.shares_once(groups)
            rests = rests * torch.outer(paid, paid)
        merged, for_method = self._merge(
            own, replace(reports, rests=rests), products, groups, withheld, images, history
        )
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
                "evidence": history.evidence.log_odds,
                "verdict": history.evidence.against.double(),
                "worked": worked.double(),
                "reward_group_share": groups.parts.masked_fill(groups.parts == 0, 1.0),
                **({"work_test": (~enrolled.filtered).double()} if enrolled.filtered.any() else {}),
            },
            measured=measured,
        )

    def _find_rests(self, history: History, updates: Tensor, models: Tensor | None) -> tuple[History, Tensor | None]:
        """Return the history with what was broadcast, and (n, n) inner products of the rests of ``updates`` (n, d).

        Sites with a model each are forecast by the mean of these.
        """
        if models is None or not self.tensor_sizes:
            return history, None
        model = models if models.ndim == 1 else models.double().mean(dim=0).to(models.dtype)
        known = history.broadcast
        broadcast = known.after(model) if len(known.last) else Broadcast.begin(model)
        return replace(history, broadcast=broadcast), gram(find_rests(updates, broadcast, self.tensor_sizes))

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
        """Return what the method gets: a reward group's mean in the row of its first site, zeros of withheld sites.

        ``images`` (n,) are the bounded counts, site by site.
        """
        vectors, values, counted = reports.vectors, reports.values, reports.present & ~withheld
        rests = reports.rests
        if groups.has_groups:
            averaging_matrix = groups.averaging_matrix
            updates = _average_groups(averaging_matrix, updates)
            vectors = {name: _average_groups(averaging_matrix, vector) for name, vector in vectors.items()}
            values = {name: _group_means(averaging_matrix, value) for name, value in values.items()}
            products = averaging_matrix @ products @ averaging_matrix.T
            rests = None if rests is None else averaging_matrix @ rests @ averaging_matrix.T
        present = torch.zeros_like(counted)
        present[groups.first[counted]] = True
        samples = torch.zeros_like(images).index_add_(0, groups.first, images)
        if withheld.any():
            updates = updates.where(present[:, None], 0.0)
            vectors = {name: vector.where(present[:, None], 0.0) for name, vector in vectors.items()}
            both = torch.outer(present.double(), present.double())
            products, rests = products * both, None if rests is None else rests * both
        measured = history.leave_one_out_error if self.measures else None
        values = bounds.bound_claims(values, present, measured, unseen=not updates.shape[1])
        credit = history.credit if self.settings.on_verdict != "show" else None
        return updates, replace(
            reports,
            credit=credit,
            num_samples=samples.where(present, 0.0),
            present=present,
            values={name: value.where(present, torch.nan) for name, value in values.items()},
            products=products,
            rests=rests,
            vectors=vectors,
        )

    def _remember(self, history: History, measured: Measurements, products: Tensor, log_e: Tensor) -> History:
        """Add what ``measured`` shows.

        ``products`` (n, n) are those of the clipped updates, ``log_e`` (n,) of `_log_e_values`.
        """
        lengths, pairs = norms(products), measured.scores.isfinite()
        cosines = ratio(products, torch.outer(lengths, lengths))
        nearness = running_mean(history.nearness, partial_correlations(cosines).where(pairs, torch.nan))
        present, level = pairs.diagonal(), self.settings.false_alarms / self.rounds
        bound = math.log(len(present) * self.rounds / self.settings.false_alarms)
        permanent = self.settings.on_verdict == "exclude"
        return replace(
            history,
            nearness=nearness,
            copied=torch.where(pairs, find_near_copies(cosines, nearness, present, level), history.copied),
            shared=history.shared + shared_parts(measured.scores),
            evidence=history.evidence.after(log_e, bound, permanent),
        )

    def _log_e_values(self, measured: Measurements) -> Tensor:
        """Return (n,) `log_e_values`; 0 for a site that declares a privacy filter, unless nothing of it is new."""
        found = log_e_values(measured.scores)
        return found.masked_fill(self.enrolled.filtered & found.isfinite(), 0.0)

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
        heard = rated & ~history.evidence.against
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
    """Return updates (n, d) and their Gram matrix, rows times ``factors`` (n,); those of factor 1 keep their bits."""
    if bool((factors == 1).all()):
        return updates, products
    updates = updates.clone()
    for row in (factors != 1).nonzero().flatten():
        updates[row] *= factors[row].to(updates.dtype)
    return updates, products * torch.outer(factors, factors)


def _average_groups(averaging_matrix: Tensor, rows: Tensor) -> Tensor:
    """Return (n, d) the product; a row of one site only keeps its bits."""
    result = torch.zeros_like(rows)
    for place, parts in enumerate(averaging_matrix):
        for other in parts.nonzero().flatten().tolist():
            result[place] += rows[other] if parts[other] == 1 else rows[other] * float(parts[other])
    return result


def _group_means(averaging_matrix: Tensor, values: Tensor) -> Tensor:
    """Return (n,) the product; NaN if one of those that are merged is."""
    unknown = ((averaging_matrix > 0) & values.isnan()).any(dim=1)
    return (averaging_matrix @ values.double().nan_to_num(0.0)).masked_fill(unknown, torch.nan)
