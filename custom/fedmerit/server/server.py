"""The server's half of a run, whatever the engine. `Federation._conclude` is a round from replies to record."""

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from cryptography.x509 import Certificate
from torch import Tensor, nn

from fedmerit.contract.capabilities import Capabilities, capabilities
from fedmerit.contract.method import Outcome, Reports, part_products
from fedmerit.contract.observers import RoundView
from fedmerit.errors import BadInput, RunFailed, printable
from fedmerit.evidence.signatures import Signer
from fedmerit.files import read_object, write_json
from fedmerit.guard.admission import Admission
from fedmerit.guard.enrolment import may_train_on
from fedmerit.schema.configuration.run import RunConfiguration, require_sharing
from fedmerit.schema.expected import check_countersigned, check_reply
from fedmerit.schema.messages import ClosingTask, Evaluated, Evaluation, Reply
from fedmerit.schema.score_name import AUTO
from fedmerit.schema.site_folder import SiteFolder
from fedmerit.server.checkpoint import read_checkpoint, write_checkpoint
from fedmerit.server.evaluator import Evaluator
from fedmerit.server.exchange import Clock, Exchange, Moment
from fedmerit.server.final_models import BestRound, RunClosure
from fedmerit.server.membership import admit_sites, departures, join_sites
from fedmerit.server.models import Models, ModelsAtSites, ModelsInTheClear
from fedmerit.server.observation import KeptRound, RatedModels, RunObservers, expand_groups, keep_round, observed_start
from fedmerit.server.recorder import Recorder
from fedmerit.server.requirements import require_outcome, require_planned_images, require_sites
from fedmerit.server.round_inputs import RoundInputs
from fedmerit.server.round_updates import Replies, RoundReplies, measure_updates, stack_replies
from fedmerit.server.run_guard import RunGuard
from fedmerit.server.submodels import Submodels
from fedmerit.trainers.factory import build_server_images, first_network, read_layout

NAME_ONE = "name one as key_metric, with its key_metric_range"
MEND_EVALUATION = "mend what they do if flare.is_evaluate(), or set evaluates=False and go without the final test"
log = logging.getLogger(__name__)
LONGEST_NOTE, MOST_NOTES = 400, 20  # characters of an operator's line, lines a round


class Federation:
    """A federation: the rounds of one run, from its last complete one.

    An engine iterates over `exchanges`: it sends the tasks of each to the sites, and passes on their answers.

    Args:
        sites: their names; the order is always the sorted one. If a run resumes, some of its sites may be missing:
            they count as absent; others join it (`fedmerit.server.membership`), or a note says why not.
        run: the run folder. If it holds a checkpoint, the run resumes from there.
        on_round: called with every round's ledger record, those of earlier processes included.
        server_sites: folders of the server's own images, if it has any. A plan that names them, which every site's log
            has, makes the server evaluate on these what the sites would evaluate on the images set aside for it.
        device: on which the server evaluates on its own images.
        min_sites: usable answers that every exchange needs; those of all sites that are asked, if they are fewer.
        signer: of the ledger's records; None: they are not signed.
        context: TenSEAL's, in which updates come encrypted; None: they come in the clear.
        root: certificate of the federation's root, which issues those of sites; None: there are none.

    Raises:
        BadInput: ``server_sites`` are of another task, or not those that the plan names, the method cannot work with
            so many sites, the run needs ``share_models`` or images of the server, or the method's state differs from
            the checkpoint's.
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
        self.sites, cannot_join = admit_sites(config, checkpoint, sites)
        self.config, self.run, self.on_round, self.min_sites = config, run, on_round, min_sites
        self.method = config.build_guarded_method()
        self.can = capabilities(self.method)
        require_sites(config, self.sites)
        require_planned_images(config, server_sites)
        images = build_server_images(config, server_sites if config.server_images else (), device)
        require_sharing(config, images is not None)
        self.network = first_network(config, run)
        run.mkdir(parents=True, exist_ok=True)
        self.recorder = Recorder(config, self.sites, run, signer)
        self.layout = read_layout(self.network, with_neurons=self.can.neurons is not None)
        self.submodels = Submodels(self.can.neurons, self.layout, images)
        self.models = build_models(config, self.can, self.network, self.sites, context, self.submodels)
        rates = (images is not None or config.share_models) and config.can_evaluate
        self.run_guard = RunGuard(
            config, self.method, self.can, self.sites, self.models.are_visible, rates, root, self.layout.tensor_sizes
        )
        self.evaluator = Evaluator(config, self.sites, self.models, self.run_guard, images, self.now, self.take_note)
        self.best = BestRound(run, config.can_evaluate)
        self.observers = RunObservers(config.values, self.models.parameters, len(self.sites))
        self.closure = RunClosure(config, self.sites, run, self.models, self.best, self.recorder)
        self.round = 0
        self.state = self.method.start(self.models.parameters, len(self.sites), self.layout)
        self.mean_update: Tensor | None = None  # (d,) weighted mean of the last round's updates
        self._notes = [cannot_join] if cannot_join else []  # of the operator's, for the next record
        self.metric = ""  # that the sites took from their scripts' answers; "": none yet, or the plan names it
        self.joined: list[str] = []  # sites that joined after round 0, for the next record
        self.gone: frozenset[str] = frozenset()  # sites that left: they are not asked to train, and their record ends
        self.num_samples: dict[str, int] = {}  # by site, as enrolled or in its first reply; see `may_train_on`
        self._resume(checkpoint)

    @property
    def finished(self) -> bool:
        """Whether the final models are tested and saved."""
        return self.round > self.config.rounds

    def take_note(self, text: str) -> dict[str, str]:
        """Write a line of the operator's into the next round's record, if none has it; the line as it will be there."""
        shown = printable(text[:LONGEST_NOTE])
        known = shown in self._notes or any(shown in one.get("notes", ()) for one in self.recorder.ledger.records)
        if not known and len(self._notes) < MOST_NOTES:
            self._notes.append(shown)
        return {"note": shown}

    def now(self) -> Moment:
        """Return where the run stands."""
        when = f"round {self.round}" if self.round < self.config.rounds else "final test"
        head, check_log = self.recorder.ledger.head, self.run_guard.check_log
        return Moment(self.round, when, head, self.min_sites, lambda site, answer: check_log(site, answer, head))

    def largest_first(self, sites: Iterable[str]) -> list[str]:
        """Return the order in which sites should begin if not all can work at a time: small ones fill the end."""
        return sorted(sites, key=lambda site: -self.num_samples.get(site, 0))

    def exchanges(self) -> Iterator[Exchange]:
        """Yield the rest of the run; it continues when the engine has filled the exchange that it got.

        Raises:
            RunFailed: an exchange has too few usable answers, or the method gave NaN or infinite entries.
        """
        if not self.run_guard.has_asked and self.round < self.config.rounds:
            yield from self._enrol(self.sites, least=0 if self.run_guard.enrolments else self.min_sites)
        while self.round < self.config.rounds:
            if self.can.neurons:
                yield from self._allocate()
            sharing = self.can.peers.sharing(self.state) if self.can.peers else None
            tasks = self.models.tasks(self.now(), sharing)
            asked = {site: task for site, task in tasks.items() if site not in self.gone} or tasks
            training = self.now().exchange(asked, self._check_reply, "reply")
            yield training
            known = self.run_guard.is_comparable
            if back := [site for site in self.sites if training.has_reply(site) and not known(site)]:
                yield from self._enrol(back, least=0)
            yield from self._conclude(training)
            self._checkpoint()
            self.on_round(self.recorder.ledger.last or {})
        if not self.finished:
            yield from self._end()
        self.best.forget()  # also if a run ended just before it could

    def _enrol(self, sites: Sequence[str], least: int) -> Iterator[Exchange]:
        """Enrol ``sites``: all as the server's process begins, later those that replied without; at least ``least``."""
        yield from self.run_guard.ask(sites, replace(self.now(), least=least))
        self.num_samples |= self.run_guard.num_samples
        self._checkpoint()

    def _allocate(self) -> Iterator[Exchange]:
        """Allocate neurons before a round to the sites if that is due, by the sites that have the common model."""
        models = self.models
        assert isinstance(models, ModelsInTheClear)
        keeping = torch.tensor([row in models.separate for row in range(len(self.sites))])
        common = zip(self.sites, keeping.tolist(), strict=True)
        sites = [site for site, keeps in common if self.run_guard.accepts(site) and not keeps]
        allocated = yield from self.submodels.allocate(self.state, models.statistics, keeping, sites, self.now())
        if allocated:
            self.state, vectors = allocated
            models.replace(vectors)
            self._checkpoint()

    def _check_reply(self, site: str, answer: object) -> str | None:
        """Return why the reply of ``site`` cannot be used, or None."""
        models = self.models
        like = models.parameters if models.parameters.ndim == 1 else models.parameters[0]
        labels, others = self.config.network.labels, [other for other in self.sites if other != site]
        scored = self.config.script is not None
        fault = check_reply(answer, self.round, like, models.buffers[0], labels, self.method, others, scored)
        if fault or not isinstance(answer, Reply):
            return fault
        if fault := models.check_message(answer) or self.run_guard.check_site(site):
            return fault
        if fault := self.run_guard.check_cases(site, "validation", answer.overlaps):
            return fault
        if fault := self._check_metric(answer.metric):
            return fault
        first = self.num_samples.get(site, answer.num_samples)
        if may_train_on(answer.num_samples, first):
            return None
        return f"num_samples {answer.num_samples}, at first it was {first}"

    def _check_metric(self, metric: str) -> str | None:
        """Return why the metric that a site took cannot be used beside the others', or None."""
        if metric and not (self.config.script and self.config.script.metric == AUTO):
            return "a metric that the run did not ask for"
        if metric and self.metric and metric != self.metric:
            return f"its script measures {metric}, the others' {self.metric}; name one as key_metric"
        return None

    def _take_metric(self, replies: Replies) -> dict[str, str]:
        """Return the entry of the record that names the metric which the sites took, if no record has it yet.

        What is odd about the scripts is noted.

        Raises:
            RunFailed: the sites took different metrics, or in round 0 no script can evaluate.
        """
        if self.config.script is None:
            return {}
        answers = {site: reply for site, reply in zip(self.sites, replies, strict=True) if reply}
        for site in (site for site, reply in answers.items() if reply.restarts):
            self.take_note(f"{site}: its script was started again, without what it held in memory")
        for site, reply in answers.items():
            if reply.unsent:
                tensors = len(self.config.script.tensors)
                sent = f"{tensors - reply.unsent} of the model's {tensors} tensors"
                self.take_note(f"{site}: its script sends {sent}; the others stay as it received them")
        faults = {site: reply.evaluation_fault for site, reply in answers.items() if reply.evaluation_fault}
        if self.round == 0 and faults and len(faults) == len(answers):
            found = "; ".join(f"{site}: {fault}" for site, fault in faults.items())
            raise RunFailed(f"round {self.round}: no site can evaluate a model ({found}); {MEND_EVALUATION}")
        for site, fault in faults.items():
            self.take_note(f"{site}: its script fails to evaluate, so the final test lacks it: {fault}")
        taken = {site: reply.metric for site, reply in answers.items() if reply.metric}
        if self.metric or self.config.script.metric != AUTO:
            self._note_silent(answers, self.metric or self.config.script.metric)
            return {}
        if len({*taken.values()}) > 1:
            found = ", ".join(f"{site}: {metric}" for site, metric in taken.items())
            raise RunFailed(f"round {self.round}: the sites' scripts measure different things ({found}); {NAME_ONE}")
        for self.metric in {*taken.values()}:
            self.take_note(f"scores are of {self.metric}, which the scripts report; no key_metric was named")
            self._note_silent(answers, self.metric)
            if (file := self.run / "run.json").exists():
                write_json(file, read_object(file) | {"metric": self.metric})
            return {"metric": self.metric}
        self.take_note(f"no scores: the scripts report no dice, no accuracy and no other one to take; {NAME_ONE}")
        return {}

    def _note_silent(self, answers: Mapping[str, Reply], metric: str) -> None:
        """Note which sites that trained sent no score, if the run has a metric."""
        silent = [site for site, reply in answers.items() if not reply.overlaps]
        if metric and len(silent) == len(answers):
            self.take_note(f"no scores in rounds: the scripts send no {metric} with what they trained, or NaN")
        elif metric and silent:
            self.take_note(f"{', '.join(silent)}: no score, as {metric} is not known or NaN")

    def _conclude(self, training: Exchange) -> Iterator[Exchange]:
        """Yield a round after training: replies, guard, method, models, record."""
        clock, models, number = Clock(), self.models, self.round
        replies = RoundReplies.collect(training, self.sites, self.submodels.take_cost())
        metric = self._take_metric(replies.replies)
        self.num_samples = replies.num_samples(self.sites) | self.num_samples
        self.best.consider(number, replies.replies, models)
        size = models.parameters.shape[-1]
        updates, reports = stack_replies(replies.replies, self.sites, size, self.method.asks, self.can)

        sent = reports
        began, received = models.digests(), models.parameters
        admission = self.run_guard.admit(
            updates, reports, replies.replies, models.buffers, self.mean_update, models=received
        )
        places = self.method.parts(self.state)
        parts = part_products(admission.updates, admission.reports, places) if len(places) else None
        admission = replace(admission, reports=replace(admission.reports, parts=parts))
        reports, replies = yield from self.evaluator.candidates(
            self.can.candidates, self.state, admission, replies, clock
        )

        made = self.method.round(self.state, admission.updates, reports)
        where = f"round {number}: {self.config.method}"
        self.state, given = require_outcome(made, self.method, admission.updates, where)
        with clock.paused():
            kept = yield from self._observe(given, admission, reports, updates)

        outcome = self.run_guard.divide_outcome(admission, given, received)
        outcome = models.keep_local_models(number, outcome, given.models.ndim == 1, updates)
        if outcome.models is not given.models:
            self.state = self.method.restart_from(self.state, outcome.models)

        models.advance(number, outcome, admission, replies.replies)
        admission = yield from self.evaluator.recalibrate(admission, clock)
        replies = yield from self.evaluator.leave_one_out(given, received, admission, replies, clock)
        if kept:
            keep_round(self.run, replace(kept, after=models.parameters), replies.rated)
        self.mean_update, evidence = measure_updates(
            admission.own, admission.own_products, outcome.weights, admission.answered, self.mean_update
        )

        seconds = {"server_seconds": torch.full_like(outcome.weights, clock.seconds)}
        outcome = replace(outcome, quantities={**outcome.quantities, **admission.quantities, **seconds, **evidence})
        inputs = RoundInputs(sent, size, parts, admission.measured, replies.ratings, self.submodels.take_importance())
        guard = self.run_guard.record(admission, sent.num_samples) | self.run_guard.enrolment_record(number)
        gone = self.gone - {site for site, reply in zip(self.sites, replies.replies, strict=True) if reply}
        further = {
            "guard": guard,
            "notes": self._notes,
            "joined": self.joined,
            "left": departures(self.recorder.rounds, gone) if gone else {},
            "ended": {} if models.parameters.ndim == 1 else dict(zip(self.sites, models.digests(), strict=True)),
        }
        more: dict[str, Any] = metric | {"inputs": inputs.to_record(self.sites)}
        more |= {name: value for name, value in further.items() if value}
        more |= self.closure.record() if number == self.config.rounds - 1 else {}
        self._notes, self.joined = [], []
        self.recorder.training_round(number, replies, began, models.ended(), outcome, more)
        self.round += 1

    def _observe(
        self, outcome: Outcome, admission: Admission, reports: Reports, updates: Tensor
    ) -> Generator[Exchange, None, KeptRound | None]:
        """Have sites evaluate the observers' models before the models take over the method's ``outcome``.

        Returns:
            What the run keeps of the round, so far, with the ``updates`` (n, d) as they came; None: nothing.
        """
        models, config = self.models, self.config
        if not (config.values or config.keep_updates):
            return None
        assert isinstance(models, ModelsInTheClear)
        began = observed_start(models.parameters, outcome, models.separate)
        seen = began, outcome.models, admission.updates, outcome.weights, reports
        view = RoundView(self.round, config.rounds, *seen, self.layout.tensor_sizes)
        first, counted = admission.reward_groups.first, admission.counted
        rated: dict[str, RatedModels] = {}
        for name, observation in self.observers.observe(view):
            answers, tasks = yield from self.evaluator.observation(observation.candidates, admission, outcome.weights)
            self.recorder.observed(self.round, name, expand_groups(observation.coalitions, first, counted), answers)
            rated[name] = RatedModels.of(tasks)
        if not config.keep_updates:
            return None
        statistics = admission.group_statistics, models.statistics
        return KeptRound(view, *statistics, first, counted, updates, models.parameters, outcome.models, rated)

    def _end(self) -> Iterator[Exchange]:
        """Test the final models, save them, close the records, and send the sites the closing record's head."""
        now = replace(self.now(), least=0)
        trained = {site for record in self.recorder.ledger.records for site in record["participants"]}

        def ask(tasks: Mapping[str, Evaluation]) -> Generator[Exchange, None, list[Evaluated | None]]:
            """Ask only sites with a part in the models."""
            return self.evaluator.by_sites({site: task for site, task in tasks.items() if site in trained})

        closing = yield from self.closure.exchanges(ask, now.ledger_head)
        for text in self._notes:  # no record comes after these
            log.warning("%s: %s", now.when, text)
        self.round += 1
        self._checkpoint()  # from here on nothing changes that a site may have countersigned
        self.best.forget()
        tasks = dict.fromkeys(self.sites, ClosingTask(now.round, closing.announcement, now.ledger_head))
        yield now.exchange(tasks, lambda site, answer: check_countersigned(answer, now.round), "countersignature")

    def _checkpoint(self) -> None:
        write_checkpoint(self.run, self._content())

    def _content(self) -> dict[str, Any]:
        content = {
            "sites": self.sites,
            "joined": self.joined,
            "round": self.round,
            "complete_rounds": min(self.round, self.config.rounds),
            "state": dict(vars(self.state)),
            "mean_update": self.mean_update,
            "num_samples": self.num_samples,
        }
        for part in self._parts:
            content |= part.content()
        return content

    def _resume(self, content: Mapping[str, Any] | None) -> None:
        """Continue from a checkpoint; records after it are of an incomplete round and are deleted."""
        if content is None:
            self.recorder.rewind(0, 0, 0)
            return
        if set(content["state"]) != set(vars(self.state)):
            raise BadInput(
                f"{self.run}: was begun by another version of FedMerit, whose {self.config.method} has another state; "
                "finish it with that version, or start another run"
            )
        if set(self.sites) > set(content["sites"]):
            state = type(self.state)(**content["state"])
            content = join_sites(content, self._content(), self.method, state, self.layout)
        self.round, self.mean_update, self.num_samples, self.joined = (
            content[name] for name in ("round", "mean_update", "num_samples", "joined")
        )
        self.state = type(self.state)(**content["state"])
        for part in self._parts:
            part.restore(content)
        for record in self.recorder.ledger.records:
            self.metric = self.metric or record.get("metric", "")
            self.on_round(record)

    @property
    def _parts(self) -> tuple[Any, ...]:
        """The parts of the run's state, each with ``content`` and ``restore``."""
        return self.models, self.submodels, self.best, self.run_guard, self.observers, self.recorder


def build_models(
    config: RunConfiguration,
    can: Capabilities,
    network: nn.Module,
    sites: Sequence[str],
    context: bytes | None,
    submodels: Submodels | None = None,
) -> Models:
    """Return the kind of models that a run needs; ``context`` is TenSEAL's, for encrypted runs."""
    if context is not None:
        from fedmerit.server.encryption import EncryptedModels  # most runs have no ciphertexts

        return EncryptedModels(config, network, sites, context)
    if can.exchanges_directly:
        return ModelsAtSites(config, network, sites)
    return ModelsInTheClear(config, network, sites, can, submodels)
