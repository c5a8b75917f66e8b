"""The comparison of detectors: methods, attacks and seeds crossed; all detectors monitor every federation.

``OUT/federations`` holds the results of each federation, so that an interrupted benchmark resumes; ``OUT/runs`` the run
folders. `fedmerit_lab.benchmarks.arena_benchmark` needs no site folders.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import style
from matplotlib.figure import Figure

from fedmerit.errors import BadInput
from fedmerit.files import read_json, write_json
from fedmerit_evaluation.figures.drawing import INK, STYLE
from fedmerit_evaluation.figures.tables import Table, file_name
from fedmerit_evaluation.studies.study import MethodSpec
from fedmerit_lab.benchmarks.benchmark import Benchmark, lines
from fedmerit_lab.detection.detection_tables import (
    attack_reward_table,
    detection_table,
    detector_results,
    false_positive_table,
    results_by_round,
)
from fedmerit_lab.detection.monitored_federation import MonitoredFederation, Training, monitor
from fedmerit_lab.detection.scenarios import HONEST, SITE_ATTACKS, assign_roles


@dataclass(frozen=True)
class DetectionBench:
    """The options of the benchmark.

    Args:
        sites: folder of site folders.
        methods: of every federation.
        attacks: names of `SITE_ATTACKS`.
        seeds: of every federation.
        after: rounds of an attack after which detection is scored.
        guard: "on" or "off".
        on_verdict: what a verdict does.
        attacker: the site that attacks; None: the last.
        outlier: the honest site of other images; None: none is known.
        rounds: of every federation.
        settings: of every run.
    """

    sites: Path
    methods: Sequence[MethodSpec]
    attacks: Sequence[str]
    seeds: Sequence[int]
    after: int = 10
    guard: str = "on"
    on_verdict: str = "withhold"
    attacker: str | None = None
    outlier: str | None = None
    rounds: int = 15
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def cases(self) -> list[tuple[MethodSpec, str, int]]:
        """The method, attack and seed of every federation; the honest federations of a seed come first."""
        attacks = [HONEST, *(attack for attack in self.attacks if attack != HONEST)]
        return [(method, attack, seed) for seed in self.seeds for attack in attacks for method in self.methods]

    def to_dict(self) -> dict[str, Any]:
        """Return all that a federation depends on except method, attack and seed, as JSON has it."""
        return {
            "sites": str(self.sites.resolve()),
            "attacker": self.attacker,
            "outlier": self.outlier,
            "guard": self.guard,
            "on_verdict": self.on_verdict,
            "rounds": self.rounds,
            "settings": dict(self.settings),
        }

    def training(self, method: MethodSpec) -> Training:
        """Return how the federations of a method are trained; `BadInput` if a site is not there."""
        settings = {"guard": self.guard, "on_verdict": self.on_verdict, **self.settings}
        roles = assign_roles(self.sites, self.attacker, self.outlier)
        return Training(self.sites, roles, self.rounds, settings, method.method, method.settings)


def federations(
    bench: DetectionBench, out: Path, on_case: Callable[[str, int, int], None] = lambda case, done, total: None
) -> list[MonitoredFederation]:
    """Train every federation that is not done yet, and return all.

    Args:
        bench: the options.
        out: the benchmark's folder.
        on_case: called before each federation with its description, how many are done, and how many there are.

    Raises:
        BadInput: an option cannot be used, or ``out`` holds federations of other options.
    """
    for attack in bench.attacks:
        if attack not in SITE_ATTACKS:
            raise BadInput(f"--attacks {attack}: unknown; there are {'; '.join(SITE_ATTACKS)}")
    assign_roles(bench.sites, bench.attacker, bench.outlier)  # before anything is written
    record = out / "federations" / "options.json"
    options = bench.to_dict()
    if record.exists() and (before := read_json(record)) != options:
        changed = [name for name in options if before.get(name) != options[name]]
        raise BadInput(f"{out}: holds federations with other {', '.join(changed)}; choose another --out")
    write_json(record, options)
    found = []
    for number, (method, attack, seed) in enumerate(bench.cases):
        name = file_name(f"{method.label}_{attack}_seed{seed}")
        file = out / "federations" / f"{name}.json"
        if not file.exists():
            on_case(f"{method.label}, {attack}, seed {seed}", number, len(bench.cases))
            training = bench.training(method)
            write_json(file, monitor(training, method.label, attack, seed, out / "runs" / name).to_json())
        found.append(MonitoredFederation.from_json(read_json(file)))
    return found


def detection(bench: DetectionBench, found: Sequence[MonitoredFederation], out: Path) -> list[Table]:
    """Write JSON, CSV and figures, and return the tables.

    Args:
        bench: the options.
        found: by `federations`.
        out: folder of ``detection.json`` (every round), ``detection.csv`` (the first table) and figures.
    """
    results = detector_results(found)
    table, rounds = detection_table(results, bench.after), results_by_round(results)
    benchmark = Benchmark("detection", bench.to_dict() | {"seeds": list(bench.seeds), "after": bench.after})
    benchmark.rows.extend(_json_row(row) for row in rounds.to_dict("records"))
    benchmark.write_with(out, table.frame, _figures(table.frame, rounds))
    return [table, false_positive_table(results), attack_reward_table(found, bench.after)]


def _json_row(row: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(name): None if isinstance(value, float) and np.isnan(value) else value for name, value in row.items()}


def _figures(table: pd.DataFrame, rounds: pd.DataFrame) -> dict[str, Figure]:
    """Return by method, a map of the detectors' AUROC by attack, and lines of its mean over attacks by round."""
    figures = {}
    for method, rows in table.groupby("Method", sort=False):
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
