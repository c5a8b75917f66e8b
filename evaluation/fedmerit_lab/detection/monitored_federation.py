"""A federation, trained by the local engine, that all detectors monitor; stored as JSON, of which tables are made."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmerit.contract import flat
from fedmerit.contract.vectors import gram
from fedmerit.machine import pick_device
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.messages import Answer, Reply, Task, Work
from fedmerit.schema.run_info import read_run
from fedmerit.schema.site_folder import Case, SiteFolder, open_sites
from fedmerit.server.round_updates import measure_updates
from fedmerit.trainers.factory import build_network
from fedmerit.trainers.monai.prediction import image_losses
from fedmerit.trainers.monai.samples import Slices, build_samples
from fedmerit_evaluation.results.runs import open_run
from fedmerit_lab.attacks import attacked_runs
from fedmerit_lab.attacks.detectors import of_rounds
from fedmerit_lab.attacks.sybils import SYBILS
from fedmerit_lab.detection.detector import MonitoredRound, apply_detectors
from fedmerit_lab.detection.detectors import all_detectors
from fedmerit_lab.detection.scenarios import SITE_ATTACKS, Roles

EVIDENCE = ("norm", "cosine_to_mean", "cosine_to_previous", "largest_pair_cosine")
CHALLENGE = 2  # images of each site
Rows = list[list[float]]  # rounds x sites


@dataclass(frozen=True)
class MonitoredFederation:
    """The results of a federation and of its detectors; lists by site are in the order of ``sites``."""

    method: str
    attack: str
    seed: int
    sites: list[str]
    attackers: list[str]
    outlier: str  # the honest site of other images; "": none is known
    first: int  # the first round that is not honest
    suspicion: dict[str, Rows] = field(default_factory=dict)  # by detector
    flagged: dict[str, Rows] = field(default_factory=dict)  # by detector, 0 or 1
    evidence: dict[str, Rows] = field(default_factory=dict)  # by quantity of `EVIDENCE`
    verdicts: Rows = field(default_factory=list)  # of the run's guard
    weights: list[float] = field(default_factory=list)  # in the last round
    rewards: list[float] = field(default_factory=list)  # downloaded share of the aggregate
    dice: list[float] = field(default_factory=list)  # of the final models

    def to_json(self) -> dict[str, Any]:
        """Return the argument of `from_json`; NaN is null."""
        content: dict[str, Any] = _without_nan(asdict(self))
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "MonitoredFederation":
        """Return the federation that `to_json` wrote."""
        return cls(**_with_nan(dict(content)))

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return len(self.verdicts)


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_without_nan(one) for one in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _with_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_nan(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_with_nan(one) for one in value]
    return float("nan") if value is None else value


@dataclass(frozen=True)
class Training:
    """A description of how the monitored federations are trained."""

    sites: Path  # folder of site folders
    roles: Roles
    rounds: int
    settings: Mapping[str, str]
    method: str
    parameters: Mapping[str, str] = field(default_factory=dict)


def monitor(training: Training, label: str, attack: str, seed: int, out: Path) -> MonitoredFederation:
    """Train one federation from its first round; an existing run folder is deleted.

    Args:
        training: how.
        label: of the method.
        attack: a key of `SITE_ATTACKS`.
        seed: of the run.
        out: the run folder; site folders that a Sybil attack changes go into ``sites`` beside it.

    Raises:
        BadInput: the run cannot be created.
        RunFailed: it did not finish.
    """
    roles, simulated = training.roles, SITE_ATTACKS[attack]
    specs = simulated.specs_on_sites(roles, training.rounds)
    shutil.rmtree(out, ignore_errors=True)
    sites, attackers = training.sites, sorted(specs)
    if simulated.sybil:
        sites = out.parent / "sites" / f"{simulated.sybil}_{training.sites.name}_{roles.attacker}"
        shutil.rmtree(sites, ignore_errors=True)
        attackers = SYBILS[simulated.sybil](training.sites, roles.attacker, sites, None)
    settings = {**training.settings, **training.parameters}
    options: dict[str, Any] = {"engine": "local", "device": "cpu", "settings": settings}
    options["share_models"] = True  # so that the guard's raters are there
    where = {"method": training.method, "sites": sites, "rounds": training.rounds, "seed": seed}
    attacked_runs.create(out, specs, **where, **options)
    folders = open_sites(sites)
    names = [folder.name for folder in folders]
    first = simulated.first_on_sites(training.rounds)
    federation = MonitoredFederation(label, attack, seed, names, attackers, roles.outlier, first)
    log = DetectorLog(names.index(roles.trusted))
    monitor = _Monitor(folders, RunConfiguration.from_dict(read_run(out)["plan"]), log.see)
    attacked_runs.execute(out, monitor.on_round, on_exchange=monitor.on_exchange)
    shutil.rmtree(out / "sites", ignore_errors=True)
    return log.add_to(_add_results(federation, out))


class DetectorLog:
    """The results of all detectors in the rounds of one federation.

    Args:
        trusted: row of a site that is known to be honest.
    """

    def __init__(self, trusted: int):
        self.detectors = all_detectors(trusted)
        self.suspicion: dict[str, Rows] = {detector.name: [] for detector in self.detectors}
        self.flagged: dict[str, Rows] = {detector.name: [] for detector in self.detectors}
        self.evidence: dict[str, Rows] = {name: [] for name in EVIDENCE}
        self._mean: Tensor | None = None

    def see(self, seen: MonitoredRound) -> None:
        """Run all detectors on the next round."""
        for name, detection in apply_detectors(self.detectors, seen).items():
            self.suspicion[name].append(detection.suspicion.tolist())
            self.flagged[name].append(detection.flagged.double().tolist())
        equal = seen.present.double() / seen.present.sum()
        self._mean, found = measure_updates(seen.updates, gram(seen.updates), equal, seen.present, self._mean)
        for name in EVIDENCE:
            self.evidence[name].append(found[name].tolist())

    def add_to(self, federation: MonitoredFederation) -> MonitoredFederation:
        """Return the federation with the detectors' results."""
        return replace(federation, suspicion=self.suspicion, flagged=self.flagged, evidence=self.evidence)


def _add_results(federation: MonitoredFederation, run: Path) -> MonitoredFederation:
    """Return the federation with its run's verdicts, weights, rewards and Dice."""
    results = open_run(run).results
    results = replace(results, rows=results.rows.assign(run=run.name))

    def read(quantity: str) -> Rows:
        table = of_rounds(results, quantity)
        rounds: Rows = table.reindex(columns=federation.sites).to_numpy(float).tolist()
        return rounds

    verdicts, quota, weights = read("verdict"), read("quota"), read("weight")
    last_verdicts = verdicts[-1] if verdicts else [0.0] * len(federation.sites)
    dice = results.read_folders.dice.sites["dice"]
    by_site = dict(zip(dice.index.get_level_values("site"), dice, strict=True))
    return replace(
        federation,
        verdicts=np.nan_to_num(np.array(verdicts or np.zeros_like(weights))).tolist(),
        weights=np.nan_to_num(np.array(weights[-1])).tolist(),
        rewards=quota[-1] if quota else [float(not verdict) for verdict in last_verdicts],
        dice=[float(by_site[site]) for site in federation.sites],
    )


class _Monitor:
    """A collector of the exchanges of a local run as rounds that detectors see.

    Args:
        folders: the sites.
        config: the run.
        see: called with every round.
    """

    def __init__(self, folders: Sequence[SiteFolder], config: RunConfiguration, see: Callable[[MonitoredRound], None]):
        self.sites, self.see = [folder.name for folder in folders], see
        self.network = build_network(config.network, pick_device("cpu", "detectors"))
        chosen = [_challenge(folder) for folder in folders]
        self.samples = build_samples(chosen, config.network.patch)
        self.parts = [len(build_samples([case], config.network.patch)) for case in chosen]
        self.received: dict[str, Tensor] = {}
        self.last: MonitoredRound | None = None
        self.wrong_claims: set[str] = set()

    def on_round(self, record: Mapping[str, Any]) -> None:
        """Keep what the round's ledger record holds."""
        self.wrong_claims = set(record["flagged"])

    def on_exchange(self, tasks: Mapping[str, Work], answers: Mapping[str, Answer]) -> None:
        """Show the exchange to the detectors, if it is one of training."""
        training = {site: task for site, task in tasks.items() if isinstance(task, Task)}
        if training:
            self._see_training(training, {site: one for site, one in answers.items() if isinstance(one, Reply)})

    def _see_training(self, tasks: Mapping[str, Task], replies: Mapping[str, Reply]) -> None:
        for site, task in tasks.items():
            changes = task.changes
            self.received[site] = changes.apply(self.received[site]) if changes else task.parameters
        received = torch.stack([self.received[site] for site in self.sites])
        zeros = torch.zeros_like(received[0])
        updates = torch.stack([replies[site].update if site in replies else zeros for site in self.sites])
        images = [float(replies[site].num_samples) if site in replies else 0.0 for site in self.sites]
        step, keeps_own = None, [False] * len(self.sites)
        if self.last is not None:
            step = torch.tensor([tasks[site].weight or 0.0 for site in self.sites]) @ self.last.updates
            trained = self.last.received + self.last.updates
            keeps_own = [
                not tasks[site].weight and torch.equal(own, now)
                for site, own, now in zip(self.sites, trained, received, strict=True)
            ]
        self.last = MonitoredRound(
            number=next(iter(tasks.values())).round,
            received=received,
            updates=updates,
            present=torch.tensor([site in replies for site in self.sites]),
            images=torch.tensor(images).double(),
            last_step=step,
            wrong_claim=torch.tensor([site in self.wrong_claims for site in self.sites]),
            keeps_own_model=torch.tensor(keeps_own),
            challenge=self._challenge_losses(received + updates, replies),
        )
        self.see(self.last)

    def _challenge_losses(self, models: Tensor, replies: Mapping[str, Reply]) -> Tensor:
        """Return (n, n) mean loss of each row's model on the images of each column's site; NaN for absent sites."""
        n = len(self.sites)
        losses = torch.full((n, n), torch.nan, dtype=torch.float64)
        for row, site in enumerate(self.sites):
            if site in replies:
                flat.load(self.network, models[row], replies[site].buffers)
                parts = torch.split(image_losses(self.network, self.samples), self.parts)
                losses[row] = torch.stack([part.mean() for part in parts])
        return losses


def _challenge(folder: SiteFolder) -> Case:
    """Return `CHALLENGE` of a site's training images with a mask that is not empty, of one case, evenly spaced."""
    cases = [case for case in folder.cases("training") if case.label.any()]
    case = cases[len(cases) // 2]
    shown = [place for one, place in Slices([case]).index if one.label[place].any()]
    chosen = [shown[len(shown) * number // CHALLENGE] for number in range(CHALLENGE)]
    return replace(case, slices=tuple(sorted(set(chosen))))
