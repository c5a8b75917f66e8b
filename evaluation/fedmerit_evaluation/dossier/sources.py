"""The sources of a dossier: runs, and the site folders on this machine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedmerit.errors import BadInput
from fedmerit.trainers.monai.data import SiteFolder, open_sites
from fedmerit.trust import allowed_place
from fedmerit_evaluation.report.hospitals import choose_method
from fedmerit_evaluation.results.runs import Run, combine_results
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.statistics.intervals import select_methods


@dataclass(frozen=True)
class DossierSources:
    """Runs, and the site folders on this machine."""

    runs: Sequence[Run]
    folders: Sequence[SiteFolder]

    @property
    def honest(self) -> list[Run]:
        """The runs without simulated attacks, or all if there is no other."""
        return [run for run in self.runs if not run.attacks] or list(self.runs)

    @cached_property
    def results(self) -> Results:
        """Of the honest runs."""
        return combine_results(self.honest)

    @cached_property
    def method(self) -> str | None:
        """The label of the method of the model."""
        return choose_method(self.honest, self.results)

    @property
    def is_tested(self) -> bool:
        """Whether that method has test Dice."""
        return self.method in select_methods(self.results.dice.intervals, "mean").index

    @cached_property
    def run(self) -> Run:
        """The run of the model: the first of that method."""
        return next((run for run in self.honest if run.label == self.method), self.honest[0])

    @property
    def info(self) -> Mapping[str, Any]:
        """run.json of that run."""
        return self.run.info


def open_sources(runs: Sequence[Run], sites: Path | None) -> DossierSources:
    """The runs, and the folders of their sites on this machine.

    Args:
        sites: a folder of site folders; None: that of the runs, if it is here.

    Raises:
        BadInput: ``sites`` holds none of the runs' sites.
    """
    place = sites or allowed_place(runs[0].info.get("sites_folder"))
    if place is None or (sites is None and not place.is_dir()):
        return DossierSources(runs, [])
    folders = [folder for folder in runs[0].in_its_fold(open_sites(place)) if folder.name in runs[0].sites]
    if sites is not None and not folders:
        raise BadInput(f"--sites {sites}: holds none of {', '.join(runs[0].sites)}")
    return DossierSources(runs, folders)
