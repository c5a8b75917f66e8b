"""The guard in a run: enrolment of the sites, what the guard remembers, and what the ledger records of it."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from cryptography.exceptions import InvalidSignature
from cryptography.x509 import Certificate, load_pem_x509_certificate
from torch import Tensor

from fedmerit.contract.capabilities import Candidates, Capabilities
from fedmerit.contract.flat import Buffers
from fedmerit.contract.method import CandidateResults, Method, Outcome, PatientResults, Reports
from fedmerit.evidence.ledger import log_payload, split_head
from fedmerit.evidence.signatures import certificate_name, is_signed_by_any, organisation
from fedmerit.guard import cross_evaluation
from fedmerit.guard.admission import Admission
from fedmerit.guard.bounds import bound_statistics
from fedmerit.guard.enrolment import count_once, find_shared_cases, find_unlike, may_train_on
from fedmerit.guard.guard import Enrolled, EnrolledSite, Guard
from fedmerit.guard.history import History
from fedmerit.guard.work import Measurements
from fedmerit.reasons import DATA_CHANGED
from fedmerit.schema.configuration.data import PREPARED_OTHERWISE, is_prepared_otherwise
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.expected import check_enrolment
from fedmerit.schema.messages import Enrolment, EnrolmentTask, Evaluated, Reply, recorded
from fedmerit.schema.scores import SERVER_SPLIT, Overlap
from fedmerit.seeds import random_seed
from fedmerit.server.exchange import Exchange, Moment
from fedmerit.server.round_inputs import SERVER, Ratings, stack_patients
from fedmerit.server.round_updates import Replies

IF_STATED = {"channels": "other channels", "modality": "another modality"}  # fields of enrolments, alike if stated


class RunGuard:
    """The guard of one run, on or off.

    Args:
        sites: their names, sorted.
        in_the_clear: whether the server sees models.
        rates: whether the server, or the sites for each other, may rate the models without a site.
        root: certificate of the federation's root; None: there are no certificates.
        tensor_sizes: entries of each tensor of an update, in order; none: nothing is forecast here.
    """

    def __init__(
        self,
        config: RunConfiguration,
        method: Method,
        can: Capabilities,
        sites: Sequence[str],
        in_the_clear: bool,
        rates: bool,
        root: Certificate | None = None,
        tensor_sizes: tuple[int, ...] = (),
    ):
        self.tensor_sizes = tensor_sizes if method.uses_rests and in_the_clear else ()
        self.config, self.sites, self.root = config, sites, root
        self.on = config.is_guarded(method)
        # a run that estimates values enrols its sites also if the guard has nothing to do
        needs_counts = self.on or (config.guard.guard == "on" and bool(config.values))
        self.enrols = needs_counts and config.can_enrol
        self.merges = in_the_clear and not (can.neurons or can.peers)
        measured = can.leave_one_out
        rates = rates and in_the_clear and config.guard.rate_every > 0
        self.measures = rates and measured is not None and measured.measured_by_others
        self.needs_increase = measured is not None and measured.needs_others  # of the error, instead of the error
        self.enrolments: dict[str, Enrolment] = {}  # `Enrolment.sealed`, by site
        self._digests: dict[str, frozenset[str]] = {}  # of images, by site; never on disk
        self._shared = torch.zeros(len(sites), len(sites), dtype=torch.bool)
        self._counted: dict[str, float] = {}  # by site, `count_once` as it first enrolled
        self.not_enrolled: dict[str, str] = {}  # by site, why, if that is known
        self.has_asked = not self.enrols  # for enrolments
        self.history = History.empty(len(sites))
        self.guard = self._guard()

    def ask(self, sites: Sequence[str], now: Moment) -> Iterator[Exchange]:
        """Have ``sites`` commit to their counts and cases, or note why they did not."""

        def check_message(site: str, answer: object) -> str | None:
            fault = check_enrolment(answer, now.round)
            if fault or not isinstance(answer, Enrolment):
                return fault
            before = self.enrolments.get(site)
            if before and not is_kept(before, answer.sealed()):
                return DATA_CHANGED
            if is_prepared_otherwise(self.config.preprocessing, answer.preparation):
                return f"enrolment, whose {PREPARED_OTHERWISE}"
            return check_certificate(answer, site, self.root)

        tasks = dict.fromkeys(sites, EnrolmentTask(now.round, now.ledger_head))
        exchange = now.exchange(tasks, check_message, "enrolment")
        yield exchange
        enrolled = {site: one for site, one in exchange.usable().items() if isinstance(one, Enrolment)}
        unlike = self._find_unlike(enrolled)
        enrolled = {site: one for site, one in enrolled.items() if site not in unlike}
        for site, one in enrolled.items():
            if site not in self.enrolments or self.enrolments[site].certificate != one.certificate:
                self.enrolments[site] = one.sealed()
        self._digests |= {site: frozenset(one.fingerprint) for site, one in enrolled.items()}
        known = torch.tensor([site in self._digests for site in self.sites])
        cases = [self._digests.get(site, frozenset()) for site in self.sites]
        shared, once = find_shared_cases(cases), dict(zip(self.sites, count_once(cases), strict=True))
        self._counted = {site: once[site] for site in enrolled} | self._counted
        self._shared = torch.where(torch.outer(known, known), torch.tensor(shared), self._shared)
        self.not_enrolled |= exchange.faults() | unlike
        self.has_asked = True
        self.guard = self._guard()

    def _find_unlike(self, enrolled: Mapping[str, Enrolment]) -> dict[str, str]:
        """Return by site why its images cannot be trained on with those of the others: other channels or modality."""
        found = {}
        for field in IF_STATED:
            stated = {site: getattr(enrolled[site], field) for site in self.sites if site in enrolled}
            before = [getattr(one, field) for site, one in self.enrolments.items() if site not in enrolled]
            for site in find_unlike(stated, before):
                found[site] = (
                    f"enrolment of images that have {IF_STATED[field]} than those of other sites; prepare all alike, "
                    "or leave the site out"
                )
        return found

    @property
    def num_samples(self) -> dict[str, int]:
        """The number of training images that each site enrolled, by name."""
        return {site: one.slices["training"] for site, one in self.enrolments.items()}

    def accepts(self, site: str) -> bool:
        """Return whether ``site`` has enrolled, or need not."""
        return not self.enrols or site in self.enrolments

    def is_comparable(self, site: str) -> bool:
        """Return whether ``site`` has enrolled since this process began, or need not: its images can be compared."""
        return not self.enrols or site in self._digests

    def check_log(self, site: str, answer: object, head: str) -> str | None:
        """Return why what an answer says of the log of ``site`` is not its word, or None.

        It is, or it has no certificate.
        """
        one = self.enrolments.get(site)
        return check_log(answer, one.certificate, head) if self.root and one else None

    def check_site(self, site: str) -> str | None:
        """Return why the run uses nothing of what ``site`` sends, or None."""
        why = self.not_enrolled.get(site)
        return None if self.accepts(site) else f"has not enrolled{f' ({why})' if why else ''}; it is asked to again"

    def check_cases(self, site: str, split: str, overlaps: Collection[Overlap]) -> str | None:
        """Return why ``overlaps`` on a split are not of as many cases as ``site`` enrolled.

        None: they are, or it did not.

        A script may enrol only what it trains on, and give one mean.
        """
        if site not in self.enrolments:
            return None
        found, committed = len({overlap.case for overlap in overlaps}), self.enrolments[site].cases.get(split, 0)
        if self.config.script and (found <= 1 or not committed):
            return None
        return None if found == committed else f"overlaps of {found} {split} cases, it enrolled {committed}"

    def _guard(self) -> Guard:
        enrolled = collect_enrolments(self.sites, self.enrolments, self.root, self._shared, self._counted)
        seed = random_seed(self.config.seed, "guard")
        settings = self.merges, self.measures, seed, self.config.rounds, self.tensor_sizes
        return Guard(self.config.guard, enrolled, *settings)

    def admit(
        self,
        updates: Tensor,
        reports: Reports,
        replies: Replies,
        received: Sequence[Buffers],
        last_step: Tensor | None,
        measured: Measurements | None = None,
        models: Tensor | None = None,
    ) -> Admission:
        """Return what the method gets of a round.

        Args:
            updates: (n, d), as ``stack_replies`` returns them.
            reports: of the same round.
            replies: in site order.
            received: BatchNorm statistics that each site was sent.
            last_step: (d,) the mean update of the round before; None: there is none.
            measured: what the guard measured, if the round is played again.
            models: (d,) or (n, d) that sites trained from; None: not known.
        """
        trained = [reply.buffers if reply else None for reply in replies]
        if not self.on:
            return replace(Admission.unguarded(updates, reports), statistics=[one or {} for one in trained])
        self.history, admission = self.guard.admit(self.history, updates, reports, last_step, measured, models)
        quantities, bounded = dict(admission.quantities), list(trained)
        if any(received):
            bounded, quantities["statistics_bound"] = bound_statistics(trained, received)
        counted = zip(bounded, admission.counted.tolist(), strict=True)
        statistics = [one if one and there else {} for one, there in counted]
        return replace(admission, quantities=quantities, statistics=statistics)

    def bound_estimates(
        self, admission: Admission, statistics: Sequence[Buffers | None], received: Sequence[Buffers]
    ) -> tuple[Sequence[Buffers | None], Admission]:
        """Return statistics that sites estimated for the ``received`` ones, bounded, and the admission with the
        factors.
        """
        if not self.on:
            return statistics, admission
        bounded, factors = bound_statistics(statistics, received)
        before = admission.quantities.get("statistics_bound", torch.ones_like(factors))
        quantities = {**admission.quantities, "statistics_bound": before.minimum(factors)}
        return bounded, replace(admission, quantities=quantities)

    def judge_candidates(self, admission: Admission, candidates: Candidates, rated: Ratings) -> CandidateResults:
        """Return the sites' evaluations of candidates, each with one vote and none for itself."""
        ratings = self._ratings(rated, len(candidates.mixtures))
        losses = torch.stack([one.losses for one in rated.values()]).sum(dim=0)
        scores = cross_evaluation.rating_matrix(candidates, ratings, admission.reports.present)
        self.history, judged, voice, offsets = self.guard.judge(self.history, admission.reward_groups, scores)
        if candidates.soft:
            patients = PatientResults(stack_patients(rated, self.sites), voice, offsets)
            return CandidateResults(ratings.nanmean(dim=0), losses, patients=patients)
        return cross_evaluation.candidate_results(candidates, ratings, losses, judged, voice, offsets)

    def leave_one_out_models(
        self, round: int, outcome: Outcome, admission: Admission, received: Tensor
    ) -> Candidates | None:
        """Return the models without each site, for the others to evaluate; None: not after this round.

        If the increase of the error counts, the model with all sites is the last one.

        ``received``: (d,) or (n, d), what the sites started from.
        """
        there, weights = admission.reports.present, outcome.weights
        if not (self.on and self.measures and self.config.guard.rates(round, self.config.rounds)):
            return None
        if there.sum() < 2 or (weights >= 1).any():
            return None
        data_share = admission.reports.data_share
        return cross_evaluation.leave_one_out_models(
            outcome.models, received, admission.updates, weights, data_share, there, self.needs_increase
        )

    def take_leave_one_out(self, admission: Admission, rated: Ratings) -> None:
        """Take the evaluations of `leave_one_out_models`; the server's, on its own images, are the only ones then."""
        there, n = admission.reports.present, len(self.sites)
        count = int(there.sum())
        if SERVER in rated:
            errors = torch.full((n,), torch.nan, dtype=torch.float64)
            dice = rated[SERVER].scores
            errors[there] = (dice[count:] if self.needs_increase else 1) - dice[:count]
        else:
            scores = torch.full((n, n), torch.nan, dtype=torch.float64)
            ratings = self._ratings(rated, count + self.needs_increase)
            scores[:, there] = (ratings[:, count:] if self.needs_increase else 1) - ratings[:, :count]
            self.history, errors, _, _ = self.guard.judge(self.history, admission.reward_groups, scores)
        known, before = there & errors.isfinite(), self.history.leave_one_out_error
        self.history = replace(self.history, leave_one_out_error=errors.clamp(0, 1).where(known, before))

    @property
    def split(self) -> str:
        """The `rating_split` of the run."""
        return rating_split([one.cases for one in self.enrolments.values()], len(self.sites))

    def _ratings(self, rated: Ratings, count: int) -> Tensor:
        """Return (n, k) mean Dice by site and model; NaN: it gave none."""
        ratings = torch.full((len(self.sites), count), torch.nan, dtype=torch.float64)
        for row, site in enumerate(self.sites):
            if site in rated:
                ratings[row] = rated[site].scores
        return ratings

    def divide_outcome(self, admission: Admission, outcome: Outcome, received: Tensor) -> Outcome:
        """Return the outcome by site, with the guard's quantities.

        ``received`` (d,) or (n, d) is what the sites trained from.
        """
        if not self.on:
            return outcome
        before, self.history = self.history, replace(self.history, update_was_changed=~admission.is_unchanged)
        divided = admission.divide_outcome(outcome, received)
        seen = {
            "rater_outlier": self.history.is_outlier_rater.double(),
            "rater_distance": self.history.rater_distance,
            "measured_error": self.history.leave_one_out_error,
        }
        if "flagged" in outcome.quantities:  # only claims about an aggregation that had the update as it was sent
            wrong = outcome.quantities["flagged"].nan_to_num(0.0) > 0
            seen["flagged"] = (wrong & ~before.update_was_changed).double()
        return replace(divided, quantities={**divided.quantities, **admission.quantities, **seen})

    def enrolment_record(self, round: int) -> dict[str, Any]:
        """Return the enrolments for the ledger, in their round."""
        enrolled_now = {
            site: self._enrolment_record(site) for site, one in self.enrolments.items() if one.round == round
        }
        return {"enrolled": enrolled_now} if enrolled_now or (self.enrols and round == 0) else {}

    def record(self, admission: Admission, counts: Tensor) -> dict[str, Any]:
        """Return the guard's part of a ledger record: bounds, evidence, verdicts; ``counts`` (n,): claimed images."""
        if not self.on:
            return {}
        bounds = {
            name: _by_site(self.sites, values, values < 1)
            for name, values in admission.quantities.items()
            if name in ("clipped", "statistics_bound", "reward_group_share")
        }
        images, claimed = admission.quantities["counted_images"], counts.where(admission.counted, 0.0)
        bounds["counted_images"] = _by_site(self.sites, images, images < claimed - 1e-6)
        evidence, against = self.history.evidence.log_odds, self.history.evidence.against.tolist()
        return {
            "bounds": {name: sites for name, sites in bounds.items() if sites},
            "evidence": _by_site(self.sites, evidence, evidence > 0),
            "verdicts": [site for site, found in zip(self.sites, against, strict=True) if found],
        }

    def _enrolment_record(self, site: str) -> dict[str, Any]:
        """Return the ledger's record of an enrolment.

        The certificate is that of the signatures under what the site says of its own log.
        """
        enrolment = self.enrolments[site]
        shared = self.guard.enrolled.shared[self.sites.index(site)].tolist()
        return {
            **recorded(enrolment),
            **({"certificate": enrolment.certificate} if self.root else {}),
            "shares_with": [other for other, both in zip(self.sites, shared, strict=True) if both],
            "organisation": read_organisation(enrolment, site, self.root),
            "images": distinct_images(enrolment) * self._counted.get(site, 1.0),
        }

    def content(self) -> dict[str, Any]:
        """Return the state for the checkpoint."""
        if not self.enrols:
            return {}
        enrolments = {site: dict(vars(one)) for site, one in self.enrolments.items()}
        kept = {"history": self.history.content(), "shared": self._shared, "counted": dict(self._counted)}
        return {"guard": {**kept, "enrolments": enrolments}}

    def restore(self, content: Mapping[str, Any]) -> None:
        """Take over the state in a checkpoint."""
        if self.enrols:
            kept = content["guard"]
            self.history, self._shared = History.restore(kept["history"]), kept["shared"]
            self._counted = dict(kept["counted"])
            self.enrolments = {site: Enrolment(**one) for site, one in kept["enrolments"].items()}
            self.guard = self._guard()


def rating_split(cases: Sequence[Mapping[str, int]], num_sites: int) -> str:
    """Return the split on which sites evaluate models without each: images set aside for the server, if all have some.

    ``cases`` are those of each enrolment, by split.
    """
    there = [by_split.get(SERVER_SPLIT, 0) for by_split in cases]
    return SERVER_SPLIT if len(there) == num_sites and all(there) else "validation"


def _by_site(sites: Sequence[str], values: Tensor, chosen: Tensor) -> dict[str, float]:
    return {
        site: round(float(value), 6) for site, value, one in zip(sites, values, chosen.tolist(), strict=True) if one
    }


def collect_enrolments(
    sites: Sequence[str],
    enrolments: Mapping[str, Enrolment],
    root: Certificate | None,
    shared: Tensor,
    counted: Mapping[str, float],
) -> Enrolled:
    """Return what the guard knows of ``sites``, those without an enrolment included.

    Args:
        sites: names, in order.
        enrolments: `Enrolment.sealed`, by site.
        root: certificate of the federation's root; None: there is none.
        shared: (n, n) bool, of `find_shared_cases`.
        counted: by site, of `count_once`.
    """
    enrolled = {}
    for site, one in enrolments.items():
        images = distinct_images(one) * counted.get(site, 1.0), float(one.slices["training"])
        enrolled[site] = EnrolledSite(*images, read_organisation(one, site, root), bool(one.filters))
    return Enrolled.of_sites(sites, enrolled, shared)


def read_organisation(enrolment: Enrolment, site: str, root: Certificate | None) -> str:
    """Return the organisation in the certificate of an enrolment; without a root, the site itself."""
    is_known = root is not None and enrolment.certificate
    return organisation(load_pem_x509_certificate(enrolment.certificate.encode()) if is_known else None, site)


def distinct_images(enrolment: Enrolment) -> float:
    """Return the training images of distinct cases in a sealed enrolment: a case enrolled twice counts once."""
    return enrolment.slices["training"] * (len(set(enrolment.fingerprint)) / enrolment.cases["training"])


def is_kept(before: Enrolment, later: Enrolment) -> bool:
    """Return whether a later enrolment is of the same images, or of some of them, as when others cannot be read.

    With another key, which seals otherwise, only the counts tell, and have to be the same. Both are sealed.
    """
    counts = (before.cases, before.slices) == (later.cases, later.slices)
    if before.certificate != later.certificate:
        return counts and distinct_images(before) == distinct_images(later)
    if before.fingerprint == later.fingerprint:
        return counts
    others = [{**by_split, "training": 0} for by_split in (before.cases, later.cases, before.slices, later.slices)]
    is_part = not Counter(later.fingerprint) - Counter(before.fingerprint)
    may_train = may_train_on(later.slices["training"], before.slices["training"])
    return is_part and may_train and others[0] == others[1] and others[2] == others[3]


def check_certificate(enrolment: Enrolment, site: str, root: Certificate | None) -> str | None:
    """Return why the certificate is not that of ``site``, issued by ``root``; None: it is, or there is no ``root``."""
    if root is None:
        return None
    try:
        certificate = load_pem_x509_certificate(enrolment.certificate.encode())
        certificate.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature):
        return "enrolment without a certificate of this federation"
    return None if certificate_name(certificate) == site else "enrolment with another site's certificate"


def check_log(answer: object, certificate: str, head: str) -> str | None:
    """Return why what an answer says of the site's own log is not the site's word, or None.

    Args:
        answer: of the site; only answers with a word of its log are checked.
        certificate: PEM, with which the site enrolled.
        head: of the server's ledger, as it came with the task.
    """
    if not isinstance(answer, Reply | Evaluated):
        return None
    last, signature = split_head(answer.log)
    key = load_pem_x509_certificate(certificate.encode())
    if is_signed_by_any([key], log_payload(head, answer.round, last), signature):
        return None
    return "the end of its log is not signed with the key that it enrolled with; resume the run if it has a new one"
