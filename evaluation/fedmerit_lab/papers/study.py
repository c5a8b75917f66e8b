"""A study of a paper: the sites as the paper deals them, and the trainings that its tables and figures are made of.

``OUT/sites`` holds the sites that are dealt anew, ``OUT/runs`` a folder of run folders for each way of dealing,
``OUT/coalitions`` and ``OUT/riders`` those with a site left out and with a free rider. What is trained is not trained
again, whichever table or figure it was for.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from fedmerit.capabilities import capabilities
from fedmerit.configuration.run import parameter_names
from fedmerit.errors import BadInput
from fedmerit.files import read_json, write_json
from fedmerit.methods.registry import METHODS
from fedmerit.trainers.monai_trainer.data import SERVER_SPLIT, open_sites, require_same_preparation
from fedmerit_data.dealing import Scheme
from fedmerit_data.partition import partition
from fedmerit_evaluation.figures.tables import file_name
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.studies.cluster import OnEnd, Workers
from fedmerit_evaluation.studies.study_folders import (
    DIGESTS,
    SERVER_DIGESTS,
    MethodSpec,
    open_server_sites,
    parse_methods,
    recorded_digests,
    require_unchanged,
)

RECORD = "paper.json"  # what the folder's trainings were asked for with


@dataclass(frozen=True)
class Partition:
    """How the patients of all sites are dealt into new ones, by `fedmerit_data.dealing`."""

    name: str  # as the papers call it
    by: str
    alpha: float | None = None
    into: int | None = None  # None: as many as asked for
    kappa: float | None = None
    holders: int | None = None
    noise: tuple[tuple[str, float], ...] = ()  # by new site, the share of its training masks that are wrong
    title: str = ""  # of its column in a table; none: its name

    @property
    def heading(self) -> str:
        """What its column is called."""
        return self.title or self.name

    def folder(self, into: int) -> str:
        """That of the dealt sites; of deals that name no number of sites, ``into`` that many."""
        return f"{file_name(self.name)}-{self.into or into}"


class Training(Protocol):
    """One run folder, planned."""

    @property
    def folder(self) -> Path:
        """Where it is."""
        ...

    @property
    def finished(self) -> bool:
        """Whether it is trained and tested."""
        ...


class Need(Protocol):
    """Trainings that an artefact is made of."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Their methods, with settings of their own: ``fedsac:beta=2``."""
        ...

    def keys(self, sites: Sequence[str], into: int) -> list[str]:
        """A name for each training of one seed; the same training has the same name in every need.

        Args:
            sites: their names.
            into: how many sites patients are dealt into, where a deal does not say.
        """
        ...

    @property
    def cost(self) -> str:
        """How many trainings of one seed, in terms of N sites."""
        ...

    def prepare(self, study: "Study") -> Sequence[Any]:
        """Check every training, then create the run folders that are missing."""
        ...

    def work_off(self, trainings: Sequence[Any], workers: Workers, on_end: OnEnd) -> dict[Path, str]:
        """Train what is not finished; the run folders that failed, and why."""
        ...

    def results(self, trainings: Sequence[Any]) -> Results:
        """What finished trainings gave; methods in the order of ``labels``, where there are several."""
        ...


@dataclass(eq=False)
class Study:
    """What was asked for, and where it goes.

    Raises:
        BadInput: fewer than two sites, or ``out`` holds trainings of other sites, rounds or settings.
    """

    out: Path
    sites: Path
    rounds: int
    seeds: Sequence[int]
    into: int = 5  # sites that patients are dealt into
    settings: Mapping[str, str] = field(default_factory=dict)
    device: str | None = None
    server_sites: Path | None = None
    trainings: dict[Need, Sequence[Any]] = field(default_factory=dict, init=False)
    _results: dict[tuple[Path, ...], Results] = field(default_factory=dict, init=False)  # by finished run folders

    def __post_init__(self) -> None:
        self.folders = folders = open_sites(self.sites)
        given: dict[str, Any] = {"device": self.device, "server_sites": self.server_sites}
        self.given = {name: value for name, value in given.items() if value is not None}
        self.own = open_server_sites(self.given)
        self.names = [folder.name for folder in folders]
        if len(folders) < 2:
            raise BadInput(f"{self.sites}: holds {self.names[0]} alone; a paper's study takes two sites or more")
        self.task, self.labels = folders[0].task, list(folders[0].labels)
        self.has_server_set = self.server_sites is not None or all(folder.cases(SERVER_SPLIT) for folder in folders)

    def require_known(self, labels: Collection[str]) -> None:
        """`BadInput` where a setting belongs to none of the methods of ``labels``."""
        methods = sorted({label.split(":")[0] for label in labels})
        for name in self.settings:
            if not any(name in _settable(method) for method in methods):
                raise BadInput(f"--set {name}: is no parameter of {', '.join(methods)}, nor of training or network")

    def items(self, labels: Sequence[str]) -> list[MethodSpec]:
        """The methods of ``labels``, each with those settings that it knows; what its label says goes before them."""
        return [
            replace(item, settings={**self._known(item.method), **item.settings})
            for item in parse_methods(",".join(labels))
        ]

    def _known(self, method: str) -> dict[str, str]:
        names = _settable(method)
        return {name: value for name, value in self.settings.items() if name in names}

    def require_same(self) -> None:
        """`BadInput` where the folder is for other sites, rounds or settings, or its sites were prepared anew since.

        What was dealt of them is not dealt again, so that it would be of the old images.
        """
        require_unchanged(self.out / RECORD, self._asked)
        if (self.out / RECORD).exists():
            before = read_json(self.out / RECORD)
            require_same_preparation(self.folders, before.get(DIGESTS, {}), self.out)
            require_same_preparation(self.own, before.get(SERVER_DIGESTS, {}), self.out)

    def claim(self) -> None:
        """Write down what the folder is for; `BadInput` where it is for something else."""
        self.require_same()
        write_json(self.out / RECORD, self._asked | recorded_digests(self.folders, self.own))

    @property
    def _asked(self) -> dict[str, Any]:
        asked = {"sites": str(self.sites.resolve()), "rounds": self.rounds, "settings": dict(self.settings)}
        return asked | {name: str(value) for name, value in self.given.items()}

    def prepare(self, need: Need) -> None:
        """Plan the trainings of a need: the run folders that are missing are made, nothing is trained."""
        self.trainings[need] = need.prepare(self)

    def left(self, need: Need) -> list[Any]:
        """The trainings that are not finished."""
        return [training for training in self.trainings[need] if not training.finished]

    def done(self, need: Need) -> list[Any]:
        """The finished trainings; `BadInput` where there is none."""
        finished = [training for training in self.trainings[need] if training.finished]
        if not finished:
            raise BadInput(f"none of its trainings is finished ({need.cost} a seed); the same command goes on")
        return finished

    def sites_of(self, deal: Partition | None) -> Path:
        """The folder of site folders, dealt where it is not there yet.

        Raises:
            BadInput: there are too few patients.
        """
        if deal is None:
            return self.sites
        folder = self.out / "sites" / deal.folder(self.into)
        if not folder.exists():
            scheme = Scheme(deal.by, deal.into or self.into, alpha=deal.alpha, kappa=deal.kappa, holders=deal.holders)
            partition(self.sites, folder, scheme, label_noise=dict(deal.noise))
        return folder

    def options(self, sites: Path) -> dict[str, Any]:
        """Of `fedmerit.engines.runs.create`, for every training on these sites."""
        return {"sites": sites, "rounds": self.rounds, "engine": "local", **self.given}

    def can_train(self, label: str) -> bool:
        """Whether a method has what it needs: some need images set aside for the server."""
        return self.has_server_set or not capabilities(METHODS[label.split(":")[0]]()).candidates

    def results(self, need: Need) -> Results:
        """The results of the finished trainings of a need, the same value as long as no other is finished.

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
