"""A federation that every detector watches, of made-up sites or trained by the local engine; what was said of it.

A case is one federation: a method, an attack, a seed. What is kept of it is JSON, from which all tables are made.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmerit import flat
from fedmerit.configuration.run import RunConfiguration
from fedmerit.core import Method
from fedmerit.engines import runs
from fedmerit.federation.round_updates import measure_updates
from fedmerit.records.results import read_run
from fedmerit.trainers.monai_trainer.data import Case, SiteFolder, Slices, open_sites
from fedmerit.trainers.monai_trainer.machine_settings import pick_device
from fedmerit.trainers.monai_trainer.networks import build_network
from fedmerit.trainers.monai_trainer.patches import build_samples
from fedmerit.trainers.monai_trainer.prediction import image_losses
from fedmerit.vectors import gram
from fedmerit.wire.messages import Answer, Reply, SparseUpdate, Task, Work
from fedmerit_evaluation.freeriders.detectors import of_rounds
from fedmerit_evaluation.results.run_folders import open_run
from fedmerit_lab.attacks.sybils import SYBILS
from fedmerit_lab.detection import attack_matrix
from fedmerit_lab.detection.detector import MonitoredRound, run_detector
from fedmerit_lab.detection.detectors import all_detectors
from fedmerit_lab.detection.synthetic_sites import OUTLIER

HONEST = "honest"
EVIDENCE = ("norm", "cosine_to_mean", "cosine_to_previous", "largest_pair_cosine")
CHALLENGE = 2  # images of each site
Rows = list[list[float]]  # rounds x sites


@dataclass(frozen=True)
class MonitoredFederation:
    """What came of a federation, and what detectors said of it; lists by site are in the order of ``sites``."""

    method: str
    attack: str
    seed: int
    sites: list[str]
    attackers: list[str]
    outlier: str  # the honest site of other images; "": none is known
    first: int  # the first round that is not honest
    suspicion: dict[str, Rows] = field(default_factory=dict)  # by detector
    flagged: dict[str, Rows] = field(default_factory=dict)  # likewise, 0 or 1
    evidence: dict[str, Rows] = field(default_factory=dict)  # by quantity of `EVIDENCE`
    verdicts: Rows = field(default_factory=list)  # of the run's guard
    weights: list[float] = field(default_factory=list)  # of the last round
    rewards: list[float] = field(default_factory=list)  # part of the aggregate that is downloaded
    dice: list[float] = field(default_factory=list)  # of the final models

    def to_json(self) -> dict[str, Any]:
        """What `from_json` takes; NaN is null."""
        known: dict[str, Any] = _without_nan(asdict(self))
        return known

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "MonitoredFederation":
        """What `to_json` gave."""
        return cls(**_with_nan(dict(content)))

    @property
    def rounds(self) -> int:
        """How many were played."""
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


class Log:
    """What all detectors say of the rounds of one federation.

    Args:
        trusted: place of a site that is known to be honest.
    """

    def __init__(self, trusted: int):
        self.watchers = all_detectors(trusted)
        self.suspicion: dict[str, Rows] = {one.name: [] for one in self.watchers}
        self.flagged: dict[str, Rows] = {one.name: [] for one in self.watchers}
        self.evidence: dict[str, Rows] = {name: [] for name in EVIDENCE}
        self._mean: Tensor | None = None

    def see(self, seen: MonitoredRound) -> None:
        """The next round."""
        for name, said in run_detector(self.watchers, seen).items():
            self.suspicion[name].append(said.suspicion.tolist())
            self.flagged[name].append(said.flagged.double().tolist())
        equal = seen.present.double() / seen.present.sum()
        self._mean, found = measure_updates(seen.updates, gram(seen.updates), equal, seen.present, self._mean)
        for name in EVIDENCE:
            self.evidence[name].append(found[name].tolist())

    def on(self, watched: MonitoredFederation) -> MonitoredFederation:
        """With what was said."""
        return replace(watched, suspicion=self.suspicion, flagged=self.flagged, evidence=self.evidence)


def monitor_synthetic(
    method: Method, label: str, attack: str, seed: int, guarded: bool, on_verdict: str
) -> MonitoredFederation:
    """A federation of `made_up_sites`; ``label`` is what the method is called, ``attack`` a key of `attack_matrix`."""
    log = Log(trusted=1)
    played = attack_matrix.played(method, attack, seed, guarded, on_verdict, log.see)
    names = [f"site{place + 1}" for place in range(played.weights.shape[1])]
    first = attack_matrix.ROUNDS // 2 if "from the middle" in attack else 0
    return log.on(
        MonitoredFederation(
            label,
            attack,
            seed,
            names,
            [names[place] for place in attack_matrix.list_attackers(attack)],
            names[OUTLIER],
            first,
            verdicts=played.verdicts.tolist(),
            weights=played.weights[-1].tolist(),
            rewards=played.reward[-1].tolist(),
            dice=played.dice.tolist(),
        )
    )


@dataclass(frozen=True)
class Roles:
    """Which of the sites do what."""

    attacker: str
    partner: str  # of two who collude
    trusted: str  # known to be honest
    outlier: str = ""


@dataclass(frozen=True)
class Attack:
    """What an attack is on site folders.

    ``specs`` gives the specs of attacks by site, of roles and rounds; ``sybil`` is a key of `SYBILS`, where the sites
    are others.
    """

    specs: Callable[[Roles, int], Mapping[str, str]]
    sybil: str = ""


def _alone(spec: str) -> Attack:
    return Attack(lambda roles, rounds: {roles.attacker: spec})


ATTACKS: Mapping[str, Attack] = {  # by the names of `attack_matrix`, where it has the same
    HONEST: Attack(lambda roles, rounds: {}),
    "zero update": _alone("zero"),
    "zero update from the middle on": Attack(lambda roles, rounds: {roles.attacker: f"zero:from={rounds // 2}"}),
    "zero update, two rounds of three": _alone("rests"),
    "zero update, every other round": _alone("rests:every=2"),
    "zero update, one round of three": _alone("rests:works=2"),
    "noise of an honest norm": _alone("noise"),
    "last step": _alone("delta"),
    "last step and noise, cosine .83": _alone("delta:noise=0.67"),
    "replay": _alone("replay"),
    "knows the rules": _alone("adaptive"),
    "one image, repeated": _alone("repeat"),
    "a part of the images": _alone("partial"),
    "shifted masks": _alone("shifted"),
    "10,000 times the honest update": _alone("scaled:by=10000"),
    "signs reversed": _alone("sign-flip"),
    "half the signs reversed": _alone("half-flip"),
    "claims the best of itself": _alone("inflated:what=minus_error"),
    "zero update and claims": _alone("zero-inflated"),
    "claims 1,000 times its images": _alone("inflated:what=num_samples:by=1000"),
    "rigs the evaluation": Attack(lambda roles, rounds: {roles.attacker: f"rigged:friends={roles.attacker}"}),
    "two rig the evaluation": Attack(
        lambda roles, rounds: dict.fromkeys(
            (roles.attacker, roles.partner), f"rigged:friends={roles.attacker}+{roles.partner}"
        )
    ),
    "two exact copies": Attack(
        lambda roles, rounds: {f"{roles.attacker}-copy": f"twin:of={roles.attacker}"}, "duplicate"
    ),
    "two copies, cosine .77": Attack(
        lambda roles, rounds: {f"{roles.attacker}-copy": f"near-twin:of={roles.attacker}:noise=0.83"}, "duplicate"
    ),
    "a site split in two": Attack(lambda roles, rounds: {}, "split"),
}


@dataclass(frozen=True)
class Training:
    """How federations are trained that detectors watch."""

    sites: Path  # folder of site folders
    roles: Roles
    rounds: int
    settings: Mapping[str, str]
    method: str
    parameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The sites there are without an attack."""
        return [folder.name for folder in open_sites(self.sites)]


def monitor_trained(training: Training, label: str, attack: str, seed: int, out: Path) -> MonitoredFederation:
    """A federation trained by the local engine, all of it at once: its run folder is made anew.

    Args:
        training: how.
        label: of the method.
        attack: a key of `ATTACKS`.
        seed: of the run.
        out: the run folder; beside it ``sites`` holds folders of sites that stand twice or as two.

    Raises:
        BadInput: the run cannot be created.
        RunFailed: it did not come to its end.
    """
    roles, kind = training.roles, ATTACKS[attack]
    shutil.rmtree(out, ignore_errors=True)
    sites, attackers = training.sites, sorted(kind.specs(roles, training.rounds))
    if kind.sybil:
        sites = out.parent / "sites" / f"{kind.sybil}_{roles.attacker}"
        shutil.rmtree(sites, ignore_errors=True)
        attackers = SYBILS[kind.sybil](training.sites, roles.attacker, sites)
    settings = {**training.settings, **training.parameters}
    runs.create(
        out,
        training.method,
        sites,
        training.rounds,
        seed,
        engine="local",
        device="cpu",
        settings=settings,
        attacks=kind.specs(roles, training.rounds),
    )
    names = [folder.name for folder in open_sites(sites)]
    log = Log(names.index(roles.trusted))
    watching = _Monitor(open_sites(sites), RunConfiguration.from_dict(read_run(out)["plan"]), log.see)
    runs.execute(out, watching.on_round, on_exchange=watching.on_exchange)
    shutil.rmtree(out / "sites", ignore_errors=True)
    first = training.rounds // 2 if "from the middle" in attack else 0
    watched = MonitoredFederation(
        label, attack, seed, names, attackers if attack != HONEST else [], roles.outlier, first
    )
    return log.on(_with_results(watched, out))


def _with_results(watched: MonitoredFederation, run: Path) -> MonitoredFederation:
    """With what the run's results say."""
    results = open_run(run).results
    rows = results.rows.assign(run=run.name)
    results = replace(results, rows=rows)

    def of(quantity: str) -> Rows:
        table = of_rounds(results, quantity)
        rounds: Rows = table.reindex(columns=watched.sites).to_numpy(float).tolist()
        return rounds

    verdicts, quota = of("verdict"), of("quota")
    weights = of("weight")
    dice = results.read_folders.dice.sites["dice"]
    by_site = dict(zip(dice.index.get_level_values("site"), dice, strict=True))
    return replace(
        watched,
        verdicts=np.nan_to_num(np.array(verdicts or np.zeros_like(weights))).tolist(),
        weights=np.nan_to_num(np.array(weights[-1])).tolist(),
        rewards=quota[-1] if quota else [float(not one) for one in (verdicts or [[0] * len(watched.sites)])[-1]],
        dice=[float(by_site[site]) for site in watched.sites],
    )


class _Monitor:
    """What of the exchanges of a local run makes up the rounds that detectors see.

    Args:
        folders: the sites.
        config: the run.
        see: called with every round.
    """

    def __init__(self, folders: Sequence[SiteFolder], config: RunConfiguration, see: Callable[[MonitoredRound], None]):
        self.sites, self.see = [folder.name for folder in folders], see
        self.network = build_network(config.network, pick_device("cpu", "detectors"))
        shown = [_challenge(folder) for folder in folders]
        self.samples = build_samples(shown, config.network.patch)
        self.parts = [len(build_samples([case], config.network.patch)) for case in shown]
        self.received: dict[str, Tensor] = {}
        self.last: MonitoredRound | None = None
        self.wrong: set[str] = set()

    def on_round(self, record: Mapping[str, Any]) -> None:
        """Its ledger record."""
        self.wrong = set(record["flagged"])

    def on_exchange(self, tasks: Mapping[str, Work], answers: Mapping[str, Answer]) -> None:
        """Of the exchanges, those that train."""
        asked = {site: task for site, task in tasks.items() if isinstance(task, Task)}
        if asked:
            self._trained(asked, {site: one for site, one in answers.items() if isinstance(one, Reply)})

    def _trained(self, tasks: Mapping[str, Task], replies: Mapping[str, Reply]) -> None:
        for site, task in tasks.items():
            model = task.parameters
            self.received[site] = model.apply(self.received[site]) if isinstance(model, SparseUpdate) else model
        received = torch.stack([self.received[site] for site in self.sites])
        there = [site in replies for site in self.sites]
        nothing = torch.zeros_like(received[0])
        updates = torch.stack([replies[site].update if site in replies else nothing for site in self.sites])
        images = torch.tensor([float(replies[site].num_samples) if site in replies else 0.0 for site in self.sites])
        step, last = None, self.last
        if last is not None:
            weights = torch.tensor([tasks[site].weight or 0.0 for site in self.sites])
            step = weights @ last.updates
        alone = [
            last is not None and not tasks[site].weight and torch.equal(before + update, now)
            for site, before, update, now in zip(
                self.sites,
                last.received if last else received,
                last.updates if last else updates,
                received,
                strict=True,
            )
        ]
        self.last = MonitoredRound(
            number=next(iter(tasks.values())).round,
            received=received,
            updates=updates,
            present=torch.tensor(there),
            images=images.double(),
            last_step=step,
            wrong=torch.tensor([site in self.wrong for site in self.sites]),
            alone=torch.tensor(alone),
            challenge=self._challenged(received + updates, replies),
        )
        self.see(self.last)

    def _challenged(self, models: Tensor, replies: Mapping[str, Reply]) -> Tensor:
        """(n, n) mean loss of the model of each row on the images of each column's site; NaN where none came."""
        n = len(self.sites)
        losses = torch.full((n, n), torch.nan, dtype=torch.float64)
        for row, site in enumerate(self.sites):
            if site in replies:
                flat.load(self.network, models[row], replies[site].buffers)
                parts = torch.split(image_losses(self.network, self.samples), self.parts)
                losses[row] = torch.stack([part.mean() for part in parts])
        return losses


def _challenge(folder: SiteFolder) -> Case:
    """`CHALLENGE` of a site's training images that show something, in one case, evenly over that."""
    cases = [case for case in folder.cases("training") if case.label.any()]
    case = cases[len(cases) // 2]
    shown = [place for one, place in Slices([case]).index if one.label[place].any()]
    chosen = [shown[len(shown) * number // CHALLENGE] for number in range(CHALLENGE)]
    return replace(case, slices=tuple(sorted(set(chosen))))
