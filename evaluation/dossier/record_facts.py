"""Evidence of what was checked, filtered and written down: the server's checks, ledger, logs and files."""

from evaluation.dossier.file import File
from evaluation.report.marks import marked, rejections
from evaluation.report.parts import trained
from evaluation.report.words import listed
from evaluation.results.run_folders import Run
from fedmerit.configuration.filters import HE
from fedmerit.federation.exchange import NO_REPLY
from fedmerit.files import sha256
from fedmerit.verification.verify import verify_run


def checks(file: File) -> str:
    """Checksums of data; what the server refused, and what never came."""
    reasons = [why for run in file.runs for why in rejections(run).values()]
    missing = sum(why.endswith(NO_REPLY) for why in reasons)
    of_replies = "of every reply what is not encrypted" if HE in (file.info.get("privacy") or ()) else "every reply"
    told = f"The server checked {of_replies} before use and rejected {len(reasons) - missing}; {missing} did not come."
    text = told if _has_ledger(file.run) else ""
    held = [site.name for site in file.folders if site.info.get("checksums")]
    return f"{text} Stored images and masks have SHA-256 checksums at {listed(held)}.".strip() if held else text


def flags(file: File) -> str:
    """What the server found."""
    if not _has_ledger(file.run):
        return ""
    table = marked(file.honest)
    if table.empty:
        return "The server flagged no site and rejected no reply."
    rows = table[["Site", "What", "Rounds", "Reason"]].itertuples(index=False)
    return f"{'; '.join(f'{site} {what} in rounds {rounds} ({why})' for site, what, rounds, why in rows)}."


def privacy(file: File) -> str:
    """Filters on what leaves a site."""
    filters = file.info.get("privacy")
    if filters is None:
        return ""
    text = f"Updates passed {', '.join(filters)}" if filters else "Updates left the sites without a privacy filter"
    return f"{text}. No claim of anonymity is made."


def ledger(file: File) -> str:
    """The chain of each run, recomputed now, and what that leaves open."""
    told, open_to = [], dict[str, None]()
    for run in file.runs:
        if _has_ledger(run):
            found = verify_run(run.path)
            signed = f"signed by {found.signer}" if found.signer else "not signed"
            told.append(f"{run.path.name}: {found.records} rounds, hash chain whole, {signed}")
            open_to |= dict.fromkeys(found.not_shown)
    text = f"{'; '.join(told)}. Each round holds participants, digests of updates and model, weights."
    left = f" Not shown by that: {'; '.join(open_to)}." if open_to else ""
    return f"{text}{left}" if told else ""


def site_logs(file: File) -> str:
    """Sites' own logs that lie in the run folder, compared with the ledger now, and what that leaves open."""
    logs = sorted((file.run.path / "sites").glob("*/site_log.jsonl"))
    if not logs or not _has_ledger(file.run):
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


def _has_ledger(run: Run) -> bool:
    return (run.path / "ledger.jsonl").exists()
