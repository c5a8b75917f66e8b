"""What run.json and model.json say was run, against the plan of which ledger and sites' logs have a digest."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmerit.errors import BadInput
from fedmerit.files import read_json
from fedmerit.records.closing_record import MODELS
from fedmerit.records.ledger import record_hash
from fedmerit.records.results import read_run
from fedmerit.verification.record_schema import Record
from fedmerit.verification.site_logs import SiteLog
from fedmerit.wire.messages import TRAIN

REPEATED_FIELDS = ("method", "parameters", "seed", "task", "rounds", "training")  # run.json has them beside its plan
CHANGED = "take the file from somebody who got it when the run ended"


def compare_plan(run: Path, records: Sequence[Record], logs: Sequence[SiteLog]) -> Iterator[str]:
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
    network = plan.get("network")
    if not isinstance(network, dict):
        raise BadInput(f"{info.file}: its plan has no network; {CHANGED}")
    _require_same(
        info, {name: plan.get(name) for name in REPEATED_FIELDS} | {"labels": network.get("labels")}, info.file
    )
    expected = network | {name: plan[name] for name in ("preprocessing",) if name in plan}
    for file in sorted((run / MODELS).rglob("model.json")):
        found = read_json(file)
        if not isinstance(found, dict) or set(found) - set(expected):
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
