"""Tables and figures of papers that split one data set into sites, as CGSV and FedAVE do.

Dice is that of the test cases of all sites together, which are the same in every partition.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from fedmerit.errors import BadInput
from fedmerit.methods.cgsv import CGSV, FLOOR
from fedmerit.schema.scores import UNION
from fedmerit_evaluation.fairness.measures import pearson
from fedmerit_evaluation.figures import dots_and_bars
from fedmerit_evaluation.figures.tables import Table, file_name
from fedmerit_evaluation.results.views import OWN, STANDALONE, Results
from fedmerit_lab.papers.artefact import KEEP_OWN, Artefact, Drawn, Made, beside, every, printed
from fedmerit_lab.papers.figures import lines_over_rounds
from fedmerit_lab.papers.study import Compared, Partition, Study

CLA = Partition("CLA", "variety")
Groups = Callable[[str], bool]
Make = Callable[[Study, Artefact], Made]


def partitioned_needs(artefact: Artefact) -> list[Compared]:
    """Return the comparisons of an artefact, one for each partition."""
    return [need for need in artefact.needs if isinstance(need, Compared)]


def artefact_methods(artefact: Artefact, columns: Mapping[str, pd.DataFrame] | Mapping[str, pd.Series]) -> list[str]:
    """Return the methods with a number in some column, in the artefact's order."""
    labels = dict.fromkeys(label for need in partitioned_needs(artefact) for label in need.labels)
    return [label for label in labels if any(label in column.index for column in columns.values())]


def site_dice(results: Results) -> pd.DataFrame:
    """Return the test Dice of each site's final model on the cases of all sites, 0 to 1: ``(method, seed)`` x sites."""
    return results.plain.union.complete.unstack("site")


def accuracies(groups: Callable[[Study], Groups] = lambda _: every, *, mean: bool = True) -> Make:
    """Return a maker of a table, methods x partitions: mean over sites of their Dice and the highest; or only that.

    Args:
        groups: the paper's columns to show.
        mean: whether the mean over sites is shown.
    """

    def make(study: Study, artefact: Artefact) -> Made:
        columns: dict[str, pd.DataFrame] = {}
        for need in partitioned_needs(artefact):
            dice, name = 100 * site_dice(study.results(need)), need.where.heading
            highest = dice.max(axis=1, skipna=False).groupby(level="method")
            if mean:
                over_sites = dice.mean(axis=1, skipna=False).groupby(level="method")
                columns[name] = pd.DataFrame({"mean": over_sites.mean(), "std": over_sites.std(ddof=1)})
            heading = f"{name}, highest" if mean else name
            columns[heading] = pd.DataFrame({"mean": highest.mean(), "std": highest.std(ddof=1)})
        what = "mean over sites, and the highest of any" if mean else "the highest of any site"
        return _made(study, artefact, columns, f"Dice [%] on the test cases of all sites: {what}", groups(study))

    return make


highest_dice = accuracies(mean=False)


def local_only_and_final(results: Results) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return Dice of local-only training, repeated for every other method, and of the method."""
    dice = site_dice(results)
    if STANDALONE not in dice.index.get_level_values("method"):
        raise BadInput("no local-only training is finished; run the same command again")
    final = dice.drop(index=STANDALONE, level="method")
    local_only = dice.xs(STANDALONE, level="method").reindex(final.index.get_level_values("seed"))
    return pd.DataFrame(local_only.to_numpy(), final.index, final.columns), final


def reputations(results: Results) -> pd.DataFrame:
    """Return r of Eq. 4 of Xu et al. 2021 after the last round, for any method: ``(method, seed)`` x sites.

    For CGSV as recorded; for others from the cosine of each update to their weighted mean.
    """
    rounds = results.plain.rounds
    cosines, recorded = rounds.of("cosine_to_mean"), rounds.of("reputation")
    own = recorded.groupby(level=["method", "seed"]).last()
    found = cosines.groupby(level=["method", "seed"]).apply(_remembered)
    methods = found.index.get_level_values("method")
    is_cgsv = methods.str.split(":").str[0] == "cgsv"
    return pd.concat([found.loc[~is_cgsv & (methods != STANDALONE)], own.reindex(found.index).loc[is_cgsv]])


def _remembered(cosines: pd.DataFrame) -> pd.Series:
    """Return Eq. 4 over the rounds of a run, rounds x sites; absent sites count as 0."""
    reputation, alpha = np.zeros(cosines.shape[1]), CGSV().alpha
    for psi in cosines.fillna(0).to_numpy():
        reputation = np.maximum(alpha * reputation + (1 - alpha) * psi, FLOOR)
        reputation /= reputation.sum()
    return pd.Series(reputation, cosines.columns)


def reputation_and_final(results: Results) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return `reputations`, and Dice of each site's final model."""
    return reputations(results), site_dice(results)


def reputation_and_loss(results: Results) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return `reputations`, and the negative training loss of each site's last round."""
    losses = results.plain.rounds.of("train_loss").groupby(level=["method", "seed"]).last()
    return reputations(results), -losses


def correlate(
    vectors: Callable[[Results], tuple[pd.DataFrame, pd.DataFrame]], groups: Callable[[Study], Groups] = lambda _: every
) -> Make:
    """Return a maker of a table, methods x partitions: 100 x Pearson over sites of two vectors, mean over seeds.

    Args:
        vectors: from results, both vectors: ``(method, seed)`` x sites each.
        groups: the paper's columns to show.
    """

    def make(study: Study, artefact: Artefact) -> Made:
        columns: dict[str, pd.DataFrame] = {}
        for need in partitioned_needs(artefact):
            one, other = vectors(study.results(need))
            one, other = one.align(other, join="inner", axis=0)
            values = pd.Series(pearson(one.to_numpy(float), other[one.columns].to_numpy(float)), one.index)
            seeds = values.groupby(level="method")
            columns[need.where.heading] = pd.DataFrame({"mean": seeds.mean(), "std": seeds.std(ddof=1)})
        return _made(study, artefact, columns, f"{artefact.what}: 100 x Pearson over sites", groups(study))

    return make


fairness = correlate(local_only_and_final)


def lines(**titles: str) -> Make:
    """Return a maker of one figure for each quantity: a panel for each method and partition, a line for each site.

    Lines go over rounds and are means over seeds.

    Args:
        titles: by quantity of the rounds, the title of the vertical axis; "validation" is Dice of the received model
            on the site's validation images, percent.
    """

    def make(study: Study, artefact: Artefact) -> Made:
        drawn = []
        for quantity, title in titles.items():
            panels = _panels(study, artefact, quantity)
            name = artefact.name if len(titles) == 1 else f"{artefact.name}-{quantity.replace('_', '-')}"
            caption = artefact.what if len(titles) == 1 else f"{artefact.what}: {title.lower()}"
            drawn.append(Drawn(name, caption, lines_over_rounds(panels, title), _panel_table(panels)))
        return Made(drawn=drawn)

    return make


def _panels(study: Study, artefact: Artefact, quantity: str) -> dict[str, pd.DataFrame]:
    """Return by method and partition, rounds x sites; `BadInput` if no run records the quantity."""
    panels: dict[str, pd.DataFrame] = {}
    for need in partitioned_needs(artefact):
        rounds = study.results(need).plain.rounds
        table = 100 * rounds.validation if quantity == "validation" else rounds.of(quantity)
        for label in (name for name in need.labels if name in table.index.get_level_values("method")):
            name = need.where.name if len(need.labels) == 1 else f"{need.where.name}, {label}"
            own = table[table.index.get_level_values("method") == label]
            panels[name] = own.groupby(level="round").mean().dropna(axis=1, how="all")
    if not panels:
        raise BadInput(f"no run records {quantity}; train again in another --out")
    return panels


def _panel_table(panels: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the numbers of `fedmerit_lab.papers.figures.lines_over_rounds` as a table: ``panel, round`` and sites."""
    return pd.concat(
        {name: table.rename_axis("round") for name, table in panels.items()}, names=["panel"]
    ).reset_index()


def on_union(results: Results) -> Results:
    """Return the results with the test cases of all sites instead of each site's own."""
    rows = results.rows
    rest = rows[~rows["split"].isin([OWN, UNION])]
    return Results(pd.concat([rest, rows[rows["split"] == UNION].assign(split=OWN)], ignore_index=True))


def bars(study: Study, artefact: Artefact) -> Made:
    """Return final Dice of each site by method, a figure for each partition."""
    drawn = []
    for need in partitioned_needs(artefact):
        results = study.results(need)
        dice = 100 * site_dice(results).groupby(level="method").mean()
        partition = need.where.name
        name = artefact.name if len(artefact.needs) == 1 else f"{artefact.name}-{file_name(partition)}"
        numbers = dice.rename_axis("method").reset_index()
        tested = on_union(results)
        figure = dots_and_bars.dice_bars(tested.dice.cases, tested.sites)
        drawn.append(Drawn(name, f"{artefact.what}, {partition}", figure, numbers))
    return Made(drawn=drawn)


def _made(study: Study, artefact: Artefact, columns: dict[str, pd.DataFrame], caption: str, groups: Groups) -> Made:
    there = artefact_methods(artefact, columns)

    def shown(part: str) -> pd.DataFrame:
        numbers = {name: column[part].reindex(there).to_list() for name, column in columns.items()}
        return pd.DataFrame({"Method": there} | numbers)

    several = len(study.seeds) > 1
    caption += "; mean ± std over seeds" * several
    table = Table(artefact.name, caption, shown("mean"), shown("std") if several else None, decimals=2)
    for published in artefact.published:
        if chosen := [group for group in published.groups if groups(group)]:
            table = beside(table, published, chosen)
    return Made([table, *printed(artefact.name, artefact.published, groups)])


def keep_own(labels: Sequence[str]) -> tuple[str, ...]:
    """Return the methods; under those with one model each site keeps the model that it trains in the last round.

    In the papers every agent trains once more at the end, since fairness is undefined for one model.
    """
    return tuple(label + KEEP_OWN * (label in ("fedavg", "qfedavg", "fedce")) for label in labels)


def agents(study: Study) -> Groups:
    """Return the paper's columns of as many agents as the partition has sites."""
    return lambda group: group.endswith(f", {study.into} agents")


def needs(labels: Sequence[str], partitions: Sequence[Partition]) -> tuple[Compared, ...]:
    """Return the needs of some methods on several partitions."""
    return tuple(Compared(tuple(labels), partition) for partition in partitions)
