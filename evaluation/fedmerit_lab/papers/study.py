"""A study of a paper: sites partitioned as in the paper, and the trainings that its tables and figures need.

``OUT/sites`` holds the partitions, ``OUT/runs`` a folder of run folders for each partition, ``OUT/coalitions`` and
``OUT/attacks`` those with a site left out and with an attacker. All tables and figures share the trainings.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedmerit.contract.capabilities import capabilities
from fedmerit.contract.semivalues import leave_one_out_weights, required_coalitions
from fedmerit.errors import BadInput
from fedmerit.files import read_json, write_json
from fedmerit.methods.registry import METHODS
from fedmerit.schema.configuration.run import parameter_names
from fedmerit.schema.scores import SERVER_SPLIT
from fedmerit.schema.site_folder import open_sites, require_same_preparation
from fedmerit_evaluation.figures.tables import file_name
from fedmerit_evaluation.ground_truth import coalitions
from fedmerit_evaluation.results.runs import DIGESTS, SERVER_DIGESTS
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.studies import comparison
from fedmerit_evaluation.studies.execution import OnEnd, Workers
from fedmerit_evaluation.studies.study import (
    MethodSpec,
    open_server_sites,
    parse_methods,
    recorded_digests,
    require_unchanged,
)
from fedmerit_lab.attacks import attacked_runs
from fedmerit_lab.partitioning.partition import partition
from fedmerit_lab.partitioning.scheme import Scheme

RECORD = "paper.json"  # options of the folder's trainings
FREE_RIDE = "repeat"  # the free rider of FedCE's study: it repeats one image


@dataclass(frozen=True)
class Partition:
    """A split of the patients of all sites into new sites, by `fedmerit_lab.partitioning.scheme`."""

    name: str  # as the papers call it
    by: str
    alpha: float | None = None
    into: int | None = None  # sites; None: `Study.into`
    kappa: float | None = None
    holders: int | None = None
    noise: tuple[tuple[str, float], ...] = ()  # by new site, the share of its training masks that are wrong
    title: str = ""  # heading of its column; "": its name

    @property
    def heading(self) -> str:
        """The heading of the partition's column."""
        return self.title or self.name

    def folder(self, into: int) -> str:
        """Return folder name of the new sites; ``into`` is their number if the partition has none."""
        return f"{file_name(self.name)}-{self.into or into}"


@dataclass(eq=False)
class Study:
    """The options of a study and its folder.

    Raises:
        BadInput: there are fewer than two sites.
    """

    out: Path
    sites: Path
    rounds: int
    seeds: Sequence[int]
    into: int = 5  # sites of a partition
    settings: Mapping[str, str] = field(default_factory=dict)
    device: str | None = None
    server_sites: Path | None = None
    trainings: dict["Need", Sequence[Any]] = field(default_factory=dict, init=False)
    _results: dict[tuple[Path, ...], Results] = field(default_factory=dict, init=False)  # by finished run folders

    def __post_init__(self) -> None:
        self.folders = folders = open_sites(self.sites)
        given: dict[str, Any] = {"device": self.device, "server_sites": self.server_sites}
        self.given = {name: value for name, value in given.items() if value is not None}
        self.own = open_server_sites(self.given)
        self.names = [folder.name for folder in folders]
        if len(folders) < 2:
            raise BadInput(f"{self.sites}: holds only {self.names[0]}; a paper's study needs two sites or more")
        self.task, self.labels = folders[0].task, list(folders[0].labels)
        self.has_server_set = self.server_sites is not None or all(folder.cases(SERVER_SPLIT) for folder in folders)

    def require_known(self, labels: Collection[str]) -> None:
        """Raise `BadInput` if a setting belongs to none of the methods of ``labels``."""
        methods = sorted({label.split(":")[0] for label in labels})
        for name in self.settings:
            if not any(name in _settable(method) for method in methods):
                raise BadInput(f"--set {name}: not a parameter of {', '.join(methods)}, nor of training or network")

    def items(self, labels: Sequence[str]) -> list[MethodSpec]:
        """Return the methods of ``labels``, each with the settings that it has; its label takes precedence."""
        return [
            replace(item, settings={**self._known(item.method), **item.settings})
            for item in parse_methods(",".join(labels))
        ]

    def _known(self, method: str) -> dict[str, str]:
        names = _settable(method)
        return {name: value for name, value in self.settings.items() if name in names}

    def require_same(self) -> None:
        """Raise `BadInput` if the folder has other sites, rounds or settings, or the sites were prepared again.

        Partitions are not made again, so theirs would be the old images.
        """
        require_unchanged(self.out / RECORD, self._asked)
        if (self.out / RECORD).exists():
            before = read_json(self.out / RECORD)
            require_same_preparation(self.folders, before.get(DIGESTS, {}), self.out)
            require_same_preparation(self.own, before.get(SERVER_DIGESTS, {}), self.out)

    def claim(self) -> None:
        """Record the options of the folder; `BadInput` if it has others."""
        self.require_same()
        write_json(self.out / RECORD, self._asked | recorded_digests(self.folders, self.own))

    @property
    def _asked(self) -> dict[str, Any]:
        asked = {"sites": str(self.sites.resolve()), "rounds": self.rounds, "settings": dict(self.settings)}
        return asked | {name: str(value) for name, value in self.given.items()}

    def prepare(self, need: "Need") -> None:
        """Create the missing run folders of a need; nothing is trained."""
        self.trainings[need] = need.prepare(self)

    def left(self, need: "Need") -> list[Any]:
        """Return the unfinished trainings."""
        return [training for training in self.trainings[need] if not training.finished]

    def done(self, need: "Need") -> list[Any]:
        """Return the finished trainings; `BadInput` if there is none."""
        finished = [training for training in self.trainings[need] if training.finished]
        if not finished:
            raise BadInput(f"none of its trainings is finished ({need.cost} a seed); run the same command again")
        return finished

    def open_partition(self, new: Partition | None) -> Path:
        """Return the folder of site folders; a missing partition is made.

        Raises:
            BadInput: there are too few patients.
        """
        if new is None:
            return self.sites
        folder = self.out / "sites" / new.folder(self.into)
        if not folder.exists():
            scheme = Scheme(new.by, new.into or self.into, alpha=new.alpha, kappa=new.kappa, holders=new.holders)
            partition(self.sites, folder, scheme, label_noise=dict(new.noise))
        return folder

    def options(self, sites: Path) -> dict[str, Any]:
        """Return options of `fedmerit.engines.runs.create` for every training on these sites."""
        return {"sites": sites, "rounds": self.rounds, "engine": "local", **self.given}

    def can_train(self, label: str) -> bool:
        """Return whether a method can be trained: some need images set aside for the server."""
        return self.has_server_set or not capabilities(METHODS[label.split(":")[0]]()).candidates

    def results(self, need: "Need") -> Results:
        """Return the results of the finished trainings of a need, read once as long as no other finishes.

        Raises:
            BadInput: no training is finished.
        """
        done = self.done(need)
        folders = tuple(training.folder for training in done)
        if folders not in self._results:
            self._results[folders] = need.results(done)
        return self._results[folders]


def _settable(method: str) -> set[str]:
    return {"recipe", "preset"} | {name for names in parameter_names(method).values() for name in names}


@dataclass(frozen=True)
class Need:
    """A set of trainings behind an artefact.

    A training is a run folder, planned: it has a path, ``folder``, and says whether it is ``finished``.
    """

    labels: tuple[str, ...]  # the methods with settings: ``fedsac:beta=2``

    @property
    def label(self) -> str:
        """The label of the first method, of a need that has one."""
        return self.labels[0]

    @property
    def cost(self) -> str:
        """The number of trainings of one seed, in terms of N sites."""
        raise NotImplementedError

    def keys(self, sites: Sequence[str], into: int) -> list[str]:
        """Return a name for each training of one seed; the same training has the same name in every need.

        Args:
            sites: their names.
            into: number of sites of a partition that has none.
        """
        raise NotImplementedError

    def prepare(self, study: Study) -> Sequence[Any]:
        """Check every training, then create the missing run folders."""
        raise NotImplementedError

    def execute(self, trainings: Sequence[Any], workers: Workers, on_end: OnEnd) -> dict[Path, str]:
        """Execute the unfinished trainings, and return the failed run folders with the reason."""
        return attacked_runs.execute_runs(trainings, workers, on_end)

    def results(self, trainings: Sequence[Any]) -> Results:
        """Return the results of finished trainings; methods are in the order of ``labels``."""
        return attacked_runs.collect_results(trainings)


@dataclass(frozen=True)
class Compared(Need):
    """A comparison of methods on the given sites or a partition; methods that lack their server set are left out."""

    partition: Partition | None = None

    @property
    def where(self) -> Partition:
        """The partition of a comparison that has one."""
        assert self.partition is not None
        return self.partition

    def keys(self, sites: Sequence[str], into: int) -> list[str]:
        """Return one name for each method."""
        where = self.partition.folder(into) if self.partition else "given sites"
        return [f"{label} on {where}" for label in self.labels]

    @property
    def cost(self) -> str:
        """The number of methods."""
        if self.partition is None:
            return f"{len(self.labels)}"
        sites = f" of {self.partition.into}" if self.partition.into else ""
        return f"{len(self.labels)} on {self.partition.name}{sites}"

    def prepare(self, study: Study) -> list[comparison.PlannedRun]:
        """Return a run folder for each method and seed."""
        labels = [label for label in self.labels if study.can_train(label)]
        if not labels:
            return []
        sites = study.open_partition(self.partition)
        where = study.out / "runs" / (sites.name if self.partition else "given-sites")
        return comparison.prepare(where, study.items(labels), study.seeds, {}, study.options(sites))

    def execute(self, trainings: Sequence[Any], workers: Workers, on_end: OnEnd) -> dict[Path, str]:
        """Execute the unfinished trainings; the sites' memory of a finished one is deleted."""
        return comparison.execute_runs(trainings, workers, on_end, after=attacked_runs.forget)

    def results(self, trainings: Sequence[Any]) -> Results:
        """Return results whose column ``method`` has labels, in their order."""
        return comparison.collect_results(trainings, self.labels)


@dataclass(frozen=True)
class WithoutOne(Need):
    """A method without each site in turn, tested on all sites; and, as leave-one-out needs it, with all."""

    with_all: bool = True

    def keys(self, sites: Sequence[str], into: int) -> list[str]:
        """Return one name for each site left out."""
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

    def execute(self, trainings: Sequence[Any], workers: Workers, on_end: OnEnd) -> dict[Path, str]:
        """Execute the unfinished trainings."""
        return coalitions.execute_trainings(trainings, workers, on_end)

    def results(self, trainings: Sequence[Any]) -> Results:
        """Return results whose column ``coalition`` has the sites that trained."""
        return coalitions.collect_results(trainings)


@dataclass(frozen=True)
class FreeRiding(Need):
    """A method with each site in turn a free rider that repeats one image, and with none."""

    def keys(self, sites: Sequence[str], into: int) -> list[str]:
        """Return one name for each free rider."""
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
class WrongMasks(Need):
    """A method on a partition whose last site has wrong masks of each kind in turn, and without wrong masks."""

    partition: Partition
    kinds: tuple[str, ...]  # specs of `fedmerit_lab.attacks.attack.ATTACKS`

    def keys(self, sites: Sequence[str], into: int) -> list[str]:
        """Return one name for each kind, and one without."""
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
