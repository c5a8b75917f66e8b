"""Evidence for the items of a dossier: what ledger, run folders and site folders hold, and nothing besides.

Every function of `EVIDENCE` says in a sentence or two what was recorded or measured, or nothing.
"""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from evaluation.report import caveats
from evaluation.report.contribution_shares import contribution_shares
from evaluation.report.hospitals import grounds_of, judged_method
from evaluation.report.marks import marked
from evaluation.report.parts import surface_columns, trained
from evaluation.report.words import listed, percent, points
from evaluation.results.bootstrap import DRAWS, LEVEL
from evaluation.results.dice import SURFACES
from evaluation.results.evaluate import ESTIMATED
from evaluation.results.intervals import of_methods, of_sites
from evaluation.results.run_folders import Run, together
from evaluation.results.views import Results
from fedmerit.configuration.filters import HE
from fedmerit.errors import BadInput
from fedmerit.files import sha256
from fedmerit.methods.registry import METHODS
from fedmerit.training.data import SPLITS, SiteFolder, open_sites
from fedmerit.training.overlaps import TOLERANCE
from fedmerit.verification.verify import verify_run


@dataclass(frozen=True)
class File:
    """What a dossier is about: runs, the first of which names the model, and the site folders that are here."""

    runs: Sequence[Run]
    folders: Sequence[SiteFolder]

    @property
    def honest(self) -> list[Run]:
        """The runs without attackers, or all where there is no other."""
        return [run for run in self.runs if not run.attacks] or list(self.runs)

    @cached_property
    def results(self) -> Results:
        """Of the honest runs."""
        return together(self.honest)

    @cached_property
    def method(self) -> str | None:
        """The label of the method that is judged."""
        return judged_method(self.honest, self.results)

    @property
    def is_tested(self) -> bool:
        """Whether there is test Dice of that method."""
        return self.method in of_methods(self.results.dice.intervals, "mean").index

    @cached_property
    def run(self) -> Run:
        """The run that the model is of: the first of that method."""
        return next((run for run in self.honest if run.label == self.method), self.honest[0])

    @property
    def info(self) -> Mapping[str, Any]:
        """run.json of it."""
        return self.run.info


def open_file(runs: Sequence[Run], sites: Path | None) -> File:
    """The runs, and the folders of their sites that are on this machine.

    Args:
        runs: with labels.
        sites: a folder of site folders; None: that of the runs, where it is here.

    Raises:
        BadInput: ``sites`` holds none of the runs' sites.
    """
    place = sites or Path(str(runs[0].info.get("sites_folder") or ""))
    if sites is None and not (place.parts and place.is_dir()):
        return File(runs, [])
    folders = [folder for folder in open_sites(place) if folder.name in runs[0].sites]
    if sites is not None and not folders:
        raise BadInput(f"--sites {sites}: holds none of {', '.join(runs[0].sites)}")
    return File(runs, folders)


def task(file: File) -> str:
    """What is segmented."""
    labels = listed([str(label) for label in file.info["labels"]])
    return f"Segmentation (task {file.info['task']}): of each image a mask of {labels}, compared with a reference mask."


def centres(file: File) -> str:
    """Who took part."""
    return f"{len(file.run.sites)} sites train together: {', '.join(file.run.sites)}."


def sources(file: File) -> str:
    """Of site.json."""
    return _by_site(file, lambda site: f"{site.info.get('source', '')}".strip())


def licences(file: File) -> str:
    """Of site.json."""
    return _by_site(file, lambda site: str(site.info.get("licence") or ""))


def left_out(file: File) -> str:
    """Files left out, with the reasons."""

    def told(site: SiteFolder) -> str:
        reasons = pd.Series([str(one["reason"]) for one in site.info["left_out"]], dtype=object).value_counts()
        text = "; ".join(f"{_counted(int(count), 'file')}: {reason}" for reason, count in reasons.items())
        return f"{text or 'no file left out'}, {_counted(site.info.get('unreadable_cases', 0), 'unreadable case')}"

    return _by_site(file, told)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def preparation(file: File) -> str:
    """What was done to images."""
    planned = file.info.get("plan", {}).get("preprocessing", {}).get("size")  # all that a deployment's run.json has
    size = file.info.get("image_size") or planned or (file.folders[0].image_size if file.folders else None)
    if size is None:
        return ""
    text = f"Slices of {size[0]} x {size[1]} pixels"
    if file.folders and (spacing := file.folders[0].info.get("spacing")):
        text += f" of {' x '.join(f'{side:g}' for side in spacing)} mm"
    kept = (
        {name: file.folders[0].info.get(name) for name in ("field_of_view", "crop", "slices")} if file.folders else {}
    )
    told = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in kept.items() if value)
    return f"{text}{'; ' if told else ''}{told}."


def splits(file: File) -> str:
    """How cases were split."""
    told = _by_site(
        file,
        lambda site: (
            f"shares {'/'.join(f'{share:g}' for share in site.info['ratios'])}, seed {site.info['seed']}"
            if "ratios" in site.info
            else ""
        ),
    )
    how = "Training, validation and testing are split by patient, as file names or a table tell them, at each site."
    return f"{how} {told}" if told else ""


def counts(file: File) -> str:
    """Patients and slices by split."""

    def told(site: SiteFolder) -> str:
        of = site.info["counts"]
        return ", ".join(f"{split} {of[split]['patients']} patients, {of[split]['slices']} slices" for split in SPLITS)

    return _by_site(file, told)


def checks(file: File) -> str:
    """Checksums of data; what the server refused."""
    rejected = sum(len(record["rejected"]) for run in file.runs for record in _records(run))
    of_replies = "of every reply what is not encrypted" if HE in (file.info.get("privacy") or ()) else "every reply"
    text = f"The server checked {of_replies} before use and rejected {rejected}." if _records(file.run) else ""
    held = [site.name for site in file.folders if site.info.get("checksums")]
    return f"{text} Stored images and masks have SHA-256 checksums at {listed(held)}.".strip() if held else text


def network(file: File) -> str:
    """The architecture."""
    plan = file.info.get("plan", {}).get("network", {})
    told = ", ".join(f"{name} {value}" for name, value in plan.items() if name != "labels" and value not in ({}, None))
    return f"{told}." if told else ""


def training(file: File) -> str:
    """The settings of local training."""
    told = ", ".join(f"{name} {value}" for name, value in file.info["training"].items())
    return f"{file.run.rounds_done} of {file.run.rounds} rounds; local training: {told}."


def method(file: File) -> str:
    """The federated method and its parameters."""
    name = str(file.info["method"])
    about = METHODS[name].about if name in METHODS else None
    told = ", ".join(f"{key} {value}" for key, value in file.info["parameters"].items())
    text = f"Method {name}{f' ({told})' if told else ''}"
    return f"{text}. Weights: {about.weights}. {inspect.cleandoc(about.paper)}." if about else f"{text}."


def seeds(file: File) -> str:
    """Seeds of the runs."""
    numbers = sorted({run.seed for run in file.honest if run.label == file.run.label})
    return f"Parameters begin at random by seed: {', '.join(map(str, numbers))}."


def selection(file: File) -> str:
    """Which round's model."""
    if not file.run.tested:
        return ""
    if file.info["training"].get("finish", "none") != "none":
        return "Each site took home what was best for its own validation patients: results.csv says which."
    return f"The model after the last round, {file.run.rounds - 1} counted from 0."


def ensembles(file: File) -> str:
    """None is used."""
    return "None: one model is tested at a time." if file.run.tested else ""


def software(file: File) -> str:
    """Versions."""
    packages = ", ".join(f"{name} {number}" for name, number in file.info.get("packages", {}).items())
    version = file.info.get("fedmerit_version")
    return f"FedMerit {version}{f' ({packages})' if packages else ''}, Apache-2.0." if version else ""


def hardware(file: File) -> str:
    """What a run says of devices."""
    return f"Trained on {file.info['device']}, engine {file.info['engine']}." if file.info.get("device") else ""


def cost(file: File) -> str:
    """Seconds and bytes."""
    costs = file.run.results.rounds.costs
    if "seconds" not in costs:
        return ""
    rounds = file.run.rounds_done
    text = f"{costs['seconds'].sum() * rounds / 60:.0f} minutes of sites' time in the run"
    sent = f", {costs['bytes_sent'].sum() * rounds / 1e6:.0f} MB sent" if "bytes_sent" in costs else ""
    return f"{text}{sent}. Energy was not measured."


def measures(file: File) -> str:
    """Which were recorded."""
    if file.results.dice.rows.empty:
        return ""
    surfaces = [name for name in SURFACES if name in file.results.dice.sites]
    text = "Dice per case over all its slices, mean over labels, then cases, then sites"
    return f"{text}; HD95 and NSD at {TOLERANCE:g} beside it." if surfaces else f"{text}."


def uncertainty(file: File) -> str:
    """How intervals are made, and on what they rest."""
    if file.results.dice.rows.empty:
        return ""
    grounds = grounds_of(file.results, methods=file.method and [file.method])
    return (
        f"{100 * LEVEL:g} % percentile intervals of {DRAWS} draws over seeds, and over test cases within sites. "
        f"Fewest test cases of a site: {grounds.cases}; seeds: {grounds.seeds}."
    )


def performance(file: File) -> str:
    """Test Dice, overall and by site, with HD95 and NSD."""
    if not file.is_tested:
        return ""
    table = of_methods(file.results.dice.intervals, "mean")
    sites = of_sites(file.results.dice.intervals, "dice").loc[file.method]
    told = ", ".join(f"{site} {_with_ends(row)}" for site, row in sites.iterrows())
    text = f"Mean test Dice {_with_ends(pd.Series(table.T[file.method]))}; by site: {told}."
    tested = pd.DataFrame(file.results.dice.sites.xs(str(file.method), level="method"))
    means = tested.mean().to_frame().T.dropna(axis=1)
    surfaces = [f"{name} {column.iloc[0]:.1f}" for name, column in surface_columns(means).items()]
    return f"{text} Means over sites: {', '.join(surfaces)}." if surfaces else text


def fairness(file: File) -> str:
    """Spread over sites, and gains over training alone."""
    if not file.is_tested:
        return ""
    row = pd.Series(pd.DataFrame(file.results.dice.by_site.loc[file.method]).mean())
    text = f"Dice by site from {percent(row.min())} ({row.idxmin()}) to {percent(row.max())} ({row.idxmax()})"
    gains = file.results.dice.gains
    if file.method in gains.index:
        gain = pd.Series(gains.loc[file.method]).dropna()
        lowest, highest = points(float(gain.min())), points(float(gain.max()))
        text += f"; gain over training alone from {lowest} ({gain.idxmin()}) to {highest} points"
    return f"{text}. Groups of patients by age, sex or the like were not compared."


def failures(file: File) -> str:
    """The lowest cases."""
    if not file.is_tested:
        return ""
    lowest = file.results.dice.sites["lowest"].xs(file.method, level="method").groupby(level="site").min()
    return f"Lowest Dice of a test case: {', '.join(f'{site} {percent(value)}' for site, value in lowest.items())}."


def robustness(file: File) -> str:
    """Runs with attackers, and seeds."""
    planted = [f"{run.label}: {site} ({kind})" for run in file.runs for site, kind in run.attacks.items()]
    return f"Runs with attackers in them: {'; '.join(planted)}; see report.html." if planted else ""


def external(file: File) -> str:
    """Tests on sites that took no part, that `fedmerit evaluate` left in the run folder."""
    found = []
    for table in sorted((file.run.path / "evaluation").glob("*.csv")):
        rows = pd.read_csv(table, dtype={"case": str})
        if not {"split", "quantity", "site", "value"} <= set(rows):
            continue  # another table, such as of losses
        tested = rows[(rows["split"] == "testing") & (rows["quantity"] == "dice")]
        others = tested[~tested["site"].isin(file.run.sites)]
        told = [f"{site} {percent(part['value'].mean())}" for site, part in others.groupby("site")]
        how = ", with BatchNorm statistics of their own training images" * table.stem.endswith(ESTIMATED)
        found += [f"{', '.join(told)} ({table.name}{how})"] if told else []
    return f"Mean test Dice at sites that took no part: {'; '.join(found)}." if found else ""


def limits(file: File) -> str:
    """The report's own caveats."""
    said = [*caveats.of_runs(file.honest, file.results), *caveats.of_cases(file.results)]
    return " ".join(said)


def contributions(file: File) -> str:
    """Shares by the method's estimate."""
    shares = contribution_shares(file.results).get(file.method or "", {})
    told = ", ".join(f"{site} {percent(share.mean)}" for site, share in shares.items())
    return f"Shares by the method's own estimate: {told}. They are no price." if told else ""


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
    """Sites' own logs that lie in the run folder, compared with the ledger now."""
    logs = sorted((file.run.path / "sites").glob("*/site_log.jsonl"))
    if not logs or not (file.run.path / "ledger.jsonl").exists():
        return ""
    found = verify_run(file.run.path, logs)
    told = ", ".join(f"{site} {updates} updates" for site, updates in found.updates.items())
    return f"Sites' own logs agree with the ledger: {told}."


def when(file: File) -> str:
    """When the runs were begun."""
    return f"Begun {trained([file.run])}." if file.info.get("started") else ""


def access(file: File) -> str:
    """The model's files, with their digests."""
    models = sorted((file.run.path / "models").glob("*.pt"))
    told = ", ".join(f"{path.name} (SHA-256 {sha256(path)})" for path in models[:10])
    return f"Models in {file.run.path.name}/models: {told}." if models else ""


def not_biometric(file: File) -> str:
    """Of the task."""
    return "Does not apply: the task is segmentation of organs." if file.info["task"] in ("prostate", "fundus") else ""


EVIDENCE: Mapping[str, Callable[[File], str]] = {
    one.__name__: one
    for one in (
        task, centres, sources, licences, left_out, preparation, splits, counts, checks, network, training, method,
        seeds, selection, ensembles, software, hardware, cost, measures, uncertainty, performance, fairness, failures,
        robustness, external, limits, contributions, flags, privacy, ledger, site_logs, when, access, not_biometric,
    )
}  # fmt: skip
NEVER = ("intended_use", "users", "privacy_attacks")  # nothing that FedMerit writes tells these


def _by_site(file: File, told: Callable[[SiteFolder], str]) -> str:
    """Of the sites whose folders are here, those that say alike together; who is not here is named."""
    said: dict[str, list[str]] = {}
    for site in file.folders:
        try:
            text = told(site)
        except (KeyError, TypeError):  # an older site.json has no such field
            text = ""
        said.setdefault(text, []).append(site.name)
    lacking = [*said.pop("", []), *sorted(set(file.run.sites) - {site.name for site in file.folders})]
    if not said:
        return ""
    text = "; ".join(f"{', '.join(names)}: {one}" for one, names in said.items())
    return f"{text}{f'; not known of {listed(lacking)}' if lacking else ''}."


def _records(run: Run) -> list[dict[str, Any]]:
    path = run.path / "ledger.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _with_ends(row: "pd.Series[Any]") -> str:
    ends = f" [{percent(row['low'])}, {percent(row['high'])}]" if pd.notna(row["low"]) else ""
    return f"{percent(row['mean'])}{ends}"
