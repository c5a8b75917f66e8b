"""What a paper's tables and figures are made of: sites as the paper deals them, and trainings on them.

``OUT/sites`` holds the sites that are dealt anew, ``OUT/runs`` a folder of run folders for each way of dealing,
``OUT/coalitions`` and ``OUT/riders`` those with a site left out and with a free rider. What is trained is not trained
again, whichever table or figure it was for.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from data_prep.dealing import Scheme
from data_prep.partition import partition
from evaluation import comparison_runs
from evaluation.comparison_runs import Item, Planned, parse_methods
from evaluation.formats import file_name
from evaluation.freeriders import freeriders
from evaluation.pool import OnEnd
from evaluation.truth import coalitions
from evaluation.truth.games import leave_one_out_weights, required
from fedmerit.capabilities.candidates import EvaluatesCandidates
from fedmerit.configuration.run import parameter_names
from fedmerit.errors import BadInput
from fedmerit.files import write_json
from fedmerit.methods.registry import METHODS
from fedmerit.training.data import SERVER_SPLIT, open_sites

RIDE = "repeat"  # how a free rider of FedCE's study cheats: one image, several times


@dataclass(frozen=True)
class Deal:
    """How the patients of all sites are dealt into new ones, by `data_prep.dealing`."""

    name: str  # as the papers call it
    by: str
    alpha: float | None = None
    into: int | None = None  # None: as many as asked for
    noise: tuple[tuple[str, float], ...] = ()  # by new site, the share of its training masks that are wrong


def _settable(method: str) -> set[str]:
    return {name for names in parameter_names(method).values() for name in names}


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

    def keys(self, sites: Sequence[str]) -> list[str]:
        """A name for each training of one seed; the same training has the same name in every need."""
        ...

    @property
    def cost(self) -> str:
        """How many trainings of one seed, in terms of N sites."""
        ...

    def prepare(self, study: "Study") -> Sequence[Any]:
        """Check every training, then create the run folders that are missing."""
        ...

    def work_off(self, trainings: Sequence[Any], workers: int, on_end: OnEnd) -> dict[Path, str]:
        """Train what is not finished; the run folders that failed, and why."""
        ...


class Study:
    """What was asked for, and where it goes.

    Raises:
        BadInput: fewer than two sites, or ``out`` holds trainings of other sites, rounds or settings.
    """

    def __init__(
        self,
        out: Path,
        sites: Path,
        rounds: int,
        seeds: Sequence[int],
        *,
        into: int = 5,
        settings: Mapping[str, str] | None = None,
        device: str | None = None,
        server_sites: Path | None = None,
    ):
        folders = open_sites(sites)
        self.out, self.sites, self.rounds, self.seeds, self.into = out, sites, rounds, list(seeds), into
        self.settings = dict(settings or {})
        given: dict[str, Any] = {"device": device, "server_sites": server_sites}
        self.given = {name: value for name, value in given.items() if value is not None}
        self.names = [folder.name for folder in folders]
        if len(folders) < 2:
            raise BadInput(f"{sites}: holds {self.names[0]} alone; a paper's study takes two sites or more")
        self.task, self.labels = folders[0].task, list(folders[0].labels)
        self.has_server_set = server_sites is not None or all(folder.cases(SERVER_SPLIT) for folder in folders)
        self.trainings: dict[Need, Sequence[Any]] = {}

    def require_known(self, labels: Collection[str]) -> None:
        """`BadInput` where a setting belongs to none of the methods of ``labels``."""
        methods = sorted({label.split(":")[0] for label in labels})
        for name in self.settings:
            if not any(name in _settable(method) for method in methods):
                raise BadInput(f"--set {name}: is no parameter of {', '.join(methods)}, nor of training or network")

    def items(self, labels: Sequence[str]) -> list[Item]:
        """The methods of ``labels``, each with those settings that it knows; what its label says goes before them."""
        return [
            replace(item, settings={**self._known(item.method), **item.settings})
            for item in parse_methods(",".join(labels))
        ]

    def _known(self, method: str) -> dict[str, str]:
        names = _settable(method)
        return {name: value for name, value in self.settings.items() if name in names}

    def require_same(self) -> None:
        """`BadInput` where the folder is for other sites, rounds or settings."""
        comparison_runs.require_unchanged(self.out / "paper.json", self._asked)

    def claim(self) -> None:
        """Write down what the folder is for; `BadInput` where it is for something else."""
        self.require_same()
        write_json(self.out / "paper.json", self._asked)

    @property
    def _asked(self) -> dict[str, Any]:
        asked = {"sites": str(self.sites.resolve()), "rounds": self.rounds, "settings": self.settings}
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

    def sites_of(self, deal: Deal | None) -> Path:
        """The folder of site folders, dealt where it is not there yet.

        Raises:
            BadInput: there are too few patients.
        """
        if deal is None:
            return self.sites
        number = deal.into or self.into
        folder = self.out / "sites" / f"{file_name(deal.name)}-{number}"
        if not folder.exists():
            partition(self.sites, folder, Scheme(deal.by, number, alpha=deal.alpha), label_noise=dict(deal.noise))
        return folder

    def options(self, sites: Path) -> dict[str, Any]:
        """Of `fedmerit.engines.runs.create`, for every training on these sites."""
        return {"sites": sites, "rounds": self.rounds, "engine": "local", **self.given}

    def can_train(self, label: str) -> bool:
        """Whether a method has what it needs: some need images set aside for the server."""
        return self.has_server_set or not issubclass(METHODS[label.split(":")[0]], EvaluatesCandidates)

    def results(self, need: "Compared") -> pd.DataFrame:
        """The results of a comparison in one table; column ``method`` holds labels, in the order they were named.

        Raises:
            BadInput: no training is finished.
        """
        table = comparison_runs.results_of(self.done(need))
        there = set(table["method"])
        return table.assign(method=pd.Categorical(table["method"], [name for name in need.labels if name in there]))


@dataclass(frozen=True)
class Compared:
    """Every method, on the sites as they are or dealt anew. Those without the server set they need are left out."""

    labels: tuple[str, ...]
    deal: Deal | None = None

    def keys(self, sites: Sequence[str]) -> list[str]:
        """One for each method."""
        return [f"{label} on {self.deal}" for label in self.labels]

    @property
    def cost(self) -> str:
        """Number of methods."""
        if self.deal is None:
            return f"{len(self.labels)}"
        return f"{len(self.labels)} on {self.deal.name}" + (f" of {self.deal.into}" if self.deal.into else "")

    def prepare(self, study: Study) -> list[Planned]:
        """A run folder for each method and seed."""
        labels = [label for label in self.labels if study.can_train(label)]
        if not labels:
            return []
        sites = study.sites_of(self.deal)
        where = study.out / "runs" / (sites.name if self.deal else "as-they-are")
        return comparison_runs.prepare(where, study.items(labels), study.seeds, {}, study.options(sites))

    def work_off(self, trainings: Sequence[Planned], workers: int, on_end: OnEnd) -> dict[Path, str]:
        """Train what is not finished."""
        return comparison_runs.work_off(trainings, workers, on_end, after=freeriders.forget)


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

    def keys(self, sites: Sequence[str]) -> list[str]:
        """One for each site left out."""
        return [f"{self.label} without {site}" for site in ("nobody", *sites)[not self.with_all :]]

    @property
    def cost(self) -> str:
        """Number of sites, and one where all take part."""
        return "N + 1" if self.with_all else "N"

    def prepare(self, study: Study) -> list[coalitions.Training]:
        """A run folder for each coalition and seed."""
        asked = required(study.names, leave_one_out_weights)
        chosen = [coalition for coalition in asked if self.with_all or len(coalition) < len(study.names)]
        (item,) = study.items(self.labels)
        out = study.out / "coalitions" / file_name(self.label)
        return coalitions.prepare(out, chosen, study.seeds, item.method, item.settings, study.options(study.sites))

    def work_off(self, trainings: Sequence[coalitions.Training], workers: int, on_end: OnEnd) -> dict[Path, str]:
        """Train what is not finished."""
        return coalitions.work_off(trainings, workers, on_end)


@dataclass(frozen=True)
class Riding(_OneMethod):
    """A method with each site in turn a free rider that repeats one image, and with none."""

    def keys(self, sites: Sequence[str]) -> list[str]:
        """One for each site that rides."""
        return [f"{self.label}, {site} rides" for site in ("nobody", *sites)]

    @property
    def cost(self) -> str:
        """Number of sites, and one where all are honest."""
        return "N + 1"

    def prepare(self, study: Study) -> list[freeriders.Attack]:
        """A run folder for each rider and seed."""
        out, options = study.out / "riders", study.options(study.sites)
        return freeriders.prepare(out, study.items(self.labels), [RIDE], study.names, study.seeds, {}, options)

    def work_off(self, trainings: Sequence[freeriders.Attack], workers: int, on_end: OnEnd) -> dict[Path, str]:
        """Train what is not finished."""
        return freeriders.work_off(trainings, workers, on_end)


@dataclass(frozen=True)
class WrongMasks(_OneMethod):
    """A method on sites dealt anew of which the last has wrong masks, in each way in turn, and where none has."""

    deal: Deal
    kinds: tuple[str, ...]  # specs of `fedmerit.attacks`

    def keys(self, sites: Sequence[str]) -> list[str]:
        """One for each kind, and one without."""
        return [f"{self.label} on {self.deal}, {kind}" for kind in ("honest", *self.kinds)]

    @property
    def cost(self) -> str:
        """Number of kinds, and one where all are honest."""
        return f"{len(self.kinds) + 1} on {self.deal.name}"

    def prepare(self, study: Study) -> list[freeriders.Attack]:
        """A run folder for each kind and seed."""
        sites = study.sites_of(self.deal)
        last = [folder.name for folder in open_sites(sites)][-1:]
        out, items = study.out / "riders" / sites.name, study.items(self.labels)
        return freeriders.prepare(out, items, self.kinds, last, study.seeds, {}, study.options(sites))

    def work_off(self, trainings: Sequence[freeriders.Attack], workers: int, on_end: OnEnd) -> dict[Path, str]:
        """Train what is not finished."""
        return freeriders.work_off(trainings, workers, on_end)
