"""Models that are evaluated for the server: by the sites on theirs, or, if the plan names any, on its own images.

Sites sign what they say; on its own images the outcome rests on the server's word.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from fedmerit.contract.capabilities import Candidates, EvaluatesCandidates
from fedmerit.contract.method import Outcome, Reports
from fedmerit.guard.admission import Admission
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.expected import check_evaluated
from fedmerit.schema.messages import Evaluated, Evaluation, Purpose, payload_bytes
from fedmerit.schema.scores import SERVER_SPLIT
from fedmerit.server.exchange import Clock, Exchange, MessageCheck, Moment
from fedmerit.server.models import Models, ModelsInTheClear
from fedmerit.server.round_inputs import CANDIDATES, LEAVE_ONE_OUT, SERVER, Rating, Ratings, pool_ratings
from fedmerit.server.round_updates import RoundReplies
from fedmerit.server.run_guard import RunGuard
from fedmerit.trainers.statistics import (
    RoundStatistics,
    candidate_statistics,
    candidate_statistics_rule,
    candidate_task,
    estimates_statistics,
)
from fedmerit.trainers.trainer import Evaluator as ModelEvaluator


@dataclass(frozen=True)
class Evaluator:
    """A dispatcher that has candidate, final and other models evaluated."""

    config: RunConfiguration
    sites: Sequence[str]
    models: Models  # that the sites were sent
    run_guard: RunGuard  # judges the sites' evaluations of candidates
    images: ModelEvaluator | None  # the server's own; None: the sites evaluate on the images set aside for it
    now: Callable[[], Moment]
    note: Callable[[str], object]  # writes a line into the next round's record

    def candidates(
        self, method: EvaluatesCandidates | None, state: Any, admission: Admission, replies: RoundReplies, clock: Clock
    ) -> Generator[Exchange, None, tuple[Reports, RoundReplies]]:
        """Yield the round's reports with the results of the method's candidate models on the server validation set, if
        any.

        Also the replies with the sites' evaluations.
        """
        reports = admission.reports
        candidates = method.candidates(state, admission.updates, reports) if method else None
        if candidates is None:
            return reports, replies
        make_task = self._tasks(candidates, admission, SERVER_SPLIT)
        ratings, replies = yield from self._rate(CANDIDATES, make_task, replies, admission, clock)
        guarded = self.run_guard.on and SERVER not in ratings
        if guarded:
            judged = self.run_guard.judge_candidates(admission, candidates, ratings)
        else:
            judged = pool_ratings(ratings, self.sites)
        return replace(reports, candidates=judged), replies

    def leave_one_out(
        self, outcome: Outcome, received: Tensor, admission: Admission, replies: RoundReplies, clock: Clock
    ) -> Generator[Exchange, None, RoundReplies]:
        """Let the guard know how the models without each site do on the others' images, or the server's own.

        ``received``: (d,) or (n, d) what the sites trained from.

        Returns:
            The replies with the sites' evaluations.
        """
        candidates = self.run_guard.leave_one_out_models(self.now().round, outcome, admission, received)
        if candidates is None:
            return replies
        split = SERVER_SPLIT if self.images else self.run_guard.split
        make_task = self._tasks(candidates, admission, split, outcome.weights)
        ratings, replies = yield from self._rate(LEAVE_ONE_OUT, make_task, replies, admission, clock)
        self.run_guard.take_leave_one_out(admission, ratings)
        return replies

    def _rate(
        self,
        what: str,
        make_task: Callable[[int | None], Evaluation],
        replies: RoundReplies,
        admission: Admission,
        clock: Clock,
    ) -> Generator[Exchange, None, tuple[Ratings, RoundReplies]]:
        """Return ratings by the server on its own images, or by the participants; also the replies with them."""
        usable: Mapping[str, Evaluated]
        if self.images:
            usable = {SERVER: self.images.evaluate(make_task(None))}
        else:
            usable, replies = yield from self._ask_participants(make_task, replies, admission, clock)
        ratings = {by: Rating.of(answer, make_task(None).soft) for by, answer in usable.items()}
        tasks = {by: make_task(None if by == SERVER else self.sites.index(by)) for by in usable}
        rated = {**replies.rated, what: tasks}
        return ratings, replace(replies, ratings={**replies.ratings, what: ratings}, rated=rated)

    def observation(
        self, candidates: Candidates, admission: Admission, weights: Tensor
    ) -> Generator[Exchange, None, tuple[list[Evaluated | None], Mapping[str, Evaluation]]]:
        """Return evaluations on the validation patients of the sites with a part in the aggregation, in site order.

        Also their tasks. ``weights`` (n,) are those of the aggregation.
        """
        make_task = self._tasks(candidates, admission, "validation", weights)
        rows = admission.counted.nonzero().flatten().tolist()
        tasks = {self.sites[row]: make_task(row) for row in rows}
        return (yield from self.by_sites(tasks)), tasks

    def recalibrate(self, admission: Admission, clock: Clock) -> Generator[Exchange, None, Admission]:
        """Have the sites estimate, if the run asks for it, BatchNorm statistics of the new models, and bound these."""
        models, now = self.models, self.now()
        if not (estimates_statistics(self.config.training) and isinstance(models, ModelsInTheClear)):
            return admission
        if not models.statistics:
            return admission
        asked = (now.round, "training", now.ledger_head, Purpose.ESTIMATE)
        tasks = {site: models.own_model(row, *asked) for row, site in enumerate(self.sites)}
        with clock.paused():
            answers = yield from self.by_sites(tasks)
        estimated = [answer.buffers if answer else None for answer in answers]
        received = [task.buffers[0] for task in tasks.values()]
        bounded, admission = self.run_guard.bound_estimates(admission, estimated, received)
        models.take_estimates(bounded, admission.site_reports.num_samples)
        return admission

    def by_sites(self, tasks: Mapping[str, Evaluation]) -> Generator[Exchange, None, list[Evaluated | None]]:
        """Return the sites' answers to their tasks, in site order; a note says who sent none that counts."""

        def check_message(site: str, answer: object) -> str | None:
            return self._make_check(tasks[site])(site, answer)

        exchange = self.now().exchange(tasks, check_message, "evaluation")
        yield exchange
        usable = exchange.usable()
        for site, fault in exchange.faults().items():
            self.note(f"{site}: no evaluation: {fault}")
        return [usable.get(site) for site in self.sites]  # type: ignore[misc]

    def _tasks(
        self, candidates: Candidates, admission: Admission, split: str, weights: Tensor | None = None
    ) -> Callable[[int | None], Evaluation]:
        """Return a function that makes the task of the site at a row; of None, of the server itself."""
        models, now, config = self.models, self.now(), self.config
        assert isinstance(models, ModelsInTheClear)
        held = models.buffers if models.has_own_statistics else None
        there = RoundStatistics(admission.group_statistics, models.statistics, held, weights)
        rule = candidate_statistics_rule(config.training, now.round, config.build_method())

        def make_task(row: int | None) -> Evaluation:
            statistics = candidate_statistics(candidates, there, rule, row)
            return candidate_task(candidates, statistics, now.round, split, now.ledger_head)

        return make_task

    def _ask_participants(
        self, make_task: Callable[[int | None], Evaluation], replies: RoundReplies, admission: Admission, clock: Clock
    ) -> Generator[Exchange, None, tuple[dict[str, Evaluated], RoundReplies]]:
        """Ask the sites that replied, except withheld ones: they have no vote, and may not see the others' models."""
        withheld = admission.withheld.tolist()
        rows = [row for row, reply in enumerate(replies.replies) if reply and not withheld[row]]
        asked = {self.sites[row]: make_task(row) for row in rows}
        exchange = self.now().exchange(asked, self._make_check(make_task(None)), "evaluation", replies.rejected)
        with clock.paused():
            yield exchange
        usable = {site: answer for site, answer in exchange.usable().items() if isinstance(answer, Evaluated)}
        sizes = [
            0 if withheld[row] else payload_bytes(asked.get(site) or make_task(row))
            for row, site in enumerate(self.sites)
        ]
        return usable, replies.with_ratings(self.sites, usable, sizes, exchange.faults())

    def _make_check(self, task: Evaluation) -> MessageCheck:
        def check_message(site: str, answer: object) -> str | None:
            fault = check_evaluated(answer, task, self.config.network.labels, self.config.script is not None)
            if fault or not isinstance(answer, Evaluated) or not answer.overlaps:
                return fault
            return self.run_guard.check_cases(site, task.split, answer.overlaps[0])  # the other models' are the same

        return check_message
