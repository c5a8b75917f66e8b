"""What the trainings of a study cost, estimated before they begin from a few batches on this machine."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedmerit.schema.configuration.description import read_plan
from fedmerit.schema.run_info import read_run
from fedmerit.trainers.monai.data import open_sites
from fedmerit.trainers.monai.machine_settings import configured_device, pick_device
from fedmerit.trainers.monai.step_time import seconds_per_image
from fedmerit.trust import require_place
from fedmerit_evaluation.studies.execution import count_training_images


@dataclass(frozen=True)
class Cost:
    """Estimated cost of trainings."""

    trainings: int  # including those that are trained but not yet tested
    images: int  # images trained on, over sites, rounds and epochs; 0: not known, as of scripts
    hours: float  # of one process, estimated from a few batches; 0: likewise

    def describe(self, of: int, number: int) -> str:
        """As a sentence; ``of``: all trainings of the study, ``number``: that run at a time."""
        took = describe_duration(self.hours / number)
        known = f", {self.images:,} images in all: about {took} with {number} at a time" if self.images else ""
        return f"{self.trainings} of {of} trainings to do{known}"


def estimate_cost(trainings: int, begun: Sequence[Path]) -> Cost:
    """Of so many trainings, of which these run folders have rounds to train."""
    if begun and "script" in read_run(begun[0]):
        return Cost(trainings, 0, 0.0)
    images = sum(map(count_training_images, begun))
    return Cost(trainings, images, images * _seconds_per_image(begun[0]) / 3600 if begun else 0.0)


def describe_duration(hours: float) -> str:
    """In hours or minutes."""
    return f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.0f} minutes" if hours > 1.5 / 60 else "a minute"


def _seconds_per_image(folder: Path) -> float:
    """Training time on this machine with the run's configuration."""
    info, config = read_run(folder), read_plan(folder)
    site = open_sites(require_place(info["sites_folder"], folder), info["sites"], info["fold"])[0]
    device = pick_device(configured_device(site.name, info["device"]), site.name)
    return seconds_per_image(config, site, device, {"its own": config.training})["its own"]
