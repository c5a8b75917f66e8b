"""Final model selection with ``final_model=selected``: no site's final model is worse on its own patients than local.

The site compares the model it received with one trained locally, without the others, and with changes of the received
one on its own images: estimated BatchNorm statistics, or up to `EPOCHS` epochs of fine-tuning. Two or three validation
patients choose badly, so a changed model counts only if it is better by more than the standard error of the paired
difference over patients; with fewer than `FEWEST` of them, cross-validation over training and validation patients
chooses the epochs of fine-tuning.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev

import torch
from torch import nn

from fedmerit.contract import flat
from fedmerit.files import write_atomically
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.scores import Overlap, mean_dice
from fedmerit.schema.site_folder import Case, SiteFolder
from fedmerit.seeds import random_seed
from fedmerit.tensor_files import load_tensors
from fedmerit.trainers.monai.evaluation import estimate_statistics, has_statistics
from fedmerit.trainers.monai.local_training import learning_rate, train
from fedmerit.trainers.monai.networks import initial_network
from fedmerit.trainers.monai.prediction import evaluate, image_losses
from fedmerit.trainers.monai.samples import Samples, build_samples
from fedmerit.trainers.trainer import Model

EPOCHS = 8  # of fine-tuning, at most
SLOWER = 5  # that many times lower is its learning rate
FEWEST = 3  # validation patients, to choose epochs by them
FOLDS = 3
GIVEN, RECALIBRATED, LOCAL_ONLY = 0, 1, 2  # the choices; LOCAL_ONLY + e: e epochs of fine-tuning
FILE = "final_model.pt"

ByPatient = Mapping[str, float]  # Dice


@dataclass(frozen=True)
class FinalModelChoice:
    """The models to compare, and the choice."""

    given: Model
    local_only: Model
    chosen: Model
    choice: int  # `GIVEN`, `RECALIBRATED`, `LOCAL_ONLY`, or `LOCAL_ONLY` plus epochs of fine-tuning

    @property
    def models(self) -> tuple[Model, Model, Model]:
        """The models: given, trained locally, chosen."""
        return self.given, self.local_only, self.chosen


class FinalModelSelector:
    """A selector of one site's final model, with its own images and seeds.

    ``config``: the run; ``folder``: the site's images; ``memory``: its folder, which holds the steps that are done;
    ``network``: returns the network to work in.
    """

    def __init__(self, config: RunConfiguration, folder: SiteFolder, memory: Path, network: Callable[[], nn.Module]):
        self.config, self.folder, self.memory, self._make_network = config, folder, memory, network
        # made here: it borrows the global random state, and sites work in threads
        first = initial_network(config.network, config.seed)
        self._first: Model = flat.get_parameters(first), flat.get_buffers(first)

    @property
    def network(self) -> nn.Module:
        """The network to work in."""
        return self._make_network()

    def select(self, given: Model) -> FinalModelChoice:
        """Choose; a repeated call returns the same choice."""
        path = self.memory / FILE
        if path.exists():
            return FinalModelChoice(**load_tensors(path))
        local = self._train_locally()
        validation = self.folder.cases("validation")
        choice, chosen, at_base = GIVEN, given, self._dice(given, validation)
        at_local = self._dice(local, validation)
        difference = fmean(at_local.values()) - fmean(at_base.values())
        if difference > 0 if difference else self._loss(local) < self._loss(given):
            choice, chosen, at_base = LOCAL_ONLY, local, at_local
        for other, candidate in self._changed(given):
            dice = self._dice(candidate, validation)
            folds = len(dice) < FEWEST and other > LOCAL_ONLY  # chosen by cross-validation, only confirmed by these
            if fmean(dice.values()) > fmean(at_base.values()) if folds else clearly_better(at_base, dice):
                choice, chosen, at_base = other, candidate, dice
        selected = FinalModelChoice(given, local, chosen, choice)
        write_atomically(path, lambda file: torch.save(vars(selected), file))
        return selected

    def _changed(self, given: Model) -> list[tuple[int, Model]]:
        """Return changes of the received model, with their choices."""
        candidates: list[tuple[int, Model]] = []
        if has_statistics(self.network):
            flat.load(self.network, *given)
            estimate_statistics(self.network, self._samples(self.folder.cases("training")))
            candidates.append((RECALIBRATED, self._now()))
        training, validation = self.folder.cases("training"), self.folder.cases("validation")
        if len({case.patient for case in validation}) >= FEWEST:
            return candidates + [
                (LOCAL_ONLY + epoch, model) for epoch, model in self._fine_tune(given, training, EPOCHS)
            ]
        epochs = self._cross_validate_epochs(given, [*training, *validation])
        return (
            candidates + [(LOCAL_ONLY + epoch, model) for epoch, model in self._fine_tune(given, training, epochs)][-1:]
        )

    def _cross_validate_epochs(self, given: Model, cases: Sequence[Case]) -> int:
        """Return the epochs of fine-tuning that were clearly best on left-out patients; 0: none."""
        patients = sorted({case.patient for case in cases})
        before: dict[str, float] = {}
        after: dict[int, dict[str, float]] = {epoch: {} for epoch in range(1, EPOCHS + 1)}
        for fold in range(min(FOLDS, len(patients))):
            left_out = set(patients[fold::FOLDS])
            rest = [case for case in cases if case.patient not in left_out]
            held_out = [case for case in cases if case.patient in left_out]
            before |= self._dice(given, held_out)
            for epoch, model in self._fine_tune(given, rest, EPOCHS) if rest else ():
                after[epoch] |= self._dice(model, held_out)
        better = {epoch: fmean(dice.values()) for epoch, dice in after.items() if dice and clearly_better(before, dice)}
        return max(better, key=lambda epoch: better[epoch], default=0)

    def _fine_tune(self, given: Model, cases: Sequence[Case], epochs: int) -> list[tuple[int, Model]]:
        """Return the received model after 1, 2, ... epochs on the training slices of ``cases``."""
        settings = replace(self.config.training, epochs=1, steps=0)
        samples, models = self._samples(cases), []
        flat.load(self.network, *given)
        for epoch in range(1, epochs + 1):
            seed = random_seed(self.config.seed, self.folder.name, f"finish {epoch}")
            train(self.network, samples, settings, settings.lr / SLOWER, seed)
            models.append((epoch, self._now()))
        return models

    def _train_locally(self) -> Model:
        """Train without the others by the same recipe: as many rounds, from the same first model."""
        path = self.memory / "local_only.pt"
        done, model = load_tensors(path) if path.exists() else (0, self._first)
        samples = self._samples(self.folder.cases("training"))
        for round in range(done, self.config.rounds):
            flat.load(self.network, *model)
            seed = random_seed(self.config.seed, self.folder.name, round)
            rate = learning_rate(self.config.training, round, self.config.rounds)
            train(self.network, samples, self.config.training, rate, seed)
            before, (trained, buffers) = model[0], self._now()
            model = before + (trained - before), buffers  # rounded as if the update were sent: bit for bit standalone
            write_atomically(path, partial(torch.save, (round + 1, model)))
        return model

    def _samples(self, cases: Sequence[Case]) -> Samples:
        return build_samples(cases, self.config.network.patch)

    def _now(self) -> Model:
        return flat.get_parameters(self.network), flat.get_buffers(self.network)

    def _dice(self, model: Model, cases: Sequence[Case]) -> dict[str, float]:
        flat.load(self.network, *model)
        return dice_by_patient(cases, evaluate(self.network, cases, self.config.network.labels, final=True))

    def _loss(self, model: Model) -> float:
        flat.load(self.network, *model)
        samples = self._samples([replace(case, slices=None) for case in self.folder.cases("validation")])
        return float(image_losses(self.network, samples, self.config.training.amp).mean())


def dice_by_patient(cases: Sequence[Case], overlaps: Sequence[Overlap]) -> dict[str, float]:
    """Return, by patient, the mean over cases of the mean over labels; 0 if all are empty in both."""
    found: dict[str, list[Overlap]] = {case.patient: [] for case in cases}
    for overlap in overlaps:
        found[cases[int(overlap.case)].patient].append(overlap)
    return {patient: mean_dice(own) or 0.0 for patient, own in found.items()}  # compared by patient


def clearly_better(before: ByPatient, after: ByPatient) -> bool:
    """Return whether Dice rose by more than the standard error of the paired difference over patients."""
    differences = [after[patient] - before[patient] for patient in before]
    error = stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else math.inf
    return fmean(differences) > error
