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
from fedmerit.evidence.ledger import record_hash
from fedmerit.evidence.verification.record_schema import Record
from fedmerit.evidence.verification.site_logs import SiteLog
from fedmerit.files import read_object
from fedmerit.methods.registry import undefined_quantities
from fedmerit.schema.configuration.run import plan_network
from fedmerit.schema.configuration.specs import HE
from fedmerit.schema.messages import EVALUATE, TRAIN
from fedmerit.schema.run_info import read_run
from fedmerit.tensor_files import load_state

REPEATED_FIELDS = ("method", "parameters", "seed", "task", "rounds", "training")  # run.json has them beside its plan
CHANGED = "take the file from somebody who got it when the run ended"


def compare_plan(run: Path, records: Sequence[Record], logs: Sequence[SiteLog]) -> Iterator[str]:
    """Check what a run folder says of the run; in sentences, what of it is not shown.

    Raises:
        BadInput: run.json holds another plan than that which server or site had, or what it or a model.json says beside
            is not in its plan.
    """
    if not (run / "run.json").exists():
        raise BadInput(f"{run / 'run.json'}: file not found; {run / 'ledger.jsonl'}, line 1, names its plan")
    info = read_run(run)
    plan = info["plan"]
    digest = record_hash(plan)
    for log in logs:
        yield from _compare_log(info.file, digest, log)
    if digest != records[0]["plan"]:
        raise BadInput(f"{info.file}: its plan is not that which {run / 'ledger.jsonl'}, line 1, names; {CHANGED}")
    if silent := [log.site for log in logs if not _plan_digests(log)]:
        yield f"that {', '.join(silent)} trained by the plan in {info.file}: their logs name none"
    network = plan_network(plan)
    if not isinstance(network, dict):
        raise BadInput(f"{info.file}: its plan has no network; {CHANGED}")
    follows = {"labels": network.get("labels"), "undefined": undefined_quantities(str(plan.get("method")))}
    _require_same(info, {name: plan.get(name, {}) for name in REPEATED_FIELDS} | follows, info.file)
    expected = network | {name: plan[name] for name in ("preprocessing",) if name in plan}
    for file in sorted((run / MODELS).rglob("model.json")):
        found = read_object(file)
        if set(found) - set(expected):
            raise BadInput(f"{file}: holds something else than the run's plan; {CHANGED}")
        _require_same(found, expected, file)


def _compare_log(file: Path, plan: str, log: SiteLog) -> Iterator[str]:
    """Likewise of the ``plan`` in ``file``, its digest, and a site's log, which names that by which it trained."""
    named = _plan_digests(log)
    if named and named[0][1] != plan:
        raise BadInput(f"{log.path}, line {named[0][0]}: {log.site} trained by another plan than {file} holds")
    if other := next((line for line, digest in named if digest != plan), None):
        yield f"that {log.site} trained by the plan in {file} to the end: {log.path}, line {other}, names another"


def _plan_digests(log: SiteLog) -> list[tuple[int, str]]:
    """By line of a log, the digests of the plans that its site trained by."""
    entries = enumerate(log.entries, start=1)
    return [(line, entry["plan"]) for line, entry in entries if entry["work"] == TRAIN and "plan" in entry]


def _require_same(found: Mapping[str, Any], said: Mapping[str, Any], file: Path) -> None:
    for name, value in said.items():
        if _text(found.get(name)) != _text(value):
            raise BadInput(f"{file}: {name} is not what the run's plan has; {CHANGED}")


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)


# Networks of which is known that they train all numbers but the statistics of their norms.
KNOWN = ("dynunet", "unet", "segresnet", "basicunet", "attentionunet", "swinunetr")
STATISTICS = ("running_mean", "running_var")
REPLACED = "it was swapped or changed: take the model from a site, or from the owner of the run"


def compare_models(
    run: Path, records: Sequence[Record], logs: Sequence[SiteLog], results: pd.DataFrame | None
) -> Iterator[str]:
    """Check the models of a run that came to its end; in sentences, what of them is not shown.

    Args:
        records: of its ledger, of all rounds.
        results: the table of its results; None: there is none.

    Raises:
        BadInput: one is missing, or is not that of which the ledger has the digest.
    """
    saved = records[-1]["saved"]
    there = sorted(path.relative_to(run).as_posix() for path in (run / MODELS).rglob("*.pt"))
    _require_saved(run, records, there)
    if further := [name for name in there if name not in saved]:
        yield f"what {', '.join(further)} are: models of sites, of which the ledger has no digest"
    models = _Models(run, list_sites(run, records), [name for name in there if name in saved])
    yield from models.compare_final(records, logs)
    if models.at(BEST):
        yield from models.compare_best(records, results)


def _require_saved(run: Path, records: Sequence[Record], there: Sequence[str]) -> None:
    """Every tensor of every model; the best round's may not have been kept."""
    ledger = f"{run / 'ledger.jsonl'}, line {len(records)}"
    for name, digest in records[-1]["saved"].items():
        if name in there:
            if state_digest(_state(run / name)) != digest:
                raise BadInput(f"{run / name}: is not the model that {ledger} has a digest of; {REPLACED}")
        elif not name.startswith(f"{BEST}/"):
            raise BadInput(f"{run / name}: is missing; {ledger} has a digest of it")


def list_sites(run: Path, records: Sequence[Record]) -> list[str]:
    """In the order of their models, as run.json names them; if it names none, those of the records."""
    named = read_run(run).get("sites", ()) if (run / "run.json").exists() else ()
    sites = [site for site in named if isinstance(site, str)]
    heard = {site for record in records for site in (*record["participants"], *record.get("rejected", ()))}
    return sorted(sites or heard)


@dataclass(frozen=True)
class _Models:
    """Those of a run, by what its sites trained and were sent: the parameters without statistics."""

    run: Path
    sites: Sequence[str]
    names: Sequence[str]  # of files, in the run folder

    def at(self, folder: str) -> dict[str, str]:
        """By site, the file of its model in a folder: its own, or that of all; none if a site has none."""
        files = {
            site: f"{folder}/{name}.pt"
            for site in self.sites
            for name in ("global", site)
            if f"{folder}/{name}.pt" in self.names
        }
        return files if len(files) == len(self.sites) else {}

    def compare_final(self, records: Sequence[Record], logs: Sequence[SiteLog]) -> Iterator[str]:
        """What the last round ended with, and what sites say that they tested."""
        files, said = self.at(MODELS), records[-1]["model"]
        if not files:
            return
        shared = {f"{MODELS}/global.pt"} & set(self.names)  # the model that all sites have, if there is one
        distinct = {name: self._digest([name]) for name in {*files.values(), *shared}}
        if said not in {*distinct.values(), self._digest([files[site] for site in self.sites])}:
            yield from self._report_mismatch(f"the model of line {len(records)}", sorted(distinct), records)
            return
        others = [
            log.site
            for log in logs
            if log.site in files and not self._tested(log, len(records), distinct[files[log.site]])
        ]
        if others:
            yield f"that {', '.join(others)} tested the final models: by their logs it was others, such as their own"

    def _tested(self, log: SiteLog, rounds: int, digest: str) -> bool:
        """Whether a site had the model of this digest, or none, to evaluate once all rounds were over."""
        tested = {
            entry.get("received")
            for entry in log.entries
            if (entry["work"], entry["round"], entry.get("split")) == (EVALUATE, rounds, "validation")
        }
        return not tested or digest in tested

    def compare_best(self, records: Sequence[Record], results: pd.DataFrame | None) -> Iterator[str]:
        """What the round began with that the results name as the best."""
        files = self.at(BEST)
        rounds = [] if results is None else sorted(set(results["round"][results["split"] == "testing_best"]))
        if len(rounds) != 1 or rounds[0] >= len(records):
            yield f"of which round the models in {BEST} are: results.csv has testing_best of {len(rounds)} rounds"
            return
        began = records[rounds[0]]["began"]
        if any(self._digest([files[site]]) != began[site] for site in self.sites if site in began):
            yield from self._report_mismatch(
                f"what line {rounds[0] + 1} began with", sorted(set(files.values())), records
            )

    def _report_mismatch(self, what: str, names: Sequence[str], records: Sequence[Record]) -> Iterator[str]:
        """`BadInput` if models are not those of the ledger, as far as the files show that."""
        files = ", ".join(names)
        description = self.run / MODELS / "model.json"
        said = read_object(description) if description.exists() else {}
        if self._is_unseen(records):
            yield f"that {files} are those of the ledger, whose digests are of what the server saw: not the models"
        elif said.get("architecture") not in KNOWN:
            yield f"that {files} are those of the ledger: which numbers of such a network are trained is not known"
        else:
            raise BadInput(
                f"{self.run / names[0]}: is not {what} of {self.run / 'ledger.jsonl'}, whose digest is another; "
                f"{REPLACED}"
            )

    def _is_unseen(self, records: Sequence[Record]) -> bool:
        """Whether the server of a run saw no models: they stayed at the sites, or came encrypted."""
        privacy = read_run(self.run).get("privacy", ()) if (self.run / "run.json").exists() else ()
        encrypted = isinstance(privacy, list) and HE in privacy
        return encrypted or not any(record["updates"] for record in records)

    def _digest(self, names: Sequence[str]) -> str:
        """As `fedmerit.evidence.digests.digest` of models, one after the other."""
        whole = hashlib.sha256()
        for name in names:
            for tensor in trained_tensors(_state(self.run / name)):
                whole.update(tensor.float().contiguous().view(-1).numpy().data)
        return whole.hexdigest()


def trained_tensors(state: Mapping[str, Tensor]) -> Iterator[Tensor]:
    """What of a state_dict is trained, each tensor once, in its order: of the networks `KNOWN`."""
    seen = set()
    for name, tensor in state.items():
        place = tensor.data_ptr(), tensor.shape, tensor.stride()
        if tensor.is_floating_point() and name.rpartition(".")[2] not in STATISTICS and place not in seen:
            seen.add(place)
            yield tensor


def _state(path: Path) -> dict[str, Tensor]:
    """A model's state_dict; `BadInput` naming the file if it holds none."""
    try:
        return load_state(path)
    except BadInput as error:
        raise BadInput(f"{error}; {REPLACED}") from None
