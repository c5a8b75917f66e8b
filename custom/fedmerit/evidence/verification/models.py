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
from fedmerit.evidence.verification.chains import RunFiles
from fedmerit.evidence.verification.findings import REPLACED, Contradiction, Finding, at, join_names, make_finding
from fedmerit.files import read_object, record_hash
from fedmerit.methods.registry import estimates_contributions, undefined_quantities
from fedmerit.schema.configuration.run import plan_network
from fedmerit.schema.configuration.settings import ARCHITECTURES
from fedmerit.schema.configuration.specs import HE
from fedmerit.schema.records import EVALUATE, TRAIN
from fedmerit.schema.run_info import read_run
from fedmerit.schema.scores import BEST as BEST_SPLIT
from fedmerit.tensor_files import load_state

REPEATED_FIELDS: Mapping[str, Any] = {  # of run.json, beside its plan, and what they are if the plan lacks them
    **{name: {} for name in ("method", "parameters", "seed", "task", "rounds", "training")},
    "fold": None,
}
STATISTICS = ("running_mean", "running_var")


def compare_plan(files: RunFiles) -> Iterator[Finding]:
    """Compare what a run folder says of the run with ledger and logs; yield what is not shown of it.

    All have to have one plan, and what run.json and each model.json say beside it has to be in the plan.

    Raises:
        Contradiction: there is no run.json, or its plan has no network.
    """
    if not (files.run / "run.json").exists():
        raise Contradiction("missing run.json", files.run / "run.json", ledger=files.ledger)
    info = read_run(files.run)
    plan = info["plan"]
    digest = record_hash(plan)
    for log in files.logs:
        named = [(line, entry.plan) for line, entry in log.lines(TRAIN) if entry.plan]
        if named and named[0][1] != digest:
            files.contradict("other plan", at(log.path, named[0][0]), site=log.site, run=info.file)
        elif other := next((line for line, plan_digest in named if plan_digest != digest), None):
            yield make_finding("plan changed", site=log.site, run=info.file, log=at(log.path, other))
    if digest != files.records[0].plan:
        files.contradict("plan", info.file, ledger=files.ledger)
    if silent := [log.site for log in files.logs if not any(entry.plan for _, entry in log.lines(TRAIN))]:
        yield make_finding("plan unnamed", site=join_names(silent), run=info.file)
    network = plan_network(plan)
    if not isinstance(network, dict):
        raise Contradiction("no network", info.file)
    method = str(plan.get("method"))
    derived = {"labels": network.get("labels"), "undefined": undefined_quantities(method)}
    if "estimates" in info:
        derived["estimates"] = estimates_contributions(method)
    if "image_size" in info and plan.get("preprocessing"):
        derived["image_size"] = plan["preprocessing"].get("size")
    repeated = {name: plan.get(name, default) for name, default in REPEATED_FIELDS.items()}
    _require_same(files, info.file, info, repeated | derived)
    expected = network | {name: plan[name] for name in ("preprocessing",) if name in plan}
    for file in sorted((files.run / MODELS).rglob("model.json")):
        description = read_object(file)
        if set(description) - set(expected):
            files.contradict("beyond the plan", file)
        _require_same(files, file, description, expected)


def _require_same(files: RunFiles, file: Path, content: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    for name, value in expected.items():
        if json.dumps(content.get(name), sort_keys=True) != json.dumps(value, sort_keys=True):
            files.contradict("not of the plan", file, quantity=name)


def compare_models(files: RunFiles, results: pd.DataFrame | None) -> Iterator[Finding]:
    """Compare the models of a run that came to its end with ledger and logs; yield what is not shown of them.

    Each model of which the ledger has a digest has to be there. ``results`` are the rows of results.csv, if there is
    one.
    """
    run, ledger, saved = files.run, files.line(len(files.records) - 1), files.records[-1].saved
    names = sorted(path.relative_to(run).as_posix() for path in (run / MODELS).rglob("*.pt"))
    states = {name: _load_state(run / name) for name in names if name in saved}  # mapped from their files
    with_statistics = []
    for name, digest in saved.items():
        if name in states:
            if state_digest(states[name]) != digest:
                files.contradict("model", run / name, ledger=ledger)
            if any(tensor.rpartition(".")[2] in STATISTICS for tensor in states[name]):
                with_statistics.append(name)
        elif not name.startswith(f"{BEST}/"):  # the best round's may not have been kept
            files.contradict("missing model", run / name, ledger=ledger)
    if with_statistics:
        yield make_finding("statistics unproven", found=join_names(with_statistics))
    if further := [name for name in names if name not in saved]:
        yield make_finding("models without digest", found=join_names(further))
    models = _Models(files, states)
    yield from models.compare_final()
    if models.by_site(BEST):
        yield from models.compare_best(results)


@dataclass(frozen=True)
class _Models:
    """The models of a run by what its sites trained and were sent: the parameters without statistics."""

    files: RunFiles
    states: Mapping[str, Mapping[str, Tensor]]  # by file, relative to the run folder

    def by_site(self, folder: str) -> dict[str, str]:
        """Return the file of each site's model in a folder: its own, or that of all; nothing if a site has none."""
        files = {
            site: f"{folder}/{name}.pt"
            for site in self.files.sites
            for name in ("global", site)
            if f"{folder}/{name}.pt" in self.states
        }
        return files if len(files) == len(self.files.sites) else {}

    def compare_final(self) -> Iterator[Finding]:
        """Compare the final models with what the last round ended with, and with what sites say that they tested."""
        rounds, expected = len(self.files.records), self.files.records[-1].model
        files = self.by_site(MODELS)
        if not files:
            return
        shared = {f"{MODELS}/global.pt"} & set(self.states)  # the model that all sites have, if there is one
        digests = {name: self._digest([name]) for name in {*files.values(), *shared}}
        if expected not in {*digests.values(), self._digest([files[site] for site in self.files.sites])}:
            yield from self._report_mismatch(f"the model of line {rounds}", sorted(digests))
            return
        others = []
        for log in self.files.logs:
            lines = log.lines(EVALUATE, rounds)
            tested = {entry.received for _, entry in lines if entry.split == "validation"}
            if log.site in files and tested and digests[files[log.site]] not in tested:
                others.append(log.site)
        if others:
            yield make_finding("other models tested", site=join_names(others))

    def compare_best(self, results: pd.DataFrame | None) -> Iterator[Finding]:
        """Compare the models of the best round with what the round that the results name as the best began with."""
        files, records = self.by_site(BEST), self.files.records
        rounds = [] if results is None else sorted(set(results["round"][results["split"] == BEST_SPLIT]))
        if len(rounds) != 1 or rounds[0] >= len(records):
            yield make_finding("best round", found=BEST, rounds=len(rounds))
            return
        began = records[rounds[0]].began
        if any(self._digest([files[site]]) != began[site] for site in self.files.sites if site in began):
            yield from self._report_mismatch(f"what line {rounds[0] + 1} began with", sorted(set(files.values())))

    def _report_mismatch(self, what: str, names: Sequence[str]) -> Iterator[Finding]:
        """Report that models are not those of the ledger, or yield why the files cannot show it."""
        run = self.files.run
        description = run / MODELS / "model.json"
        content = read_object(description) if description.exists() else {}
        if self._are_unseen():
            yield make_finding("models seen encrypted", found=join_names(names))
        elif content.get("architecture") not in ARCHITECTURES:  # which train all numbers except STATISTICS
            yield make_finding("unknown network", found=join_names(names))
        else:
            self.files.contradict("model of the round", run / names[0], expected=what, ledger=self.files.ledger)

    def _are_unseen(self) -> bool:
        """Return whether the server saw no models: they stayed at the sites, or came encrypted."""
        run = self.files.run
        privacy = read_run(run).get("privacy", ()) if (run / "run.json").exists() else ()
        encrypted = isinstance(privacy, list) and HE in privacy
        return encrypted or not any(record.updates for record in self.files.records)

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
