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
from fedmerit.federation.recorder import Admitted, Replies
from fedmerit.federation.server_models import Models, ModelsInTheClear
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
        task = self._task(candidates, admission.replies, SERVER_SPLIT)
        if self.cases:
            return _pooled([self._here(task)]), admitted
        usable, admitted = yield from self._by_those_that_replied(task, admitted, clock)
        if self.guarding.on:
            return self.guarding.judged(admission, candidates, usable), admitted
        return _pooled(list(usable.values())), admitted

    def without_each(
        self, without: Candidates, admitted: Admitted, admission: Admission, clock: Clock
    ) -> Generator[Exchange, None, Admitted]:
        """Tell the guard what the others, or the server's own images, say of the models without each site."""
        task = self._task(without, admission.replies, SERVER_SPLIT if self.cases else self.guarding.split)
        if self.cases:
            self.guarding.measured(admission, {"server": self._here(task)}, by_server=True)
            return admitted
        usable, admitted = yield from self._by_those_that_replied(task, admitted, clock)
        self.guarding.measured(admission, usable, by_server=False)
        return admitted

    def observation(
        self, candidates: Candidates, replies: Replies
    ) -> Generator[Exchange, None, list[Evaluated | None]]:
        """What the sites with a reply say of models on their validation patients, in site order."""
        task = self._task(candidates, replies, "validation")
        return (
            yield from self.by_sites({site: task for site, reply in zip(self.sites, replies, strict=True) if reply})
        )

    def by_sites(self, tasks: Mapping[str, Evaluation]) -> Generator[Exchange, None, list[Evaluated | None]]:
        """What the sites make of their tasks, in site order."""
        exchange = self.now().exchange(tasks, self._fault_of(next(iter(tasks.values()))), "evaluation")
        yield exchange
        usable = exchange.usable()
        return [usable.get(site) for site in self.sites]  # type: ignore[misc]

    def importance(self, task: ImportanceTask) -> Tensor:
        """(H,) of neurons, on the server's own images."""
        return mean_importance([measure_importance(self._network(), self.cases, task)])

    def _task(self, candidates: Candidates, replies: Replies, split: str) -> Evaluation:
        """With statistics of the sites whose updates are in, or those sent out."""
        models, now = self.models, self.now()
        assert isinstance(models, ModelsInTheClear)
        trained = [reply.buffers if reply else {} for reply in replies]
        held = models.buffers if models.own_statistics else None
        return candidate_task(candidates, trained, models.statistics, held, now.round, split, now.told)

    def _by_those_that_replied(
        self, task: Evaluation, admitted: Admitted, clock: Clock
    ) -> Generator[Exchange, None, tuple[dict[str, Evaluated], Admitted]]:
        asked = {site: task for site, reply in zip(self.sites, admitted.replies, strict=True) if reply}
        exchange = self.now().exchange(asked, self._fault_of(task), "evaluation", admitted.rejected)
        with clock.paused():
            yield exchange
        usable = {site: answer for site, answer in exchange.usable().items() if isinstance(answer, Evaluated)}
        replies = [
            reply and replace(reply, seconds=reply.seconds + (usable[site].seconds if site in usable else 0.0))
            for site, reply in zip(self.sites, admitted.replies, strict=True)
        ]
        received = [size + payload(task) for size in admitted.received]
        return usable, Admitted(replies, exchange.faults(), received)

    def _fault_of(self, task: Evaluation) -> FaultOf:
        def fault_of(site: str, answer: object) -> str | None:
            fault = fault_of_evaluated(answer, task, self.config.network.labels)
            if fault or not isinstance(answer, Evaluated) or not answer.overlaps:
                return fault
            return self.guarding.fault_of_cases(site, task.split, answer.overlaps[0])  # the others' are the same

        return fault_of

    def _here(self, task: Evaluation) -> Evaluated:
        estimates = self.config.training.statistics == "recalibrated"
        images = samples_of(self.cases, self.config.network.patch) if estimates else None
        return evaluate_models(self._network(), self.cases, task, self.config, images, self.found)

    def _network(self) -> nn.Module:
        return build_network(self.config.network, pick_device(self.device, "the server"))


def _pooled(evaluated: Sequence[Evaluated]) -> CandidateResults:
    """All sites' images as one validation set."""
    models = range(len(evaluated[0].overlaps))
    dice = [mean_dice(overlap for answer in evaluated for overlap in answer.overlaps[model]) for model in models]
    losses = torch.stack([answer.losses for answer in evaluated]).sum(dim=0)
    return CandidateResults(torch.tensor(dice, dtype=torch.float64), losses)
