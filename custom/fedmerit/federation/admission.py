"""The guard in a run: what it is told of the sites' answers, what it remembers, what is written down of it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from cryptography.x509 import Certificate
from torch import Tensor

from fedmerit.capabilities import Candidates, capabilities
from fedmerit.configuration.run import RunConfiguration
from fedmerit.core import CandidateResults, Method, Outcome, Reports
from fedmerit.federation.enrolment import collect_enrolments, read_organisation
from fedmerit.federation.recorder import Replies
from fedmerit.flat import Buffers
from fedmerit.guard import cross_evaluation
from fedmerit.guard.bounds import bound_statistics
from fedmerit.guard.guard import Guard, RoundReplies, Ruling
from fedmerit.guard.history import History
from fedmerit.guard.indicators import KINDS
from fedmerit.seeds import random_seed
from fedmerit.trainers.monai_trainer.data import SERVER_SPLIT
from fedmerit.trainers.monai_trainer.overlaps import Overlap, mean_dice
from fedmerit.wire.messages import Enrolment, Evaluated

FIELDS = ("round", "cases", "slices", "fingerprint", "certificate", "seconds")  # of an `Enrolment`


@dataclass(frozen=True)
class Admission:
    """What of a round's answers the method gets, and what comes of it; without a guard, all as it is."""

    updates: Tensor  # (n, d)
    reports: Reports
    replies: Replies  # those with a part in the aggregation, their statistics bounded
    ruling: Ruling | None = None
    quantities: Mapping[str, Tensor] = field(default_factory=dict)  # (n,) for results.csv

    @property
    def parts(self) -> Reports:
        """The reports with each site's own part of the images."""
        return self.ruling.site_reports if self.ruling else self.reports

    @property
    def own(self) -> Tensor:
        """(n, d) the updates site by site."""
        return self.ruling.own if self.ruling else self.updates

    @property
    def products(self) -> Tensor | None:
        """(n, n) Gram matrix of these."""
        return self.ruling.own_products if self.ruling else self.reports.products

    @property
    def answered(self) -> Tensor:
        """(n,) bool: whose update came."""
        return self.ruling.answered if self.ruling else self.reports.present

    @property
    def first(self) -> Tensor:
        """(n,) the row of the first of those that each site earns as one with; its own: alone."""
        return self.ruling.reward_groups.first if self.ruling else torch.arange(len(self.replies))

    @property
    def heard(self) -> Tensor:
        """(n,) bool: who has a part in the aggregation."""
        return torch.tensor([reply is not None for reply in self.replies])

    @property
    def statistics(self) -> Sequence[Buffers]:
        """(n,) BatchNorm statistics by the method's rows; of a group whose first is away those of another of it."""
        found = [reply.buffers if reply else dict[str, Tensor]() for reply in self.replies]
        for row, first in enumerate(self.first.tolist()):
            found[first] = found[first] or found[row]
        return found

    @property
    def alone(self) -> Sequence[int]:
        """The rows of sites that go on from their own model."""
        return self.ruling.withheld.nonzero().flatten().tolist() if self.ruling else []

    def settled(self, outcome: Outcome, received: Tensor) -> Outcome:
        """The outcome by site; ``received`` (d,) or (n, d) is what they started from."""
        return self.ruling.settled(outcome, received) if self.ruling else outcome


class RunGuard:
    """The guard of one run, on or off.

    Args:
        config: the run.
        method: of it.
        sites: their names, sorted.
        in_the_clear: whether the server sees models.
        root: certificate of the federation's root; None: there are no certificates.
    """

    def __init__(
        self,
        config: RunConfiguration,
        method: Method,
        sites: Sequence[str],
        in_the_clear: bool,
        root: Certificate | None = None,
    ):
        self.config, self.sites, self.root = config, sites, root
        self.on = config.is_guarded(method)
        # whoever is valued says what it holds, also where the guard idles
        self.enrols = self.on or (config.guard.guard == "on" and bool(config.values))
        can = capabilities(method)
        self.merges = in_the_clear and not (can.neurons or can.peers)
        measured = can.leave_one_out
        self.measures = in_the_clear and measured is not None and measured.measured_by_others
        self.rises = measured is not None and measured.needs_others  # the rise of the error counts, not the error
        self.enrolments: dict[str, Enrolment] = {}
        self.not_enrolled: dict[str, str] = {}  # by site, why, where that is known
        self.asked = not self.enrols  # for enrolments
        self.history = History.empty(len(sites))
        self.guard = self._guard()

    def enrol(self, enrolments: Mapping[str, Enrolment], faults: Mapping[str, str]) -> None:
        """Take sites' commitments; ``faults`` say why others made none that can be used."""
        self.enrolments |= enrolments
        self.not_enrolled |= faults
        self.asked = True
        self.guard = self._guard()

    def takes(self, site: str) -> bool:
        """Whether ``site`` has enrolled, or need not."""
        return not self.enrols or site in self.enrolments

    def check_site(self, site: str) -> str | None:
        """Why nothing counts of what ``site`` sends, or None."""
        why = self.not_enrolled.get(site)
        return None if self.takes(site) else f"has not enrolled{f' ({why})' if why else ''}; it is asked to again"

    def check_cases(self, site: str, split: str, overlaps: Collection[Overlap]) -> str | None:
        """Why ``overlaps`` on a split are not of as many cases as ``site`` enrolled, or None; it may not have."""
        if site not in self.enrolments:
            return None
        found, committed = len({overlap.case for overlap in overlaps}), self.enrolments[site].cases.get(split, 0)
        return None if found == committed else f"overlaps of {found} {split} cases, it enrolled {committed}"

    def _guard(self) -> Guard:
        commitments = collect_enrolments(self.sites, self.enrolments, self.root)
        seed = random_seed(self.config.seed, "guard")
        return Guard(self.config.guard, commitments, self.merges, self.measures, seed)

    def admit(
        self,
        updates: Tensor,
        reports: Reports,
        replies: Replies,
        received: Sequence[Buffers],
        last_step: Tensor | None,
    ) -> Admission:
        """A round's answers; ``received`` are the statistics sent out, ``last_step`` (d,) the mean update before."""
        if not self.on:
            return Admission(updates, reports, replies)
        self.history, ruling = self.guard.rule(self.history, RoundReplies(updates, reports, last_step))
        quantities = dict(ruling.quantities)
        counted = [reply if there else None for reply, there in zip(replies, ruling.counted.tolist(), strict=True)]
        if any(received):
            buffers, factors = bound_statistics([reply.buffers if reply else None for reply in replies], received)
            quantities["statistics_bound"] = factors
            counted = [
                reply and replace(reply, buffers=bounded or {}) for reply, bounded in zip(counted, buffers, strict=True)
            ]
        return Admission(ruling.updates, ruling.reports, counted, ruling, quantities)

    def estimated(
        self, admission: Admission, statistics: Sequence[Buffers | None], received: Sequence[Buffers]
    ) -> tuple[Sequence[Buffers | None], Admission]:
        """Statistics that sites estimated for what they ``received``, bounded, and the admission with by how much."""
        if not self.on:
            return statistics, admission
        bounded, factors = bound_statistics(statistics, received)
        before = admission.quantities.get("statistics_bound", torch.ones_like(factors))
        quantities = {**admission.quantities, "statistics_bound": before.minimum(factors)}
        return bounded, replace(admission, quantities=quantities)

    def judged(
        self, admission: Admission, candidates: Candidates, evaluated: Mapping[str, Evaluated]
    ) -> CandidateResults:
        """What the sites say of candidates, each with one voice and none on its own."""
        assert admission.ruling
        ratings = self._ratings(evaluated, len(candidates.mixtures))
        losses = torch.stack([answer.losses for answer in evaluated.values()]).sum(dim=0)
        scores = cross_evaluation.rating_matrix(candidates, ratings, admission.reports.present)
        self.history, judged, voice, offsets = self.guard.judge(self.history, admission.ruling.reward_groups, scores)
        return cross_evaluation.candidate_results(candidates, ratings, losses, judged, voice, offsets)

    def without_each(self, round: int, outcome: Outcome, admission: Admission, received: Tensor) -> Candidates | None:
        """The models without each site, and where that is compared the one with all, to be evaluated by the others.

        None: not after this round.

        Args:
            round: its number.
            outcome: of the method, not settled yet.
            admission: of the round.
            received: (d,) or (n, d), what the sites started from.
        """
        there, weights = admission.reports.present, outcome.weights
        if not (self.on and self.measures) or round % self.config.guard.rate_every or round + 1 == self.config.rounds:
            return None
        if there.sum() < 2 or (weights >= 1).any():
            return None
        data_share = admission.reports.data_share
        return cross_evaluation.leave_one_out_models(
            outcome.models, received, admission.updates, weights, data_share, there, self.rises
        )

    def measured(self, admission: Admission, evaluated: Mapping[str, Evaluated], by_server: bool) -> None:
        """Take what was said of the models of `without_each`; ``by_server``: by its own images, which count alone."""
        assert admission.ruling
        there, n = admission.reports.present, len(self.sites)
        count = int(there.sum())
        if by_server:
            (answer,) = evaluated.values()
            errors = torch.full((n,), torch.nan, dtype=torch.float64)
            dice = torch.tensor([mean_dice(one) for one in answer.overlaps], dtype=torch.float64)
            errors[there] = (dice[count:] if self.rises else 1) - dice[:count]
        else:
            scores = torch.full((n, n), torch.nan, dtype=torch.float64)
            ratings = self._ratings(evaluated, count + self.rises)
            scores[:, there] = (ratings[:, count:] if self.rises else 1) - ratings[:, :count]
            self.history, errors, _, _ = self.guard.judge(self.history, admission.ruling.reward_groups, scores)
        known = there & errors.isfinite()
        self.history = replace(self.history, measured=errors.clamp(0, 1).where(known, self.history.measured))

    @property
    def split(self) -> str:
        """On which sites evaluate models without each: what was set aside for the server, where all have it."""
        there = [enrolment.cases[SERVER_SPLIT] for enrolment in self.enrolments.values()]
        return SERVER_SPLIT if len(there) == len(self.sites) and all(there) else "validation"

    def _ratings(self, evaluated: Mapping[str, Evaluated], count: int) -> Tensor:
        """(n, k) mean Dice by site and model; NaN: it gave none."""
        ratings = torch.full((len(self.sites), count), torch.nan, dtype=torch.float64)
        for row, site in enumerate(self.sites):
            if site in evaluated:
                dice = [mean_dice(of_model) for of_model in evaluated[site].overlaps]
                ratings[row] = torch.tensor(dice, dtype=torch.float64)
        return ratings

    def settled(self, admission: Admission, outcome: Outcome, received: Tensor) -> Outcome:
        """The outcome by site, with what the guard saw; what the method found wrong counts from now on."""
        if not admission.ruling:
            return outcome
        self.history = self.guard.after(self.history, admission.ruling, outcome)
        settled = admission.settled(outcome, received)
        seen = {
            "rater_outlier": self.history.apart.double(),
            "rater_distance": self.history.rater_distance,
            "measured_error": self.history.measured,
        }
        if "flagged" in settled.quantities:  # but for claims of an aggregation in which the update was not as sent
            seen["flagged"] = self.history.claimed.double()
        return replace(settled, quantities={**settled.quantities, **admission.quantities, **seen})

    def record(self, round: int, admission: Admission) -> dict[str, Any]:
        """For the ledger: bounds that applied, signs that stand, verdicts; with their round the enrolments."""
        enrolled_now = {site: self._told(site) for site, one in self.enrolments.items() if one.round == round}
        enrolments = {"enrolled": enrolled_now} if enrolled_now or (self.enrols and round == 0) else {}
        if not admission.ruling:
            return {"guard": enrolments} if enrolments else {}
        bounds = {
            name: _by_site(self.sites, values, values < 1)
            for name, values in admission.quantities.items()
            if name in ("clipped", "statistics_bound", "reward_group_share")
        }
        claimed = torch.tensor([float(one.num_samples) if one else 0.0 for one in admission.replies])
        images = admission.quantities["counted_images"]
        bounds["counted_images"] = _by_site(self.sites, images, images < claimed - 1e-6)
        standing = {
            site: [kind for kind, seen in zip(KINDS, column, strict=True) if seen]
            for site, column in zip(self.sites, admission.ruling.signs.T.tolist(), strict=True)
            if any(column)
        }
        against = self.history.verdicts.against.tolist()
        record: dict[str, Any] = {
            "bounds": {name: sites for name, sites in bounds.items() if sites},
            "indicators": standing,
            "verdicts": [site for site, found in zip(self.sites, against, strict=True) if found],
        }
        return {"guard": record | enrolments}

    def _told(self, site: str) -> dict[str, Any]:
        one = self.enrolments[site]
        organisation = read_organisation(one, site, self.root)
        return one.committed | {"shares_with": self._sharing(site), "organisation": organisation}

    def _sharing(self, site: str) -> list[str]:
        """The sites of which each has half of the other's training cases or more."""
        shared = self.guard.enrolled.shared[self.sites.index(site)].tolist()
        return [other for other, both in zip(self.sites, shared, strict=True) if both]

    def content(self) -> dict[str, Any]:
        """For the checkpoint."""
        if not self.enrols:
            return {}
        enrolments = {site: {name: getattr(one, name) for name in FIELDS} for site, one in self.enrolments.items()}
        return {"guard": {"history": self.history.content(), "asked": self.asked, "enrolments": enrolments}}

    def restore(self, content: Mapping[str, Any]) -> None:
        """From the checkpoint; those of earlier versions have no guard."""
        if self.enrols and "guard" in content:
            kept = content["guard"]
            self.history, self.asked = History.of(kept["history"]), kept["asked"]
            self.enrolments = {site: Enrolment(**one) for site, one in kept["enrolments"].items()}
            self.guard = self._guard()


def _by_site(sites: Sequence[str], values: Tensor, chosen: Tensor) -> dict[str, float]:
    return {
        site: round(float(value), 6) for site, value, one in zip(sites, values, chosen.tolist(), strict=True) if one
    }
