"""Tables and figures of FedSAC (Wang et al., KDD 2024), for the patients of other sites dealt into new ones.

Training alone is compared everywhere: it is what contributions are, for FedSAC as for its fairness.
"""

from dataclasses import replace

import pandas as pd

from fedmerit_evaluation.fairness.measures import pearson
from fedmerit_evaluation.figures.tables import Table
from fedmerit_evaluation.results.dice import STANDALONE
from fedmerit_lab.papers import submodel_bounds
from fedmerit_lab.papers.artefact import BY_ALONE, Artefact, Made, Paper, published
from fedmerit_lab.papers.partitioned_sites import (
    CLA,
    NOT_THEIR_CLASSES,
    ONCE_MORE,
    apart,
    bars,
    fairness,
    highest_dice,
    last_round_values,
    lines,
    local_only_and_final,
    needs,
    pairs_in_order,
    partitioned_needs,
    require_partition,
    scatter,
    site_dice,
)
from fedmerit_lab.papers.required_trainings import Compared
from fedmerit_lab.papers.study import Partition, Study

POW = Partition("POW", "powerlaw")
DIR = tuple(Partition(f"DIR({alpha:g})", "dirichlet", alpha=alpha) for alpha in (1.0, 2.0, 3.0))
DEALS = (POW, CLA, *DIR)
MORE = tuple(  # of Tables 5 and 6
    replace(deal, into=number, title=f"{deal.name}, {number} sites")
    for number, deals in ((20, DEALS), (40, DIR[:2]), (60, DIR[:2]))
    for deal in deals
)
METHODS = (STANDALONE, "fedavg", "qfedavg", *(f"{method}{BY_ALONE}" for method in ("cffl", "cgsv", "fedave")), "fedsac")
ABLATIONS = (STANDALONE, "fedsac:importance=equal", "fedsac:aggregation=plain", "fedsac")
BETAS = (STANDALONE, "fedsac:beta=2", "fedsac", "fedsac:beta=10", "fedsac:beta=20")
NOT_THEIR_DATA = (
    "The paper classifies images (CIFAR-10, SVHN, Fashion MNIST) among 10 clients with small networks of its own, by "
    f"accuracy; here it is Dice of segmentations by a U-Net. {NOT_THEIR_CLASSES}"
)
BY_CONTRIBUTIONS = (
    "As in the paper, every method distributes by the contributions of training alone (contributions=standalone), not "
    "by its own reputations: these columns are not those methods'. One model for all has nothing to distribute."
)


def _scatter(study: Study, artefact: Artefact) -> Made:
    """The highest Dice over fairness, a point for each method and deal, means over seeds."""
    parts = []
    for need in partitioned_needs(artefact):
        alone, final = local_only_and_final(study.results(need))
        values = {
            "fairness": pd.Series(pearson(alone.to_numpy(float), final.to_numpy(float)), final.index),
            "highest Dice [%]": 100 * final.max(axis=1),
        }
        means = pd.DataFrame(values).groupby(level="method").mean()
        parts.append(means.assign(deal=require_partition(need).name).reset_index())
    points = pd.concat(parts, ignore_index=True)
    return scatter(
        artefact,
        points,
        ("fairness", "100 x Pearson with training alone"),
        ("highest Dice [%]", "Highest Dice of any site [%]"),
    )


def _nested(study: Study, artefact: Artefact) -> Made:
    """Theorem 1: of quadratic losses, and of the runs."""
    (need,) = partitioned_needs(artefact)
    told = f"{len(submodel_bounds.KEPT)} nested submodels of {submodel_bounds.DRAWS} quadratic losses, all pairs"
    tables = [Table(artefact.name, f"{artefact.what}: {told}", submodel_bounds.orders(), decimals=1)]
    if not study.can_train("fedsac"):
        return Made(tables, notes=["Of trainings it was not asked: FedSAC needs images set aside for the server."])
    results = study.results(need)
    goods = {
        "more neurons": last_round_values(results, "neuron_share"),
        "lower loss": -last_round_values(results, "train_loss"),
    }
    goods["higher Dice"] = site_dice(results)
    frame = pairs_in_order(["fedsac"], last_round_values(results, "reputation"), goods)
    told = (
        "pairs of sites of which one has the higher reputation, all seeds; training loss of the last round, test Dice"
    )
    tables.append(Table(f"{artefact.name}-trained", f"{artefact.what}: {told}", frame, decimals=1))
    return Made(tables)


def _converging(study: Study, artefact: Artefact) -> Made:
    """Theorem 2; of no trainings."""
    caption = (
        f"{artefact.what}: quadratic losses of {len(submodel_bounds.HELD)} sites, mean of {submodel_bounds.RUNS} runs"
    )
    return Made([Table(artefact.name, caption, submodel_bounds.convergence(), decimals=4)])


PAPER = Paper(
    "FedSAC: Dynamic Submodel Allocation for Collaborative Fairness in Federated Learning",
    "Wang et al., KDD 2024",
    "CIFAR-10, SVHN and Fashion MNIST dealt among 10 clients, a tenth of the training images set aside for the server; "
    "accuracy on one test set",
    (
        Artefact(
            "table1",
            "Fairness: final Dice beside that of training alone",
            fairness,
            needs(apart(METHODS), DEALS),
            (published("fedsac-table1"),),
            f"{NOT_THEIR_DATA} {BY_CONTRIBUTIONS} {ONCE_MORE}",
        ),
        Artefact(
            "table2",
            "The highest Dice of any site",
            highest_dice,
            needs(METHODS, DEALS),
            (published("fedsac-table2"),),
            f"{NOT_THEIR_DATA} {BY_CONTRIBUTIONS}",
        ),
        Artefact(
            "table3",
            "Fairness without allocation by importance, and without aggregation by count",
            fairness,
            needs(ABLATIONS, DEALS),
            (published("fedsac-table3"),),
            f"{NOT_THEIR_DATA} Without allocation, neurons that all weigh the same are withheld in a random order.",
        ),
        Artefact(
            "table4",
            "The highest Dice of any site, likewise",
            highest_dice,
            needs(ABLATIONS, DEALS),
            (published("fedsac-table4"),),
            f"{NOT_THEIR_DATA} As table3.",
        ),
        Artefact(
            "table5",
            "Fairness among 20, 40 and 60 sites",
            fairness,
            needs(apart(METHODS), MORE),
            (published("fedsac-table5"),),
            f"{NOT_THEIR_DATA} {BY_CONTRIBUTIONS} {ONCE_MORE}",
            on_demand=True,
        ),
        Artefact(
            "table6",
            "The highest Dice of any site among 20, 40 and 60",
            highest_dice,
            needs(METHODS, MORE),
            (published("fedsac-table6"),),
            f"{NOT_THEIR_DATA} {BY_CONTRIBUTIONS}",
            on_demand=True,
        ),
        Artefact(
            "table7",
            "The highest Dice of any site by beta",
            highest_dice,
            needs(BETAS, (POW, *DIR)),
            (published("fedsac-table7"),),
            f"{NOT_THEIR_DATA} The lowest, which the paper puts in brackets, stands in figure7.",
        ),
        Artefact(
            "figure3",
            "The highest Dice of any site over fairness, a point for each method and deal",
            _scatter,
            needs(apart(METHODS), DEALS),
            remark=f"{NOT_THEIR_DATA} {BY_CONTRIBUTIONS} Of the runs of table1.",
        ),
        Artefact(
            "figure4-6",
            "Final Dice of every site, beside training alone",
            bars,
            needs(METHODS, DEALS),
            remark="The paper's contributions are the bars of standalone.",
        ),
        Artefact(
            "figure5",
            "Validation Dice of every site over rounds",
            lines(validation="Validation Dice [%]"),
            needs((STANDALONE, "fedsac"), DEALS),
            remark="Of the model received, on the site's validation images; the paper tests in every round.",
        ),
        Artefact(
            "figure7",
            "Final Dice of every site by beta",
            bars,
            needs(BETAS, (POW,)),
            remark="No figure of the paper's: its Table 7 prints the highest and the lowest.",
        ),
        Artefact(
            "theorem1",
            "Theorem 1: the better the reputation, the nearer the submodel and the lower the loss",
            _nested,
            (Compared((STANDALONE, "fedsac"), POW),),
            remark="The theorem asks for L <= mu, which leaves L = mu: a loss of one curvature in all directions. "
            "There it holds near the minimum (Eq. 16); of other losses a larger submodel may have the higher loss.",
        ),
        Artefact(
            "theorem2",
            "Theorem 2: how far the loss of the whole model is from the least, and the bound",
            _converging,
            remark="The bound falls with the number of rounds; the loss stops above the least where submodels are "
            "nested for good, as FedSAC's are, and also where they are drawn anew (Assumption 5), since averages by "
            "count do not weigh sites as F does. With whole models it holds.",
        ),
    ),
    {"Figure 1, Figure 2": "diagrams"},
)
