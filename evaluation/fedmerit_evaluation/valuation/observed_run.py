"""Which sites train on the same images: as they enrolled, or as their prepared folders on this machine say.

An observed run as estimators of values see it: as it was, and as it would have come out with other patients.

Everything that depends on evaluated models has a last axis of D draws: the first is what was observed; in the others
every site's validation patients are drawn anew, as by `resampled_means`, and so are the rounds. The same draw has
the same patients in every round, for every model, and in the runs of all seeds: they are the same patients.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedmerit.errors import BadInput
from fedmerit.federation import recorder
from fedmerit.files import sha256
from fedmerit.guard.reward_groups import find_shared_cases
from fedmerit.records.results import read_table
from fedmerit.seeds import random_seed
from fedmerit.trainers.monai_trainer.data import SiteFolder, open_sites, require_same_preparation
from fedmerit_evaluation.ground_truth.reliability import resampled_case_counts, resampled_means
from fedmerit_evaluation.ground_truth.semivalues import EMPTY_COALITION, Coalition, FloatArray, parse_coalition
from fedmerit_evaluation.results.run_folders import open_run, read_rounds
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.statistics.bootstrap import bootstrap_counts, nan_mean


def sites_sharing_images(run: Path, info: Mapping[str, Any]) -> dict[str, set[str]]:
    """By site, the sites of which each has half of the other's training cases or more; of whom nothing is known, none.

    Args:
        run: a run folder.
        info: its run.json.

    Raises:
        BadInput: the run's ledger is none.
    """
    if enrolled := _enrolled(run):
        return enrolled
    root = Path(str(info.get("sites_folder")))
    if not root.is_dir():
        return {}
    sites = open_sites(root, info["sites"])
    shared = find_shared_cases([_cases(site) for site in sites]).tolist()
    return {
        site.name: {other.name for other, both in zip(sites, row, strict=True) if both}
        for site, row in zip(sites, shared, strict=True)
    }


def _enrolled(run: Path) -> dict[str, set[str]]:
    """Of those that enrolled; in ledgers of before, those of which all cases were the same."""
    told = read_rounds(
        run,
        lambda record: [
            (str(site), (str(one["fingerprint"]), {*one.get("shares_with", ())}))
            for site, one in record.get("guard", {}).get("enrolled", {}).items()
        ],
    )
    return {
        site: {
            other
            for other, (its, with_it) in told.items()
            if other != site and (its == own or other in shared or site in with_it)
        }
        for site, (own, shared) in told.items()
    }


def _cases(site: SiteFolder) -> frozenset[str]:
    """Digests of its training cases' images."""
    checksums: Mapping[str, str] = site.info.get("checksums", {})
    files = [case.image_file for case in site.cases("training")]
    return frozenset(checksums.get(str(file.relative_to(site.path))) or sha256(file) for file in files)


DRAWS = 500


@dataclass(frozen=True)
class RoundGame:
    """What the sites made of models of coalitions in one round: utilities (n, D), by who tested; NaN: did not."""

    round: int
    utilities: Mapping[Coalition, FloatArray]
    counts: FloatArray  # (D,) how often the round counts in each draw; 1 as observed
    parts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # by player, shares of who earn as one

    @property
    def players(self) -> list[str]:
        """The sites in any coalition, by name."""
        return sorted(frozenset[str]().union(*self.utilities))

    def on_average(self, coalition: Coalition) -> FloatArray:
        """(D,) mean over the sites that tested."""
        return nan_mean(self.utilities[coalition], axis=0)


@dataclass(frozen=True, eq=False)
class ObservedRun:
    """One run folder.

    Args:
        path: of a finished run.
        draws: D - 1, of patients and rounds.
        observed: rows as in the run's own ``values.csv``, in its place; None: that.
        place: the folder that its site folders lie in by now; None: where it had them.
    """

    path: Path
    draws: int = DRAWS
    observed: pd.DataFrame | None = None
    place: Path | None = None

    @cached_property
    def _run(self) -> Any:
        return open_run(self.path)

    @property
    def info(self) -> Mapping[str, Any]:
        """run.json, with the place of the sites as it is by now."""
        info: Mapping[str, Any] = self._run.info
        return info if self.place is None else {**info, "sites_folder": str(self.place)}

    @property
    def results(self) -> Results:
        """Of results.csv."""
        results: Results = self._run.results
        return results

    @property
    def sites(self) -> list[str]:
        """n names, sorted."""
        return sorted(self.info["sites"])

    @property
    def count(self) -> int:
        """D."""
        return 1 + self.draws

    @cached_property
    def num_samples(self) -> FloatArray:
        """(n,) training images."""
        table = self.results.rounds.of("num_samples").max()
        return np.array([float(table.get(site, np.nan)) for site in self.sites])

    @cached_property
    def holders(self) -> FloatArray:
        """(n,) of how many sites each one's training images are, half of them or more, itself included: as is known."""
        known = sites_sharing_images(self.path, self.info)
        return np.array([1.0 + len(known.get(site, ())) for site in self.sites])

    @cached_property
    def folders(self) -> list[SiteFolder]:
        """The sites' prepared images, of estimators that look at these; `BadInput` where they are elsewhere."""
        return prepared_sites(self.path, self.info)

    @cached_property
    def rows(self) -> pd.DataFrame:
        """What was observed, as rows of the results schema, split by the name of the observer."""
        if self.observed is not None:
            return self.observed
        file = self.path / recorder.OBSERVED
        return read_table(file) if file.exists() else pd.DataFrame(columns=["split", "round"])

    def games(self, observer: str) -> list[RoundGame]:
        """Round by round what was observed under a name.

        Raises:
            BadInput: nothing was; the message says what would.
        """
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

    @cached_property
    def _games(self) -> dict[str, list[RoundGame]]:
        return {}

    def _game(self, number: int, rows: pd.DataFrame, counts: FloatArray) -> RoundGame:
        dice = rows[rows["quantity"] == "dice"]
        cases = dice.groupby(["coalition", "site", "case"])["value"].mean().unstack(["site", "case"]).sort_index(axis=1)
        utilities = np.full((len(self.sites), len(cases), self.count), np.nan)
        tested = sorted(set(cases.columns.get_level_values("site")))
        drawn = resampled_case_counts(cases, self.draws, "patients")
        utilities[[self.sites.index(site) for site in tested]] = resampled_means(cases, drawn)
        members = [EMPTY_COALITION if text == recorder.NOBODY else parse_coalition(str(text)) for text in cases.index]
        parts = self._parts(number, members)
        others = {site for group in parts.values() for site in group} - set(parts)
        players = [one - others for one in members]
        return RoundGame(number, dict(zip(players, utilities.swapaxes(0, 1), strict=True)), counts, parts)

    def _parts(self, number: int, coalitions: Sequence[Coalition]) -> dict[str, dict[str, float]]:
        """Who earned as one in a round: those with a part of what a group earned, in the same coalitions always."""
        table = self.results.rounds.of("reward_group_share")
        of_round = table[table.index.get_level_values("round") == number].max()
        part = {str(site): float(value) for site, value in of_round[of_round < 1].items()}
        groups: dict[tuple[bool, ...], dict[str, float]] = {}
        for site in sorted(part):
            groups.setdefault(tuple(site in one for one in coalitions), {})[site] = part[site]
        return {next(iter(group)): group for where, group in groups.items() if any(where) and len(group) > 1}

    def round_counts(self, number: int) -> FloatArray:
        """(T, D) how often each of T rounds counts: once as observed, then as drawn with replacement."""
        random = np.random.default_rng(random_seed("rounds", self.info["seed"]))
        return bootstrap_counts(number, self.draws, random).T

    @cached_property
    def seconds(self) -> Mapping[str, float]:
        """What every observer cost the sites, beside ``training``: their seconds, summed over rounds and sites."""
        spent = self.rows[self.rows["quantity"] == "seconds"] if "quantity" in self.rows else self.rows
        of = {str(name): float(part["value"].sum()) for name, part in spent.groupby("split")}
        return {"training": float(self.results.rounds.of("seconds").sum().sum()), **of}


def prepared_sites(run: Path, info: Mapping[str, Any]) -> list[SiteFolder]:
    """The images of a run's sites, by ``info``, its run.json; `BadInput` where they are not here, or others by now."""
    root = info.get("sites_folder")
    if root is None:
        raise BadInput(f"{run}: its images are at the sites, and what is asked looks at images")
    if not Path(str(root)).is_dir():
        raise BadInput(f"{root}: no such folder, where {run} had its sites; --sites PLACE says where they are")
    folders = open_sites(Path(str(root)), info["sites"])
    require_same_preparation(folders, info.get("site_digests", {}), run)
    return folders


def require_same_sites(runs: Sequence[ObservedRun]) -> list[str]:
    """The sites of all runs; `BadInput` where they differ."""
    for run in runs[1:]:
        if run.sites != runs[0].sites:
            raise BadInput(f"{run.path}: its sites are {', '.join(run.sites)}, those of {runs[0].path} "
                           f"{', '.join(runs[0].sites)}; value runs of the same sites together")  # fmt: skip
    return runs[0].sites
