"""What tables and figures of papers need: comparisons of methods, trainings without a site, with a rider or attack."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedmerit.trainers.monai_trainer.data import open_sites
from fedmerit_evaluation.figures.tables import file_name
from fedmerit_evaluation.freeriders import attacked_runs
from fedmerit_evaluation.ground_truth import coalitions
from fedmerit_evaluation.ground_truth.semivalues import leave_one_out_weights, required_coalitions
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.studies import comparison
from fedmerit_evaluation.studies.cluster import OnEnd, Workers
from fedmerit_evaluation.studies.comparison import PlannedRun
from fedmerit_lab.papers.study import Partition, Study

FREE_RIDE = "repeat"  # how a free rider of FedCE's study cheats: one image, several times


@dataclass(frozen=True)
class Compared:
    """Every method, on the sites as they are or dealt anew. Those without the server set they need are left out."""

    labels: tuple[str, ...]
    deal: Partition | None = None

    def keys(self, sites: Sequence[str], into: int) -> list[str]:
        """One for each method."""
        where = self.deal.folder(into) if self.deal else "sites as they are"
        return [f"{label} on {where}" for label in self.labels]

    @property
    def cost(self) -> str:
        """Number of methods."""
        if self.deal is None:
            return f"{len(self.labels)}"
        return f"{len(self.labels)} on {self.deal.name}" + (f" of {self.deal.into}" if self.deal.into else "")

    def prepare(self, study: Study) -> list[PlannedRun]:
        """A run folder for each method and seed."""
        labels = [label for label in self.labels if study.can_train(label)]
        if not labels:
            return []
        sites = study.sites_of(self.deal)
        where = study.out / "runs" / (sites.name if self.deal else "as-they-are")
        return comparison.prepare(where, study.items(labels), study.seeds, {}, study.options(sites))

    def work_off(self, trainings: Sequence[PlannedRun], workers: Workers, on_end: OnEnd) -> dict[Path, str]:
        """Train what is not finished."""
        return comparison.execute_runs(trainings, workers, on_end, after=attacked_runs.forget)

    def results(self, trainings: Sequence[PlannedRun]) -> Results:
        """Column ``method`` holds labels, in the order they were named."""
        return comparison.collect_results(trainings, self.labels)


@dataclass(frozen=True)
class _OneMethod:
    label: str

    @property
    def labels(self) -> tuple[str, ...]:
        """The one method."""
        return (self.label,)


@dataclass(frozen=True)
class WithoutOne(_OneMethod):
    """A method without each site in turn, tested on all sites; and, as leave-one-out needs it, with all."""

    with_all: bool = True

    def keys(self, sites: Sequence[str], into: int) -> list[str]:
        """One for each site left out."""
        return [f"{self.label} without {site}" for site in ("nobody", *sites)[not self.with_all :]]

    @property
    def cost(self) -> str:
        """Number of sites, and one where all take part."""
        return "N + 1" if self.with_all else "N"

    def prepare(self, study: Study) -> list[coalitions.Training]:
        """A run folder for each coalition and seed."""
        asked = required_coalitions(study.names, leave_one_out_weights)
        chosen = [coalition for coalition in asked if self.with_all or len(coalition) < len(study.names)]
        (item,) = study.items(self.labels)
        out = study.out / "coalitions" / file_name(self.label)
        return coalitions.prepare(out, chosen, study.seeds, item.method, item.settings, study.options(study.sites))

    def work_off(self, trainings: Sequence[coalitions.Training], workers: Workers, on_end: OnEnd) -> dict[Path, str]:
        """Train what is not finished."""
        return coalitions.execute_trainings(trainings, workers, on_end)

    def results(self, trainings: Sequence[coalitions.Training]) -> Results:
        """Column ``coalition`` says who trained."""
        return coalitions.collect_results(trainings)


@dataclass(frozen=True)
class _Attacked(_OneMethod):
    def work_off(self, trainings: Sequence[attacked_runs.Attack], workers: Workers, on_end: OnEnd) -> dict[Path, str]:
        """Train what is not finished."""
        return attacked_runs.work_off(trainings, workers, on_end)

    def results(self, trainings: Sequence[attacked_runs.Attack]) -> Results:
        """Column ``run`` holds run folders."""
        return attacked_runs.results_of(trainings)


@dataclass(frozen=True)
class FreeRiding(_Attacked):
    """A method with each site in turn a free rider that repeats one image, and with none."""

    def keys(self, sites: Sequence[str], into: int) -> list[str]:
        """One for each site that rides."""
        return [f"{self.label}, {site} rides" for site in ("nobody", *sites)]

    @property
    def cost(self) -> str:
        """Number of sites, and one where all are honest."""
        return "N + 1"

    def prepare(self, study: Study) -> list[attacked_runs.Attack]:
        """A run folder for each rider and seed."""
        out, options = study.out / "riders", study.options(study.sites)
        return attacked_runs.prepare(out, study.items(self.labels), [FREE_RIDE], study.names, study.seeds, {}, options)


@dataclass(frozen=True)
class WrongMasks(_Attacked):
    """A method on sites dealt anew of which the last has wrong masks, in each way in turn, and where none has."""

    deal: Partition
    kinds: tuple[str, ...]  # specs of `fedmerit.attacks`

    def keys(self, sites: Sequence[str], into: int) -> list[str]:
        """One for each kind, and one without."""
        return [f"{self.label} on {self.deal.folder(into)}, {kind}" for kind in ("honest", *self.kinds)]

    @property
    def cost(self) -> str:
        """Number of kinds, and one where all are honest."""
        return f"{len(self.kinds) + 1} on {self.deal.name}"

    def prepare(self, study: Study) -> list[attacked_runs.Attack]:
        """A run folder for each kind and seed."""
        sites = study.sites_of(self.deal)
        last = [folder.name for folder in open_sites(sites)][-1:]
        out, items = study.out / "riders" / sites.name, study.items(self.labels)
        return attacked_runs.prepare(out, items, self.kinds, last, study.seeds, {}, study.options(sites))
