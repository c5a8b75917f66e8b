"""Trainings behind tables and figures of papers: comparisons, trainings without a site, trainings with an attack."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedmerit.contract.semivalues import leave_one_out_weights, required_coalitions
from fedmerit.schema.site_folder import open_sites
from fedmerit_evaluation.figures.tables import file_name
from fedmerit_evaluation.ground_truth import coalitions
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.studies import comparison
from fedmerit_evaluation.studies.comparison import PlannedRun
from fedmerit_evaluation.studies.execution import OnEnd, Workers
from fedmerit_lab.attacks import attacked_runs
from fedmerit_lab.papers.study import Partition, Study

FREE_RIDE = "repeat"  # the free rider of FedCE's study: it repeats one image


@dataclass(frozen=True)
class Compared:
    """A method on the given sites or a partition; methods that lack their server set are left out."""

    labels: tuple[str, ...]
    partition: Partition | None = None

    def keys(self, sites: Sequence[str], into: int) -> list[str]:
        """Return one for each method."""
        where = self.partition.folder(into) if self.partition else "given sites"
        return [f"{label} on {where}" for label in self.labels]

    @property
    def cost(self) -> str:
        """The number of methods."""
        if self.partition is None:
            return f"{len(self.labels)}"
        sites = f" of {self.partition.into}" if self.partition.into else ""
        return f"{len(self.labels)} on {self.partition.name}{sites}"

    def prepare(self, study: Study) -> list[PlannedRun]:
        """Return a run folder for each method and seed."""
        labels = [label for label in self.labels if study.can_train(label)]
        if not labels:
            return []
        sites = study.open_partition(self.partition)
        where = study.out / "runs" / (sites.name if self.partition else "given-sites")
        return comparison.prepare(where, study.items(labels), study.seeds, {}, study.options(sites))

    def execute(self, trainings: Sequence[PlannedRun], workers: Workers, on_end: OnEnd) -> dict[Path, str]:
        """Execute unfinished trainings."""
        return comparison.execute_runs(trainings, workers, on_end, after=attacked_runs.forget)

    def results(self, trainings: Sequence[PlannedRun]) -> Results:
        """Return results whose column ``method`` has labels, in their order."""
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
        """Return one for each site left out."""
        return [f"{self.label} without {site}" for site in ("none", *sites)[not self.with_all :]]

    @property
    def cost(self) -> str:
        """The number of sites, and one with all."""
        return "N + 1" if self.with_all else "N"

    def prepare(self, study: Study) -> list[coalitions.Training]:
        """Return a run folder for each coalition and seed."""
        asked = required_coalitions(study.names, leave_one_out_weights)
        chosen = [coalition for coalition in asked if self.with_all or len(coalition) < len(study.names)]
        (item,) = study.items(self.labels)
        out = study.out / "coalitions" / file_name(self.label)
        return coalitions.prepare(out, chosen, study.seeds, item.method, item.settings, study.options(study.sites))

    def execute(self, trainings: Sequence[coalitions.Training], workers: Workers, on_end: OnEnd) -> dict[Path, str]:
        """Execute unfinished trainings."""
        return coalitions.execute_trainings(trainings, workers, on_end)

    def results(self, trainings: Sequence[coalitions.Training]) -> Results:
        """Return results whose column ``coalition`` has the sites that trained."""
        return coalitions.collect_results(trainings)


@dataclass(frozen=True)
class _Attacked(_OneMethod):
    def execute(
        self, trainings: Sequence[attacked_runs.AttackedRun], workers: Workers, on_end: OnEnd
    ) -> dict[Path, str]:
        """Execute unfinished trainings."""
        return attacked_runs.execute_runs(trainings, workers, on_end)

    def results(self, trainings: Sequence[attacked_runs.AttackedRun]) -> Results:
        """Return results whose column ``run`` has run folders."""
        return attacked_runs.collect_results(trainings)


@dataclass(frozen=True)
class FreeRiding(_Attacked):
    """A method with each site in turn a free rider that repeats one image, and with none."""

    def keys(self, sites: Sequence[str], into: int) -> list[str]:
        """Return one for each free rider."""
        return [f"{self.label}, free rider {site}" for site in ("none", *sites)]

    @property
    def cost(self) -> str:
        """The number of sites, and one honest."""
        return "N + 1"

    def prepare(self, study: Study) -> list[attacked_runs.AttackedRun]:
        """Return a run folder for each free rider and seed."""
        out, options = study.out / "attacks", study.options(study.sites)
        return attacked_runs.prepare(out, study.items(self.labels), [FREE_RIDE], study.names, study.seeds, {}, options)


@dataclass(frozen=True)
class WrongMasks(_Attacked):
    """A method on a partition whose last site has wrong masks of each kind in turn, and without wrong masks."""

    partition: Partition
    kinds: tuple[str, ...]  # specs of `fedmerit.attacks`

    def keys(self, sites: Sequence[str], into: int) -> list[str]:
        """Return one for each kind, and one without."""
        return [f"{self.label} on {self.partition.folder(into)}, {kind}" for kind in ("honest", *self.kinds)]

    @property
    def cost(self) -> str:
        """The number of kinds, and one honest."""
        return f"{len(self.kinds) + 1} on {self.partition.name}"

    def prepare(self, study: Study) -> list[attacked_runs.AttackedRun]:
        """Return a run folder for each kind and seed."""
        sites = study.open_partition(self.partition)
        last = [folder.name for folder in open_sites(sites)][-1:]
        out, items = study.out / "attacks" / sites.name, study.items(self.labels)
        return attacked_runs.prepare(out, items, self.kinds, last, study.seeds, {}, study.options(sites))
