"""Models evaluated for the server: a part of it. On its own images where it has any, else by the sites on theirs."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedmerit.capabilities.candidates import Candidates
from fedmerit.configuration.run import RunConfiguration
from fedmerit.core import CandidateResults
from fedmerit.federation.clock import Clock
from fedmerit.federation.evaluating import Evaluations, candidate_task, evaluate_models, measure_importance
from fedmerit.federation.exchange import Exchange, FaultOf, Moment
from fedmerit.federation.guarding import Admission, Guarding
from fedmerit.federation.recorder import Admitted
from fedmerit.federation.server_models import Models, ModelsInTheClear
from fedmerit.federation.statistics_rules import RoundStatistics, estimates, of_candidates, rule_of_candidates
from fedmerit.federation.submodels import mean_importance
from fedmerit.training.data import SERVER_SPLIT, Case
from fedmerit.training.networks import build_network
from fedmerit.training.overlaps import mean_dice
from fedmerit.training.patches import samples_of
from fedmerit.training.place import pick_device
from fedmerit.wire.inspection import fault_of_evaluated
from fedmerit.wire.messages import Evaluated, Evaluation, ImportanceTask, payload


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
    guarding: Guarding
    cases: Sequence[Case]
    device: str
    now: Callable[[], Moment]
    found: Evaluations

    def candidates(
        self, candidates: Candidates, admitted: Admitted, admission: Admission, clock: Clock
    ) -> Generator[Exchange, None, tuple[CandidateResults, Admitted]]:
        """What the server validation set says of candidate models, and what counts of the round with that."""
        task_of = self._tasks(candidates, admission, SERVER_SPLIT)
        if self.cases:
            return _pooled([self._here(task_of(None))]), admitted
        usable, admitted = yield from self._by_those_that_replied(task_of, admitted, admission.alone, clock)
        if self.guarding.on:
            return self.guarding.judged(admission, candidates, usable), admitted
        return _pooled(list(usable.values())), admitted

    def without_each(
        self, without: Candidates, admitted: Admitted, admission: Admission, weights: Tensor, clock: Clock
    ) -> Generator[Exchange, None, Admitted]:
        """Tell the guard what the others, or the server's own images, say of the models without each site.

        ``weights`` (n,) are those of the aggregation.
        """
        split = SERVER_SPLIT if self.cases else self.guarding.split
        task_of = self._tasks(without, admission, split, weights)
        if self.cases:
            self.guarding.measured(admission, {"server": self._here(task_of(None))}, by_server=True)
            return admitted
        usable, admitted = yield from self._by_those_that_replied(task_of, admitted, admission.alone, clock)
        self.guarding.measured(admission, usable, by_server=False)
        return admitted

    def observation(
        self, candidates: Candidates, admission: Admission, weights: Tensor
    ) -> Generator[Exchange, None, list[Evaluated | None]]:
        """What the sites with a part in the aggregation say of models on their validation patients, in site order.

        ``weights`` (n,) are those of the aggregation.
        """
        task_of, rows = self._tasks(candidates, admission, "validation", weights), admission.heard.nonzero().flatten()
        return (yield from self.by_sites({self.sites[row]: task_of(row) for row in rows.tolist()}))

    def by_sites(self, tasks: Mapping[str, Evaluation]) -> Generator[Exchange, None, list[Evaluated | None]]:
        """What the sites make of their tasks, in site order."""

        def fault_of(site: str, answer: object) -> str | None:
            return self._fault_of(tasks[site])(site, answer)

        exchange = self.now().exchange(tasks, fault_of, "evaluation")
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
        rule = rule_of_candidates(config.training, now.round, config.build_method())

        def task_of(row: int | None) -> Evaluation:
            return candidate_task(candidates, of_candidates(candidates, there, rule, row), now.round, split, now.told)

        return task_of

    def _by_those_that_replied(
        self, task_of: Callable[[int | None], Evaluation], admitted: Admitted, alone: Sequence[int], clock: Clock
    ) -> Generator[Exchange, None, tuple[dict[str, Evaluated], Admitted]]:
        """Not by those who go on ``alone``: they have no voice, and what they would rate is the others' models."""
        rows = [row for row, reply in enumerate(admitted.replies) if reply and row not in alone]
        asked = {self.sites[row]: task_of(row) for row in rows}
        exchange = self.now().exchange(asked, self._fault_of(task_of(None)), "evaluation", admitted.rejected)
        with clock.paused():
            yield exchange
        usable = {site: answer for site, answer in exchange.usable().items() if isinstance(answer, Evaluated)}
        replies = [
            reply and replace(reply, seconds=reply.seconds + (usable[site].seconds if site in usable else 0.0))
            for site, reply in zip(self.sites, admitted.replies, strict=True)
        ]
        received = [
            size + (0 if row in alone else payload(asked.get(site) or task_of(row)))
            for row, (site, size) in enumerate(zip(self.sites, admitted.received, strict=True))
        ]
        said = {site: (*admitted.evaluated.get(site, ()), answer) for site, answer in usable.items()}
        return usable, Admitted(replies, exchange.faults(), received, {**admitted.evaluated, **said})

    def _fault_of(self, task: Evaluation) -> FaultOf:
        def fault_of(site: str, answer: object) -> str | None:
            fault = fault_of_evaluated(answer, task, self.config.network.labels)
            if fault or not isinstance(answer, Evaluated) or not answer.overlaps:
                return fault
            return self.guarding.fault_of_cases(site, task.split, answer.overlaps[0])  # the others' are the same

        return fault_of

    def _here(self, task: Evaluation) -> Evaluated:
        images = samples_of(self.cases, self.config.network.patch) if estimates(self.config.training) else None
        return evaluate_models(self._network(), self.cases, task, self.config, images, self.found)

    def _network(self) -> nn.Module:
        return build_network(self.config.network, pick_device(self.device, "the server"))


def _pooled(evaluated: Sequence[Evaluated]) -> CandidateResults:
    """All sites' images as one validation set."""
    models = range(len(evaluated[0].overlaps))
    dice = [mean_dice(*(answer.overlaps[model] for answer in evaluated)) for model in models]
    losses = torch.stack([answer.losses for answer in evaluated]).sum(dim=0)
    return CandidateResults(torch.tensor(dice, dtype=torch.float64), losses)
