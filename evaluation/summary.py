"""The findings of a report in words, with their numbers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from evaluation.formats import MINUS
from evaluation.runs import Run
from evaluation.tables import by_site, comparison, contribution_ranks, contributions, gains, over_sites, site_dice

TINY = 1e-9


@dataclass(frozen=True)
class Fact:
    """A number worth a large print."""

    name: str
    value: str
    note: str


def notes(runs: Sequence[Run], results: pd.DataFrame) -> list[str]:
    """What a reader has to know before believing a number: incomplete runs, single seeds, differing test cases."""
    said = []
    for run in runs:
        if run.rounds_done < run.rounds:
            said.append(f"{run.label}, seed {run.seed}: run incomplete: {run.rounds_done} of {run.rounds} rounds.")
        if not run.tested:
            said.append(f"{run.label}, seed {run.seed}: no test Dice yet; it is measured after the last round.")
        elif untested := [site for site in run.sites if site not in run.tested_sites]:
            said.append(
                f"{run.label}, seed {run.seed}: no test Dice from {_list(untested)}; means are over the others."
            )
    seeds: dict[str, set[int]] = {}
    for run in runs:
        seeds.setdefault(run.label, set()).add(run.seed)
    if any(len(numbers) == 1 for numbers in seeds.values()):
        said.append(
            "One seed: differences between sites and methods may be chance. "
            "Repeat with several seeds before anything is paid or decided by these numbers."
        )
    if len({frozenset(numbers) for numbers in seeds.values()}) > 1:
        said.append("The methods were run with different seeds: compare their means with care.")
    rounds = sorted({run.rounds for run in runs})
    if len(rounds) > 1:
        said.append(f"The runs differ in their number of rounds: {_list([str(number) for number in rounds])}.")
    if _cases_differ(results):
        said.append("Runs of one seed were tested on different cases: their Dice cannot be compared.")
    return said


def facts(results: pd.DataFrame) -> list[Fact]:
    """The few numbers at the top."""
    dice, weights = _dice(results), _mean(results, "weight")
    return [
        *(_facts_of_one(results, dice) if len(dice) == 1 else _facts_of_several(results) if len(dice) else ()),
        *(_fact_of_weights(weights.iloc[0]) if len(weights) == 1 else ()),
        *(
            Fact(f"{quantity.title()} sites", str(len(sites)), ", ".join(sites) or "none")
            for quantity in ("flagged", "rejected")
            for sites in [_marked(results, quantity)]
        ),
    ]


def _facts_of_one(results: pd.DataFrame, dice: pd.DataFrame) -> Iterator[Fact]:
    _, row = next(_over_sites(results).iterrows())
    yield Fact("Mean test Dice", _percent(row["mean"]), "mean of sites")
    yield Fact("Worst-served site", _percent(dice.iloc[0].min()), _top(-dice.iloc[0]))
    if pd.notna(row["std"]):
        yield Fact("Spread over sites", f"{100 * row['std']:.1f}", "points of Dice, standard deviation")


def _facts_of_several(results: pd.DataFrame) -> Iterator[Fact]:
    overall = _over_sites(results)
    yield Fact("Highest mean Dice", _percent(overall["mean"].max()), _top(overall["mean"]))
    yield Fact("Highest worst-site Dice", _percent(overall["worst"].max()), _top(overall["worst"]))
    if overall["std"].notna().any():
        yield Fact("Smallest spread", f"{100 * overall['std'].min():.1f}", f"{_top(-overall['std'])}; points of Dice")


def _fact_of_weights(weights: pd.Series) -> Iterator[Fact]:
    if (known := weights.dropna()).size and not _equal(known):
        yield Fact("Largest weight", f"{known.max():.3f}", f"{_top(known)}; an equal share is {1 / len(known):.3f}")


def sentences(results: pd.DataFrame) -> list[tuple[str, str]]:
    """The findings as (method or "", text): of one method each in a sentence, of several each method in one."""
    dice = _dice(results)
    said: list[tuple[str, str]] = []
    if len(dice) > 1:
        said.append(("", _headline(_over_sites(results))))
    methods = results["method"].unique()
    for method in methods:
        found = list(_findings(results[results["method"] == method], gains(results), str(method)))
        if len(methods) == 1:
            said += [("", f"{part[0].upper()}{part[1:]}.") for part in found]
        elif found:
            said.append((str(method), f"{'; '.join(found)}."))
    empty = 0 if dice.empty else int(site_dice(results)["both_empty"].sum())
    if empty:
        pairs = "1 pair" if empty == 1 else f"{empty} pairs"
        said.append(("", f"{pairs} of test case and label, empty in reference and prediction, left out of the means."))
    return [*said, ("", _marks(results))]


def _headline(overall: pd.DataFrame) -> str:
    text = (
        f"Of {len(overall)} methods, {_top(overall['mean'])} has the highest mean test Dice "
        f"({_percent(overall['mean'].max())}), {_top(overall['worst'])} the highest Dice on its worst site "
        f"({_percent(overall['worst'].max())})"
    )
    if overall["std"].notna().any():
        text += (
            f", and {_top(-overall['std'])} serves the sites most alike "
            f"(standard deviation {100 * overall['std'].min():.1f} points)"
        )
    return f"{text}."


def _findings(results: pd.DataFrame, gained: pd.DataFrame, method: str) -> Iterator[str]:
    """What there is to say of one method, given its results and every method's gains."""
    for _, row in over_sites(_dice(results)).iterrows():
        yield (
            f"the mean test Dice is {_percent(row['mean'])}, highest at {row['best_site']} ({_percent(row['best'])}) "
            f"and lowest at {row['worst_site']} ({_percent(row['worst'])})"
        )
    if method in gained.index:
        line: pd.Series[float] = pd.Series(gained.loc[method]).dropna()
        lost = [f"{site} ({_points(value)})" for site, value in line.items() if value < 0]
        yield (
            f"taking part changes Dice by {_points(line.mean())} points on average against training alone, and "
            + (f"{_list(lost)} would do better alone" if lost else "no site loses by it")
        )
    for _, line in _mean(results, "weight").iterrows():
        if (known := line.dropna()).size:
            yield (
                f"all sites ended with the weight {known.max():.3f}"
                if _equal(known)
                else f"the largest weight in the end is {_top(known)}'s, {known.max():.3f}, and the smallest "
                f"{_top(-known)}'s, {known.min():.3f} (an equal share is {1 / len(known):.3f})"
            )
    for _, line in _mean(results, "mean_contribution").iterrows():
        if (known := line.dropna()).size and not _equal(known):
            text = f"by the method's own estimate {_top(known)} contributed most"
            if below := [str(site) for site, value in known.items() if value < 0]:
                text += f", and the estimate is negative for {_list(below)}"
            yield text
    ranks = contribution_ranks(results)
    if not ranks.empty:
        yield (
            "the sites rank alike by contribution in every seed"
            if (ranks["best"] == ranks["worst"]).all()
            else "the ranking by contribution changes with the seed, so no payment should rest on it"
        )


def _marks(results: pd.DataFrame) -> str:
    flagged, rejected = _marked(results, "flagged"), _marked(results, "rejected")
    if not flagged and not rejected:
        return "No site was flagged and no reply was rejected."
    parts = [
        f"{_list(sites)} {what} in at least one round"
        for sites, what in ((flagged, "flagged"), (rejected, "with a reply rejected"))
        if sites
    ]
    return f"Look at these first: {'; '.join(parts)}."


def _marked(results: pd.DataFrame, quantity: str) -> list[str]:
    rows = results[(results["quantity"] == quantity) & (results["value"] > 0)]
    return sorted(rows["site"].unique())


def _dice(results: pd.DataFrame) -> pd.DataFrame:
    """Methods x sites, mean over seeds."""
    return by_site(results).groupby(level="method").mean()


def _over_sites(results: pd.DataFrame) -> pd.DataFrame:
    """Methods x ``mean, std, worst`` over sites, each the mean over seeds, as the table of methods prints them."""
    return pd.DataFrame(comparison(results)[0]["sites"])


def _mean(results: pd.DataFrame, name: str) -> pd.DataFrame:
    """One column of `contributions`, methods x sites, mean over seeds; empty where there is none."""
    table = contributions(results)
    return table[name].unstack("site").groupby(level="method").mean() if name in table else pd.DataFrame()


def _cases_differ(results: pd.DataFrame) -> bool:
    tested = results[(results["split"] == "testing") & (results["quantity"] == "dice")]
    cases: dict[object, set[frozenset[tuple[str, str]]]] = {}
    for (_, seed), rows in tested.groupby(["method", "seed"]):
        cases.setdefault(seed, set()).add(frozenset(zip(rows["site"], rows["case"], strict=True)))
    return any(len(sets) > 1 for sets in cases.values())


def _top(line: pd.Series) -> str:
    return str(line.idxmax())


def _equal(line: pd.Series) -> bool:
    return bool(line.max() - line.min() < TINY)


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f}%"


def _points(fraction: float) -> str:
    return f"{100 * fraction:+.1f}".replace("-", MINUS)


def _list(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
