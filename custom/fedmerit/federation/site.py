"""One site's round, wherever it runs: receive, report, train, reply."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from fedmerit import flat
from fedmerit.capabilities import capabilities
from fedmerit.configuration.run import RunConfiguration
from fedmerit.errors import BadInput, MemoryLost, Refused, printable
from fedmerit.federation.enrolment import make_enrolment
from fedmerit.federation.final_model_selection import FinalModelSelector, Model
from fedmerit.federation.local_round import Learned, LocalRound, Memory, MemoryFolder
from fedmerit.federation.model_evaluation import Evaluations, estimates_statistics, evaluate_models, measure_importance
from fedmerit.federation.requirements import require_compatible_images
from fedmerit.federation.site_log import SiteLog
from fedmerit.federation.site_models import AskPeer, EncryptedModelsFromServer, ModelsFromServer, ModelsOfSites
from fedmerit.federation.step_products import measure_step
from fedmerit.flat import Buffers
from fedmerit.games import MOST_COALITION_SITES
from fedmerit.machine import give_back_memory
from fedmerit.records.ciphertexts import Ciphertexts, SiteKey
from fedmerit.records.signatures import Signer
from fedmerit.trainers.monai_trainer.batch_norm import estimate_statistics
from fedmerit.trainers.monai_trainer.data import SERVER_SPLIT, Case, Samples, SiteFolder
from fedmerit.trainers.monai_trainer.machine_settings import pick_device
from fedmerit.trainers.monai_trainer.networks import working_network
from fedmerit.trainers.monai_trainer.overlaps import Overlap, mean_dice
from fedmerit.trainers.monai_trainer.patches import build_samples
from fedmerit.trainers.monai_trainer.prediction import evaluate
from fedmerit.trainers.monai_trainer.saved_networks import save_network
from fedmerit.wire import messages
from fedmerit.wire.evaluation_budget import question_digest, require_round_order, require_within_budget

log = logging.getLogger(__name__)


class Site:
    """A prepared folder, a run configuration and a device.

    Args:
        folder: the site's images.
        config: the run.
        memory: a folder of its own, in which the site keeps its memory between rounds.
        device: "cpu", "cuda", "cuda:1", or "auto": the first GPU, if there is one.
        ask_peer: gets another site's model, for methods whose models stay at the sites.
        key: encrypts its updates and decrypts models; None: both are in the clear.
        participants: names of the sites of the run, the only ones that get its model; (): not known here.
        signer: of its log; None: it is not signed.
        certificate: PEM, of the site; "": it has none.
        caps: by split, the most models that the site's operator lets it evaluate in a round; for others no cap.

    Raises:
        BadInput: the images do not fit the run's network, or the device is not there.
    """

    def __init__(
        self,
        folder: SiteFolder,
        config: RunConfiguration,
        memory: Path,
        device: str = "auto",
        ask_peer: AskPeer = lambda peer, round: None,
        key: SiteKey | None = None,
        participants: Sequence[str] = (),
        signer: Signer | None = None,
        certificate: str = "",
        caps: Mapping[str, int] | None = None,
    ):
        require_compatible_images(config, folder)
        self.folder, self.config, self.name, self.certificate = folder, config, folder.name, certificate
        self.device = pick_device(device, folder.name)
        self.method = config.build_guarded_method()
        self.can = capabilities(self.method)
        self.memory = MemoryFolder(memory)
        self.log = SiteLog(memory, folder.name, signer, config.digest)
        # what only the site can know; of a simulated one, whose images lie beside the run, what it was prepared from
        self._secret = signer.sign(f"secret {config.digest}") if signer else folder.digest
        self.training_seed_site = folder.name  # the site name that seeds the training
        self.participants, self.caps = participants, dict(caps or {})
        self._evaluations = Evaluations(config)
        self.models = self._models(ask_peer, key)
        selects = config.training.final_model == "selected"
        self._final_selector = FinalModelSelector(config, folder, memory, lambda: self.network) if selects else None

    def _models(self, ask_peer: AskPeer, key: SiteKey | None) -> ModelsFromServer:
        if key:
            return EncryptedModelsFromServer(self.memory, self.config, self.name, key)
        if self.can.peers and self.can.exchanges_directly:
            return ModelsOfSites(self.memory, self.config, self.name, self.can.peers, ask_peer, self.log)
        return ModelsFromServer(self.memory)

    @property
    def network(self) -> torch.nn.Module:
        """The network that it works with; every use loads its model first."""
        return working_network(self.config.network, self.device)

    @cached_property
    def samples(self) -> Samples:
        """Training images."""
        return build_samples(self.folder.cases("training"), self.config.network.patch)

    @property
    def num_samples(self) -> int:
        """Number of training images that it reports."""
        return len(self.samples)

    def answer(self, task: messages.Work) -> messages.Answer:
        """Do what the server asks for; a `Failure` if the site refuses, or has lost what it needs for it."""
        if isinstance(task, messages.EnrolmentTask):
            return messages.round_answer(self.enrol(task))
        if isinstance(task, messages.ClosingTask):
            self.log.closed(task)
            return messages.ClosingReceipt(task.round)
        try:
            if isinstance(task, messages.ImportanceTask):
                return messages.round_answer(self.measure_importance(task))
            answer = self.train(task) if isinstance(task, messages.Task) else self.evaluate(task)
            return messages.round_answer(answer)
        except MemoryLost as error:
            return messages.Failure(str(error))
        except Refused as error:
            log.warning("round %d: the server %s", task.round, error)
            self.log.refused(task, str(error))
            return messages.Failure(error.reason)

    def enrol(self, task: messages.EnrolmentTask) -> messages.Enrolment:
        """Commit to the cases and images in the site's folder."""
        counts = task.round, self.num_samples, self.certificate
        enrolment = make_enrolment(self.folder, self.config, *counts, self._secret)
        self.log.enrolled(task, enrolment)
        return enrolment

    def train(self, task: messages.Task) -> messages.Reply:
        """Validate the received model, report what the method asks for, train for a round, remember it."""
        started = time.perf_counter()
        received = self.models.receive(task)
        task, model, memory = received.task, received.model, received.memory
        question = self._allowed(task, self.models.seen(received))
        overlaps = self._validate(model, task.buffers)
        values = self._local_round(task).report(model, memory, mean_dice(overlaps))
        learned = self.learn(task, model, memory)
        give_back_memory()  # of training: other sites of this process may be at work while this one writes
        after = self._validate(learned.trained, learned.buffers) if self.config.training.validate_trained else ()
        self._remember(task.round, model, learned, memory)
        leaving = self.models.outgoing(learned)
        leaves = leaving.ciphertexts or leaving.update
        pairs = {name: messages.rounded(of_peers) for name, of_peers in learned.pairs.items()}
        step = self._step(task.round, model, leaving.update)
        evidence = {"values": messages.rounded(values), "pairs": pairs, "step": step}
        seen = self.models.seen(received)
        said = self.log.trained(task, seen, leaves, question, overlaps, self.num_samples, evidence)
        return messages.Reply(
            round=task.round,
            update=leaving.update,
            buffers=leaving.buffers,
            num_samples=self.num_samples,
            overlaps=overlaps,
            trained_overlaps=after,
            values=values,
            train_loss=learned.loss,
            seconds=time.perf_counter() - started,
            pairs=learned.pairs,
            vectors=learned.vectors,
            ciphertexts=leaving.ciphertexts,
            log=said,
        )

    def learn(self, task: messages.Task, received: Tensor, memory: Memory | None) -> Learned:
        """Train from ``received`` (d,) for a round; ``memory`` is that of the round before, None if it was away."""
        if self.can.local_training:  # what the site keeps for itself outlasts rounds without it
            memory = self.memory.latest(task.round)
        return self._local_round(task).learn(received, memory)

    def _local_round(self, task: messages.Task) -> LocalRound:
        run = self.config, self.method, self.can
        machine = self.network, self.samples, self.device
        return LocalRound(*run, *machine, self.training_seed_site, self._validation_dice, task)

    def _remember(self, round: int, received: Tensor, learned: Learned, memory: Memory | None) -> None:
        weights = {**(memory.weights if memory else {}), **learned.weights}
        is_view = received.untyped_storage().nbytes() > received.nbytes
        whole = received.clone() if is_view else received  # a view would save all it views
        remembered = Memory(whole, learned.trained, learned.buffers, weights, learned.kept, learned.own)
        self.memory.remember(round, remembered)

    def sent(self, task: messages.Task, update: Tensor) -> None:
        """Remember ``update`` (d,) as what this site trained for ``task``, after a privacy filter changed it.

        The next model holds what was sent, so the site computes its own share of it from that.
        """
        memory = self.memory.read(task.round)
        if memory is not None:
            self.memory.remember(task.round, replace(memory, trained=memory.received + update))
            evidence = {"step": self._step(task.round, memory.received, update)}
            self.log.trained(task, memory.received, update, evidence=evidence)

    def _step(self, round: int, model: Tensor, update: Tensor | None = None) -> dict[str, float]:
        """`measure_step` of the model (d,) and ``update`` (d,) of a round, if they leave the site."""
        seen = len(model) and (update is None or len(update))
        return measure_step(model, self.memory.read(round - 1), update) if seen else {}

    def _allowed(self, task: messages.WithModels, models: Tensor | Ciphertexts) -> str:
        """A digest of what ``task`` asks; `Refused` if the run needs no answer, or not now."""
        question = question_digest(task, models)
        sites = len(self.participants) or MOST_COALITION_SITES
        require_within_budget(task, question, self.config, sites, self.log.asked(task.round), self.caps)
        require_round_order(task, self.config.rounds, self.log.latest, self.log.trained_in)
        return question

    def give_model(self, receiver: str, round: int) -> messages.PeerModel | None:
        """This site's model for a peer of the run to learn from in a round; None: it shares none."""
        if receiver not in self.participants:
            log.warning(
                "round %d: %.80s asked for the model and is none of the run's sites", round, printable(receiver)
            )
            return None
        return self.models.give(receiver, round)

    def evaluate(self, task: messages.Evaluation) -> messages.Evaluated:
        """Dice, and losses if asked for, of some models on one split; `Refused` beyond what the run needs."""
        models = task.ciphertexts or task.models
        question = self._allowed(task, models)
        answer = self._evaluate_models(task)
        final = task.purpose is messages.Purpose.FINAL and len(task.models) == 1
        step = self._step(task.round, task.models[0]) if final else {}
        return replace(answer, log=self.log.evaluated(task, models, question, answer, step))

    def _evaluate_models(self, task: messages.Evaluation) -> messages.Evaluated:
        if task.purpose is messages.Purpose.ESTIMATE:
            return self._estimate(task)
        final = self.models.final(task)
        if task.purpose is messages.Purpose.FINISH:
            return self._select_final_model(task, final[1:] if final else (task.models[0], task.buffers[0]))
        if final:  # save it among the run's models
            name, model, buffers = final
            flat.load(self.network, model, buffers)
            self._save("", name or self.name)
            task = replace(task, models=model[None], buffers=(buffers,))
        estimates = task.purpose is messages.Purpose.ROUND and estimates_statistics(self.config.training)
        own_images, cases = self.samples if estimates else None, self._cases(task.split)
        return evaluate_models(self.network, cases, task, self.config, own_images, self._evaluations)

    def _estimate(self, task: messages.Evaluation) -> messages.Evaluated:
        """Estimate BatchNorm statistics of one model."""
        started = time.perf_counter()
        flat.load(self.network, task.models[0], task.buffers[0])
        estimate_statistics(self.network, self.samples)
        took = time.perf_counter() - started
        return messages.Evaluated(task.round, (), torch.zeros(0, 0), took, buffers=flat.get_buffers(self.network))

    def _select_final_model(self, task: messages.Evaluation, given: Model) -> messages.Evaluated:
        """Evaluate the candidates for the site's final model on one split, and save the chosen one."""
        started = time.perf_counter()
        assert self._final_selector
        selected = self._final_selector.select(given)
        overlaps, cases, labels = [], self._cases(task.split), self.config.network.labels
        for model in selected.models:
            flat.load(self.network, *model)
            overlaps.append(tuple(evaluate(self.network, cases, labels, self.config.training.amp, final=True)))
        self._save("selected", self.name)
        took = time.perf_counter() - started
        return messages.Evaluated(task.round, tuple(overlaps), torch.zeros(task.count, 0), took, selected.choice)

    def _save(self, below: str, name: str) -> None:
        """Save the network among the run's models."""
        folder = self.memory.path.parents[1] / "models" / below
        save_network(folder, name, self.network, self.config.network, self.config.preprocessing)

    def measure_importance(self, task: messages.ImportanceTask) -> messages.Importance:
        """How much the loss on one split rises without each neuron of a model."""
        question = self._allowed(task, task.model)
        importance = measure_importance(self.network, self._cases(task.split), task)
        self.log.measured(task, question)
        return importance

    def _cases(self, split: str) -> tuple[Case, ...]:
        """The cases of a split; `BadInput` if there are none."""
        cases = self.folder.cases(split)
        if not cases:
            way_out = (
                "prepare with --server-share, or give the server a folder of its own with --server-sites"
                if split == SERVER_SPLIT
                else "prepare the site again"
            )
            raise BadInput(f"site {self.folder.name}: its {split} split is empty; {way_out}")
        return cases

    def _validate(self, parameters: Tensor, buffers: Buffers) -> tuple[Overlap, ...]:
        """Evaluate a model (d,) on the validation split."""
        cases = self.folder.cases("validation")
        return self._evaluations.evaluate(self.network, parameters, buffers, cases).overlaps

    def _validation_dice(self, network: torch.nn.Module) -> float:
        """Mean Dice of the network on the validation split."""
        return mean_dice(self._evaluations.evaluate_now(network, self.folder.cases("validation")).overlaps)
