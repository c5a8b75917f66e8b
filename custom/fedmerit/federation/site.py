"""One site's round, wherever it runs: receive, report, train, reply; and its memory and log on disk.

The memory of round t is one file, written when the round is done and kept until round t+1 is. A process that
is killed, swapped out or replaced loses nothing, and a round can be repeated.
"""

import logging
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from fedmerit import flat
from fedmerit.configuration.run import RunConfiguration
from fedmerit.core import Lesson, OwnPart, PeerView, SiteView
from fedmerit.errors import BadInput, MemoryLost
from fedmerit.federation.evaluating import evaluate_models, require_fit, weigh_neurons
from fedmerit.federation.peers import UNREACHABLE, AskPeer, ModelExchange, gives
from fedmerit.federation.site_log import SiteLog, digest_of_peer
from fedmerit.files import write_atomically
from fedmerit.flat import Buffers
from fedmerit.records.ciphertexts import Sealed, SiteKey
from fedmerit.seeds import random_seed
from fedmerit.training.data import SERVER_SPLIT, Case, SiteFolder, Slices
from fedmerit.training.learning import build_loss, fixed_batches, train
from fedmerit.training.networks import build_network, initial_network, save_network
from fedmerit.training.neurons import held_parameters
from fedmerit.training.overlaps import Overlap, mean_dice
from fedmerit.training.place import pick_device
from fedmerit.training.prediction import evaluate, image_losses
from fedmerit.wire.egress_list import require_model
from fedmerit.wire.inspection import fault_of_model
from fedmerit.wire.messages import (
    LOST_MEMORY,
    Answer,
    Evaluated,
    Evaluation,
    Failure,
    Patch,
    PeerModel,
    Reply,
    Task,
    Weighed,
    Weighing,
    Work,
    rounded,
)

log = logging.getLogger(__name__)

OTHER_KEY = "do all sites have kits of the same `fedmerit deploy init --he`?"


@dataclass(frozen=True)
class Learned:
    """What a round's training gave."""

    update: Tensor  # (d,) trained minus received
    trained: Tensor  # (d,)
    buffers: Buffers  # after training
    loss: float  # mean of the batches
    pairs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # what it found of its peers
    weights: Mapping[str, float] = field(default_factory=dict)  # that it gives them from now on


@dataclass(frozen=True)
class Memory:
    """What a site remembers of a round."""

    received: Tensor  # (d,)
    trained: Tensor  # (d,)
    buffers: Buffers  # after training
    weights: Mapping[str, float] = field(default_factory=dict)  # that it gives its peers

    @property
    def model(self) -> Tensor:
        """(d,) what came of the round: received plus update, rounded as where the update travels."""
        return self.received + (self.trained - self.received)


class Site:
    """A prepared folder, a configuration and a device.

    Args:
        folder: the site's images.
        configuration: the run.
        memory: folder of its own in which the site keeps its memory between rounds.
        device: "cpu", "cuda", "cuda:1", or "auto": the first GPU where there is one.
        ask_peer: how to get another site's model, of methods whose models stay at the sites.
        key: with which its updates leave encrypted, and models come; None: both are in the clear.

    Raises:
        BadInput: the images do not fit the plan's network, or the device is not there.
    """

    def __init__(
        self,
        folder: SiteFolder,
        config: RunConfiguration,
        memory: Path,
        device: str = "auto",
        ask_peer: AskPeer = lambda peer, round: None,
        key: SiteKey | None = None,
    ):
        require_fit(config, folder)
        self.ask_peer, self.key = ask_peer, key
        self.folder, self.config, self.memory = folder, config, memory
        self.device = pick_device(device, folder.name)
        self.method = config.build_method()
        self.name = folder.name
        if self.method.models_stay or key:  # made here: it borrows the global random state, and sites work in threads
            self._initial = initial_network(config.network, config.seed)
            self._start: tuple[Tensor, Buffers] = (flat.get_parameters(self._initial), flat.get_buffers(self._initial))

    @cached_property
    def _network(self) -> torch.nn.Module:
        return build_network(self.config.network, self.device)

    @cached_property
    def _log(self) -> SiteLog:
        return SiteLog(self.memory, self.name)

    @cached_property
    def _slices(self) -> Slices:
        return Slices(self.folder.cases("training"))

    def answer(self, task: Work) -> Answer:
        """Whatever the server asks for; a `Failure` where the site has lost what it needs for it."""
        try:
            if isinstance(task, Weighing):
                return rounded(self.weigh(task))
            return rounded(self.train(task) if isinstance(task, Task) else self.evaluate(task))
        except MemoryLost as error:
            return Failure(str(error))

    def train(self, task: Task) -> Reply:
        """Validate the received model, report what the method asks for, train for a round, remember it."""
        started = time.perf_counter()
        stays = self.method.models_stay
        if stays:
            task = self._completed(task)
        elif self.key:
            model, buffers = self._opened(task.sealed)
            task = replace(task, parameters=model, buffers=buffers)
        memory = self._latest(task.round) if stays else self._recall(task.round - 1)
        received = self._received(task, memory)
        overlaps = self._validate(received, task.buffers)
        values = self._report(task, received, memory)
        learned = self.learn(task, received, memory)
        after = self._validate(learned.trained, learned.buffers) if self.config.training.validate_trained else ()
        weights = {**(memory.weights if memory else {}), **learned.weights}
        whole = received.clone()  # a view would save all it views
        remembered = Memory(whole, learned.trained, learned.buffers, weights)
        self._remember(task.round, remembered)
        nothing = torch.empty(0)  # where the model stays: neither does it come with the task, nor does an update leave
        hidden = stays or self.key is not None
        update = nothing if hidden else learned.update
        sealed = self.key.seal(learned.update, learned.buffers) if self.key else None
        self._log.trained(task, task.sealed or (nothing if hidden else received), sealed or update)
        return Reply(
            round=task.round,
            update=update,
            buffers={} if hidden else learned.buffers,
            num_samples=len(self._slices),
            overlaps=overlaps,
            trained_overlaps=after,
            values=values,
            train_loss=learned.loss,
            seconds=time.perf_counter() - started,
            pairs=learned.pairs,
            sealed=sealed,
        )

    def learn(self, task: Task, received: Tensor, memory: Memory | None) -> Learned:
        """Train from ``received`` (d,) for a round; ``memory`` is that of the round before."""
        flat.load(self._network, received, task.buffers)
        seed = random_seed(self.config.seed, self.folder.name, task.round)
        held = None if task.neurons is None else held_parameters(self._network, task.neurons)
        if task.peers:
            exchange = ModelExchange(task.peers, self._network, self.config.network)
            lesson = self._lesson(task, exchange)
            loss = train(self._network, self._slices, self.config.training, seed, held, lesson.loss)
            for peer, fault in exchange.faults.items():
                log.warning("round %d: %s is not available: %s", task.round, peer, fault)
            available = {peer: float(peer not in exchange.faults) for peer in task.peers}
            pairs, weights = {**lesson.values, "available": available}, lesson.weights
        else:
            loss, pairs, weights = train(self._network, self._slices, self.config.training, seed, held), {}, {}
        trained = flat.get_parameters(self._network)
        return Learned(trained - received, trained, flat.get_buffers(self._network), loss, pairs, weights)

    def _lesson(self, task: Task, exchange: ModelExchange) -> Lesson:
        """What the method takes from the peers, with the network as it was received."""

        def batches(count: int) -> Iterator[tuple[Tensor, Tensor]]:
            return fixed_batches(self._slices, count, self.config.training.batch_size, self.device)

        weights = {peer: model.weight for peer, model in task.peers.items() if peer not in exchange.faults}
        loss = build_loss(self.config.training.loss)
        view = PeerView(task.round, weights, exchange.predict, self._network.eval(), batches, loss)
        return self.method.learn_from(view)

    def sent(self, task: Task, update: Tensor) -> None:
        """Remember ``update`` (d,) as what this site trained for ``task``: a privacy filter changed it on its way out.

        What the others hold of the site is what was sent; its share of the next model is told from that.
        """
        memory = self._recall(task.round)
        if memory is not None:
            self._remember(task.round, replace(memory, trained=memory.received + update))
            self._log.trained(task, memory.received, update)

    def lend(self, receiver: str, round: int) -> PeerModel | None:
        """This site's model for a peer to learn from in a round, where it shares it; by its own memory alone.

        It is logged as lent.

        Raises:
            Withheld: the model is not as `fedmerit.wire.egress_list` lists it, and must not leave.
        """
        memory = self._recall(round - 1)
        if memory is None and round:
            return None
        held = torch.tensor(memory.weights.get(receiver, math.nan) if memory else math.nan, dtype=torch.float64)
        if not gives(float(self.method.probability(held, round)), self.config.seed, self.folder.name, receiver, round):
            return None
        model = PeerModel(*self._own_model(round), math.nan)
        tables = flat.named(self._initial, model.parameters), model.buffers
        require_model(*({name: tensor.numpy() for name, tensor in table.items()} for table in tables))
        self._log.lent(round, receiver, digest_of_peer(model))
        return model

    def _completed(self, task: Task) -> Task:
        """A task with the models that are not the server's: the site's own, and those its peers share with it."""
        memory = self._latest(task.round)
        peers = {}
        for peer, told in task.others.items():
            shared = self._borrow(task, peer)
            if shared is not None:
                peers[peer] = replace(shared, weight=memory.weights.get(peer, told) if memory else told)
        model, buffers = self._own_model(task.round)
        return replace(task, parameters=model, buffers=buffers, peers=peers)

    def _borrow(self, task: Task, peer: str) -> PeerModel | None:
        """The model of a peer, `UNREACHABLE` where it does not answer; either is logged. None: it shares none."""
        digest = None
        try:
            model = self.ask_peer(peer, task.round)
            if model is None:
                return None
            digest = digest_of_peer(model)
        except Exception as error:  # whatever happens at a peer or on the way there; its text may name files
            log.warning("round %d: %s cannot be asked for its model: %s", task.round, peer, type(error).__name__)
            model = UNREACHABLE
        self._log.borrowed(task, peer, digest)
        return model

    def _own_model(self, round: int) -> tuple[Tensor, Buffers]:
        """What the site starts a round from where its model stays with it, and the statistics: (d,)."""
        memory = self._latest(round)
        return self._start if memory is None else (memory.model, memory.buffers)

    def _opened(self, sealed: Sealed | None) -> tuple[Tensor, Buffers]:
        """The model (d,) and statistics that the server cannot read; those of the start, where nothing was added yet.

        Raises:
            BadInput: they are no model, as where sites have different keys.
        """
        start, statistics = self._start
        if sealed is None or self.key is None:
            return start, statistics
        try:
            added, buffers = self.key.open(sealed, statistics)
            model = (start.double() + added).to(start.dtype)
        except (ValueError, RuntimeError) as error:
            raise BadInput(f"site {self.name}: cannot decrypt the model ({error}); {OTHER_KEY}") from error
        if fault := fault_of_model(model, buffers, start, statistics, "model"):
            raise BadInput(f"site {self.name}: decrypts a {fault}; {OTHER_KEY}")
        return model, buffers

    def _keep_final(self, task: Evaluation) -> Evaluation:
        """The evaluation of a model that the server does not have; it lies among the run's models from now on."""
        model, buffers = self._opened(task.sealed) if self.key else self._own_model(task.round)
        flat.load(self._network, model, buffers)
        name = "global" if self.key else self.folder.name
        save_network(self.memory.parents[1] / "models", name, self._network, self.config.network)
        return replace(task, models=model[None], buffers=(buffers,))

    def evaluate(self, task: Evaluation) -> Evaluated:
        """Dice, and where asked for losses, of some models on one split."""
        self._log.evaluated(task, task.sealed or task.models)
        if self.method.models_stay or self.key:
            task = self._keep_final(task)
        return evaluate_models(self._network, self._cases(task.split), task, self.config)

    def weigh(self, task: Weighing) -> Weighed:
        """What each neuron of a model is worth on one split."""
        weighed = weigh_neurons(self._network, self._cases(task.split), task)
        self._log.evaluated(task, task.model)
        return weighed

    def _cases(self, split: str) -> tuple[Case, ...]:
        """The cases of a split; `BadInput` where there is none."""
        cases = self.folder.cases(split)
        if not cases:
            way_out = (
                "prepare with --server-share, or give the server a folder of its own with --server-sites"
                if split == SERVER_SPLIT
                else "prepare the site again"
            )
            raise BadInput(f"site {self.folder.name}: its {split} split is empty; {way_out}")
        return cases

    @property
    def _labels(self) -> tuple[str, ...]:
        return self.config.network.labels

    @property
    def _amp(self) -> bool:
        return self.config.training.amp

    def _validate(self, parameters: Tensor, buffers: Buffers) -> tuple[Overlap, ...]:
        """A model (d,) on the validation split."""
        flat.load(self._network, parameters, buffers)
        return tuple(evaluate(self._network, self.folder.cases("validation"), self._labels, self._amp))

    def _received(self, task: Task, memory: Memory | None) -> Tensor:
        """The model of a task (d,), on the CPU."""
        if not isinstance(task.parameters, Patch):
            return task.parameters
        if memory is None:
            raise MemoryLost(LOST_MEMORY)
        return task.parameters.apply(memory.received)

    def _report(self, task: Task, received: Tensor, memory: Memory | None) -> dict[str, float]:
        """The method's site half."""
        if not self.method.asks:
            return {}

        def training_losses() -> Tensor:
            flat.load(self._network, received, task.buffers)
            return image_losses(self._network, self._slices, self._amp)

        own = None if memory is None else self._own_part(task, memory)
        return self.method.report(SiteView(received.to(self.device), training_losses, own))

    def _own_part(self, task: Task, memory: Memory) -> OwnPart | None:
        """The site's last update in the received model, where it is part of it and others are too."""
        weight, data_share = task.weight, task.data_share
        if weight is None or data_share is None or weight >= 1 or data_share >= 1:
            return None
        others = flat.buffers_without(task.buffers, memory.buffers, data_share)

        def validation_dice(parameters: Tensor) -> float:
            return mean_dice(self._validate(parameters, others))

        previous, trained = memory.received.to(self.device), memory.trained.to(self.device)
        return OwnPart(previous, trained, weight, validation_dice)

    def _file(self, round: int) -> Path:
        return self.memory / f"round_{round:05d}.pt"

    def _remember(self, round: int, memory: Memory) -> None:
        write_atomically(self._file(round), lambda file: torch.save(vars(memory), file))
        kept = (self._file(round), max(self._files(round), default=None))
        for file in self.memory.glob("round_*.pt"):
            if file not in kept:
                file.unlink()

    def _recall(self, round: int) -> Memory | None:
        file = self._file(round)
        return Memory(**torch.load(file, weights_only=True)) if file.exists() else None

    def _latest(self, round: int) -> Memory | None:
        """What it remembers of the last round before ``round`` that it did."""
        files = self._files(round)
        return Memory(**torch.load(max(files), weights_only=True)) if files else None

    def _files(self, round: int) -> list[Path]:
        """Those of earlier rounds."""
        return [file for file in self.memory.glob("round_*.pt") if file < self._file(round)]
