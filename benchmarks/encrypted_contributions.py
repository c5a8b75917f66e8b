"""What docs/studies/encrypted-contribution.md measures, from finished runs.

python benchmarks/encrypted_contributions.py values BENCH/SCENARIO     a scenario of `fedmerit lab bench values`
python benchmarks/encrypted_contributions.py revealed RUN              a run with --keep-updates
python benchmarks/encrypted_contributions.py claims RUN...             FedCE runs
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from fedmerit.contract.method import Layout, Reports
from fedmerit.guard.bounds import bound_claims
from fedmerit.methods.fedce import FedCE
from fedmerit.schema.configuration.run import read_plan
from fedmerit.schema.results import read_results
from fedmerit.server.observation import read_kept_rounds
from fedmerit.trust import allow_places
from fedmerit_evaluation.valuation.observed_run import ObservedRun

Array = NDArray[np.float64]
DRAWS = 20  # of the halves
Game = Mapping[frozenset[str], Array]  # of a round: by coalition, (n,) Dice by rating site


def shares(values: Array) -> Array:
    """Of a budget; values below 0 count as 0."""
    held = np.maximum(values, 0)
    return held / held.sum() if held.sum() else np.full(len(values), 1 / len(values))


def halves(sites: int, rounds: int, seed: int) -> NDArray[np.bool_]:
    """(rounds, n) whether a site is in the first half."""
    random = np.random.default_rng(seed)
    return np.stack([random.permutation(sites) < sites // 2 for _ in range(rounds)])


def values_of_halves(games: Sequence[Game], sites: Sequence[str], seed: int, lie: int | None, voice: str) -> Array:
    """(n,) by the rule "halves"; ``voice``: "all", "others" or "median" of the others."""
    n, total = len(sites), 0.0
    found = np.zeros(n)
    for game, first in zip(games, halves(n, len(games), seed), strict=True):
        own = game[frozenset(np.array(sites)[first])] - game[frozenset(np.array(sites)[~first])]
        if lie is not None:
            own[lie] = 1.0 if first[lie] else -1.0
        for site in range(n):
            heard = own if voice == "all" else np.delete(own, site)
            found[site] += (np.median(heard) if voice == "median" else heard.mean()) * (1 if first[site] else -1)
        total += float((game[frozenset(sites)] - game[frozenset()]).mean())
    return total / n + (n - 1) / n * found


def values_without_one(games: Sequence[Game], sites: Sequence[str], seed: int, lie: int | None, voice: str) -> Array:
    """(n,) by the rule "without one"; ``voice``: "own", "others" or "median" of the others."""
    n, found = len(sites), np.zeros(len(sites))
    for game in games:
        lost = np.stack([game[frozenset(sites)] - game[frozenset(sites) - {site}] for site in sites])
        if lie is not None:
            lost[:, lie], lost[lie, lie] = -1, 1  # either lie is possible, and no voice hears both
        for site in range(n):
            heard = lost[site, [site]] if voice == "own" else np.delete(lost[site], site)
            found[site] += np.median(heard) if voice == "median" else heard.mean()
    return found


RULES: Mapping[str, Callable[[Sequence[Game], Sequence[str], int, int | None], Array]] = {
    f"{rule.__name__}, {voice}": lambda games, sites, seed, lie, rule=rule, voice=voice: rule(
        games, sites, seed, lie, voice
    )
    for rule, voices in (
        (values_without_one, ("own", "others", "median")),
        (values_of_halves, ("all", "others", "median")),
    )
    for voice in voices
}


def values(scenario: Path) -> Iterable[str]:
    """Agreement with retraining, misallocation, and what a lie pays."""
    allow_places(scenario / "sites")
    table = pd.read_csv(scenario.parent / "tables" / f"values-{scenario.name}.csv")
    reference = table[next(name for name in table.columns if name.lower().startswith("shapley"))].to_numpy()
    observed = []
    for folder in sorted((scenario / "observed").iterdir()):
        run = ObservedRun(folder, draws=1)
        games = [{one: dice[:, 0] for one, dice in game.utilities.items()} for game in run.games("multi_round")]
        observed.append((games, run.sites, int(run.info["seed"])))
    for name, rule in RULES.items():
        agreed, wrong, gains = [], [], []
        for draw in range(DRAWS):
            honest = [rule(games, sites, DRAWS * seed + draw, None) for games, sites, seed in observed]
            gains += [
                shares(rule(games, sites, DRAWS * seed + draw, lie))[lie] - shares(found)[lie]
                for found, (games, sites, seed) in zip(honest, observed, strict=True)
                for lie in range(len(sites))
            ]
            mean = np.mean(honest, axis=0)
            agreed.append(np.corrcoef(mean, reference)[0, 1])
            wrong.append(np.abs(shares(mean) - shares(reference)).sum() / 2)
        yield (
            f"{name}: r {np.mean(agreed):.2f} ({min(agreed):.2f} to {max(agreed):.2f}), misallocated "
            f"{np.mean(wrong):.1%}, a lie pays {np.mean(gains):+.1%}, at most {max(gains):+.1%}"
        )


def cosine(a: Array, b: Array) -> float:
    """Of two vectors."""
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def revealed(run: Path) -> Iterable[str]:
    """Cosines with the weighted updates that the first site finds by least squares over rounds."""
    rounds = [kept.view for kept in read_kept_rounds(run, read_plan(run))]
    sent = np.stack([(view.updates * view.weights[:, None].float()).numpy() for view in rounds])  # (T, n, d)
    for seed in range(2):
        first = halves(sent.shape[1], len(sent), seed)
        rows = np.concatenate([first, ~first])[:, 1:].astype(float)
        sums = [there[1:][half > 0].sum(axis=0) for there, half in zip([*sent, *sent], rows, strict=True)]
        found, mean = np.linalg.pinv(rows) @ np.stack(sums), sent.mean(axis=0)
        total = sent[:, 1:].sum(axis=1).mean(axis=0)
        halved = [round(cosine(one, true), 2) for one, true in zip(found, mean[1:], strict=True)]
        yield f"mean updates by halves {halved}, by the total {[round(cosine(total, true), 2) for true in mean[1:]]}"


def claims(runs: Sequence[Path]) -> Iterable[str]:
    """FedCE's weights if sites had claimed an error of 1, and encrypted a cosine of -1."""
    for unseen in (False, True):
        for liars in (1, 2):
            found = np.array([one for run in runs for one in claimed(run, unseen, liars)])
            run_kind = "encrypted" if unseen else "clear"
            yield f"{run_kind}, {liars} lie: honest, lie; bounded {found.mean(axis=0).round(3)}"


def claimed(run: Path, unseen: bool, number: int) -> Iterable[list[float]]:
    """By liars, their weight: honest and lying, unbounded and bounded."""
    table = read_results(run)
    of = {
        name: table[table["quantity"] == name].pivot_table(index="round", columns="site", values="value")
        for name in ("cosine", "minus_error", "num_samples")
    }
    images = torch.tensor(of["num_samples"].iloc[-1].to_numpy(np.float64))
    said = [
        {name: torch.tensor(of[name].loc[t].to_numpy(np.float64)) for name in ("cosine", "minus_error")}
        for t in of["cosine"].index
    ]

    def weight(liars: tuple[int, ...], lies: bool, bounded: bool) -> float:
        method, present = FedCE().guarded_form, torch.ones(len(images), dtype=torch.bool)
        state, weights = method.start(torch.zeros(0), len(images), Layout((), ())), []
        for values in said:
            reported = {name: value.clone() for name, value in values.items()}
            if lies:
                reported["minus_error"][list(liars)] = 1
                reported["cosine"][list(liars)] = -1 if unseen else reported["cosine"][list(liars)]
            reported = bound_claims(reported, present, None, unseen) if bounded else reported
            state, outcome = method.round(state, torch.zeros(len(images), 0), Reports(images, present, reported))
            weights.append(float(outcome.weights[list(liars)].sum()))
        return float(np.mean(weights))

    for liars in combinations(range(len(images)), number):
        yield [weight(liars, lies, bounded) for bounded in (False, True) for lies in (False, True)]


if __name__ == "__main__":
    places = [Path(name) for name in sys.argv[2:]]
    study = {
        "values": lambda: values(places[0]),
        "revealed": lambda: revealed(places[0]),
        "claims": lambda: claims(places),
    }
    for line in study[sys.argv[1]]():
        print(line)
