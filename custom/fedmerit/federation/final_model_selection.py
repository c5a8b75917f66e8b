"""A site's final model with ``final_model=selected``: never worse on its own validation patients than without it.

The site compares the model it received with one it trained alone, and with what comes of the received one on its own
images: statistics estimated anew, or up to `EPOCHS` epochs of fine-tuning. Two or three validation patients choose
badly, so that a change of the received model counts only where it is better by more than the standard error of the
paired difference over patients; with fewer than `FEWEST` of them, fine-tuning is judged by cross-validation over
training and validation patients.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev

import torch
from torch import Tensor, nn

from fedmerit import flat
from fedmerit.configuration.run import RunConfiguration
from fedmerit.files import write_atomically
from fedmerit.flat import Buffers
from fedmerit.seeds import random_seed
from fedmerit.trainers.monai_trainer.batch_norm import estimate_statistics, has_statistics
from fedmerit.trainers.monai_trainer.data import Case, Samples, SiteFolder
from fedmerit.trainers.monai_trainer.local_training import learning_rate, train
from fedmerit.trainers.monai_trainer.networks import initial_network
from fedmerit.trainers.monai_trainer.overlaps import Overlap, mean_dice
from fedmerit.trainers.monai_trainer.patches import build_samples
from fedmerit.trainers.monai_trainer.prediction import evaluate, image_losses

EPOCHS = 8  # of fine-tuning, at most
SLOWER = 5  # that many times lower is its learning rate
FEWEST = 3  # validation patients to choose by
FOLDS = 3
GIVEN, RECALIBRATED, ALONE = 0, 1, 2  # what is chosen; ALONE + e: e epochs of fine-tuning
FILE = "finish.pt"

Model = tuple[Tensor, Buffers]  # (d,), and its statistics
ByPatient = Mapping[str, float]  # Dice


@dataclass(frozen=True)
class FinalModelChoice:
    """The models to compare, and which of them was chosen."""

    given: Model
    alone: Model
    chosen: Model
    choice: int  # `GIVEN`, `RECALIBRATED`, `ALONE`, or `ALONE` plus epochs of fine-tuning

    @property
    def models(self) -> tuple[Model, Model, Model]:
        """Given, alone, chosen."""
        return self.given, self.alone, self.chosen


class FinalModelSelector:
    """One site's, with its own images and seeds.

    Args:
        config: the run.
        folder: the site's images.
        memory: its folder: what was done is not done again.
        network: gives the one to work in.
    """

    def __init__(self, config: RunConfiguration, folder: SiteFolder, memory: Path, network: Callable[[], nn.Module]):
        self.config, self.folder, self.memory, self._network = config, folder, memory, network
        # made here: it borrows the global random state, and sites work in threads
        first = initial_network(config.network, config.seed)
        self._first: Model = flat.get_parameters(first), flat.get_buffers(first)

    @property
    def network(self) -> nn.Module:
        """To work in."""
        return self._network()

    def finish(self, given: Model) -> FinalModelChoice:
        """Choose; the same again where it was chosen before."""
        path = self.memory / FILE
        if path.exists():
            return FinalModelChoice(**torch.load(path, weights_only=True))
        alone = self._alone()
        validation = self.folder.cases("validation")
        base, at_base = (GIVEN, given), self._dice(given, validation)
        of_alone = self._dice(alone, validation)
        if self._better(alone, of_alone, given, at_base):
            base, at_base = (ALONE, alone), of_alone
        choice, chosen = base
        for other, candidate in self._changed(given):
            dice = self._dice(candidate, validation)
            folds = len(dice) < FEWEST and other > ALONE  # chosen by cross-validation, and only held against these
            if fmean(dice.values()) > fmean(at_base.values()) if folds else clearly_better(at_base, dice):
                choice, chosen, at_base = other, candidate, dice
        finished = FinalModelChoice(given, alone, chosen, choice)
        write_atomically(path, lambda file: torch.save(vars(finished), file))
        return finished

    def _better(self, one: Model, of_one: ByPatient, other: Model, of_other: ByPatient) -> bool:
        """By Dice; equals by the soft Dice loss."""
        difference = fmean(of_one.values()) - fmean(of_other.values())
        return difference > 0 if difference else self._loss(one) < self._loss(other)

    def _changed(self, given: Model) -> list[tuple[int, Model]]:
        """What can be made of the received model here, the candidates for the last choice."""
        candidates: list[tuple[int, Model]] = []
        if has_statistics(self.network):
            flat.load(self.network, *given)
            estimate_statistics(self.network, self._samples(self.folder.cases("training")))
            candidates.append((RECALIBRATED, self._now()))
        training, validation = self.folder.cases("training"), self.folder.cases("validation")
        if len({case.patient for case in validation}) >= FEWEST:
            return candidates + [(ALONE + epoch, model) for epoch, model in self._fine_tune(given, training, EPOCHS)]
        epochs = self._cross_validate_epochs(given, [*training, *validation])
        return candidates + [(ALONE + epoch, model) for epoch, model in self._fine_tune(given, training, epochs)][-1:]

    def _cross_validate_epochs(self, given: Model, cases: Sequence[Case]) -> int:
        """Of fine-tuning on some patients, what was clearly best on others; 0: none."""
        patients = sorted({case.patient for case in cases})
        before: dict[str, float] = {}
        after: dict[int, dict[str, float]] = {epoch: {} for epoch in range(1, EPOCHS + 1)}
        for fold in range(min(FOLDS, len(patients))):
            apart = set(patients[fold::FOLDS])
            rest = [case for case in cases if case.patient not in apart]
            held_out = [case for case in cases if case.patient in apart]
            before |= self._dice(given, held_out)
            for epoch, model in self._fine_tune(given, rest, EPOCHS) if rest else ():
                after[epoch] |= self._dice(model, held_out)
        better = {epoch: fmean(dice.values()) for epoch, dice in after.items() if dice and clearly_better(before, dice)}
        return max(better, key=lambda epoch: better[epoch], default=0)

    def _fine_tune(self, given: Model, cases: Sequence[Case], epochs: int) -> list[tuple[int, Model]]:
        """The received model after 1, 2, ... epochs on the training slices of ``cases``."""
        settings = replace(self.config.training, epochs=1, steps=0)
        samples, models = self._samples(cases), []
        flat.load(self.network, *given)
        for epoch in range(1, epochs + 1):
            seed = random_seed(self.config.seed, self.folder.name, f"finish {epoch}")
            train(self.network, samples, settings, settings.lr / SLOWER, seed)
            models.append((epoch, self._now()))
        return models

    def _alone(self) -> Model:
        """What the site trains without the others by the same recipe: as many rounds, from the same first model."""
        path = self.memory / "alone.pt"
        done, model = torch.load(path, weights_only=True) if path.exists() else (0, self._first)
        samples = self._samples(self.folder.cases("training"))
        for round in range(done, self.config.rounds):
            flat.load(self.network, *model)
            seed = random_seed(self.config.seed, self.folder.name, round)
            rate = learning_rate(self.config.training, round, self.config.rounds)
            train(self.network, samples, self.config.training, rate, seed)
            before, (trained, buffers) = model[0], self._now()
            model = before + (trained - before), buffers  # rounded as where an update travels: bit for bit standalone
            write_atomically(path, partial(torch.save, (round + 1, model)))
        return model

    def _samples(self, cases: Sequence[Case]) -> Samples:
        return build_samples(cases, self.config.network.patch)

    def _now(self) -> Model:
        return flat.get_parameters(self.network), flat.get_buffers(self.network)

    def _dice(self, model: Model, cases: Sequence[Case]) -> dict[str, float]:
        flat.load(self.network, *model)
        labels, amp = self.config.network.labels, self.config.training.amp
        return dice_by_patient(cases, evaluate(self.network, cases, labels, amp, final=True))

    def _loss(self, model: Model) -> float:
        flat.load(self.network, *model)
        samples = self._samples([replace(case, slices=None) for case in self.folder.cases("validation")])
        return float(image_losses(self.network, samples, self.config.training.amp).mean())


def dice_by_patient(cases: Sequence[Case], overlaps: Sequence[Overlap]) -> dict[str, float]:
    """Of each patient, the mean over cases of the mean over labels; 0 where all are empty in both."""
    found: dict[str, list[Overlap]] = {case.patient: [] for case in cases}
    for overlap in overlaps:
        found[cases[int(overlap.case)].patient].append(overlap)
    return {patient: mean_dice(own) for patient, own in found.items()}


def clearly_better(before: ByPatient, after: ByPatient) -> bool:
    """Whether Dice rose by more than the standard error of the paired difference over patients."""
    differences = [after[patient] - before[patient] for patient in before]
    error = stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else math.inf
    return fmean(differences) > error
