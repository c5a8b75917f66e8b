"""The server's half of a run, whatever the engine: a round, read from top to bottom. It holds no formula."""

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from cryptography.x509 import Certificate
from torch import Tensor

from fedmerit.capabilities import AllocatesNeurons, capabilities
from fedmerit.configuration.run import RunConfiguration
from fedmerit.core import Outcome, Reports
from fedmerit.errors import BadInput, RunFailed
from fedmerit.federation.admission import Admission, RunGuard
from fedmerit.federation.checkpoint import known_sites, read_checkpoint, write_checkpoint
from fedmerit.federation.enrolment import check_certificate
from fedmerit.federation.evaluator import Evaluator
from fedmerit.federation.exchange import Clock, Exchange, Moment
from fedmerit.federation.final_models import BestRound, RunClosure
from fedmerit.federation.model_evaluation import Evaluations, estimates_statistics
from fedmerit.federation.network_layout import Submodels, read_layout
from fedmerit.federation.observation import KeptRound, RunObservers, expand_groups, keep_round
from fedmerit.federation.recorder import Admitted, Recorder, Replies
from fedmerit.federation.requirements import require_compatible_images, require_sites
from fedmerit.federation.round_updates import measure_updates, stack_replies
from fedmerit.federation.server_models import ModelsInTheClear, build_models
from fedmerit.observers import RoundView
from fedmerit.records.signatures import Signer
from fedmerit.trainers.monai_trainer.data import SERVER_SPLIT, SiteFolder
from fedmerit.trainers.monai_trainer.network_checks import require_repeatable
from fedmerit.trainers.monai_trainer.networks import initial_network
from fedmerit.vectors import all_finite
from fedmerit.wire.inspection import check_countersigned, check_enrolment, check_reply
from fedmerit.wire.messages import (
    ClosingTask,
    Enrolment,
    EnrolmentTask,
    ImportanceTask,
    Purpose,
    Reply,
    Task,
    Work,
    payload_bytes,
)


class Federation:
    """Rounds of one run, from its last complete one.

    An engine goes through `exchanges`: it sends out the tasks of each, and hands the answers to it.

    Args:
        config: the run.
        sites: their names; the order is always the sorted one. Where a run goes on, some of its sites may be
            missing: they count as absent.
        run: the run folder. Where it holds a checkpoint, the run goes on from there.
        on_round: called with every round's ledger record, those of earlier processes included.
        server_sites: folders of the server's own images, to evaluate on what otherwise the sites evaluate on the
            images set aside for it.
        device: on which the server evaluates on its own images.
        min_sites: usable answers without which no exchange ends; those of all sites asked, where fewer are.
        signer: of the ledger's records; None: they are not signed.
        context: TenSEAL's, in which updates come encrypted; None: they come in the clear.
        root: certificate of the federation's root, which vouches for those of sites; None: there are none.

    Raises:
        BadInput: ``server_sites`` are of another task, there are too few or too many sites for the method, or
            others than the checkpoint's.
    """

    def __init__(
        self,
        config: RunConfiguration,
        sites: Sequence[str],
        run: Path,
        on_round: Callable[[Mapping[str, Any]], None] = lambda record: None,
        server_sites: Sequence[SiteFolder] = (),
        device: str = "auto",
        min_sites: int = 1,
        signer: Signer | None = None,
        context: bytes | None = None,
        root: Certificate | None = None,
    ):
        checkpoint = read_checkpoint(run)
        self.sites = sorted(sites) if checkpoint is None else known_sites(checkpoint, sites, run)
        self.config, self.run, self.on_round, self.min_sites = config, run, on_round, min_sites
        self.method = config.build_guarded_method()
        self.can = capabilities(self.method)
        require_sites(config, self.sites)
        for folder in server_sites:
            require_compatible_images(config, folder)
        self.network = initial_network(config.network, config.seed)
        require_repeatable(config.network, self.network)
        run.mkdir(parents=True, exist_ok=True)
        self.recorder = Recorder(config, self.sites, run, signer)
        self.models = build_models(config, self.method, self.network, self.sites, context)
        in_the_clear = isinstance(self.models, ModelsInTheClear)
        self.run_guard = RunGuard(config, self.method, self.sites, in_the_clear, root)
        self.submodels = Submodels(self.network)
        own = [case for folder in server_sites for cases in folder.splits.values() for case in cases]
        found = Evaluations(config)
        self.evaluator = Evaluator(config, self.sites, self.models, self.run_guard, own, device, self.now, found)
        self.best = BestRound(run)
        self.observers = RunObservers(config.values, self.models.parameters, len(self.sites))
        self.round = 0
        layout = read_layout(self.network, with_neurons=self.can.neurons is not None)
        self.state = self.method.start(self.models.parameters, len(self.sites), layout)
        self.weights: Tensor | None = None  # (n,) of the last aggregation; NaN for sites with no part in it
        self.data_share: Tensor | None = None  # (n,) likewise
        self.mean_update: Tensor | None = None  # (d,) weighted mean of the last round's updates
        self.num_samples: dict[str, int] = {}  # by site, what it said in its first round: it may not change
        self._resume(checkpoint)

    @property
    def finished(self) -> bool:
        """Whether the final models are tested and saved."""
        return self.round > self.config.rounds

    def now(self) -> Moment:
        """Where the run is."""
        when = f"round {self.round}" if self.round < self.config.rounds else "final test"
        return Moment(self.round, when, self.recorder.ledger.head, self.min_sites)

    def largest_first(self, sites: Iterable[str]) -> list[str]:
        """Sites in the order in which they should begin, where not all can work at a time: little ones fill the end."""
        return sorted(sites, key=lambda site: -self.num_samples.get(site, 0))

    def exchanges(self) -> Iterator[Exchange]:
        """All that is left of the run; goes on when the engine has filled the exchange that it was given.

        Raises:
            RunFailed: too few answers of an exchange can be used, or the method gave what is not finite.
        """
        if not self.run_guard.asked:
            yield from self._enrol(self.sites, self.min_sites)
        while self.round < self.config.rounds:
            if self.can.neurons:
                yield from self._allocate(self.can.neurons)
            training = self.now().exchange(self._training_tasks(), self._check_reply, "reply")
            yield training
            if back := [site for site in self.sites if training.heard(site) and not self.run_guard.takes(site)]:
                yield from self._enrol(back, least=0)
            yield from self._conclude(training)
            self._checkpoint()
            self.on_round(self.recorder.ledger.last or {})
        if not self.finished:
            yield from self._end()
        self.best.forget()  # also where a run was ended just before it could

    def _conclude(self, training: Exchange) -> Iterator[Exchange]:
        """A round from its replies on; what it held of them is given back before the next one's are trained."""
        clock = Clock()
        admitted = self._admit(training)
        if isinstance(self.models, ModelsInTheClear) and not self.models.tests_own_only:
            self.best.consider(self.round, admitted.replies, self.models)
        sent, reports = stack_replies(admitted.replies, self.sites, self.models.parameters.shape[-1], self.method)
        admission = self.run_guard.admit(sent, reports, admitted.replies, self.models.buffers, self.mean_update)
        updates, reports = admission.updates, admission.reports
        if self.can.candidates:
            candidates = self.can.candidates.candidates(self.state, updates, reports)
            if candidates is not None:
                results, admitted = yield from self.evaluator.candidates(candidates, admitted, admission, clock)
                reports = replace(reports, candidates=results)
        began, received = self.models.began(), self.models.parameters
        self.state, given = self.method.round(self.state, updates, reports)
        self._require_finite(given)
        with clock.paused():
            yield from self._observe(given, admission, reports)
        outcome = self._apart(self.run_guard.settled(admission, given, received), given.models.ndim == 1, sent)
        if outcome.models is not given.models:
            self.state = self.method.restart_from(self.state, outcome.models)
        self._take_over(outcome, admitted.replies, admission)
        if estimates_statistics(self.config.training):
            with clock.paused():
                admission = yield from self._recalibrate(admission)
            outcome = replace(outcome, quantities={**outcome.quantities, **admission.quantities})
        without = self.run_guard.without_each(self.round, given, admission, received)
        if without is not None:
            admitted = yield from self.evaluator.without_each(without, admitted, admission, given.weights, clock)
        outcome = self._with_evidence(outcome, admission, clock)
        self._record(admitted, began, outcome, admission)
        self.round += 1

    def _enrol(self, sites: Sequence[str], least: int) -> Iterator[Exchange]:
        """What ``sites`` commit to: all of them before round 0, later who answered without; ``least`` have to."""

        def check_message(site: str, answer: object) -> str | None:
            fault = check_enrolment(answer, self.round)
            if fault or not isinstance(answer, Enrolment):
                return fault
            return check_certificate(answer, site, self.run_guard.root)

        now = replace(self.now(), least=least)
        exchange = now.exchange(dict.fromkeys(sites, EnrolmentTask(now.round, now.told)), check_message, "enrolment")
        yield exchange
        told = {site: one for site, one in exchange.usable().items() if isinstance(one, Enrolment)}
        self.run_guard.enrol(told, exchange.faults())
        self.num_samples |= {site: one.slices["training"] for site, one in told.items()}
        self._checkpoint()

    def _allocate(self, method: AllocatesNeurons) -> Iterator[Exchange]:
        """Before a round: what the method wants to know of neurons, and who holds which of them from now on."""
        request = method.importance_request(self.state)
        if request is None:
            return
        models, now = self.models, self.now()
        assert isinstance(models, ModelsInTheClear)
        if not request.images:
            importance = self.submodels.nothing()
        else:
            task = ImportanceTask(
                now.round, SERVER_SPLIT, request.model, models.statistics, request.order, request.images, now.told
            )
            if self.evaluator.cases:
                importance = self.evaluator.importance(task)
            else:
                rows = [row for row, site in enumerate(self.sites) if self.run_guard.takes(site)]
                asked = [self.sites[row] for row in rows if row not in models.alone]
                importance = yield from self.submodels.ask(task, asked, now.when, now.least)
        alone = torch.zeros(len(self.sites), dtype=torch.bool)
        alone[list(models.alone)] = True
        self.state, submodels, self.submodels.held = method.allocate(self.state, importance, alone)
        models.replace(submodels)
        self._checkpoint()

    def _training_tasks(self) -> dict[str, Work]:
        """What each site receives: the model in whatever form, and its part in it."""
        missed = [False] * len(self.sites) if self.weights is None else self.weights.isnan().tolist()
        sharing = self.can.peers.sharing(self.state) if self.can.peers else None
        told = self.now().told
        return {
            site: Task(
                round=self.round,
                weight=_known(self.weights, row),
                data_share=_known(self.data_share, row),
                neurons=self.submodels.of(row),
                ledger=told,
                **self.models.task_parts(row),
                **self.models.peer_parts(sharing, row, self.round, missed),
            )
            for row, site in enumerate(self.sites)
        }

    def _check_reply(self, site: str, answer: object) -> str | None:
        """Why the reply of ``site`` cannot be used, or None."""
        models = self.models
        like = models.parameters if models.parameters.ndim == 1 else models.parameters[0]
        labels, others = self.config.network.labels, [other for other in self.sites if other != site]
        fault = check_reply(answer, self.round, like, models.buffers[0], labels, self.method, others)
        if fault or not isinstance(answer, Reply):
            return fault
        if fault := models.check_message(answer) or self.run_guard.check_site(site):
            return fault
        if fault := self.run_guard.check_cases(site, "validation", answer.overlaps):
            return fault
        first = self.num_samples.get(site, answer.num_samples)
        return None if answer.num_samples == first else f"num_samples {answer.num_samples}, at first it was {first}"

    def _admit(self, training: Exchange) -> Admitted:
        usable = training.usable()
        replies = [usable.get(site) for site in self.sites]
        received, unheard = self.submodels.spent()
        sent = [payload_bytes(task) + received for task in training.tasks.values()]
        return Admitted(replies, unheard | training.faults(), sent)  # type: ignore[arg-type]

    def _observe(self, outcome: Outcome, admission: Admission, reports: Reports) -> Iterator[Exchange]:
        """What is made of the round to tell values by: kept, and evaluated by the sites on their validation patients.

        It comes before the outcome is taken over, and changes nothing.
        """
        if not (self.config.values or self.config.keep_updates):
            return
        assert isinstance(self.models, ModelsInTheClear)
        rounds, began = self.config.rounds, self.models.parameters
        if outcome.models.ndim == 1 and began.ndim == 2:  # a verdict stood: what those had who do not go on alone
            began = began[next(row for row in range(len(self.sites)) if row not in self.models.alone)].clone()
        view = RoundView(self.round, rounds, began, outcome.models, admission.updates, outcome.weights, reports)
        first, heard = admission.first, admission.heard
        if self.config.keep_updates:
            statistics = self.models.statistics
            keep_round(self.run, KeptRound(view, tuple(admission.statistics), statistics, first, heard))
        for name, observation in self.observers.observe(view):
            answers = yield from self.evaluator.observation(observation.candidates, admission, outcome.weights)
            self.recorder.observed(self.round, name, expand_groups(observation.coalitions, first, heard), answers)

    def _require_finite(self, outcome: Outcome) -> None:
        if (outcome.models.ndim == 2) > self.method.has_site_models:
            raise RunFailed(f"{self.config.method} gave a model for each site; declare has_site_models in its class")
        if not (all_finite(outcome.models) and all_finite(outcome.weights)):
            raise RunFailed(f"round {self.round}: {self.config.method} gave a model or weights that are not finite")

    def _take_over(self, outcome: Outcome, replies: Replies, admission: Admission) -> None:
        """The outcome is where the next round starts."""
        reports = admission.parts
        absent, before = ~reports.present, self.models.buffers
        self.models.advance(self.round, outcome, admission.replies, reports, self.submodels.held)
        if admission.alone and isinstance(self.models, ModelsInTheClear):
            self.models.keep_own_statistics(admission.alone, replies, before)
        self.weights = outcome.weights.masked_fill(absent, math.nan)
        self.data_share = reports.data_share.masked_fill(absent, math.nan)
        for site, reply in zip(self.sites, replies, strict=True):
            if reply:
                self.num_samples.setdefault(site, reply.num_samples)

    def _apart(self, outcome: Outcome, one: bool, updates: Tensor) -> Outcome:
        """Of ``one`` model for all, each site's own from the last round on, where that is asked for."""
        last = self.round == self.config.rounds - 1 and self.config.training.last_round == "own"
        if not last or not one:
            return outcome
        return replace(outcome, models=self.models.parameters + updates, statistics="models")

    def _recalibrate(self, admission: Admission) -> Generator[Exchange, None, Admission]:
        """BatchNorm statistics of the models as they are now, estimated where the training images are, and bounded."""
        assert isinstance(self.models, ModelsInTheClear)
        if not self.models.statistics:
            return admission
        now = self.now()
        asked = (now.round, "training", now.told, Purpose.ESTIMATE)
        tasks = {site: self.models.own_model(row, *asked) for row, site in enumerate(self.sites)}
        answers = yield from self.evaluator.by_sites(tasks)
        estimated = [answer.buffers if answer else None for answer in answers]
        bounded, admission = self.run_guard.estimated(admission, estimated, [of.buffers[0] for of in tasks.values()])
        self.models.take_estimated(bounded, admission.parts.num_samples)
        return admission

    def _with_evidence(self, outcome: Outcome, admission: Admission, clock: Clock) -> Outcome:
        """The outcome with what the updates say whatever the method, where they can be seen, and the server's time."""
        quantities = {**outcome.quantities, "server_seconds": torch.full_like(outcome.weights, clock.seconds)}
        updates = admission.own
        if updates.shape[1]:
            products = admission.products
            assert products is not None
            self.mean_update, evidence = measure_updates(
                updates, products, outcome.weights, admission.answered, self.mean_update
            )
            quantities |= evidence
        return replace(outcome, quantities=quantities)

    def _record(self, admitted: Admitted, began: Sequence[str], outcome: Outcome, admission: Admission) -> None:
        more = self.run_guard.record(self.round, admission)
        if self.round == self.config.rounds - 1:
            more |= self._closure().record()
        self.recorder.training_round(self.round, admitted, began, self.models.ended(), outcome, more)

    def _end(self) -> Iterator[Exchange]:
        """Test the final models, save them, close the records, and tell the sites how."""
        now = replace(self.now(), least=0)
        closing = yield from self._closure().exchanges(self.evaluator.by_sites, now.told)
        self.round += 1
        self._checkpoint()  # from here on nothing changes that a site may have countersigned
        self.best.forget()
        tasks = dict.fromkeys(self.sites, ClosingTask(now.round, closing.told, now.told))
        yield now.exchange(tasks, lambda site, answer: check_countersigned(answer, now.round), "countersignature")

    def _closure(self) -> RunClosure:
        return RunClosure(self.config, self.sites, self.run, self.models, self.best, self.recorder)

    def _checkpoint(self) -> None:
        write_checkpoint(
            self.run,
            {
                "sites": self.sites,
                "round": self.round,
                "state": dict(vars(self.state)),
                "weights": self.weights,
                "data_share": self.data_share,
                "mean_update": self.mean_update,
                "num_samples": self.num_samples,
                "complete_rounds": min(self.round, self.config.rounds),
            }
            | self.recorder.content()
            | self.observers.content()
            | self.run_guard.content()
            | self.best.content()
            | self.models.content()
            | self.submodels.content(),
        )

    def _resume(self, content: Mapping[str, Any] | None) -> None:
        """Go on from a checkpoint; what was recorded after it belongs to an incomplete round and is dropped."""
        if content is None:
            self.recorder.rewind(0, 0, 0)
            return
        if set(content["state"]) != set(vars(self.state)):
            raise BadInput(
                f"{self.run}: was begun by another version of FedMerit, whose {self.config.method} remembers other "
                "things; finish it with that version, or start another run"
            )
        self.round = content["round"]
        self.weights, self.data_share = content["weights"], content["data_share"]
        self.mean_update = content.get("mean_update")  # checkpoints of earlier versions have none
        self.num_samples = dict(content.get("num_samples", {}))  # likewise
        self.models.restore(content)
        self.submodels.restore(content)
        self.best.restore(content)
        self.run_guard.restore(content)
        self.state = type(self.state)(**content["state"])
        self.observers.restore(content)
        self.recorder.restore(content, min(self.round, self.config.rounds))
        for record in self.recorder.ledger.records:
            self.on_round(record)


def _known(values: Tensor | None, row: int) -> float | None:
    """An entry; None where it is NaN, or nothing is known."""
    return None if values is None or bool(values[row].isnan()) else float(values[row])
