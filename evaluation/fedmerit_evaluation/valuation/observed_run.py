"""An observed run as estimators of values see it, and which sites train on the same images.

Everything that depends on evaluated models has a last axis of D draws: the first is as observed; in the others every
site's validation patients are drawn, and the rounds bootstrap resampled. A draw has the same patients
in every round, for every model and in the runs of all seeds: they are the same patients.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedmerit.contract.semivalues import EMPTY_COALITION, Coalition, FloatArray, parse_coalition
from fedmerit.errors import BadInput
from fedmerit.evidence.closing_record import OBSERVED
from fedmerit.files import sha256
from fedmerit.guard.enrolment import find_shared_cases
from fedmerit.schema.results import NOBODY, read_table
from fedmerit.schema.site_folder import SiteFolder, open_sites, require_same_preparation
from fedmerit.seeds import random_seed
from fedmerit.trust import allowed_place, require_place
from fedmerit_evaluation.results.runs import open_run, read_rounds
from fedmerit_evaluation.results.views import Results, name_patients
from fedmerit_evaluation.statistics.resampling import Clusters, CrossedEffects, bootstrap_counts, nan_mean


def sites_sharing_images(run: Path, info: Mapping[str, Any]) -> dict[str, set[str]]:
    """Return by site the sites that share three quarters of each other's training cases; none if nothing is known.

    Raises:
        BadInput: the run's ledger is not readable.
    """
    if enrolled := _enrolled(run):
        return enrolled
    root = allowed_place(info.get("sites_folder"))
    if root is None or not root.is_dir():
        return {}
    sites = open_sites(root, info["sites"], info.get("fold"))
    shared = find_shared_cases([_cases(site) for site in sites])
    return {
        site.name: {other.name for other, both in zip(sites, row, strict=True) if both}
        for site, row in zip(sites, shared, strict=True)
    }


def _enrolled(run: Path) -> dict[str, set[str]]:
    """Return by enrolled site the sites with which it shares cases by the ledger."""
    enrolled_sites = read_rounds(
        run,
        lambda record: [
            (str(site), {*one.get("shares_with", ())})
            for site, one in record.get("guard", {}).get("enrolled", {}).items()
        ],
    )
    return {
        site: {
            other for other, with_it in enrolled_sites.items() if other != site and (other in shared or site in with_it)
        }
        for site, shared in enrolled_sites.items()
    }


def _cases(site: SiteFolder) -> frozenset[str]:
    """Return the digests of the images of a site's training cases."""
    checksums: Mapping[str, str] = site.info.get("checksums", {})
    files = [case.image_file for case in site.cases("training")]
    return frozenset(checksums.get(str(file.relative_to(site.path))) or sha256(file) for file in files)


DRAWS = 500


@dataclass(frozen=True)
class RoundGame:
    """The evaluations of coalitions' models in one round: utilities (n, D) by testing site; NaN: did not test."""

    round: int
    utilities: Mapping[Coalition, FloatArray]
    counts: FloatArray  # (D,) how often the round counts in each sample; 1 as observed
    parts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # by player, shares within its reward group

    @property
    def players(self) -> list[str]:
        """The sites in any coalition, by name."""
        return sorted(frozenset[str]().union(*self.utilities))

    def on_average(self, coalition: Coalition) -> FloatArray:
        """Return (D,) the mean over the sites that tested."""
        return nan_mean(self.utilities[coalition], axis=0)


@dataclass(frozen=True, eq=False)
class ObservedRun:
    """A run folder and what was observed in it."""

    path: Path  # of a finished run
    draws: int = DRAWS  # D - 1 bootstrap samples of patients and rounds
    observed: pd.DataFrame | None = None  # rows to use instead of the run's ``values.csv``; None: that file
    place: Path | None = None  # the folder that its site folders are in now; None: the recorded one

    @cached_property
    def _run(self) -> Any:
        return open_run(self.path)

    @property
    def info(self) -> Mapping[str, Any]:
        """The content of run.json, with the current place of the sites."""
        info: Mapping[str, Any] = self._run.info
        return info if self.place is None else {**info, "sites_folder": str(self.place)}

    @property
    def results(self) -> Results:
        """The content of results.csv."""
        results: Results = self._run.results
        return results

    @property
    def sites(self) -> list[str]:
        """The names of the n sites, sorted."""
        return sorted(self.info["sites"])

    @property
    def count(self) -> int:
        """The number of draws, D."""
        return 1 + self.draws

    @cached_property
    def num_samples(self) -> FloatArray:
        """(n,) training images."""
        table = self.results.rounds.of("num_samples").max()
        return np.array([float(table.get(site, np.nan)) for site in self.sites])

    @cached_property
    def holders(self) -> FloatArray:
        """(n,) number of sites that have each one's training images (half or more), including itself."""
        known = sites_sharing_images(self.path, self.info)
        return np.array([1.0 + len(known.get(site, ())) for site in self.sites])

    @cached_property
    def folders(self) -> list[SiteFolder]:
        """The sites' prepared images, for estimators that read them; `BadInput` if they are elsewhere."""
        return prepared_sites(self.path, self.info)

    @cached_property
    def rows(self) -> pd.DataFrame:
        """The observed rows in the results schema; column ``split`` is the name of the observer."""
        if self.observed is not None:
            return self.observed
        file = self.path / OBSERVED
        return read_table(file) if file.exists() else pd.DataFrame(columns=["split", "round"])

    def games(self, observer: str) -> list[RoundGame]:
        """Return the games of an observer, round by round; `BadInput` if nothing was observed."""
        if observer not in self._games:
            rows = self.rows[self.rows["split"] == observer]
            if rows.empty:
                raise BadInput(
                    f"{self.path}: nothing was observed for {observer}; run with --values {observer}, or with "
                    "--keep-updates and then `fedmerit value estimate`"
                )
            numbers = sorted({*map(int, rows["round"])})
            counts = self.round_counts(len(numbers))
            self._games[observer] = [
                self._game(number, rows[rows["round"] == number], count)
                for number, count in zip(numbers, counts, strict=True)
            ]
        return self._games[observer]

    def patients(self, observer: str) -> "pd.Series[int]":
        """Return the number of validation patients by site; `BadInput` if nothing was observed."""
        self.games(observer)
        rows = self.rows[(self.rows["split"] == observer) & (self.rows["quantity"] == "dice")]
        return name_patients(rows).groupby(rows["site"]).nunique()

    @cached_property
    def _games(self) -> dict[str, list[RoundGame]]:
        return {}

    def _game(self, number: int, rows: pd.DataFrame, counts: FloatArray) -> RoundGame:
        dice = rows[rows["quantity"] == "dice"]
        cases = dice.groupby(["coalition", "seed", "site", "case"])["value"].mean().dropna()
        keys = zip(dice["seed"], dice["site"], dice["case"], strict=True)
        patients = Clusters(dict(zip(keys, name_patients(dice), strict=True)))
        effects = CrossedEffects.from_cases(cases.rename_axis(["method", "seed", "site", "case"]), patients)
        utilities = np.full((len(effects.methods), len(self.sites), self.count), np.nan)
        tested = [self.sites.index(site) for site in effects.sites]
        utilities[:, tested] = np.moveaxis(effects.resample(self.draws, "patients")[:, :, 0], 0, -1)
        members = [EMPTY_COALITION if text == NOBODY else parse_coalition(text) for text in effects.methods]
        parts = self._parts(number, members)
        others = {site for group in parts.values() for site in group} - set(parts)
        players = [one - others for one in members]
        return RoundGame(number, dict(zip(players, utilities, strict=True)), counts, parts)

    def _parts(self, number: int, coalitions: Sequence[Coalition]) -> dict[str, dict[str, float]]:
        """Return the reward groups of a round: sites that share a reward and are always in the same coalitions."""
        table = self.results.rounds.of("reward_group_share")
        of_round = table[table.index.get_level_values("round") == number].max()
        part = {str(site): float(value) for site, value in of_round[of_round < 1].items()}
        groups: dict[tuple[bool, ...], dict[str, float]] = {}
        for site in sorted(part):
            groups.setdefault(tuple(site in one for one in coalitions), {})[site] = part[site]
        return {next(iter(group)): group for where, group in groups.items() if any(where) and len(group) > 1}

    def round_counts(self, number: int) -> FloatArray:
        """Return (T, D) how often each of T rounds counts: once as observed, then in each bootstrap sample."""
        random = np.random.default_rng(random_seed("rounds", self.info["seed"]))
        return bootstrap_counts(number, self.draws, random).T

    @cached_property
    def seconds(self) -> Mapping[str, float]:
        """The seconds of every observer, and of ``training``, summed over rounds and sites."""
        spent = self.rows[self.rows["quantity"] == "seconds"] if "quantity" in self.rows else self.rows
        of = {str(name): float(part["value"].sum()) for name, part in spent.groupby("split")}
        return {"training": float(self.results.rounds.of("seconds").sum().sum()), **of}


def prepared_sites(run: Path, info: Mapping[str, Any]) -> list[SiteFolder]:
    """Open the site folders of a run by ``info``, its run.json; `BadInput` if they are not here or have changed."""
    root = info.get("sites_folder")
    if root is None:
        raise BadInput(f"{run}: its images are at the sites, and this needs the images")
    if not Path(str(root)).is_dir():
        raise BadInput(f"{root}: no such folder; {run} had its sites there. Name the folder with --sites PLACE")
    folders = open_sites(require_place(root, run), info["sites"], info.get("fold"))
    require_same_preparation(folders, info.get("site_digests", {}), run)
    return folders


def require_same_sites(runs: Sequence[ObservedRun]) -> list[str]:
    """Return the sites of all runs; `BadInput` if they differ."""
    for run in runs[1:]:
        if run.sites != runs[0].sites:
            raise BadInput(f"{run.path}: its sites are {', '.join(run.sites)}, those of {runs[0].path} "
                           f"{', '.join(runs[0].sites)}; value runs of the same sites together")  # fmt: skip
    return runs[0].sites
