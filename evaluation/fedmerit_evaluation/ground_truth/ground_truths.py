"""Ground truths of the values of sites, from a folder of trained coalitions: leave-one-out and Shapley values.

The utility of a coalition is the test Dice of its model.

A value is a sum over coalitions of their utilities, each times a coefficient: of leave-one-out and exact Shapley values
the same for all seeds, of Shapley values from sampled permutations those of the permutations drawn.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from fedmerit.contract import semivalues
from fedmerit.contract.semivalues import (
    EMPTY_COALITION,
    EXACT,
    LEAVE_ONE_OUT,
    SHAPLEY,
    Coalition,
    FloatArray,
    SampledValues,
    Sampling,
    leave_one_out_weights,
    required_coalitions,
)
from fedmerit.errors import BadInput
from fedmerit.files import read_object, write_json
from fedmerit.schema.declarations import read
from fedmerit.schema.results import read_results
from fedmerit_evaluation.ground_truth.reliability import Resampled, resample, semivalue_function
from fedmerit_evaluation.results.runs import read_recorded_digests
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.statistics.inference import Estimate


def coalition_utilities(results: Results, *, per_label: bool = False) -> dict[int, dict[Coalition, FloatArray]]:
    """Return the game of each seed: the utility of a coalition is its model's test Dice [fraction], mean over sites.

    A site's Dice is the mean over its cases of the mean over labels, as in every table, so that the utility is the
    table's Avg.; with ``per_label`` it is (k,), for each label the mean over sites of the mean over cases. NaN where
    a site has no Dice, all its cases being empty in reference and prediction. The utility of nobody is stated as 0.

    Args:
        results: of a folder of ground truth, ``coalition`` naming who trained.
        per_label: whether utilities are by label.

    Raises:
        BadInput: a coalition was not tested on some site that another was tested on, or holds a site never tested.
    """
    cases = results.coalition_results.dice
    dice = (cases.label_cases if per_label else cases.cases.to_frame()).groupby(level=["seed", "method", "site"]).mean()
    games: dict[int, dict[Coalition, FloatArray]] = {}
    tested = set(dice.index.get_level_values("site"))
    for (seed, text), rows in dice.groupby(level=["seed", "method"]):
        there = set(rows.index.get_level_values("site"))
        members = semivalues.parse_coalition(str(text))
        if lacking := sorted((tested | members) - there):
            raise BadInput(
                f"coalition {text}, seed {seed}: not tested on the cases of {', '.join(lacking)}; "
                "test it on all sites, with the command that trained it"
            )
        utility: FloatArray = rows.to_numpy(dtype=np.float64).mean(axis=0)
        utility = utility if per_label else utility.reshape(())
        games.setdefault(int(str(seed)), {EMPTY_COALITION: np.zeros_like(utility)})[members] = utility
    return games


COMMANDS: Mapping[str, str] = {
    LEAVE_ONE_OUT: "value leave-one-out",
    SHAPLEY: "value shapley --exact-up-to {}",
}  # of n sites
STUDY = "study.json"  # beside results.csv: the options of the folder's trainings
SAMPLING = "sampling.json"  # beside results.csv if permutations are sampled: the rule

Games = Mapping[int, Mapping[Coalition, ArrayLike]]  # utilities of coalitions by seed


@dataclass(frozen=True)
class Reference:
    """A ground truth of n sites, in the seeds that have all of its coalitions."""

    name: str  # of `EXACT`
    parts: Mapping[int, Mapping[Coalition, FloatArray]]  # by seed: (n,) coefficients of utilities
    estimates: Mapping[int, SampledValues] = field(default_factory=dict)  # by seed, if permutations are sampled

    def values(self, seed: int, game: Mapping[Coalition, ArrayLike]) -> FloatArray:
        """Return (n, ...) values by site name, for utilities of any one shape; `KeyError` if the seed is incomplete."""
        return semivalues.combine(game, self.parts[seed])

    @property
    def sampled(self) -> str:
        """The number of permutations and standard errors of sampled values, in words; "" if they are exact."""
        if not self.estimates:
            return ""
        counts = ", ".join(str(one.permutations) for one in self.estimates.values())
        largest = 100 * max(float(one.standard_errors.max()) for one in self.estimates.values())
        return (
            f"{self.name} values are estimates from {counts} sampled permutations, with standard errors up to "
            f"{largest:.2g} points of Dice"
        )


@dataclass(frozen=True)
class GroundTruth:
    """The trained coalitions of sites, and the values that follow from them."""

    trained: Results
    references: list[Reference]
    notes: list[str]  # on the coalitions that are missing

    @cached_property
    def resampled(self) -> dict[str, Resampled]:
        """The values by name, without those from sampled permutations: draws of patients lack the sampling error."""
        rows = self.trained.rows
        return {
            one.name: resample(Results(rows[rows["seed"].isin(one.parts)]), semivalue_function(EXACT[one.name]))
            for one in self.references
            if not one.estimates
        }

    @property
    def noise_ceilings(self) -> dict[str, Estimate]:
        """The noise ceiling by name: correlation of a perfect estimate with the values of a seed, 0 to 1.

        NaN for those that are not `resampled`.
        """
        found = {name: one.single_seed_noise_ceiling for name, one in self.resampled.items()}
        return {reference.name: found.get(reference.name, Estimate(math.nan)) for reference in self.references}


def write_sampling(folder: Path, rule: Sampling) -> None:
    """Write the rule by which a study samples permutations, the same for all seeds."""
    write_json(folder / SAMPLING, {name: value for name, value in vars(rule).items() if name not in ("sites", "seed")})


def open_ground_truths(folder: Path, sites: Sequence[str], seeds: Sequence[int]) -> GroundTruth:
    """Open a folder of trained coalitions.

    Args:
        folder: written by `fedmerit value leave-one-out` or `fedmerit value shapley`.
        sites: of the runs.
        seeds: of the runs.

    Raises:
        BadInput: the folder holds no coalition, they are of other sites, or no ground truth is complete.
    """
    if not (folder / "results.csv").exists():
        raise BadInput(
            f"--ground-truth {folder}: no results.csv in it; `fedmerit value leave-one-out --sites SITES --out "
            f"{folder}` or `fedmerit value shapley --sites SITES --out {folder}` makes it"
        )
    rows = read_results(folder)
    if not (rows["coalition"] != "").any():
        raise BadInput(
            f"--ground-truth {folder}: its results.csv names no coalition; give a folder that `fedmerit value "
            "leave-one-out` or `fedmerit value shapley` wrote"
        )
    sampling = read_object(folder / SAMPLING) if (folder / SAMPLING).exists() else None
    try:
        _require_sites(set(rows["site"]), sites)
        trained = Results(rows)
        return GroundTruth(trained, *complete_ground_truths(coalition_utilities(trained), sites, seeds, sampling))
    except BadInput as error:
        raise BadInput(f"--ground-truth {folder}: {error}") from None


def list_preparation_differences(folder: Path, digests: Iterable[Mapping[str, str]]) -> list[str]:
    """Return a note if a folder's coalitions were trained on sites that were prepared differently from the runs' sites.

    Args:
        folder: of `open_ground_truths`.
        digests: of each run, by site.
    """
    own = read_recorded_digests(folder / STUDY)
    changed = {site for one in digests for site in one if own.get(site, one[site]) != one[site]}
    if not changed:
        return []
    return [
        f"its trainings and the runs had {len(changed)} of {len(own)} sites from differently prepared folders: "
        "it rests on other images or another split"
    ]


def complete_ground_truths(
    games: Games, sites: Sequence[str], seeds: Sequence[int], sampling: Mapping[str, float] | None = None
) -> tuple[list[Reference], list[str]]:
    """Return the ground truths with all coalitions for at least one seed, and notes on what others lack.

    Args:
        games: of `coalition_utilities`.
        sites: of the runs.
        seeds: of the runs.
        sampling: the fields of `Sampling` by which Shapley values were sampled; None: exact, or not requested.

    Raises:
        BadInput: coalitions hold other sites, or no ground truth is complete for any seed; the message says what
            is missing.
    """
    trained = {members for game in games.values() for members in game}
    _require_sites(frozenset(sites).union(*trained), sites)
    of_leave_one_out = {EMPTY_COALITION, *required_coalitions(sites, leave_one_out_weights)}
    references, notes = [], list[str]()
    for name, weights in EXACT.items():
        missing = {
            seed: [one for one in semivalues.missing_coalitions(games.get(seed, {}), sites, weights) if one]
            for seed in seeds
        }
        parts: dict[int, Mapping[Coalition, FloatArray]] = {
            seed: semivalues.coefficients(sites, weights) for seed in seeds if not missing[seed]
        }
        estimates, label, command = dict[int, SampledValues](), name, COMMANDS[name].format(len(sites))
        if name == SHAPLEY and sampling is not None and any(missing.values()):  # also if a seed has all by chance
            known = {
                seed: {one: utility for one, utility in games.get(seed, {}).items() if np.isfinite(utility).all()}
                for seed in seeds
            }
            rules = {seed: _rule(sites, seed, sampling) for seed in seeds}
            sampled = {seed: rule.estimate({EMPTY_COALITION: 0.0} | known[seed]) for seed, rule in rules.items()}
            missing = {seed: list(values.needed) for seed, values in sampled.items()}
            estimates = {seed: values for seed, values in sampled.items() if not values.needed}
            parts = {seed: values.coefficients for seed, values in estimates.items()}
            rule = rules[seeds[0]]
            label, command = (
                f"sampled {SHAPLEY}",
                (
                    f"value shapley --exact-up-to {len(sites) - 1} --truncation {rule.truncation:g} --precision "
                    f"{rule.precision:g} --most-permutations {rule.most}"
                ),
            )
        elif name == SHAPLEY and trained <= of_leave_one_out:
            missing = {}  # not requested
        if parts:
            references.append(Reference(name, parts, estimates))
        notes += [
            f"{label}, seed {seed}: no utility of {semivalues.format_coalitions(lacking, 1)}; `fedmerit {command} "
            f"--sites SITES --seeds {seed} --out DIR`, with the same DIR and options, trains what is missing"
            for seed, lacking in missing.items()
            if lacking
        ]
    if not references:
        raise BadInput("; ".join(notes))
    return references, notes


def _rule(sites: Sequence[str], seed: int, sampling: Mapping[str, float]) -> Sampling:
    """Return the rule by which the permutations of a seed were drawn; `BadInput` if the file has none."""
    rule: Sampling = read(Sampling, {**sampling, "sites": tuple(sites), "seed": seed}, SAMPLING)
    return rule


def _require_sites(valued: Iterable[str], sites: Sequence[str]) -> None:
    """Raise `BadInput` if the ground truth is of other sites than the runs."""
    if set(valued) != set(sites):
        raise BadInput(
            f"the ground truth is of {', '.join(sorted(valued))}, the runs are of {', '.join(sites)}; value the same"
        )
