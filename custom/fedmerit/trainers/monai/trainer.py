"""The trainer of prepared images: MONAI's networks, trained and evaluated by `fedmerit.trainers.monai`."""

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from threading import Lock

import monai  # noqa: F401  # here, though used below: processes that are forked later share it
import numpy as np
import torch
from torch import Tensor

from fedmerit.contract import flat
from fedmerit.contract.capabilities import capabilities
from fedmerit.contract.flat import Buffers
from fedmerit.errors import BadInput, printable
from fedmerit.machine import computes_bfloat16, give_back_memory, pick_device
from fedmerit.schema import messages
from fedmerit.schema.configuration.data import preparation_digest
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.scores import SERVER_SPLIT, Overlap, mean_dice
from fedmerit.schema.site_folder import Case, SiteFolder
from fedmerit.trainers.memory import Learned, Memory, MemoryFolder, Trained
from fedmerit.trainers.monai.evaluation import Evaluations, estimate_statistics, evaluate_models, measure_importance
from fedmerit.trainers.monai.final_model_selection import FinalModelSelector
from fedmerit.trainers.monai.local_round import LocalRound
from fedmerit.trainers.monai.network_checks import require_compatible_images
from fedmerit.trainers.monai.networks import working_network
from fedmerit.trainers.monai.prediction import evaluate
from fedmerit.trainers.monai.samples import Samples, Slices, build_samples
from fedmerit.trainers.privacy_budget import Mechanism, plan_mechanism
from fedmerit.trainers.saved_networks import save_network
from fedmerit.trainers.seen_patients import note_patients
from fedmerit.trainers.statistics import estimates_statistics
from fedmerit.trainers.step_commitments import (
    LeafReached,
    RoundCommitments,
    RoundStart,
    WorkFolder,
    sealed_samples,
    steps_between_leaves,
)
from fedmerit.trainers.trainer import Holdings, Model, TrainingImages
from fedmerit.trainers.training_checkpoint import RoundCheckpoints

POOLED = "pooled"  # part of the seeds of pooled training, instead of a site's name


class ImageTrainer:
    """A prepared folder, a run configuration and a device.

    Args:
        memory: the site's folder of memories.
        device: "cpu", "cuda", "cuda:1", or "auto": the first GPU, if there is one.
        secret: that only this site knows: the order of images and the augmentation follow from it; "": from the seed.
        work: keeps what rounds started from, and commits to their steps; None: nothing does.

    Raises:
        BadInput: the images do not fit the run's network, or the device is not there.
    """

    def __init__(
        self,
        folder: SiteFolder,
        config: RunConfiguration,
        memory: Path,
        device: str = "auto",
        secret: str = "",
        work: WorkFolder | None = None,
    ):
        require_compatible_images(config, folder)
        folder = folder.in_fold(config.fold)
        self.folder, self.config, self.name = folder, config, folder.name
        self.device = pick_device(device, folder.name)
        _report_slow_precision(folder.name, config, self.device)
        self.method = config.build_guarded_method()
        self.can = capabilities(self.method)
        self.memory = MemoryFolder(memory)
        # what seeds the training, with the run's seed and the round; with a secret, also all else of the plan
        self.training_seed_site = f"{folder.name}/{secret}/{config.digest}" if secret else folder.name
        self._has_secret = bool(secret)
        self.work = work
        self.mechanism = self._plan_mechanism() if config.privacy else None
        self._evaluations = Evaluations(config)
        selects = config.training.final_model == "selected"
        self._final_selector = FinalModelSelector(config, folder, memory, lambda: self.network) if selects else None

    def _plan_mechanism(self) -> Mechanism:
        """Return what a round of DP-SGD does; `BadInput` if its network or patients do not allow any."""
        if flat.get_buffers(self.network):
            raise BadInput(
                f"dp_epsilon, dp_noise: site {self.name}: the network has BatchNorm, whose statistics leave the site "
                "without noise; take norm=instance or norm=group"
            )
        patients = {case.patient for case, _ in self.samples.index}
        return plan_mechanism(self.config, len(self.samples), len(patients), self.name)

    @property
    def network(self) -> torch.nn.Module:
        """The network that it works with; every use loads its model first."""
        return working_network(self.config.network, self.device)

    @cached_property
    def samples(self) -> Samples:
        """The training images."""
        return build_samples(self.folder.cases("training"), self.config.network.patch)

    @property
    def num_samples(self) -> int:
        """The number of training images that the site reports."""
        return len(self.samples)

    def holdings(self, round: int) -> Holdings:
        """Return the cases and images in the folder; of a site without a key, the secret is its preparation."""
        samples = sealed_samples(self.work.salt, self.samples.digests) if self.work else ""
        return replace(read_holdings(self.folder, self.num_samples), secret=self.folder.digest, samples=samples)

    def train(self, task: messages.Task, received: Tensor, memory: Memory | None, question: str) -> Trained:
        """Validate the received model, report what the method asks for, train for a round."""
        note_patients(self.memory.path, self.folder, self.config.digest)
        overlaps = self._validate(received, task.buffers)
        values = self._local_round(task).report(received, memory, mean_dice(overlaps))
        learned = self.learn(task, received, memory, question)
        give_back_memory()  # of training: other sites of this process may be at work while this one writes
        after = self._validate(learned.trained, learned.buffers) if self.config.training.validate_trained else ()
        return Trained(learned, self.num_samples, overlaps, after, values)

    def learn(self, task: messages.Task, received: Tensor, memory: Memory | None, question: str) -> Learned:
        """Train from ``received`` (d,) for a round; ``memory`` is that of the round before, None if it was away."""
        if self.can.local_training:  # what the site keeps for itself outlasts rounds without it
            memory = self.memory.latest(task.round)
        images = self.folder.digest, len(self.samples), self.training_seed_site
        asked = self.config.digest, task.round, question
        checkpoints = RoundCheckpoints(self.memory.path, (*asked, *images, self.device.type))
        local_round = replace(self._local_round(task), checkpoints=checkpoints)
        mechanism = asdict(self.mechanism) if self.mechanism else {}
        if self.work is None:
            return replace(local_round.learn(received, memory), mechanism=mechanism)

        def learn(commitments: RoundCommitments) -> Learned:
            return replace(local_round, commitments=commitments).learn(received, memory)

        needed = memory if self.can.local_training else None
        learned, commitment = self.work.commit(task, received, needed, question, self.samples.digests, learn)
        return replace(learned, commitment=commitment.model_dump(), mechanism=mechanism)

    def repeat(self, start: RoundStart, leaves: int | None) -> tuple[RoundCommitments, Learned | None]:
        """Train a round again from its start, up to a number of leaves.

        Args:
            start: what the round started from.
            leaves: after which the training ends; None: it comes to its end.

        Returns:
            The commitments, and what the training gave if it came to its end.
        """
        salt = self.work.salt if self.work else ""
        every = steps_between_leaves(len(start.task.parameters))
        commitments = RoundCommitments(salt, self.samples.digests, every, leaves)
        local_round = replace(self._local_round(start.task), commitments=commitments)
        try:
            return commitments, local_round.learn(start.task.parameters, start.memory)
        except LeafReached:
            return commitments, None

    def _local_round(self, task: messages.Task) -> LocalRound:
        run = self.config, self.method, self.can
        machine = self.network, self.samples, self.device
        site = self.training_seed_site, self._validation_dice
        return LocalRound(*run, *machine, *site, task, mechanism=self.mechanism, has_secret=self._has_secret)

    def evaluate(self, task: messages.Evaluation) -> messages.Evaluated:
        """Return dice, and losses if asked for, of some models on one split."""
        estimates = task.purpose is messages.Purpose.ROUND and estimates_statistics(self.config.training)
        own_images, cases = self.samples if estimates else None, self._cases(task.split)
        return evaluate_models(self.network, cases, task, self.config, own_images, self._evaluations)

    def estimate(self, task: messages.Evaluation) -> messages.Evaluated:
        """Estimate BatchNorm statistics of one model."""
        started = time.perf_counter()
        flat.load(self.network, task.models[0], task.buffers[0])
        estimate_statistics(self.network, self.samples)
        took = time.perf_counter() - started
        return messages.Evaluated(task.round, (), torch.zeros(0, 0), took, buffers=flat.get_buffers(self.network))

    def finish(self, task: messages.Evaluation, given: Model, below: Path) -> messages.Evaluated:
        """Evaluate the candidates for the site's final model on one split, and save the chosen one."""
        started = time.perf_counter()
        assert self._final_selector
        selected = self._final_selector.select(given)
        overlaps, cases, labels = [], self._cases(task.split), self.config.network.labels
        for model in selected.models:
            flat.load(self.network, *model)
            overlaps.append(tuple(evaluate(self.network, cases, labels, final=True)))
        self.save(below, self.name, selected.chosen)
        took = time.perf_counter() - started
        return messages.Evaluated(task.round, tuple(overlaps), torch.zeros(task.count, 0), took, selected.choice)

    def save(self, folder: Path, name: str, model: Model) -> None:
        """Save a model, and beside it what rebuilds its network."""
        flat.load(self.network, *model)
        save_network(folder, name, self.network, self.config.network, self.config.preprocessing)

    def measure_importance(self, task: messages.ImportanceTask) -> messages.Importance:
        """Return how much the loss on one split rises without each neuron of a model."""
        return measure_importance(self.network, self._cases(task.split), task)

    def _cases(self, split: str) -> tuple[Case, ...]:
        """Return the cases of a split; `BadInput` if there are none."""
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

    def _validation_dice(self, network: torch.nn.Module) -> float | None:
        """Return mean Dice of the network on the validation split; None: all of it is empty in both."""
        return mean_dice(self._evaluations.evaluate_now(network, self.folder.cases("validation")).overlaps)


class ServerImages:
    """The server's own images, on which it evaluates what the sites would evaluate on the images set aside for it.

    All splits of the prepared ``folders`` count.

    Raises:
        BadInput: the images do not fit the run's network.
    """

    def __init__(self, folders: Sequence[SiteFolder], config: RunConfiguration, device: str):
        for folder in folders:
            require_compatible_images(config, folder)
        self.cases = [case for folder in folders for cases in folder.splits.values() for case in cases]
        self.config, self.device, self._evaluations = config, device, Evaluations(config)

    @property
    def network(self) -> torch.nn.Module:
        """The network to load models into."""
        return working_network(self.config.network, pick_device(self.device, "the server"))

    def evaluate(self, task: messages.Evaluation) -> messages.Evaluated:
        """Return Dice, and losses if asked for, of every model of ``task``."""
        estimates, patch = estimates_statistics(self.config.training), self.config.network.patch
        images = build_samples(self.cases, patch) if estimates else None
        return evaluate_models(self.network, self.cases, task, self.config, images, self._evaluations)

    def measure_importance(self, task: messages.ImportanceTask) -> messages.Importance:
        """Return how much the loss rises without each neuron of a model."""
        return measure_importance(self.network, self.cases, task)


class SharedTraining:
    """A training a round for all sites, done by the site that comes first."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._last: tuple[int, Learned] | None = None

    def learn_once(self, round: int, learn: Callable[[], Learned]) -> Learned:
        """Return what the round's training gave; the first call trains."""
        with self._lock:
            if self._last is None or self._last[0] != round:
                self._last = round, learn()
            return self._last[1]


class PooledTrainer(ImageTrainer):
    """A trainer that validates and tests on a site's own images, and trains on those of all sites.

    Args:
        site_trainer: of the site.
        samples: all sites' training images.
        training: that all sites share.
        num_sites: whose steps of a round, if the run says how many, are taken one after the other.
    """

    def __init__(self, site_trainer: ImageTrainer, samples: Samples, training: SharedTraining, num_sites: int):
        vars(self).update(vars(site_trainer))
        settings = self.config.training
        self.config = replace(self.config, training=replace(settings, steps=settings.steps * num_sites))
        self._site_trainer, self.samples, self._training = site_trainer, samples, training
        self.training_seed_site, self._has_secret, self.work = POOLED, False, None

    @property
    def num_samples(self) -> int:
        """The number of the site's own training images."""
        return self._site_trainer.num_samples

    def learn(self, task: messages.Task, received: Tensor, memory: Memory | None, question: str) -> Learned:
        """Return what the shared training gives."""

        def learn() -> Learned:
            return super(PooledTrainer, self).learn(task, received, memory, question)

        return self._training.learn_once(task.round, learn)


def pool_trainers(trainers: Sequence[ImageTrainer]) -> list[PooledTrainer]:
    """Return trainers that train on the training images of all sites; they share one training a round."""
    cases = [case for trainer in trainers for case in trainer.folder.cases("training")]
    samples, training = build_samples(cases, trainers[0].config.network.patch), SharedTraining()
    return [PooledTrainer(trainer, samples, training, len(trainers)) for trainer in trainers]


def describe_images(folder: SiteFolder, config: RunConfiguration) -> TrainingImages:
    """Return what a site's training images are for a plan.

    Only those with a label count if the plan prefers these.
    """
    cases = folder.in_fold(config.fold).cases("training")
    samples = build_samples(cases, config.network.patch)
    counted = samples.shows_label if config.training.organ_share else torch.ones(len(samples), dtype=torch.bool)
    patients = Counter(samples.index[place][0].patient for place in counted.nonzero().flatten().tolist())
    slices = [(len(case.image) if case.slices is None else len(case.slices), case) for case in cases]
    return TrainingImages(
        images=int(counted.sum()),
        patients=tuple(sorted(patients.values(), reverse=True)),
        voxels=sum(count * math.prod(case.image.shape[2:]) for count, case in slices),
        sides=config.network.patch or folder.image_size,
    )


def read_holdings(folder: SiteFolder, num_samples: int) -> Holdings:
    """Return counts of all splits, and the image of every training case with slices to train on.

    ``num_samples``: what the site trains on, slices or patches.
    """
    trained = [case for case in folder.cases("training") if case.slices != ()]
    cases = {split: len(of_split) for split, of_split in folder.splits.items()} | {"training": len(trained)}
    slices = {split: len(Slices(folder.cases(split))) for split in folder.splits} | {"training": num_samples}
    images = (np.ascontiguousarray(case.image).tobytes() for case in trained)
    names, modality = folder.channel_names or (), folder.modality or ""
    return Holdings(cases, slices, images, preparation_digest(folder.info), names, modality)


def _report_slow_precision(site: str, config: RunConfiguration, device: torch.device) -> None:
    """Warn the site on standard error: every site computes in the precision of the plan, be it slow there."""
    if config.training.amp and device.type == "cpu" and not computes_bfloat16():
        print(
            printable(
                f"WARNING: site {site}: amp=true, and this processor has no instructions for bfloat16 (avx512_bf16, "
                "amx_bf16), without which a step takes many times as long; have the run started without amp"
            ),
            file=sys.stderr,
            flush=True,
        )
