"""Evidence of what was checked, filtered and written down: the server's checks, ledger, logs and files."""

import json
from typing import Any

from evaluation.dossier.file import File
from evaluation.report.marks import marked
from evaluation.report.parts import trained
from evaluation.report.words import listed
from evaluation.results.run_folders import Run
from fedmerit.configuration.filters import HE
from fedmerit.files import sha256
from fedmerit.verification.verify import verify_run


def checks(file: File) -> str:
    """Checksums of data; what the server refused."""
    rejected = sum(len(record["rejected"]) for run in file.runs for record in _records(run))
    of_replies = "of every reply what is not encrypted" if HE in (file.info.get("privacy") or ()) else "every reply"
    text = f"The server checked {of_replies} before use and rejected {rejected}." if _records(file.run) else ""
    held = [site.name for site in file.folders if site.info.get("checksums")]
    return f"{text} Stored images and masks have SHA-256 checksums at {listed(held)}.".strip() if held else text


def flags(file: File) -> str:
    """What the server found."""
    if not _records(file.run):
        return ""
    table = marked(file.honest)
    if table.empty:
        return "The server flagged no site and rejected no reply."
    return "; ".join(f"{row['Site']} {row['What']} in rounds {row['Rounds']}" for row in table.to_dict("records")) + "."


def privacy(file: File) -> str:
    """Filters on what leaves a site."""
    filters = file.info.get("privacy")
    if filters is None:
        return ""
    text = f"Updates passed {', '.join(filters)}" if filters else "Updates left the sites without a privacy filter"
    return f"{text}. No claim of anonymity is made."


def ledger(file: File) -> str:
    """The chain of each run, recomputed now."""
    told = []
    for run in file.runs:
        if (run.path / "ledger.jsonl").exists():
            found = verify_run(run.path)
            signed = f"signed by {found.signer}" if found.signer else "not signed"
            told.append(f"{run.path.name}: {found.records} rounds, hash chain whole, {signed}")
    return f"{'; '.join(told)}. Each round holds participants, digests of updates and model, weights." if told else ""


def site_logs(file: File) -> str:
    """Sites' own logs that lie in the run folder, compared with the ledger now, and what that leaves open."""
    logs = sorted((file.run.path / "sites").glob("*/site_log.jsonl"))
    if not logs or not (file.run.path / "ledger.jsonl").exists():
        return ""
    found = verify_run(file.run.path, logs)
    told = ", ".join(f"{site} {updates} updates" for site, updates in found.updates.items())
    open_to = f" Not shown by them: {'; '.join(found.not_shown)}." if found.not_shown else ""
    return f"Sites' own logs agree with the ledger: {told}.{open_to}"


def when(file: File) -> str:
    """When the runs were begun."""
    return f"Begun {trained([file.run])}." if file.info.get("started") else ""


def access(file: File) -> str:
    """The model's files, with their digests."""
    models = sorted((file.run.path / "models").glob("*.pt"))
    told = ", ".join(f"{path.name} (SHA-256 {sha256(path)})" for path in models[:10])
    return f"Models in {file.run.path.name}/models: {told}." if models else ""


RECORD = (checks, flags, privacy, ledger, site_logs, when, access)


def _records(run: Run) -> list[dict[str, Any]]:
    path = run.path / "ledger.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
