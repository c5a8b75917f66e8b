"""Evidence on data and on the record: sources, preparation and splits; checks, flags, privacy, ledger, logs, files."""

from collections.abc import Callable

import pandas as pd

from fedmerit.evidence.verification.run import verify_run
from fedmerit.files import sha256
from fedmerit.schema.configuration.filters import HE
from fedmerit.schema.scores import SPLITS
from fedmerit.server.exchange import NO_REPLY
from fedmerit.trainers.monai.data import SiteFolder
from fedmerit_evaluation.dossier.sources import DossierSources
from fedmerit_evaluation.report.flagged_sites import list_flags, rejection_reasons
from fedmerit_evaluation.report.phrases import join_words
from fedmerit_evaluation.report.shared_parts import training_dates
from fedmerit_evaluation.results.runs import Run


def task(file: DossierSources) -> str:
    """What is segmented."""
    labels = join_words([str(label) for label in file.info["labels"]])
    return f"Segmentation (task {file.info['task']}): of each image a mask of {labels}, compared with a reference mask."


def centres(file: DossierSources) -> str:
    """Who took part."""
    return f"{len(file.run.sites)} sites train together: {', '.join(file.run.sites)}."


def sources(file: DossierSources) -> str:
    """From site.json."""
    return _by_site(file, lambda site: f"{site.info.get('source', '')}".strip())


def licences(file: DossierSources) -> str:
    """From site.json."""
    return _by_site(file, lambda site: str(site.info.get("licence") or ""))


def left_out(file: DossierSources) -> str:
    """Files left out, with the reasons."""

    def read(site: SiteFolder) -> str:
        reasons = pd.Series([str(one["reason"]) for one in site.info["left_out"]], dtype=object).value_counts()
        text = "; ".join(f"{_counted(int(count), 'file')}: {reason}" for reason, count in reasons.items())
        return f"{text or 'no file left out'}, {_counted(site.info.get('unreadable_cases', 0), 'unreadable case')}"

    return _by_site(file, read)


def preparation(file: DossierSources) -> str:
    """What was done to images."""
    planned = (
        file.info.get("plan", {}).get("preprocessing", {}).get("size")
    )  # the only place in run.json of a deployment
    size = file.info.get("image_size") or planned or (file.folders[0].image_size if file.folders else None)
    if size is None:
        return ""
    text = f"Slices of {size[0]} x {size[1]} pixels"
    if file.folders and (spacing := file.folders[0].info.get("spacing")):
        text += f" of {' x '.join(f'{side:g}' for side in spacing)} mm"
    kept = (
        {name: file.folders[0].info.get(name) for name in ("field_of_view", "crop", "slices")} if file.folders else {}
    )
    options = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in kept.items() if value)
    return f"{text}{'; ' if options else ''}{options}."


def splits(file: DossierSources) -> str:
    """How cases were split; numbers elsewhere are those of the first run's fold."""
    fold = next((site.fold for site in file.folders if site.fold is not None), None)
    if fold is not None:
        return (
            f"Patients are in {file.folders[0].folds} folds at each site, organs of all sizes in each: a run tests "
            f"one, validates the next and trains on the others. Counts are those of fold {fold}."
        )
    shares = _by_site(
        file,
        lambda site: (
            f"shares {'/'.join(f'{share:g}' for share in site.info['ratios'])}, seed {site.info['seed']}"
            if "ratios" in site.info
            else ""
        ),
    )
    how = "Training, validation and testing are split by patient (by file names or a table), at each site."
    return f"{how} {shares}" if shares else ""


def counts(file: DossierSources) -> str:
    """Patients and slices by split."""

    def read(site: SiteFolder) -> str:
        of = site.info["counts"]
        return ", ".join(f"{split} {of[split]['patients']} patients, {of[split]['slices']} slices" for split in SPLITS)

    return _by_site(file, read)


def not_biometric(file: DossierSources) -> str:
    """Of the task."""
    return "Does not apply: the task is segmentation of organs." if file.info["task"] in ("prostate", "fundus") else ""


DATA = (task, centres, sources, licences, left_out, preparation, splits, counts, not_biometric)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _by_site(file: DossierSources, read: Callable[[SiteFolder], str]) -> str:
    """Evidence of the sites whose folders are here, the same texts together; other sites are named."""
    said: dict[str, list[str]] = {}
    for site in file.folders:
        try:
            text = read(site)
        except (KeyError, TypeError):  # site.json lacks the field
            text = ""
        said.setdefault(text, []).append(site.name)
    lacking = [*said.pop("", []), *sorted(set(file.run.sites) - {site.name for site in file.folders})]
    if not said:
        return ""
    text = "; ".join(f"{', '.join(names)}: {one}" for one, names in said.items())
    return f"{text}{f'; not known of {join_words(lacking)}' if lacking else ''}."


def checks(file: DossierSources) -> str:
    """Checksums of data; replies that the server rejected, and missing ones."""
    reasons = [why for run in file.runs for why in rejection_reasons(run).values()]
    missing = sum(why.endswith(NO_REPLY) for why in reasons)
    of_replies = "the unencrypted part of every reply" if HE in (file.info.get("privacy") or ()) else "every reply"
    checked = (
        f"The server checked {of_replies} before use and rejected {len(reasons) - missing}; {missing} did not arrive."
    )
    text = checked if _has_ledger(file.run) else ""
    checksummed = [site.name for site in file.folders if site.info.get("checksums")]
    return (
        f"{text} Stored images and masks have SHA-256 checksums at {join_words(checksummed)}.".strip()
        if checksummed
        else text
    )


def flags(file: DossierSources) -> str:
    """Flags of the server."""
    if not _has_ledger(file.run):
        return ""
    table = list_flags(file.honest)
    if table.empty:
        return "The server flagged no site and rejected no reply."
    rows = table[["Site", "What", "Rounds", "Reason"]].itertuples(index=False)
    return f"{'; '.join(f'{site} {what} in rounds {rounds} ({why})' for site, what, rounds, why in rows)}."


def privacy(file: DossierSources) -> str:
    """Filters on what leaves a site."""
    filters = file.info.get("privacy")
    if filters is None:
        return ""
    text = f"Updates passed {', '.join(filters)}" if filters else "Updates left the sites without a privacy filter"
    return f"{text}. No claim of anonymity is made."


def ledger(file: DossierSources) -> str:
    """The hash chain of each run, recomputed now, and what it does not show."""
    chains, open_to = [], dict[str, None]()
    for run in file.runs:
        if _has_ledger(run):
            found = verify_run(run.path)
            signed = f"signed by {found.signer}" if found.signer else "not signed"
            chains.append(f"{run.path.name}: {found.records} rounds, hash chain complete, {signed}")
            open_to |= dict.fromkeys(found.unproven)
    text = f"{'; '.join(chains)}. Each round has participants, digests of updates and model, weights."
    left = f" Not shown by that: {'; '.join(open_to)}." if open_to else ""
    return f"{text}{left}" if chains else ""


def site_logs(file: DossierSources) -> str:
    """Sites' own logs in the run folder, compared with the ledger now, and what they do not show."""
    logs = sorted((file.run.path / "sites").glob("*/site_log.jsonl"))
    if not logs or not _has_ledger(file.run):
        return ""
    found = verify_run(file.run.path, logs)
    agreed = ", ".join(f"{site} {updates} updates" for site, updates in found.updates.items())
    open_to = f" Not shown by them: {'; '.join(found.unproven)}." if found.unproven else ""
    return f"Sites' own logs agree with the ledger: {agreed}.{open_to}"


def when(file: DossierSources) -> str:
    """When the runs were started."""
    return f"Started {training_dates([file.run])}." if file.info.get("started") else ""


def access(file: DossierSources) -> str:
    """The model's files, with their digests."""
    models = sorted((file.run.path / "models").glob("*.pt"))
    files = ", ".join(f"{path.name} (SHA-256 {sha256(path)})" for path in models[:10])
    return f"Models in {file.run.path.name}/models: {files}." if models else ""


RECORD = (checks, flags, privacy, ledger, site_logs, when, access)


def _has_ledger(run: Run) -> bool:
    return (run.path / "ledger.jsonl").exists()
