"""Observers computed after a run: its kept updates are replayed, and the models evaluated on the images."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import torch

from fedmerit.contract.observers import OBSERVERS, Observation
from fedmerit.errors import BadInput
from fedmerit.evidence.closing_record import OBSERVED
from fedmerit.files import write_text
from fedmerit.schema.configuration.requirements import ENCRYPTED, UPDATES, can_observe, parse_observer, require_observer
from fedmerit.schema.configuration.run import RunConfiguration, read_plan
from fedmerit.schema.configuration.specs import HE
from fedmerit.schema.declarations import split_spec
from fedmerit.schema.results import COLUMNS, Row, read_table
from fedmerit.schema.run_info import read_run
from fedmerit.schema.site_folder import SiteFolder
from fedmerit.server.observation import KeptRound, RunObservers, expand_groups, read_kept_rounds
from fedmerit.server.recorder import observed_rows
from fedmerit.trainers.factory import build_trainer
from fedmerit.trainers.statistics import (
    RoundStatistics,
    candidate_statistics,
    candidate_statistics_rule,
    candidate_task,
)
from fedmerit.trust import allow_places
from fedmerit_evaluation.valuation.observed_run import prepared_sites

FOLDER = "values"  # in the run folder: rows computed afterwards, a file per observer


def observable(run: Path) -> set[str]:
    """Return the observers that the kept updates of a run allow; none if it kept none."""
    if not (run / UPDATES).is_dir():
        return set()
    method = read_plan(run).build_method()
    return {name for name in OBSERVERS if can_observe(parse_observer(name), method)}


def replay_observers(
    run: Path,
    observers: Sequence[str],
    device: str = "auto",
    on_round: Callable[[str, int, int], None] = lambda name, done, rounds: None,
    place: Path | None = None,
) -> pd.DataFrame:
    """Return everything observed of a run; missing ``observers`` are computed from its kept updates.

    New rows are written to ``RUN/values``, round by round, so an interrupted call can resume.

    Args:
        run: a finished run folder.
        observers: specs, as of ``fedmerit run --values``.
        device: that evaluates models.
        on_round: called with observer, finished rounds and all rounds.
        place: the folder that the run's site folders are in now; None: the recorded one.

    Raises:
        BadInput: something is missing and the run kept no updates, was encrypted or has a method that does not allow
            it; or its images are elsewhere.
    """
    allow_places(place)
    info = read_run(run) | ({} if place is None else {"sites_folder": str(place)})
    config = read_plan(run)
    there = read_table(run / OBSERVED) if (run / OBSERVED).exists() else pd.DataFrame(columns=COLUMNS)
    seen = set(there["split"])
    lacking = {name: spec for spec in observers if (name := split_spec(spec)[0]) not in seen}
    if lacking and HE in info.get("privacy", []):
        raise BadInput(f"{run}: {', '.join(lacking)} cannot be computed: {ENCRYPTED}")
    if lacking and not (run / UPDATES).is_dir():
        raise BadInput(
            f"{run}: was run without --values {','.join(lacking)} and kept no updates (--keep-updates), so "
            "nothing can be computed now; run it again with one of them"
        )
    for spec in lacking.values():
        require_observer(spec, config.method, config.build_method())
    tables = [there]
    for name, spec in lacking.items():
        tables.append(_replayed(run, config, name, spec, prepared_sites(run, info), device, on_round))
    return pd.concat([table for table in tables if len(table)], ignore_index=True) if any(map(len, tables)) else there


def _replayed(
    run: Path,
    config: RunConfiguration,
    name: str,
    spec: str,
    folders: Sequence[SiteFolder],
    device: str,
    on_round: Callable[[str, int, int], None],
) -> pd.DataFrame:
    """Return the rows of one observer; rounds that are already written are not evaluated again."""
    out = run / FOLDER / f"{spec.replace(':', '-')}.csv"
    table = read_table(out) if out.exists() else pd.DataFrame(columns=COLUMNS)
    done = set(table["round"])
    rounds = read_kept_rounds(run, config)
    observers: RunObservers | None = None
    for kept in rounds:
        if observers is None:
            observers = RunObservers([spec], kept.view.began, len(folders))
        for _, observation in observers.observe(kept.view):
            if kept.view.round not in done:
                rows = _evaluated(run, config, name, kept, observation, folders, device)
                made = pd.DataFrame([asdict(row) for row in rows], columns=COLUMNS)
                table = pd.concat([table, made], ignore_index=True) if len(table) else made
                write_text(out, table.to_csv(index=False, lineterminator="\n"))
        on_round(name, kept.view.round + 1, config.rounds)
    return read_table(out) if out.exists() else table


def _evaluated(
    run: Path,
    config: RunConfiguration,
    name: str,
    kept: KeptRound,
    observation: Observation,
    folders: Sequence[SiteFolder],
    device: str,
) -> list[Row]:
    number, candidates = kept.view.round, observation.candidates
    there = RoundStatistics(kept.buffers, kept.statistics, weights=kept.view.weights)
    rule = candidate_statistics_rule(config.training, number, config.build_method())
    torch.set_num_threads(1)
    answers = {}
    for row, folder in enumerate(folders):
        if kept.counted[row]:
            task = candidate_task(candidates, candidate_statistics(candidates, there, rule, row), number, "validation")
            answers[folder.name] = build_trainer(config, folder, run / FOLDER, device).evaluate(task)
    sites = [folder.name for folder in folders]
    coalitions = expand_groups(observation.coalitions, kept.first, kept.counted)
    head = run.name, config.method, config.seed, number
    return observed_rows(head, name, sites, coalitions, answers, config.fold)
