"""Kept updates replayed: observers of a run computed afterwards, and what other rules would have made of a job.

The models of a run are evaluated on its images again. A job of NVFlare's, whatever trained and aggregated it, is
replayed through the server's half; `fedmerit.engines.nvflare.keep_updates.KeepUpdates` keeps its updates. Every rule
sees the same updates in the same rounds, from the models that the job sent; under another rule later ones would have
differed.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedmerit.contract.observers import OBSERVERS, Observation
from fedmerit.contract.semivalues import Coalition, required_coalitions, shapley, shapley_weights
from fedmerit.errors import BadInput, require_known
from fedmerit.evidence.closing_record import OBSERVED
from fedmerit.evidence.ledger import Ledger
from fedmerit.files import write_text
from fedmerit.methods.registry import estimates_contributions
from fedmerit.schema.configuration.requirements import ENCRYPTED, UPDATES, can_observe, parse_observer, require_observer
from fedmerit.schema.configuration.run import RunConfiguration, read_plan
from fedmerit.schema.configuration.specs import HE
from fedmerit.schema.declarations import split_spec
from fedmerit.schema.results import COLUMNS, Row, read_results, read_table
from fedmerit.schema.run_info import read_run
from fedmerit.schema.site_folder import SiteFolder
from fedmerit.server.observation import KeptRound, RunObservers, expand_groups, read_kept_rounds
from fedmerit.server.recorded_updates import SiteUpdate, UpdateFederation
from fedmerit.server.recorder import observed_rows
from fedmerit.tensor_files import FIRST_MODEL, KEPT_UPDATES, load_tensors
from fedmerit.trainers.factory import build_trainer
from fedmerit.trainers.statistics import (
    RoundStatistics,
    candidate_statistics,
    candidate_statistics_rule,
    candidate_task,
)
from fedmerit.trust import allow_places
from fedmerit_evaluation.figures.tables import Table
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


FILE = re.compile(r"round-(\d{5})-(.+)\.pt")
MOST_SITES = 10  # of one-round values: 1024 models
Score = Callable[[Mapping[str, Tensor]], float]  # of a state_dict, by the server's own images; higher is better


@dataclass(frozen=True)
class Rule:
    """A method by which kept updates can be weighed, with what sites are taken to have used."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    uses: tuple[str, ...] = ()


RULES: Mapping[str, Rule] = {
    "fedavg": Rule(),
    "cgsv": Rule({"reward": "global"}),
    "shapfed": Rule({"reward": "global"}),
    "fedce": Rule({"combine": "updates"}, ("fedce",)),  # the error of a model without a site is known only to the site
}


@dataclass(frozen=True)
class KeptJob:
    """The kept updates of a job."""

    folder: Path
    rounds: Sequence[Mapping[str, Path]]  # in order; by site, the file of its update

    @cached_property
    def sites(self) -> list[str]:
        """The names of the sites, sorted."""
        return sorted({site for one in self.rounds for site in one})

    def read(self, place: int) -> dict[str, SiteUpdate]:
        """Return the updates of the round at a place, by site; `BadInput` names a file that holds none."""
        return {site: _read_update(file) for site, file in sorted(self.rounds[place].items())}

    def first_model(self) -> dict[str, Tensor]:
        """Return the model that the first round began with."""
        content = load_tensors(self.folder / FIRST_MODEL)
        model: dict[str, Tensor] | None = content.get("model") if isinstance(content, dict) else None
        if not isinstance(model, dict):
            raise BadInput(f"{self.folder / FIRST_MODEL}: holds no model; expected what KeepUpdates writes")
        return model


def find_kept(place: Path) -> KeptJob:
    """Return the kept updates in a folder, or below it.

    Raises:
        BadInput: there are none, or of several jobs.
    """
    found = sorted({file.parent for file in place.rglob("round-*.pt") if FILE.fullmatch(file.name)})
    if len(found) != 1:
        many = f": {', '.join(map(str, found))}; name one" if found else ""
        raise BadInput(
            f"{place}: holds kept updates of {len(found)} jobs{many}; expected the folder {KEPT_UPDATES} of one, which "
            "fedmerit.keep_updates(recipe) has a job write"
        )
    rounds: dict[int, dict[str, Path]] = {}
    for file in found[0].glob("round-*.pt"):
        if match := FILE.fullmatch(file.name):
            rounds.setdefault(int(match[1]), {})[match[2]] = file
    return KeptJob(found[0], [rounds[number] for number in sorted(rounds)])


def replay_rules(job: KeptJob, rules: Sequence[str], out: Path) -> dict[str, Path]:
    """Replay a job under each rule, and return the run folders, by rule.

    Raises:
        BadInput: a rule is unknown, a folder holds a run already, or a rule needs more than updates.
    """
    require_known("rule", rules, RULES)
    folders = {name: out / name for name in rules}
    for folder in folders.values():
        if folder.exists():
            raise BadInput(f"{folder}: exists already; choose another --out")
    first = next(iter(job.read(0).values())).tensors
    for name, folder in folders.items():
        rule = RULES[name]
        replayed = UpdateFederation(name, len(job.rounds), first, job.sites, folder, rule.settings, rule.uses)
        for place in range(len(job.rounds)):
            replayed.take(job.read(place))
        replayed.close()
    return folders


def one_round_values(job: KeptJob, score: Score) -> dict[str, float]:
    """Return Shapley values of the models rebuilt from all updates of each coalition (OR, Song et al. 2019).

    A coalition's model is the first one and, of every round, the mean update of its sites by their samples.

    Args:
        job: the kept updates.
        score: of a model, from 0 to 1, on the server's own images.

    Raises:
        BadInput: there are too many sites, or a score is none.
    """
    if len(job.sites) > MOST_SITES:
        raise BadInput(f"one-round values of {len(job.sites)} sites need 2^{len(job.sites)} scores; expected at most "
                       f"{MOST_SITES} sites")  # fmt: skip
    coalitions = required_coalitions(job.sites, shapley_weights)
    first = job.first_model()
    models: dict[Coalition, dict[str, Tensor]] = {one: _floats(first) for one in coalitions}
    for place in range(len(job.rounds)):
        updates = job.read(place)
        for coalition, model in models.items():
            members = {site: updates[site] for site in sorted(coalition & updates.keys())}
            total = sum(one.samples for one in members.values())
            for one in members.values():
                for name, value in one.tensors.items():
                    if name in model:
                        model[name] += value.double() * (one.samples / total)
    game = {one: _scored(score, first, model) for one, model in models.items()}
    return dict(zip(job.sites, map(float, shapley(game)), strict=True))


def _floats(model: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.double() for name, value in model.items() if value.is_floating_point()}


def _scored(score: Score, first: Mapping[str, Tensor], model: Mapping[str, Tensor]) -> np.ndarray[Any, Any]:
    state = {name: model[name].to(value.dtype) if name in model else value.clone() for name, value in first.items()}
    try:
        value = float(score(state))
    except Exception as error:  # whatever another's code raises
        raise BadInput(f"--score: failed ({type(error).__name__}: {error!s:.200})") from error
    if not 0 <= value <= 1:
        raise BadInput(f"--score: gave {value:.6g}; expected a number from 0 to 1")
    return np.asarray(value)


def replay_tables(job: KeptJob, folders: Mapping[str, Path], values: Mapping[str, float] | None = None) -> list[Table]:
    """Return a table of contributions and weights by rule, and one of what was found of each site's updates."""
    frame = pd.DataFrame({"Site": job.sites})
    for name, folder in folders.items():
        records = Ledger(folder / "ledger.jsonl").records
        if estimates_contributions(name):
            frame[f"Contribution by {name}"] = [_mean(records, "contributions", site) for site in job.sites]
        frame[f"Weight by {name} [%]"] = [100 * _mean(records, "weights", site) for site in job.sites]
    if values is not None:
        frame["One-round value [points]"] = [100 * values[site] for site in job.sites]
    caption = f"Means over {len(job.rounds)} rounds; of CGSV, ShapFed and FedCE's cosine each in its own unit"
    results = read_results(next(iter(folders.values())))
    rows = results[results["split"] == ""].pivot_table(index="site", columns="quantity", values="value", aggfunc="mean")
    last = Ledger(next(iter(folders.values())) / "ledger.jsonl").records[-1]
    verdicts = last.get("guard", {}).get("verdicts", [])
    findings = pd.DataFrame(
        {
            "Site": job.sites,
            "Rounds": [str(sum(site in one for one in job.rounds)) for site in job.sites],
            "Repeated updates [%]": [100 * _cell(rows, site, "repeated") for site in job.sites],
            "Cosine to the nearest other": [_cell(rows, site, "largest_pair_cosine") for site in job.sites],
            "Cosine to the mean": [_cell(rows, site, "cosine_to_mean") for site in job.sites],
            "Norm": [_cell(rows, site, "norm") for site in job.sites],
            "Free rider": ["yes" if site in verdicts else "no" for site in job.sites],
        }
    )
    return [
        Table("contributions", caption, frame),
        Table("findings", "Updates: the guard's verdict, and repetitions", findings),
    ]


def _mean(records: Sequence[Mapping[str, Any]], name: str, site: str) -> float:
    known = [value for one in records if (value := one[name].get(site)) is not None]
    return float(np.mean(known)) if known else float("nan")


def _cell(rows: pd.DataFrame, site: str, quantity: str) -> float:
    return float(rows[quantity][site]) if quantity in rows and site in rows.index else float("nan")


def _read_update(file: Path) -> SiteUpdate:
    content = load_tensors(file)
    if not (isinstance(content, dict) and isinstance(content.get("update"), dict)):
        raise BadInput(f"{file}: holds no update; expected what KeepUpdates writes")
    tensors = content["update"]
    if wrong := [name for name, value in tensors.items() if not isinstance(value, Tensor)]:
        raise BadInput(f"{file}: {wrong[0]} is no tensor; expected what KeepUpdates writes")
    samples = content.get("samples", 1)
    return SiteUpdate(tensors, max(1, int(samples)))
