"""The plan and the models of a run against the digests in its ledger and in its sites' logs."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from torch import Tensor

from fedmerit.errors import BadInput
from fedmerit.evidence.closing_record import BEST, MODELS
from fedmerit.evidence.digests import state_digest
from fedmerit.evidence.verification.chains import SiteLog, list_sites
from fedmerit.evidence.verification.findings import (
    REPLACED,
    Contradiction,
    Finding,
    Report,
    at,
    join_names,
    make_finding,
    stop,
)
from fedmerit.files import read_object, record_hash
from fedmerit.methods.registry import estimates_contributions, undefined_quantities
from fedmerit.schema.configuration.run import plan_network
from fedmerit.schema.configuration.settings import ARCHITECTURES
from fedmerit.schema.configuration.specs import HE
from fedmerit.schema.records import EVALUATE, TRAIN, RoundRecord
from fedmerit.schema.run_info import read_run
from fedmerit.schema.scores import BEST as BEST_SPLIT
from fedmerit.tensor_files import load_state

REPEATED_FIELDS = ("method", "parameters", "seed", "task", "rounds", "training")  # run.json has them beside its plan
STATISTICS = ("running_mean", "running_var")


def compare_plan(
    run: Path, records: Sequence[RoundRecord], logs: Sequence[SiteLog], report: Report = stop
) -> Iterator[Finding]:
    """Compare what a run folder says of the run with ledger and logs; yield what is not shown of it.

    Raises:
        Contradiction: run.json holds another plan than server or site had, or what it or a model.json says beside the
            plan is not in the plan.
    """
    if not (run / "run.json").exists():
        raise Contradiction("missing run.json", run / "run.json", ledger=run / "ledger.jsonl")
    info = read_run(run)
    plan = info["plan"]
    digest = record_hash(plan)
    for log in logs:
        named = [(line, entry.plan) for line, entry in log.lines(TRAIN) if entry.plan]
        if named and named[0][1] != digest:
            report(make_finding("other plan", at(log.path, named[0][0]), site=log.site, run=info.file))
        elif other := next((line for line, plan_digest in named if plan_digest != digest), None):
            yield make_finding("plan changed", site=log.site, run=info.file, log=at(log.path, other))
    if digest != records[0].plan:
        report(make_finding("plan", info.file, ledger=run / "ledger.jsonl"))
    if silent := [log.site for log in logs if not any(entry.plan for _, entry in log.lines(TRAIN))]:
        yield make_finding("plan unnamed", site=join_names(silent), run=info.file)
    network = plan_network(plan)
    if not isinstance(network, dict):
        raise Contradiction("no network", info.file)
    method = str(plan.get("method"))
    derived = {"labels": network.get("labels"), "undefined": undefined_quantities(method)}
    if "estimates" in info:
        derived["estimates"] = estimates_contributions(method)
    _require_same(info, {name: plan.get(name, {}) for name in REPEATED_FIELDS} | derived, info.file, report)
    expected = network | {name: plan[name] for name in ("preprocessing",) if name in plan}
    for file in sorted((run / MODELS).rglob("model.json")):
        description = read_object(file)
        if set(description) - set(expected):
            report(make_finding("beyond the plan", file))
        _require_same(description, expected, file, report)


def _require_same(content: Mapping[str, Any], expected: Mapping[str, Any], file: Path, report: Report) -> None:
    for name, value in expected.items():
        if json.dumps(content.get(name), sort_keys=True) != json.dumps(value, sort_keys=True):
            report(make_finding("not of the plan", file, quantity=name))


def compare_models(
    run: Path,
    records: Sequence[RoundRecord],
    logs: Sequence[SiteLog],
    results: pd.DataFrame | None,
    report: Report = stop,
) -> Iterator[Finding]:
    """Compare the models of a run that came to its end with ledger and logs; yield what is not shown of them.

    Args:
        run: the run folder.
        records: the ledger's, of all rounds.
        logs: those of sites that were given.
        results: rows of results.csv; None if there is none.

    Raises:
        Contradiction: a model is missing, or is not that of which the ledger has the digest.
    """
    ledger, saved = at(run / "ledger.jsonl", len(records)), records[-1].saved
    files = sorted(path.relative_to(run).as_posix() for path in (run / MODELS).rglob("*.pt"))
    states = {name: _load_state(run / name) for name in files if name in saved}  # mapped from their files
    with_statistics = []
    for name, digest in saved.items():
        if name in states:
            if state_digest(states[name]) != digest:
                report(make_finding("model", run / name, ledger=ledger))
            if any(tensor.rpartition(".")[2] in STATISTICS for tensor in states[name]):
                with_statistics.append(name)
        elif not name.startswith(f"{BEST}/"):  # the best round's may not have been kept
            report(make_finding("missing model", run / name, ledger=ledger))
    if with_statistics:
        yield make_finding("statistics unproven", found=join_names(with_statistics))
    if further := [name for name in files if name not in saved]:
        yield make_finding("models without digest", found=join_names(further))
    models = _Models(run, list_sites(run, records), states, report)
    yield from models.compare_final(records, logs)
    if models.by_site(BEST):
        yield from models.compare_best(records, results)


@dataclass(frozen=True)
class _Models:
    """The models of a run by what its sites trained and were sent: the parameters without statistics."""

    run: Path
    sites: Sequence[str]
    states: Mapping[str, Mapping[str, Tensor]]  # by file, relative to the run folder
    report: Report

    def by_site(self, folder: str) -> dict[str, str]:
        """Return the file of each site's model in a folder: its own, or that of all; nothing if a site has none."""
        files = {
            site: f"{folder}/{name}.pt"
            for site in self.sites
            for name in ("global", site)
            if f"{folder}/{name}.pt" in self.states
        }
        return files if len(files) == len(self.sites) else {}

    def compare_final(self, records: Sequence[RoundRecord], logs: Sequence[SiteLog]) -> Iterator[Finding]:
        """Compare the final models with what the last round ended with, and with what sites say that they tested."""
        files, expected = self.by_site(MODELS), records[-1].model
        if not files:
            return
        shared = {f"{MODELS}/global.pt"} & set(self.states)  # the model that all sites have, if there is one
        digests = {name: self._digest([name]) for name in {*files.values(), *shared}}
        if expected not in {*digests.values(), self._digest([files[site] for site in self.sites])}:
            yield from self._report_mismatch(f"the model of line {len(records)}", sorted(digests), records)
            return
        others = []
        for log in logs:
            lines = log.lines(EVALUATE, len(records))
            tested = {entry.received for _, entry in lines if entry.split == "validation"}
            if log.site in files and tested and digests[files[log.site]] not in tested:
                others.append(log.site)
        if others:
            yield make_finding("other models tested", site=join_names(others))

    def compare_best(self, records: Sequence[RoundRecord], results: pd.DataFrame | None) -> Iterator[Finding]:
        """Compare the models of the best round with what the round that the results name as the best began with."""
        files = self.by_site(BEST)
        rounds = [] if results is None else sorted(set(results["round"][results["split"] == BEST_SPLIT]))
        if len(rounds) != 1 or rounds[0] >= len(records):
            yield make_finding("best round", found=BEST, rounds=len(rounds))
            return
        began = records[rounds[0]].began
        if any(self._digest([files[site]]) != began[site] for site in self.sites if site in began):
            what = f"what line {rounds[0] + 1} began with"
            yield from self._report_mismatch(what, sorted(set(files.values())), records)

    def _report_mismatch(self, what: str, names: Sequence[str], records: Sequence[RoundRecord]) -> Iterator[Finding]:
        """Report that models are not those of the ledger, or yield why the files cannot show it."""
        description = self.run / MODELS / "model.json"
        content = read_object(description) if description.exists() else {}
        if self._is_unseen(records):
            yield make_finding("models seen encrypted", found=join_names(names))
        elif content.get("architecture") not in ARCHITECTURES:  # which train all numbers except STATISTICS
            yield make_finding("unknown network", found=join_names(names))
        else:
            ledger = self.run / "ledger.jsonl"
            self.report(make_finding("model of the round", self.run / names[0], expected=what, ledger=ledger))

    def _is_unseen(self, records: Sequence[RoundRecord]) -> bool:
        """Return whether the server saw no models: they stayed at the sites, or came encrypted."""
        privacy = read_run(self.run).get("privacy", ()) if (self.run / "run.json").exists() else ()
        encrypted = isinstance(privacy, list) and HE in privacy
        return encrypted or not any(record.updates for record in records)

    def _digest(self, names: Sequence[str]) -> str:
        """Return the digest of models, one after the other, as `fedmerit.evidence.digests.digest` computes it."""
        sha = hashlib.sha256()
        for name in names:
            for tensor in trained_tensors(self.states[name]):
                sha.update(tensor.float().contiguous().view(-1).numpy().data)
        return sha.hexdigest()


def trained_tensors(state: Mapping[str, Tensor]) -> Iterator[Tensor]:
    """Yield the trained tensors of a state_dict of a network in `ARCHITECTURES`, each once, in order."""
    seen = set()
    for name, tensor in state.items():
        storage = tensor.data_ptr(), tensor.shape, tensor.stride()
        if tensor.is_floating_point() and name.rpartition(".")[2] not in STATISTICS and storage not in seen:
            seen.add(storage)
            yield tensor


def _load_state(path: Path) -> dict[str, Tensor]:
    try:
        return load_state(path)
    except BadInput as error:
        raise BadInput(f"{error}; {REPLACED}") from None
