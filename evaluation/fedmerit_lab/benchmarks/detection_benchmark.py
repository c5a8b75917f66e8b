"""Who is told by what, and what attacks pay: attacks by methods by seeds, every federation watched by all detectors.

``OUT/federations`` holds what came of each, so that an interrupted benchmark goes on; ``OUT/runs`` the run folders of
trained ones.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import style
from matplotlib.figure import Figure

from fedmerit.configuration.run import make_configuration
from fedmerit.errors import BadInput
from fedmerit.files import read_json, write_json
from fedmerit.trainers.monai_trainer.data import open_sites
from fedmerit_evaluation.figures.drawing import INK, STYLE
from fedmerit_evaluation.figures.tables import Table, file_name
from fedmerit_evaluation.studies.study_folders import MethodSpec
from fedmerit_lab.benchmarks.benchmark import Benchmark, lines
from fedmerit_lab.detection import attack_matrix, monitored_federation
from fedmerit_lab.detection.detection_tables import (
    attack_reward_table,
    by_round,
    detection_table,
    detector_results,
    false_positive_table,
)
from fedmerit_lab.detection.monitored_federation import (
    HONEST,
    MonitoredFederation,
    Roles,
    Training,
    monitor_synthetic,
    monitor_trained,
)

MADE_UP, TRAINED = "made-up", "trained"
WORST = (  # of docs/trust.md: those that pay most there, and the riders that are hardest to tell
    "a site split in two",
    "claims 1,000 times its images",
    "signs reversed",
    "half the signs reversed",
    "knows the rules",
    "last step and noise, cosine .83",
    "noise of an honest norm",
    "zero update and claims",
    "two rig the evaluation",
    "two copies, cosine .77",
)


@dataclass(frozen=True)
class DetectionBench:
    """What the benchmark is asked for.

    Args:
        world: `MADE_UP`, or `TRAINED`.
        methods: of every federation.
        attacks: names of `attack_matrix.ATTACKS`, or of `watched_federation.ATTACKS`.
        seeds: of every federation.
        after: rounds of an attack within which it is to be told.
        guard: "on" or "off".
        on_verdict: what a verdict does.
        sites: folder of site folders, of trained ones.
        roles: likewise; None: chosen by name.
        rounds: likewise.
        settings: likewise.
    """

    world: str
    methods: Sequence[MethodSpec]
    attacks: Sequence[str]
    seeds: Sequence[int]
    after: int = 10
    guard: str = "on"
    on_verdict: str = "withhold"
    sites: Path | None = None
    roles: Roles | None = None
    rounds: int = attack_matrix.ROUNDS
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def cases(self) -> list[tuple[MethodSpec, str, int]]:
        """Method, attack and seed of every federation; of each seed the honest ones first."""
        attacks = [HONEST, *(attack for attack in self.attacks if attack != HONEST)]
        return [(method, attack, seed) for seed in self.seeds for attack in attacks for method in self.methods]

    def to_dict(self) -> dict[str, Any]:
        """What a federation depends on, but for method, attack and seed: as JSON holds it."""
        asked = {"world": self.world, "guard": self.guard, "on_verdict": self.on_verdict, "rounds": self.rounds}
        if self.world == MADE_UP:
            return asked
        assert self.sites
        return asked | {
            "sites": str(self.sites.resolve()),
            "roles": asdict(self.roles or assign_roles(self.sites)),
            "settings": dict(self.settings),
        }


def assign_roles(sites: Path, attacker: str | None = None, outlier: str | None = None) -> Roles:
    """Who attacks, by name: the last site that is not the outlier; partner and trusted site are the first others.

    Raises:
        BadInput: there is no such site, or there are fewer than three.
    """
    names = [folder.name for folder in open_sites(sites)]
    for name in (attacker, outlier):
        if name is not None and name not in names:
            raise BadInput(f"{sites}: holds no site {name}; there are {', '.join(names)}")
    chosen = attacker or [name for name in names if name != outlier][-1]
    others = [name for name in names if name not in (chosen, outlier)]
    if len(others) < 2:
        raise BadInput(f"{sites}: has {len(names)} sites; an attacker, a partner and a trusted site are needed")
    return Roles(chosen, others[0], others[1], outlier or "")


def require_known(bench: DetectionBench) -> None:
    """`BadInput` where an attack is none of that world."""
    attacks = attack_matrix.ATTACKS if bench.world == MADE_UP else monitored_federation.ATTACKS
    for attack in bench.attacks:
        if attack not in attacks:
            raise BadInput(f"--attacks {attack}: unknown for {bench.world} sites; there are {'; '.join(attacks)}")


def federations(
    bench: DetectionBench, out: Path, on_case: Callable[[str, int, int], None] = lambda case, done, of: None
) -> list[MonitoredFederation]:
    """Play or train every federation that is not done yet.

    Args:
        bench: what is asked for.
        out: folder of everything.
        on_case: called before each with what it is, how many are done, and how many there are.

    Raises:
        BadInput: something asked for is not there, or ``out`` holds federations asked for otherwise.
    """
    require_known(bench)
    record = out / "federations" / "asked.json"
    asked = bench.to_dict()
    if record.exists() and (before := read_json(record)) != asked:
        changed = [name for name in asked if before.get(name) != asked[name]]
        raise BadInput(f"{out}: holds federations with other {', '.join(changed)}; choose another --out")
    write_json(record, asked)
    found = []
    for number, (method, attack, seed) in enumerate(bench.cases):
        name = file_name(f"{method.label}_{attack}_seed{seed}")
        file = out / "federations" / f"{name}.json"
        if not file.exists():
            on_case(f"{method.label}, {attack}, seed {seed}", number, len(bench.cases))
            write_json(file, _synthetic_federation(bench, method, attack, seed, out / "runs" / name).to_json())
        found.append(MonitoredFederation.from_json(read_json(file)))
    return found


def _synthetic_federation(
    bench: DetectionBench, method: MethodSpec, attack: str, seed: int, run: Path
) -> MonitoredFederation:
    if bench.world == MADE_UP:
        network = {"in_channels": 1, "labels": ["made-up"]}
        config = make_configuration(method.method, MADE_UP, bench.rounds, seed, network, method.settings)
        return monitor_synthetic(
            config.build_method(), method.label, attack, seed, bench.guard == "on", bench.on_verdict
        )
    assert bench.sites
    settings = {"guard": bench.guard, "on_verdict": bench.on_verdict, **bench.settings}
    training = Training(
        bench.sites, bench.roles or assign_roles(bench.sites), bench.rounds, settings, method.method, method.settings
    )
    return monitor_trained(training, method.label, attack, seed, run)


def detection(bench: DetectionBench, found: Sequence[MonitoredFederation], out: Path) -> list[Table]:
    """The tables of what was found; writes the JSON, the CSV and the figures.

    Args:
        bench: what was asked for.
        found: by `federations`.
        out: folder of ``detection.json`` (every round), ``detection.csv`` (the first table) and figures.
    """
    said = detector_results(found)
    told, rounds = detection_table(said, bench.after), by_round(said)
    benchmark = Benchmark("detection", bench.to_dict() | {"seeds": list(bench.seeds), "after": bench.after})
    benchmark.rows.extend(_json_row(row) for row in rounds.to_dict("records"))
    benchmark.write_with(out, told.frame, _figures(told.frame, rounds))
    return [told, false_positive_table(said), attack_reward_table(found, bench.after)]


def _json_row(row: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(name): None if isinstance(value, float) and np.isnan(value) else value for name, value in row.items()}


def _figures(told: pd.DataFrame, rounds: pd.DataFrame) -> dict[str, Figure]:
    """By method, AUROC of detectors by attacks; and over rounds, the mean of all attacks."""
    figures = {}
    for method, rows in told.groupby("Method", sort=False):
        name = file_name(str(method))
        figures[f"detection-{name}"] = _map(rows.pivot(index="Attack", columns="Detector", values="AUROC"), str(method))
        means = rounds[rounds["Method"] == method].groupby(["Detector", "Round"], sort=False)["AUROC"].mean()
        series = {
            str(detector): (list(part.index.get_level_values("Round")), list(part))
            for detector, part in means.groupby(level="Detector", sort=False)
        }
        figures[f"rounds-{name}"] = lines(series, "Round", "AUROC, mean over attacks", log=False)
    return figures


def _map(cells: pd.DataFrame, title: str) -> Figure:
    with style.context([STYLE, {"axes.grid": False, "font.size": 8}]):
        figure = Figure(
            figsize=(2.4 + 0.6 * len(cells.columns), 1.6 + 0.24 * len(cells)), dpi=160, layout="constrained"
        )
        panel = figure.subplots()
        panel.imshow(cells.to_numpy(float), vmin=0, vmax=1, cmap="Blues", aspect="auto")
        for (row, column), value in np.ndenumerate(cells.to_numpy(float)):
            ink = "white" if value > 0.6 else INK
            text = "" if np.isnan(value) else f"{value:.2f}"
            panel.text(column, row, text, ha="center", va="center", color=ink, size=7)
        panel.set_xticks(range(len(cells.columns)), cells.columns, rotation=60, ha="right")
        panel.set_yticks(range(len(cells)), cells.index)
        panel.set_title(f"AUROC of detectors ({title})")
    return figure
