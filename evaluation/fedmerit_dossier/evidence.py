"""Runs and their site folders, and the evidence that a dossier's items are answered with.

Every function of `EVIDENCE` returns in a sentence or two what was recorded or measured, or "".
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from fedmerit.errors import BadInput
from fedmerit.evidence.verification.chains import SIGNING_ENGINES
from fedmerit.evidence.verification.run import verify_run
from fedmerit.files import sha256
from fedmerit.methods.registry import METHODS
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.configuration.specs import HE
from fedmerit.schema.results import read_csv
from fedmerit.schema.scores import SPLITS, TOLERANCE
from fedmerit.schema.site_folder import SiteFolder, open_sites
from fedmerit.server.exchange import NO_REPLY
from fedmerit.trust import allowed_place
from fedmerit_deploy.job_plan import Job, parts_at_the_end, parts_before, parts_each_round
from fedmerit_evaluation.report.assembly import (
    choose_method,
    contribution_shares,
    honest_runs,
    sample_size,
    training_days,
)
from fedmerit_evaluation.report.flags import list_flags
from fedmerit_evaluation.report.groups import dice_by_group
from fedmerit_evaluation.report.limits import list_case_limits, list_run_limits
from fedmerit_evaluation.report.model import FAILURE, surface_columns
from fedmerit_evaluation.report.words import count_failures, join_words, name_rounds, percent, points, say
from fedmerit_evaluation.results.evaluation import ESTIMATED
from fedmerit_evaluation.results.runs import Run, combine_results
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.statistics.intervals import select_methods, select_sites
from fedmerit_evaluation.statistics.resampling import LEVEL


@dataclass(frozen=True)
class DossierSources:
    """The runs of a dossier, and the site folders on this machine."""

    runs: Sequence[Run]
    folders: Sequence[SiteFolder]

    @property
    def honest(self) -> list[Run]:
        """The runs without simulated attacks, or all if there is no other."""
        return honest_runs(self.runs)

    @cached_property
    def results(self) -> Results:
        """The results of the honest runs."""
        return combine_results(self.honest)

    @cached_property
    def method(self) -> str | None:
        """The label of the method of the model."""
        return choose_method(self.honest, self.results)

    @property
    def is_tested(self) -> bool:
        """Whether that method has test Dice."""
        return self.method in select_methods(self.results.dice.intervals, "mean").index

    @cached_property
    def run(self) -> Run:
        """The run of the model: the first of that method."""
        return next((run for run in self.honest if run.label == self.method), self.honest[0])

    @property
    def info(self) -> Mapping[str, Any]:
        """The content of run.json of that run."""
        return self.run.info


def open_sources(runs: Sequence[Run], sites: Path | None) -> DossierSources:
    """Return the runs with the folders of their sites on this machine.

    Args:
        sites: a folder of site folders; None: that of the runs, if it is here.

    Raises:
        BadInput: ``sites`` holds none of the runs' sites.
    """
    place = sites or allowed_place(runs[0].info.get("sites_folder"))
    if place is None or (sites is None and not place.is_dir()):
        return DossierSources(runs, [])
    folders = [folder for folder in runs[0].in_its_fold(open_sites(place)) if folder.name in runs[0].sites]
    if sites is not None and not folders:
        raise BadInput(f"--sites {sites}: holds none of {', '.join(runs[0].sites)}")
    return DossierSources(runs, folders)


EVIDENCE: dict[str, Callable[[DossierSources], str]] = {}  # by name


def evidence(tell: Callable[[DossierSources], str]) -> Callable[[DossierSources], str]:
    """Enter a function of the sources into `EVIDENCE`."""
    EVIDENCE[tell.__name__] = tell
    return tell


@evidence
def task(file: DossierSources) -> str:
    """Tell what is segmented."""
    labels = join_words([str(label) for label in file.info["labels"]])
    return f"Segmentation (task {file.info['task']}): of each image a mask of {labels}, compared with a reference mask."


@evidence
def centres(file: DossierSources) -> str:
    """Tell who took part."""
    return f"{len(file.run.sites)} sites train together: {', '.join(file.run.sites)}."


@evidence
def sources(file: DossierSources) -> str:
    """Tell where the data come from, by site.json."""
    return _by_site(file, lambda site: f"{site.info.get('source', '')}".strip())


@evidence
def licences(file: DossierSources) -> str:
    """Tell the licences, by site.json."""
    return _by_site(file, lambda site: str(site.info.get("licence") or ""))


@evidence
def left_out(file: DossierSources) -> str:
    """Tell which files were left out, with the reasons."""

    def read(site: SiteFolder) -> str:
        reasons = pd.Series([str(one["reason"]) for one in site.info["left_out"]], dtype=object).value_counts()
        text = "; ".join(f"{_counted(int(count), 'file')}: {reason}" for reason, count in reasons.items())
        return f"{text or 'no file left out'}, {_counted(site.info.get('unreadable_cases', 0), 'unreadable case')}"

    return _by_site(file, read)


@evidence
def preparation(file: DossierSources) -> str:
    """Tell what was done to images."""
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


@evidence
def splits(file: DossierSources) -> str:
    """Tell how cases were split; numbers elsewhere are those of the first run's fold."""
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


@evidence
def counts(file: DossierSources) -> str:
    """Tell the numbers of patients and slices by split."""

    def read(site: SiteFolder) -> str:
        of = site.info["counts"]
        return ", ".join(f"{split} {of[split]['patients']} patients, {of[split]['slices']} slices" for split in SPLITS)

    return _by_site(file, read)


@evidence
def not_biometric(file: DossierSources) -> str:
    """Tell whether the task has biometric data."""
    return "Does not apply: the task is segmentation of organs." if file.info["task"] in ("prostate", "fundus") else ""


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _by_site(file: DossierSources, read: Callable[[SiteFolder], str]) -> str:
    """Return the evidence of the sites whose folders are here, the same texts together; other sites are named."""
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


@evidence
def checks(file: DossierSources) -> str:
    """Tell the checksums of data, the replies that the server rejected, and missing ones."""
    reasons = [why for run in file.runs for why in run.events["rejected"].values()]
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


@evidence
def flags(file: DossierSources) -> str:
    """Tell which sites the server flagged."""
    if not _has_ledger(file.run):
        return ""
    table = list_flags(file.honest)
    if table.empty:
        return "The server flagged no site and rejected no reply."
    rows = table[["Site", "What", "Rounds", "Reason"]].itertuples(index=False)
    return f"{'; '.join(f'{site} {what} in {name_rounds(rounds)} ({why})' for site, what, rounds, why in rows)}."


@evidence
def privacy(file: DossierSources) -> str:
    """Tell which filters apply to what leaves a site."""
    filters = file.info.get("privacy")
    if filters is None:
        return ""
    text = f"Updates passed {', '.join(filters)}" if filters else "Updates left the sites without a privacy filter"
    return f"{text}. No claim of anonymity is made."


@evidence
def ledger(file: DossierSources) -> str:
    """Tell what each run's hash chain, which is recomputed now, shows and what it does not."""
    chains, open_to, moved = [], dict[str, None](), 0.0
    for run in file.runs:
        if _has_ledger(run):
            found = verify_run(run.path)
            signed = f"signed by {found.signer}" if found.signer else "not signed"
            chains.append(f"{run.path.name}: {found.records} rounds, hash chain complete, {signed}")
            open_to |= dict.fromkeys(map(str, found.unproven))
            moved = max(moved, found.moved.weight)
    text = f"{'; '.join(chains)}. Each round has participants, digests of updates and model, weights."
    left = f" Not shown by that: {'; '.join(open_to)}." if open_to else ""
    left += f" What is not shown could have moved a weight by up to {moved:.3f}." if moved else ""
    return f"{text}{left}" if chains else ""


@evidence
def raters(file: DossierSources) -> str:
    """Tell whose images other models were rated on: contributions may rest on these ratings."""
    plans = {run.path.name: run.info.get("plan", {}) for run in file.runs}
    by_server = [name for name, plan in plans.items() if plan.get("server_images")]
    by_sites = [name for name, plan in plans.items() if plan.get("share_models") and name not in by_server]
    raters_by_run = {
        "the server on images of its own, and contributions rest on its word": by_server,
        "the sites, which sign in their logs what they say": by_sites,
    }
    texts = [f"in {', '.join(names)} by {who}" for who, names in raters_by_run.items() if names]
    return f"Models of other sites were rated {'; '.join(texts)}." if texts else ""


@evidence
def site_logs(file: DossierSources) -> str:
    """Tell what the sites' own logs, which are compared with the ledger now, show and what they do not."""
    logs = sorted((file.run.path / "sites").glob("*/site_log.jsonl"))
    if not logs or not _has_ledger(file.run):
        return ""
    found = verify_run(file.run.path, logs)
    agreed = ", ".join(f"{site} {updates} updates" for site, updates in found.updates.items())
    questions = "; ".join(map(str, found.unproven))
    open_to = f" Not shown by them: {questions}." if questions else ""
    return f"Sites' own logs agree with the ledger: {agreed}.{open_to}"


@evidence
def when(file: DossierSources) -> str:
    """Tell when the runs were started."""
    return f"Started {days[0]}." if (days := training_days([file.run])) else ""


@evidence
def access(file: DossierSources) -> str:
    """List the model's files, with their digests."""
    models = sorted((file.run.path / "models").glob("*.pt"))
    files = ", ".join(f"{path.name} (SHA-256 {sha256(path)})" for path in models[:10])
    return f"Models in {file.run.path.name}/models: {files}." if models else ""


def _has_ledger(run: Run) -> bool:
    return (run.path / "ledger.jsonl").exists()


@evidence
def study(file: DossierSources) -> str:
    """Tell the study that the run is for."""
    name = file.info.get("plan", {}).get("study")
    return f"Research, study {name}: joint training of a segmentation model." if name else ""


@evidence
def leaving(file: DossierSources) -> str:
    """Tell what each site sent, by the plan."""
    config = _plan(file)
    if config is None:
        return ""
    job = Job(file.run.path.name, config.to_dict(), tuple(file.info.get("privacy") or ()))
    before, after = dict(parts_before(config)), dict(parts_at_the_end(config))
    each = {name: text for name, text in parts_each_round(job, config) if name != "failure"}
    kinds = [
        f"{when}: {', '.join(f'{name} ({text})' if text else name for name, text in parts.items())}"
        for when, parts in (("before training", before), ("each round", each), ("at the end", after))
        if parts
    ]
    return f"A site sends, {'; '.join(kinds)}. No image, mask, file name or patient code: docs/privacy.md has the list."


@evidence
def receiving(file: DossierSources) -> str:
    """Tell who received what, by the plan."""
    config = _plan(file)
    if config is None:
        return ""
    seen = "ciphertexts and numbers" if HE in (file.info.get("privacy") or ()) else "updates and numbers"
    shared = "also models of single sites" if config.share_models else "no model of a single site"
    return f"The server's operator: {seen} of every site. The other sites: aggregated models, {shared}."


@evidence
def retention(file: DossierSources) -> str:
    """Tell what is stored where, and until when."""
    config = _plan(file)
    if config is None:
        return ""
    kept = "every update" if config.keep_updates else "no update"
    return (
        f"The server keeps the run folder (models, results.csv, ledger, {kept}) until it is deleted; a site keeps its "
        "prepared images, its last model and its log until it deletes them. No time limit is built in."
    )


@evidence
def safeguards(file: DossierSources) -> str:
    """Tell the technical measures of the run."""
    config = _plan(file)
    if config is None:
        return ""
    filters = [name for name in file.info.get("privacy") or () if name != HE]
    found = [
        "TLS in both directions with a certificate for each participant" * (file.info.get("engine") in SIGNING_ENGINES),
        "an egress filter at each site" * (file.info.get("engine") != "local"),
        "no code in the job" * (file.info.get("engine") in SIGNING_ENGINES),
        "homomorphic encryption of updates" * (HE in (file.info.get("privacy") or ())),
        f"privacy filters ({', '.join(filters)})" * bool(filters),
        "inspection of every reply and the guard" * config.is_guarded(config.build_method()),
        "a hash-chained ledger",
    ]
    text = ", ".join(filter(None, found))
    return f"{text[0].upper()}{text[1:]}."


def _plan(file: DossierSources) -> RunConfiguration | None:
    """Return the plan of the run; None if it recorded none, or one that cannot be read here."""
    try:
        return RunConfiguration.from_dict(file.info["plan"])
    except (BadInput, KeyError):
        return None


@evidence
def network(file: DossierSources) -> str:
    """Tell the architecture."""
    plan = file.info.get("plan", {}).get("network", {})
    described = ", ".join(
        f"{name} {value}" for name, value in plan.items() if name != "labels" and value not in ({}, None)
    )
    return f"{described}." if described else ""


@evidence
def training(file: DossierSources) -> str:
    """Tell the settings of local training."""
    described = ", ".join(f"{name} {value}" for name, value in file.info["training"].items())
    described = described or "by a script of the sites"
    return f"{file.run.rounds_done} of {file.run.rounds} rounds; local training: {described}."


@evidence
def method(file: DossierSources) -> str:
    """Tell the federated method and its parameters."""
    name = str(file.info["method"])
    about = METHODS[name].about if name in METHODS else None
    described = ", ".join(f"{key} {value}" for key, value in file.info["parameters"].items())
    text = f"Method {name}{f' ({described})' if described else ''}"
    return f"{text}. Weights: {about.weights}. {inspect.cleandoc(about.paper)}." if about else f"{text}."


@evidence
def seeds(file: DossierSources) -> str:
    """Tell the seeds of the runs."""
    numbers = sorted({run.seed for run in file.honest if run.label == file.run.label})
    return f"Initial parameters are random, by seed: {', '.join(map(str, numbers))}."


@evidence
def selection(file: DossierSources) -> str:
    """Tell which round's model is the final one."""
    if not file.run.tested:
        return ""
    if file.info["training"].get("final_model", "method") != "method":
        return "Each site received the model that was best on its validation patients: results.csv has the choice."
    return f"The model after the last round, {file.run.rounds - 1} counted from 0."


@evidence
def ensembles(file: DossierSources) -> str:
    """Tell that no ensemble is used."""
    return "None: one model is tested at a time." if file.run.tested else ""


@evidence
def software(file: DossierSources) -> str:
    """Tell the versions of the software."""
    packages = ", ".join(f"{name} {number}" for name, number in file.info.get("packages", {}).items())
    version = file.info.get("fedmerit_version")
    return f"FedMerit {version}{f' ({packages})' if packages else ''}, Apache-2.0." if version else ""


@evidence
def hardware(file: DossierSources) -> str:
    """Tell the devices of the run."""
    return f"Trained on {file.info['device']}, engine {file.info['engine']}." if file.info.get("device") else ""


@evidence
def cost(file: DossierSources) -> str:
    """Tell the seconds and bytes of the run."""
    costs = file.run.results.rounds.costs
    if "seconds" not in costs:
        return ""
    rounds = file.run.rounds_done
    text = f"{costs['seconds'].sum() * rounds / 60:.0f} minutes of sites' time in the run"
    sent = f", {costs['bytes_sent'].sum() * rounds / 1e6:.0f} MB sent" if "bytes_sent" in costs else ""
    return f"{text}{sent}. Energy was not measured."


@evidence
def measures(file: DossierSources) -> str:
    """Tell which measures were recorded."""
    if file.results.dice.rows.empty:
        return ""
    units = {"nsd": "mm", "nsd_px": "pixels"}
    tolerances = [f"{TOLERANCE:g} {units[name]}" for name in units if name in file.results.dice.sites]
    text = "Dice per case over all its slices, mean over labels, then cases, then sites"
    return f"{text}; also HD95 and NSD at {' or '.join(tolerances)}." if tolerances else f"{text}."


@evidence
def uncertainty(file: DossierSources) -> str:
    """Tell how confidence intervals are computed, and their sample size."""
    if file.results.dice.rows.empty:
        return ""
    sample = sample_size(file.results, methods=file.method and [file.method])
    return (
        f"{100 * LEVEL:g} % confidence intervals: Student's t, seeds and test patients as crossed random effects, or "
        "over folds. "
        f"Fewest test cases of a site: {sample.cases}; seeds: {sample.seeds}."
    )


@evidence
def performance(file: DossierSources) -> str:
    """Test Dice, overall and by site, with HD95 and NSD."""
    if not file.is_tested:
        return ""
    table = select_methods(file.results.dice.intervals, "mean")
    sites = select_sites(file.results.dice.intervals, "dice").loc[file.method]
    described = ", ".join(f"{site} {_with_ends(row)}" for site, row in sites.iterrows())
    text = f"Mean test Dice {_with_ends(pd.Series(table.T[file.method]))}; by site: {described}."
    tested = pd.DataFrame(file.results.dice.sites.xs(str(file.method), level="method"))
    means = tested.mean().to_frame().T.dropna(axis=1)
    surfaces = [f"{name} {column.iloc[0]:.1f}" for name, column in surface_columns(means).items()]
    return f"{text} Means over sites: {', '.join(surfaces)}." if surfaces else text


@evidence
def fairness(file: DossierSources) -> str:
    """Tell the spread over sites, and the gains over local training."""
    if not file.is_tested:
        return ""
    row = pd.Series(pd.DataFrame(file.results.dice.by_site.loc[file.method]).mean())
    text = f"Dice by site from {percent(row.min())} ({row.idxmin()}) to {percent(row.max())} ({row.idxmax()})"
    gains = file.results.dice.gains
    if file.method in gains.index:
        gain = pd.Series(gains.loc[file.method]).dropna()
        lowest, highest = points(float(gain.min())), points(float(gain.max()))
        text += f"; gain over local training from {lowest} ({gain.idxmin()}) to {highest} points"
    return f"{text}. {_groups(file)}"


def _groups(file: DossierSources) -> str:
    """Return the Dice of groups of patients in a sentence."""
    place = file.folders[0].path.parent if file.folders else None
    table = dice_by_group(file.honest, file.method, place) if place else pd.DataFrame()
    if table.empty:
        return "Groups of patients by age, sex or the like were not compared."
    shown = [
        f"{' '.join(names)} {_with_ends(row)}, gap {points(row['gap'])} points [{points(row['gap_low'])}, "
        f"{points(row['gap_high'])}], {row['patients']:.0f} patients"
        for names, (_, row) in zip(table.index, table.iterrows(), strict=True)
    ]
    return (
        "Dice of groups of patients [95 % confidence interval, no test], and the gap to the other groups of a column: "
        f"{'; '.join(shown)}."
    )


@evidence
def failures(file: DossierSources) -> str:
    """Tell the failed patients and the lowest Dice of a case at each site."""
    if not file.is_tested:
        return ""
    dice = file.results.dice
    lowest = dice.sites["lowest"].xs(file.method, level="method").groupby(level="site").min()
    failed = dice.failures(FAILURE).xs(str(file.method), level="method")
    counts = ", ".join(f"{site} {count_failures(row)}" for site, row in failed.iterrows())
    return (
        f"Patients with a Dice below {100 * FAILURE:g} % [95 % confidence interval of their part]: {counts}. "
        f"Lowest Dice of a test case: {', '.join(f'{site} {percent(value)}' for site, value in lowest.items())}."
    )


@evidence
def robustness(file: DossierSources) -> str:
    """List runs with simulated attacks."""
    attacks = [f"{run.label}: {site} ({kind})" for run in file.runs for site, kind in run.attacks.items()]
    return f"Runs with simulated attacks: {'; '.join(attacks)}; see report.html." if attacks else ""


@evidence
def external(file: DossierSources) -> str:
    """Tell the Dice at sites that took no part, from `fedmerit evaluate`."""
    found = []
    for table in sorted((file.run.path / "evaluation").glob("*.csv")):
        # a site may be called NA
        rows, _ = read_csv(table, {"site": str, "case": str, "value": float})
        if not {"split", "quantity", "site", "value"} <= set(rows):
            continue  # another table, such as of losses
        tested = rows[(rows["split"] == "testing") & (rows["quantity"] == "dice")]
        others = tested[~tested["site"].isin(file.run.sites)]
        described = [f"{site} {percent(part['value'].mean())}" for site, part in others.groupby("site")]
        how = ", with BatchNorm statistics of their own training images" * table.stem.endswith(ESTIMATED)
        found += [f"{', '.join(described)} ({table.name}{how})"] if described else []
    return f"Mean test Dice at sites that took no part: {'; '.join(found)}." if found else ""


@evidence
def limits(file: DossierSources) -> str:
    """List the limits that the report states."""
    found = [*list_run_limits(file.honest, file.results), *list_case_limits(file.results)]
    return " ".join(say("limit", limit) for limit in found)


@evidence
def contributions(file: DossierSources) -> str:
    """Tell the shares by the method's estimate."""
    shares = contribution_shares(file.results).get(file.method or "", {})
    described = ", ".join(f"{site} {percent(share.mean)}" for site, share in shares.items())
    return f"Shares by the method's own estimate: {described}. They are not a basis for payment." if described else ""


def _with_ends(row: "pd.Series[Any]") -> str:
    ends = f" [{percent(row['low'])}, {percent(row['high'])}]" if pd.notna(row["low"]) else ""
    return f"{percent(row['mean'])}{ends}"
