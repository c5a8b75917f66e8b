"""Run folders opened for tables, figures and reports: settings, results, ledger, and labels to compare them by."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
from pandas.util import hash_pandas_object
from pydantic import TypeAdapter, ValidationError

from fedmerit.errors import BadInput
from fedmerit.evidence.ledger import Ledger
from fedmerit.files import read_object
from fedmerit.schema.configuration.settings import GuardSettings
from fedmerit.schema.results import COLUMNS, DIGEST_COLUMNS, MACHINE_QUANTITIES, PAIRS, read_results
from fedmerit.schema.run_info import read_run
from fedmerit.schema.score_name import show_score_of
from fedmerit.schema.site_folder import SiteFolder
from fedmerit_evaluation.results.views import POOLED, STANDALONE, Results

Key = TypeVar("Key")
Value = TypeVar("Value")

COMMAND = "fedmerit run --method METHOD --sites SITES"
FIELDS = ("run", "method", "parameters", "seed", "sites", "task", "labels", "rounds", "training")
DIGESTS, SERVER_DIGESTS = "site_digests", "server_digests"  # of run.json and of a study's JSON file
EVENTS = ("rejected", "failed", "joined", "left")  # of a site, in a ledger record
RECORDED = ["round", "site", "coalition", "split", "label", "quantity"]  # columns of a row without a case


@dataclass(frozen=True)
class Run:
    """A run folder; the ``label`` is its method, with the settings in which it differs from the other runs."""

    path: Path
    info: Mapping[str, Any]  # run.json
    results: Results  # results.csv, without coalitions and without quantities that its method does not have
    label: str

    @property
    def sites(self) -> list[str]:
        """The sites, by name."""
        return sorted(self.info["sites"])

    @property
    def site_digests(self) -> dict[str, str]:
        """The digests of the prepared sites, by name; deployed runs have none."""
        return dict(self.info.get("site_digests") or {})

    @property
    def attacks(self) -> dict[str, str]:
        """The simulated attacks, by site."""
        return dict(self.info.get("attacks", {}))

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.info["seed"])

    @property
    def fold(self) -> int | None:
        """The fold of its sites' folders whose splits it used; None: the splits of datalist.json."""
        return self.info.get("fold")

    def in_its_fold(self, sites: Sequence[SiteFolder]) -> list[SiteFolder]:
        """Return the site folders with the splits of the run's fold, where they have it."""
        return [site.in_fold(self.fold, missing_ok=True) for site in sites]

    @property
    def counts_images(self) -> bool:
        """Whether its method's contributions are shares of training images, which estimate nothing."""
        return not declares_estimates(self.info) and "contribution" not in self.info.get("undefined", ())

    @property
    def rounds(self) -> int:
        """The number of rounds in the settings."""
        return int(self.info["rounds"])

    @cached_property
    def rounds_done(self) -> int:
        """The number of aggregated rounds in results.csv."""
        rows = self.results.rows
        rounds = rows.loc[rows["split"] == "", "round"]
        return 0 if rounds.empty else int(rounds.max()) + 1

    @cached_property
    def tested_sites(self) -> set[str]:
        """The sites with test Dice in results.csv."""
        return set(self.results.dice.rows["site"])

    @cached_property
    def events(self) -> Mapping[str, Mapping[tuple[int, str], str]]:
        """The ledger's events of sites: by `EVENTS`, by round and site, the reason of a rejection or "".

        Raises:
            BadInput: the file is no ledger.
        """
        kept = read_rounds(self.path, _read_events)
        return {
            kind: {(number, site): why for (other, number, site), why in kept.items() if other == kind}
            for kind in EVENTS
        }

    @property
    def tested(self) -> bool:
        """Whether results.csv has any test Dice."""
        return bool(self.tested_sites)


def declares_estimates(info: Mapping[str, Any]) -> bool:
    """Return whether the method of a run.json declares that it estimates contributions.

    The method known here by that name declares it if run.json does not hold it.
    """
    if "estimates" in info:
        return bool(info["estimates"])
    from fedmerit.methods.registry import estimates_contributions  # loads PyTorch

    return estimates_contributions(str(info["method"]))


def open_run(path: Path) -> Run:
    """Read one run folder; `BadInput` if run.json or results.csv is missing, lacks a field, or holds no result yet."""
    path = Path(path)
    if not path.is_dir():
        raise BadInput(f"{path}: no such run folder; make one with `{COMMAND} --out {path}`")
    if not (path / "run.json").exists():
        inside = ", ".join(str(file.parent) for file in sorted(path.glob("*/run.json")))
        way = f"it holds run folders: give {inside}" if inside else f"`{COMMAND} --out {path}` makes one"
        raise BadInput(f"{path}: not a run folder: no run.json; {way}")
    info = read_run(path)
    show_score_of(info)
    if missing := [field for field in FIELDS if field not in info]:
        raise BadInput(f"{path}/run.json: lacks {', '.join(missing)}; `{COMMAND} --out OTHER` writes a complete one")
    rows = read_results(path)
    if rows.empty:
        raise BadInput(
            f"{path}: results.csv has no result yet; let the run finish its first round, or resume it with "
            f"`fedmerit run --resume --out {path}`"
        )
    is_of_coalition = (rows["coalition"] != "") & ~rows["quantity"].isin(PAIRS)
    is_undefined = rows["quantity"].isin(info.get("undefined", ()))
    return Run(path, info, Results(rows[~(is_undefined | is_of_coalition)]), str(info["method"]))


def open_runs(paths: Sequence[Path]) -> list[Run]:
    """Read run folders to compare, and label them.

    Raises:
        BadInput: none given, one given twice or unusable, or they differ in task, labels or sites.
    """
    if not paths:
        raise BadInput(f"no run folder given; make one with `{COMMAND} --out RUN`")
    for path, count in Counter(Path(path).resolve() for path in paths).items():
        if count > 1:
            raise BadInput(f"{path}: given {count} times; name each run folder once")
    runs = [open_run(path) for path in paths]
    first = runs[0]
    for run in runs[1:]:
        for field in ("task", "labels", "sites"):
            ours, theirs = first.info[field], run.info[field]
            if (sorted(ours) != sorted(theirs)) if field == "sites" else (ours != theirs):
                raise BadInput(
                    f"{run.path}: its {field} {theirs} is not {ours} of {first.path}; "
                    "report only runs on the same sites and task together"
                )
    return label_runs(runs)


def read_rounds(run: Path, read: Callable[[Mapping[str, Any]], Iterable[tuple[Key, Value]]]) -> dict[Key, Value]:
    """Return the key and value pairs that ``read`` takes from each ledger record, in order; none without a ledger.

    Raises:
        BadInput: the file is no ledger, or its records lack what ``read`` looks for.
    """
    path = run / "ledger.jsonl"
    if not path.exists():
        return {}
    try:
        return {key: value for record in Ledger(path).records for key, value in read(record)}
    except (ValueError, KeyError, TypeError, AttributeError, BadInput) as error:
        raise BadInput(f"{path}: not a ledger of rounds ({error}); check it with `fedmerit verify {run}`") from error


def _read_events(record: Mapping[str, Any]) -> Iterator[tuple[tuple[str, int, str], str]]:
    """Yield the events of a ledger record: kind, round and site, with the reason of a rejection."""
    for kind in EVENTS:
        sites = record.get(kind, ())
        for site in sites:
            yield (kind, record["round"], site), str(sites[site]) if kind == "rejected" else ""


def read_recorded_digests(record: Path, part: str = DIGESTS) -> dict[str, str]:
    """Return the digests of sites in a study's JSON file, by site; none if there is no file.

    Raises:
        BadInput: the file's part is something else.
    """
    digests = read_object(record).get(part, {}) if record.exists() else {}
    try:
        return TypeAdapter(dict[str, str]).validate_python(digests)
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInput(f"{record}: {part} is {first['input']!r:.60}: {first['msg']}") from None


def combine_results(runs: Sequence[Run], order: Sequence[str] | None = None) -> Results:
    """Return the results of all runs, labels in column ``method``; runs of several folds as one, by `pool_folds`.

    Cases with one name are the same: those of a site that was prepared differently in another run of the seed get a
    name of their own.

    Args:
        runs: with labels; may be empty.
        order: of the labels; None: as the runs come.
    """
    if not runs:
        return Results(pd.DataFrame(columns=COLUMNS))
    require_folds_or_none(runs)
    labels = dict.fromkeys(run.label for run in runs)
    images: dict[int, dict[str, str]] = {}  # by seed, which may move the split
    for run in runs:
        images[run.seed] = run.site_digests | images.get(run.seed, {})
    tables = [_distinguish_cases(run, images[run.seed]).assign(method=run.label) for run in runs]
    table = pd.concat(tables, ignore_index=True)
    ordered = pd.Categorical(table["method"], [label for label in order or labels if label in labels])
    table = table.assign(method=ordered)
    return Results(pool_folds(table), folds_as_seeds(table) if table["fold"].nunique() > 1 else None)


def require_folds_or_none(runs: Sequence[Run]) -> None:
    """Raise `BadInput` if some runs are of a fold and others of the one split: their tests cannot be pooled."""
    without = [run.path for run in runs if (run.results.rows["fold"] == "").any()]
    with_folds = [run.path for run in runs if (run.results.rows["fold"] != "").any()]
    if without and with_folds:
        raise BadInput(
            f"{with_folds[0]}: is of a fold, {without[0]} of the one split; give runs of folds, or of the split"
        )


def _distinguish_cases(run: Run, images: Mapping[str, str]) -> pd.DataFrame:
    """Return the rows of a run, with a suffix to the names of cases from other versions of a site's folder.

    Args:
        run: a run.
        images: digests by site of the folders without suffix.
    """
    rows = run.results.rows
    suffixes = {site: f"@{digest[:8]}" for site, digest in run.site_digests.items() if digest != images[site]}
    if not suffixes:
        return rows
    tested = rows["case"].str.rpartition("/")[0]  # at another site
    suffix = tested.where(tested != "", rows["site"]).map(suffixes).fillna("")
    return rows.assign(case=rows["case"] + suffix.where(rows["case"] != "", ""))


def pool_folds(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of several folds as one run of each method and seed, in which every patient is tested once.

    Cases are named by their fold, ``2:003``; what is recorded by site and round is the mean over folds. Rows that are
    not of several folds stay unchanged.
    """
    if rows["fold"].nunique() <= 1:
        return rows
    tested = rows[rows["case"] != ""]
    places = [case.rpartition("/") for case in tested["case"]]
    named = tested.assign(
        case=[f"{at}{bar}{fold}:{case}" for (at, bar, case), fold in zip(places, tested["fold"], strict=True)]
    )
    return pd.concat([named, _round_means(rows, "seed")], ignore_index=True)[list(rows)]


def folds_as_seeds(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what is recorded by site and round, mean over seeds, with the fold as the seed."""
    return _round_means(rows, "fold").assign(seed=lambda table: table["fold"].astype(int))[list(rows)]


def _round_means(rows: pd.DataFrame, by: str) -> pd.DataFrame:
    """Return the means of rows without a case by method and ``by``, which is seed or fold."""
    groups = rows[rows["case"] == ""].groupby(["method", by, *RECORDED], observed=True, sort=False)
    means = groups["value"].mean().reset_index().assign(run="", case="", patient="")
    return means.assign(fold="") if by == "seed" else means.assign(seed=0)


def label_runs(runs: Sequence[Run]) -> list[Run]:
    """Label runs by their methods; a method with several settings also by those that differ.

    So runs of one label differ only in their seeds or folds.

    Raises:
        BadInput: two of them have the same results: they are one run, and would show no variance.
    """
    labelled = []
    for run in runs:
        settings, defaults = _settings(run), _unrecorded_defaults(run)
        peers = [_settings(other) for other in runs if other.info["method"] == run.info["method"]]
        differing = [
            key for key in settings if any(peer.get(key, defaults.get(key)) != settings[key] for peer in peers)
        ]
        shown = [f"{key}={text if isinstance(text := settings[key], str) else json.dumps(text)}" for key in differing]
        shown += ["attacked"] * bool(run.attacks)  # without the site: other sites may read a label
        values = ", ".join(shown)
        labelled.append(replace(run, label=f"{run.info['method']} ({values})" if values else run.label))
    counts = Counter((run.label, run.seed, run.fold) for run in labelled)
    labelled = [
        replace(run, label=f"{run.label} [{run.path.name}]") if counts[run.label, run.seed, run.fold] > 1 else run
        for run in labelled
    ]
    number, seen = Counter(run.label for run in labelled), dict[tuple[str, str], Run]()
    for run in labelled:
        if number[run.label] == 1 or not run.tested:
            continue
        other = seen.setdefault((run.label, _digest_results(run)), run)
        if (other.seed, other.fold) != (run.seed, run.fold):
            raise BadInput(
                f"{run.path}: has the results of {other.path}, number for number: one is a copy of the other, or the "
                "seed changes nothing, as in a script that does not use it; give one of them"
            )
    return labelled


def _digest_results(run: Run) -> str:
    """Return a digest of the results of a run, whatever its seed and fold, without `MACHINE_QUANTITIES`."""
    rows = run.results.rows
    rows = rows.loc[~rows["quantity"].isin(MACHINE_QUANTITIES), [*DIGEST_COLUMNS, "value"]]
    return hashlib.sha256(hash_pandas_object(rows, index=False).to_numpy().tobytes()).hexdigest()


def has_same_training(run: Run, other: Run) -> bool:
    """Return whether two runs have the same network, training, rounds and images, by the settings that both record."""
    first, second = (_training_settings(each) | _image_settings(each) for each in (run, other))
    return all(first[key] == second[key] for key in first.keys() & second.keys())


def _settings(run: Run) -> dict[str, Any]:
    """Return all settings of a run by name."""
    return {**_training_settings(run), **_guard_settings(run), **_unrecorded_defaults(run), **run.info["parameters"]}


def _training_settings(run: Run) -> dict[str, Any]:
    return {**run.info.get("plan", {}).get("network", {}), **run.info["training"], "rounds": run.rounds}


def _guard_settings(run: Run) -> dict[str, Any]:
    """Return the settings of the guard; none with local or pooled training, where it does nothing."""
    if run.info["method"] in (STANDALONE, POOLED):
        return {}
    default = vars(GuardSettings())
    settings = default | run.info.get("plan", {}).get("guard", {})
    return settings if settings["guard"] == "on" else default


def _unrecorded_defaults(run: Run) -> dict[str, Any]:
    """Return the settings that deployed runs do not record: their absence is no difference.

    The server's images count only as "given": they may differ from seed to seed, as the sites' may.
    """
    settings = _image_settings(run)
    if "privacy" in run.info:
        settings["privacy"] = "+".join(run.info["privacy"]) or "none"
    if "server_sites" in run.info:
        settings["server_sites"] = "given" if run.info["server_sites"] else "none"
    return settings


def _image_settings(run: Run) -> dict[str, Any]:
    recorded = run.info.get("plan", {}).get("preprocessing") or {}
    size = run.info.get("image_size") or recorded.get("size")
    settings = {name: value for name, value in recorded.items() if name not in ("size", "spacing")}
    return settings | ({"image_size": "x".join(map(str, size))} if size else {})
