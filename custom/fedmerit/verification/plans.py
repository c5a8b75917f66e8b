"""What run.json and model.json say was run, against the plan of which ledger and sites' logs have a digest."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmerit.errors import BadInput
from fedmerit.files import read_json
from fedmerit.records.closing import MODELS
from fedmerit.records.ledger import hash_of
from fedmerit.records.results import read_run
from fedmerit.verification.site_chains import Log, Record
from fedmerit.wire.messages import TRAIN

REPEATED = ("method", "parameters", "seed", "task", "rounds", "training")  # in run.json, beside its plan
CHANGED = "take the file from whom it was sent to when the run ended"


def compare_plan(run: Path, records: Sequence[Record], logs: Sequence[Log]) -> Iterator[str]:
    """Check what a run folder says of the run; in sentences, what of it is not shown.

    Args:
        run: the run folder.
        records: of its ledger.
        logs: of some of its sites.

    Raises:
        BadInput: run.json holds another plan than that which server or site had, or what it or a model.json says beside
            is not in its plan.
    """
    if not (run / "run.json").exists():
        return
    info = read_run(run)
    plan, said = info.get("plan"), records[0].get("plan")
    if plan is None or said is None:
        yield f"that {info.file} says what was run: an earlier version of FedMerit made it"
        return
    if hash_of(plan) != said:
        raise BadInput(f"{info.file}: its plan is not that which {run / 'ledger.jsonl'}, line 1, names; {CHANGED}")
    silent = []
    for log in logs:
        trained = [(line, entry) for line, entry in enumerate(log.entries, start=1) if entry["work"] == TRAIN]
        named = [(line, entry["plan"]) for line, entry in trained if "plan" in entry]
        if named and named[0][1] != said:
            raise BadInput(f"{log.path}, line {named[0][0]}: {log.site} trained by another plan than {info.file} holds")
        silent += [log.site] if trained and not named else []
    if silent:
        yield f"that {', '.join(silent)} trained by the plan in {info.file}: their logs name none"
    _require_same(info, {name: plan.get(name) for name in REPEATED}, info.file)
    network = dict(plan.get("network", {}))
    _require_same(info, {"labels": network.get("labels")}, info.file)
    told = {name: plan[name] for name in ("preprocessing",) if name in plan}
    for file in sorted((run / MODELS).rglob("model.json")):
        _require_same(read_json(file), network | told, file)


def _require_same(found: Mapping[str, Any], said: Mapping[str, Any], file: Path) -> None:
    for name, value in said.items():
        if _text(found.get(name)) != _text(value):
            raise BadInput(f"{file}: {name} is not what the run's plan has; {CHANGED}")


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)
