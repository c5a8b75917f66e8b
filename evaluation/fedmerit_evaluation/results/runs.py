"""Run folders opened for tables, figures and reports: settings, results, ledger, and labels to compare them by."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
from pydantic import TypeAdapter, ValidationError

from fedmerit.errors import BadInput
from fedmerit.evidence.ledger import Ledger
from fedmerit.files import read_object
from fedmerit.schema.configuration.settings import GuardSettings
from fedmerit.schema.results import COLUMNS, PAIRS, read_results
from fedmerit.schema.run_info import read_run
from fedmerit.schema.score_name import show_score_of
from fedmerit.schema.site_folder import SiteFolder
from fedmerit_evaluation.results.views import POOLED, STANDALONE, Results

RECORDED = ["round", "site", "coalition", "split", "label", "quantity"]  # what a row without a case is of


def has_folds(rows: pd.DataFrame) -> bool:
    """Whether rows of results are of several folds."""
    return bool(rows["fold"].nunique() > 1)


def pool_folds(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with cases named by their fold, ``2:003``, and means over folds of what is recorded by site and round.

    Unchanged if they are not of several folds.
    """
    if not has_folds(rows):
        return rows
    tested = rows[rows["case"] != ""]
    places = [case.rpartition("/") for case in tested["case"]]
    named = tested.assign(
        case=[f"{at}{bar}{fold}:{case}" for (at, bar, case), fold in zip(places, tested["fold"], strict=True)]
    )
    return pd.concat([named, _means(rows, "seed").assign(fold="")], ignore_index=True)[list(rows)]


def folds_as_seeds(rows: pd.DataFrame) -> pd.DataFrame:
    """What is recorded by site and round, mean over seeds, with the fold as the seed: what CIs over folds are of."""
    return _means(rows, "fold").assign(seed=lambda table: table["fold"].astype(int))[list(rows)]


def _means(rows: pd.DataFrame, by: str) -> pd.DataFrame:
    """Of rows without a case the mean by method and ``by``."""
    of = rows[rows["case"] == ""].groupby(["method", by, *RECORDED], observed=True, sort=False)["value"].mean()
    return of.reset_index().assign(run="", case="", patient="", **({"fold": ""} if by == "seed" else {"seed": 0}))


DIGESTS, SERVER_DIGESTS = "site_digests", "server_digests"


def read_recorded_digests(record: Path, part: str = DIGESTS) -> dict[str, str]:
    """What `study_folders.recorded_digests` gave when a study's JSON file was written, by site; {} if there is no file.

    Raises:
        BadInput: the file's part is something else.
    """
    found = read_object(record).get(part, {}) if record.exists() else {}
    try:
        return TypeAdapter(dict[str, str]).validate_python(found)
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInput(f"{record}: {part} is {first['input']!r:.60}: {first['msg']}") from None


Key = TypeVar("Key")
Value = TypeVar("Value")


def read_rounds(run: Path, read: Callable[[Mapping[str, Any]], Iterable[tuple[Key, Value]]]) -> dict[Key, Value]:
    """Key and value pairs that ``read`` finds in each ledger record, in order; none if the run has no ledger.

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


COMMAND = "fedmerit run --method METHOD --sites SITES"
FIELDS = ("run", "method", "parameters", "seed", "sites", "task", "labels", "rounds", "training")


@dataclass(frozen=True)
class Run:
    """One run folder. ``label`` is its method, with the settings in which it differs from the other runs."""

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
        """Digests of the prepared sites, by name; deployed runs have none."""
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
        """That of its sites' folders whose splits it used; None: those of datalist.json."""
        return self.info.get("fold")

    def in_its_fold(self, sites: Sequence[SiteFolder]) -> list[SiteFolder]:
        """The site folders, with the splits of its fold if they have it, as its own have."""
        return [site.in_fold(self.fold, missing_ok=True) for site in sites]

    @property
    def rounds(self) -> int:
        """Number of rounds in the settings."""
        return int(self.info["rounds"])

    @cached_property
    def rounds_done(self) -> int:
        """Number of aggregated rounds in results.csv."""
        rows = self.results.rows
        rounds = rows.loc[rows["split"] == "", "round"]
        return 0 if rounds.empty else int(rounds.max()) + 1

    @cached_property
    def tested_sites(self) -> set[str]:
        """The sites with test Dice in results.csv."""
        return set(self.results.dice.rows["site"])

    @property
    def tested(self) -> bool:
        """Whether results.csv has any test Dice."""
        return bool(self.tested_sites)


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
    missing = [field for field in FIELDS if field not in info]
    if missing:
        raise BadInput(f"{path}/run.json: lacks {', '.join(missing)}; `{COMMAND} --out OTHER` writes a complete one")
    results = read_results(path)
    if results.empty:
        raise BadInput(
            f"{path}: results.csv has no result yet; let the run finish its first round, or resume it with "
            f"`fedmerit run --resume --out {path}`"
        )
    coalition_results = (results["coalition"] != "") & ~results["quantity"].isin(PAIRS)
    lacking = results["quantity"].isin(info.get("undefined", ())) | coalition_results
    return Run(path, info, Results(results[~lacking]), str(info["method"]))


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


def combine_results(runs: Sequence[Run], order: Sequence[str] | None = None) -> Results:
    """The results of all runs, labels in column ``method``; runs of several folds as one, by `pool_folds`.

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
    table = pd.concat(
        [_distinguish_labels(run, images[run.seed]).assign(method=run.label) for run in runs], ignore_index=True
    )
    ordered = pd.Categorical(table["method"], [label for label in order or labels if label in labels])
    table = table.assign(method=ordered)
    return Results(pool_folds(table), folds_as_seeds(table) if has_folds(table) else None)


def require_folds_or_none(runs: Sequence[Run]) -> None:
    """`BadInput` if some are of a fold and others of the one split: their tests cannot be pooled."""
    whole = [run.path for run in runs if (run.results.rows["fold"] == "").any()]
    parts = [run.path for run in runs if (run.results.rows["fold"] != "").any()]
    if whole and parts:
        raise BadInput(f"{parts[0]}: is of a fold, {whole[0]} of the one split; give runs of folds, or of the split")


def _distinguish_labels(run: Run, images: Mapping[str, str]) -> pd.DataFrame:
    """The rows of a run, with a suffix to the names of cases from other versions of a site's folder.

    Args:
        images: digests by site of the folders without suffix.
    """
    rows = run.results.rows
    suffixes = {site: f"@{digest[:8]}" for site, digest in run.site_digests.items() if digest != images[site]}
    if not suffixes:
        return rows
    at = rows["case"].str.rpartition("/")[0]  # tested at another site
    suffix = at.where(at != "", rows["site"]).map(suffixes).fillna("")
    return rows.assign(case=rows["case"] + suffix.where(rows["case"] != "", ""))


def label_runs(runs: Sequence[Run]) -> list[Run]:
    """Label runs by their methods; a method with several settings also by those that differ.

    So runs of one label differ only in their seeds.
    """
    labelled = []
    for run in runs:
        settings = _settings(run)
        same = [_settings(other) for other in runs if other.info["method"] == run.info["method"]]
        unsaid = _unrecorded_defaults(run)
        differing = [key for key in settings if any(other.get(key, unsaid.get(key)) != settings[key] for other in same)]
        shown = [f"{key}={text if isinstance(text := settings[key], str) else json.dumps(text)}" for key in differing]
        shown += ["attacked"] * bool(run.attacks)  # without the site: other sites may read a label
        values = ", ".join(shown)
        labelled.append(replace(run, label=f"{run.info['method']} ({values})" if values else run.label))
    twice = Counter((run.label, run.seed, run.fold) for run in labelled)
    return [
        replace(run, label=f"{run.label} [{run.path.name}]") if twice[run.label, run.seed, run.fold] > 1 else run
        for run in labelled
    ]


def _settings(run: Run) -> dict[str, Any]:
    """Settings by name. Given contributions count only as "given": they differ from seed to seed."""
    settings = {**_training_settings(run), **_guard(run), **_unrecorded_defaults(run), **run.info["parameters"]}
    return settings | ({"contributions": "given"} if settings.get("contributions") else {})


def _training_settings(run: Run) -> dict[str, Any]:
    return {**run.info.get("plan", {}).get("network", {}), **run.info["training"], "rounds": run.rounds}


def has_same_training(one: Run, other: Run) -> bool:
    """Whether two runs have the same network, training, rounds and images, by the settings that both record."""
    first, second = (_training_settings(run) | _image_settings(run) for run in (one, other))
    return all(first[key] == second[key] for key in first.keys() & second.keys())


def _guard(run: Run) -> dict[str, Any]:
    """Settings of the guard; none with local or pooled training, where it does nothing."""
    if run.info["method"] in (STANDALONE, POOLED):
        return {}
    default = vars(GuardSettings())
    asked = default | run.info.get("plan", {}).get("guard", {})
    return asked if asked["guard"] == "on" else default


def _unrecorded_defaults(run: Run) -> dict[str, Any]:
    """Settings that deployed runs do not record: their absence is no difference.

    The server's own images count only as "given": they may differ from seed to seed, as the sites' may.
    """
    info, found = run.info, _image_settings(run)
    if "privacy" in info:
        found["privacy"] = "+".join(info["privacy"]) or "none"
    if "server_sites" in info:
        found["server_sites"] = "given" if info["server_sites"] else "none"
    return found


def _image_settings(run: Run) -> dict[str, Any]:
    said = run.info.get("plan", {}).get("preprocessing") or {}
    size = run.info.get("image_size") or said.get("size")
    found = {name: value for name, value in said.items() if name not in ("size", "spacing")}
    return found | ({"image_size": "x".join(map(str, size))} if size else {})
