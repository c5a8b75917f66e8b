"""Models evaluated for the server: a part of it. On its own images where it has any, else by the sites on theirs."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedmerit.capabilities import Candidates
from fedmerit.configuration.run import RunConfiguration
from fedmerit.core import CandidateResults
from fedmerit.federation.admission import Admission, RunGuard
from fedmerit.federation.exchange import Clock, Exchange, MessageCheck, Moment
from fedmerit.federation.model_evaluation import (
    Evaluations,
    RoundStatistics,
    candidate_statistics,
    candidate_statistics_rule,
    candidate_task,
    estimates_statistics,
    evaluate_models,
    measure_importance,
)
from fedmerit.federation.network_layout import mean_importance
from fedmerit.federation.recorder import Admitted
from fedmerit.federation.server_models import Models, ModelsInTheClear
from fedmerit.trainers.monai_trainer.data import SERVER_SPLIT, Case
from fedmerit.trainers.monai_trainer.machine_settings import pick_device
from fedmerit.trainers.monai_trainer.networks import build_network
from fedmerit.trainers.monai_trainer.overlaps import mean_dice
from fedmerit.trainers.monai_trainer.patches import build_samples
from fedmerit.wire.inspection import check_evaluated
from fedmerit.wire.messages import Evaluated, Evaluation, ImportanceTask, payload_bytes


@dataclass(frozen=True)
class Evaluator:
    """Has candidate, final and other models evaluated.

    Args:
        config: the run.
        sites: their names, sorted.
        models: what the sites were sent.
        guarding: judges what sites say of candidates.
        cases: the server's own images; none: the sites evaluate on the images set aside for it.
        device: on which the server evaluates on its own.
        now: where the run is.
        found: what was found of models on the server's own images.
    """

    config: RunConfiguration
    sites: Sequence[str]
    models: Models
    run_guard: RunGuard
    cases: Sequence[Case]
    device: str
    now: Callable[[], Moment]
    found: Evaluations

    def candidates(
        self, candidates: Candidates, admitted: Admitted, admission: Admission, clock: Clock
    ) -> Generator[Exchange, None, tuple[CandidateResults, Admitted]]:
        """What the server validation set says of candidate models, and what counts of the round with that."""
        make_task = self._tasks(candidates, admission, SERVER_SPLIT)
        if self.cases:
            return _pooled([self._here(make_task(None))]), admitted
        usable, admitted = yield from self._ask_participants(make_task, admitted, admission.alone, clock)
        if self.run_guard.on:
            return self.run_guard.judged(admission, candidates, usable), admitted
        return _pooled(list(usable.values())), admitted

    def without_each(
        self, without: Candidates, admitted: Admitted, admission: Admission, weights: Tensor, clock: Clock
    ) -> Generator[Exchange, None, Admitted]:
        """Tell the guard what the others, or the server's own images, say of the models without each site.

        ``weights`` (n,) are those of the aggregation.
        """
        split = SERVER_SPLIT if self.cases else self.run_guard.split
        make_task = self._tasks(without, admission, split, weights)
        if self.cases:
            self.run_guard.measured(admission, {"server": self._here(make_task(None))}, by_server=True)
            return admitted
        usable, admitted = yield from self._ask_participants(make_task, admitted, admission.alone, clock)
        self.run_guard.measured(admission, usable, by_server=False)
        return admitted

    def observation(
        self, candidates: Candidates, admission: Admission, weights: Tensor
    ) -> Generator[Exchange, None, list[Evaluated | None]]:
        """What the sites with a part in the aggregation say of models on their validation patients, in site order.

        ``weights`` (n,) are those of the aggregation.
        """
        make_task, rows = self._tasks(candidates, admission, "validation", weights), admission.heard.nonzero().flatten()
        return (yield from self.by_sites({self.sites[row]: make_task(row) for row in rows.tolist()}))

    def by_sites(self, tasks: Mapping[str, Evaluation]) -> Generator[Exchange, None, list[Evaluated | None]]:
        """What the sites make of their tasks, in site order."""

        def check_message(site: str, answer: object) -> str | None:
            return self._fault_of(tasks[site])(site, answer)

        exchange = self.now().exchange(tasks, check_message, "evaluation")
        yield exchange
        usable = exchange.usable()
        return [usable.get(site) for site in self.sites]  # type: ignore[misc]

    def importance(self, task: ImportanceTask) -> Tensor:
        """(H,) of neurons, on the server's own images."""
        return mean_importance([measure_importance(self._network(), self.cases, task)])

    def _tasks(
        self, candidates: Candidates, admission: Admission, split: str, weights: Tensor | None = None
    ) -> Callable[[int | None], Evaluation]:
        """What the site of a row is asked; of None, the server itself."""
        models, now, config = self.models, self.now(), self.config
        assert isinstance(models, ModelsInTheClear)
        held = models.buffers if models.own_statistics else None
        there = RoundStatistics(admission.statistics, models.statistics, held, weights)
        rule = candidate_statistics_rule(config.training, now.round, config.build_method())

        def make_task(row: int | None) -> Evaluation:
            return candidate_task(
                candidates, candidate_statistics(candidates, there, rule, row), now.round, split, now.told
            )

        return make_task

    def _ask_participants(
        self, make_task: Callable[[int | None], Evaluation], admitted: Admitted, alone: Sequence[int], clock: Clock
    ) -> Generator[Exchange, None, tuple[dict[str, Evaluated], Admitted]]:
        """Not by those who go on ``alone``: they have no voice, and what they would rate is the others' models."""
        rows = [row for row, reply in enumerate(admitted.replies) if reply and row not in alone]
        asked = {self.sites[row]: make_task(row) for row in rows}
        exchange = self.now().exchange(asked, self._fault_of(make_task(None)), "evaluation", admitted.rejected)
        with clock.paused():
            yield exchange
        usable = {site: answer for site, answer in exchange.usable().items() if isinstance(answer, Evaluated)}
        replies = [
            reply and replace(reply, seconds=reply.seconds + (usable[site].seconds if site in usable else 0.0))
            for site, reply in zip(self.sites, admitted.replies, strict=True)
        ]
        received = [
            size + (0 if row in alone else payload_bytes(asked.get(site) or make_task(row)))
            for row, (site, size) in enumerate(zip(self.sites, admitted.received, strict=True))
        ]
        said = {site: (*admitted.evaluated.get(site, ()), answer) for site, answer in usable.items()}
        return usable, Admitted(replies, exchange.faults(), received, {**admitted.evaluated, **said})

    def _fault_of(self, task: Evaluation) -> MessageCheck:
        def check_message(site: str, answer: object) -> str | None:
            fault = check_evaluated(answer, task, self.config.network.labels)
            if fault or not isinstance(answer, Evaluated) or not answer.overlaps:
                return fault
            return self.run_guard.check_cases(site, task.split, answer.overlaps[0])  # the others' are the same

        return check_message

    def _here(self, task: Evaluation) -> Evaluated:
        images = (
            build_samples(self.cases, self.config.network.patch) if estimates_statistics(self.config.training) else None
        )
        return evaluate_models(self._network(), self.cases, task, self.config, images, self.found)

    def _network(self) -> nn.Module:
        return build_network(self.config.network, pick_device(self.device, "the server"))


def _pooled(evaluated: Sequence[Evaluated]) -> CandidateResults:
    """All sites' images as one validation set."""
    models = range(len(evaluated[0].overlaps))
    dice = [mean_dice(*(answer.overlaps[model] for answer in evaluated)) for model in models]
    losses = torch.stack([answer.losses for answer in evaluated]).sum(dim=0)
    return CandidateResults(torch.tensor(dice, dtype=torch.float64), losses)
