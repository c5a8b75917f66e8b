"""One site's round, wherever it runs: receive, report, train, reply."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from fedmerit.ciphertexts import Ciphertexts, SiteKey
from fedmerit.contract.capabilities import capabilities
from fedmerit.contract.games import MOST_COALITION_SITES
from fedmerit.contract.method import DECIMALS
from fedmerit.errors import MemoryLost, Refused, printable
from fedmerit.evidence.digests import digest
from fedmerit.evidence.ledger import split_head
from fedmerit.evidence.signatures import Signer
from fedmerit.schema import messages
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.messages import rounded
from fedmerit.schema.site_folder import SiteFolder
from fedmerit.seeds import random_seed
from fedmerit.site.encryption import EncryptedModelsFromServer
from fedmerit.site.enrolment import keep_opening, make_enrolment
from fedmerit.site.evaluation_budget import question_digest, require_round_order, require_within_budget
from fedmerit.site.models import ModelsFromServer
from fedmerit.site.peers import AskPeer, ModelsOfSites
from fedmerit.site.site_log import SiteLog
from fedmerit.site.step_evidence import list_old_parts, measure_step, measure_work, project_step
from fedmerit.trainers.factory import build_trainer
from fedmerit.trainers.memory import Learned, Memory, MemoryFolder, keep_answer, recall_answer, unfiltered_update
from fedmerit.trainers.privacy_budget import Mechanism, spent_epsilon
from fedmerit.trainers.trainer import Trainer
from fedmerit.trainers.training_checkpoint import remove_checkpoints

log = logging.getLogger(__name__)

DPSGD = "DPSGD"  # declared like a privacy filter: noise hides whether a site works


class Site:
    """A trainer, a run configuration and a memory.

    Args:
        memory: a folder of its own, in which the site keeps its memory between rounds.
        ask_peer: gets another site's model, for methods whose models stay at the sites.
        key: encrypts its updates and decrypts models; None: both are in the clear.
        participants: names of the sites of the run, the only ones that get its model; (): not known here.
        signer: of its log; None: it is not signed.
        certificate: PEM, of the site; "": it has none.
        caps: by split, the most models that the site's operator lets it evaluate in a round; for others no cap.
        filters: classes of the privacy filters that change its updates on their way; it declares them as it enrols.
        decimals: of the numbers that the site's egress filter lets pass: its log has them so.
        note_training: called with the round and the SHA-256 of the received model before a training; raises if the
            site's operator does not want it.
    """

    def __init__(
        self,
        trainer: Trainer,
        config: RunConfiguration,
        memory: Path,
        ask_peer: AskPeer = lambda peer, round: None,
        key: SiteKey | None = None,
        participants: Sequence[str] = (),
        signer: Signer | None = None,
        certificate: str = "",
        caps: Mapping[str, int] | None = None,
        filters: Sequence[str] = (),
        note_training: Callable[[int, str], None] = lambda round, received: None,
        decimals: int = DECIMALS,
    ):
        self.trainer, self.config, self.name, self.certificate = trainer, config, trainer.name, certificate
        method = config.build_guarded_method()
        self.can, self._sketch_seed = capabilities(method), random_seed(config.seed, "guard")
        self._is_judged = config.is_guarded(method) and method.sums_updates and not key
        self.memory = MemoryFolder(memory)
        self.log = SiteLog(memory, trainer.name, signer, config.digest)
        self._secret = signer.sign(f"secret {config.digest}") if signer else ""  # what only the site can know
        self.participants, self.caps, self.filters = participants, dict(caps or {}), tuple(filters)
        self._note_training, self._rounded = note_training, partial(rounded, decimals=decimals)
        self.models = self._models(ask_peer, key)

    def _models(self, ask_peer: AskPeer, key: SiteKey | None) -> ModelsFromServer:
        if key:
            return EncryptedModelsFromServer(self.memory, self.config, self.name, key)
        if self.can.peers and self.can.exchanges_directly:
            return ModelsOfSites(self.memory, self.config, self.name, self.can.peers, ask_peer, self.log)
        return ModelsFromServer(self.memory)

    def answer(self, task: messages.Work) -> messages.Answer:
        """Do what the server asks for; return a failure if the site refuses, or has lost what it needs for it."""
        if isinstance(task, messages.EnrolmentTask):
            return self._rounded(self.enrol(task))
        if isinstance(task, messages.ClosingTask):
            self.log.closed(task)
            return messages.ClosingReceipt(task.round)
        try:
            if isinstance(task, messages.ImportanceTask):
                return self._rounded(self.measure_importance(task))
            answer = self.train(task) if isinstance(task, messages.Task) else self.evaluate(task)
            return self._rounded(answer)
        except MemoryLost as error:
            return messages.Failure(str(error))
        except Refused as error:
            log.warning("round %d: the server %s", task.round, error)
            self.log.refused(task, str(error))
            return messages.Failure(error.reason)

    def enrol(self, task: messages.EnrolmentTask) -> messages.Enrolment:
        """Commit to what the site holds."""
        started, holdings = time.perf_counter(), self.trainer.holdings(task.round)
        secret = self._secret or holdings.secret
        filters = (*self.filters, DPSGD) if self.config.privacy else self.filters
        enrolment = make_enrolment(holdings, self.config, task.round, self.certificate, secret, filters)
        enrolment = replace(enrolment, seconds=time.perf_counter() - started)
        if self._secret:
            keep_opening(self.memory.path, enrolment)
        self.log.enrolled(task, enrolment, holdings.samples)
        return enrolment

    def train(self, task: messages.Task) -> messages.Reply:
        """Train from the received model for a round, and remember it."""
        started = time.perf_counter()
        received = self.models.receive(task)
        task, model, memory = received.task, received.model, received.memory
        question = self._allowed(task, self.models.seen(received))
        done = self.memory.read(task.round)
        if known := recall_answer(done, model, question):
            trained, before = known
            started -= before
        else:
            self._note_training(task.round, digest(model))
            trained = self.trainer.train(task, model, memory, question)
            answer = keep_answer(trained, model, question, time.perf_counter() - started)
            done = self._remember(task.round, model, trained.learned, memory, answer)
            remove_checkpoints(self.memory.path)
        learned = trained.learned
        leaving = self.models.outgoing(learned)
        leaves = leaving.ciphertexts or leaving.update
        pairs = {name: self._rounded(of_peers) for name, of_peers in learned.pairs.items()}
        step = self._step(model, memory, done.old if done else None, leaving.update)
        evidence: dict[str, Any] = {"values": self._rounded(trained.values), "pairs": pairs, "step": step}
        evidence["projections"] = self._projections(task, model, memory) if step else []
        evidence["commitment"] = dict(learned.commitment)
        evidence["privacy"] = privacy = self._spent(task.round, learned.mechanism)
        seen, images = self.models.seen(received), trained.num_samples
        overlaps = self._rounded(trained.overlaps)
        said = self.log.trained(task, seen, leaves, question, overlaps, images, evidence)
        return messages.Reply(
            round=task.round,
            update=leaving.update,
            buffers=leaving.buffers,
            num_samples=images,
            overlaps=trained.overlaps,
            trained_overlaps=trained.trained_overlaps,
            values=trained.values,
            train_loss=learned.loss,
            seconds=time.perf_counter() - started,
            pairs=learned.pairs,
            vectors=learned.vectors,
            ciphertexts=leaving.ciphertexts,
            log=said,
            metric=trained.metric,
            restarts=trained.restarts,
            unsent=trained.unsent,
            evaluation_fault=trained.evaluation_fault,
            epsilon=privacy.get("epsilon"),
        )

    def _spent(self, round: int, mechanism: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the log has of the privacy after a round; all rounds had this ``mechanism``, {}: none."""
        if not mechanism:
            return {}
        rounds, delta = len({*self.log.trained_in, round}), self.config.privacy.dp_delta
        spent = spent_epsilon([Mechanism(**mechanism)] * rounds, delta)
        return {**mechanism, "delta": delta, "epsilon": min(self._rounded(spent), messages.LARGEST)}

    def _remember(
        self, round: int, received: Tensor, learned: Learned, memory: Memory | None, answer: Mapping[str, Any]
    ) -> Memory:
        weights = {**(memory.weights if memory else {}), **learned.weights}
        is_view = received.untyped_storage().nbytes() > received.nbytes
        whole = received.clone() if is_view else received  # a view would save all it views
        old = None
        if self._is_judged:
            old = list_old_parts(whole, memory or self.memory.latest(round), self._sketch_seed)
        remembered = Memory(whole, learned.trained, learned.buffers, weights, learned.kept, learned.own, old, answer)
        self.memory.remember(round, remembered)
        return remembered

    def sent(self, task: messages.Task, update: Tensor) -> None:
        """Remember ``update`` (d,) as what this site trained for ``task``, after a privacy filter changed it.

        The next model holds what was sent, so the site computes its own share of it from that.
        """
        memory = self.memory.read(task.round)
        if memory is not None:
            answer = memory.answer and {**memory.answer, "update": unfiltered_update(memory)}
            self.memory.remember(task.round, replace(memory, trained=memory.received + update, answer=answer))
            before = self.memory.read(task.round - 1)
            evidence = {"step": self._step(memory.received, before, memory.old, update)}
            self.log.trained(task, memory.received, update, evidence=evidence)

    def _step(
        self, model: Tensor, before: Memory | None, old: Tensor | None = None, update: Tensor | None = None
    ) -> dict[str, float]:
        """Return what the log has of the model (d,) and ``update`` (d,) of a round, if they leave the site.

        ``before``: of the round before; ``old``: `list_old_parts` of both, None: not made yet.
        """
        if not len(model) or (update is not None and not len(update)):
            return {}
        old = list_old_parts(model, before, self._sketch_seed) if old is None else old
        return measure_step(model, before, update) | measure_work(old, before)

    @staticmethod
    def _projections(task: messages.WithModels, model: Tensor, before: Memory | None) -> list[list[float]]:
        return project_step(model, before, split_head(task.ledger)[0])

    def _allowed(self, task: messages.WithModels, models: Tensor | Ciphertexts) -> str:
        """Return a digest of what ``task`` asks; `Refused` if the run needs no answer, or not now."""
        question = question_digest(task, models)
        sites = len(self.participants) or MOST_COALITION_SITES
        require_within_budget(task, question, self.config, sites, self.log.asked(task.round), self.caps)
        require_round_order(task, self.config.rounds, self.log.latest, self.log.trained_in)
        return question

    def give_model(self, receiver: str, round: int) -> messages.PeerModel | None:
        """Return this site's model for a peer of the run to learn from in a round; None: it shares none."""
        if receiver not in self.participants:
            log.warning(
                "round %d: %.80s asked for the model and is none of the run's sites", round, printable(receiver)
            )
            return None
        return self.models.give(receiver, round)

    def evaluate(self, task: messages.Evaluation) -> messages.Evaluated:
        """Return dice, and losses if asked for, of some models on one split; `Refused` beyond what the run needs."""
        models = task.ciphertexts or task.models
        question = self._allowed(task, models)
        answer = self._rounded(self._evaluate_models(task))
        final = task.purpose is messages.Purpose.FINAL and len(task.models) == 1
        before = self.memory.read(task.round - 1) if final else None
        step = self._step(task.models[0], before) if final else {}
        evidence = {"step": step, "projections": self._projections(task, task.models[0], before) if step else []}
        return replace(answer, log=self.log.evaluated(task, models, question, answer, evidence))

    def _evaluate_models(self, task: messages.Evaluation) -> messages.Evaluated:
        if task.purpose is messages.Purpose.ESTIMATE:
            return self.trainer.estimate(task)
        final, saved = self.models.final(task), self.memory.path.parents[1] / "models"
        if task.purpose is messages.Purpose.FINISH:
            given = final[1:] if final else (task.models[0], task.buffers[0])
            return self.trainer.finish(task, given, saved / "selected")
        if final:  # save it among the run's models
            name, model, buffers = final
            self.trainer.save(saved, name or self.name, (model, buffers))
            task = replace(task, models=model[None], buffers=(buffers,))
        return self.trainer.evaluate(task)

    def measure_importance(self, task: messages.ImportanceTask) -> messages.Importance:
        """Return how much the loss on one split rises without each neuron of a model."""
        question = self._allowed(task, task.model)
        importance = self.trainer.measure_importance(task)
        self.log.measured(task, question)
        return importance


def image_site(folder: SiteFolder, config: RunConfiguration, memory: Path, device: str = "auto", **more: Any) -> Site:
    """Return the site of a prepared folder; ``more`` are further arguments of `Site`."""
    return Site(build_trainer(config, folder, memory, device), config, memory, **more)
