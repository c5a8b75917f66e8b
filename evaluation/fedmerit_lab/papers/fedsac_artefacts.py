"""Tables and figures of FedSAC (Wang et al., KDD 2024) with the patients of the given sites, repartitioned.

Every comparison includes local-only training, whose Dice is the contribution of FedSAC and of its fairness measure.
"""

from dataclasses import replace

import pandas as pd

from fedmerit_evaluation.fairness.measures import pearson
from fedmerit_evaluation.figures.tables import Table
from fedmerit_evaluation.results.dice import STANDALONE
from fedmerit_lab.papers.artefact import BY_LOCAL_ONLY, Artefact, Made, Paper, published
from fedmerit_lab.papers.partitioned_sites import (
    CLA,
    NOT_THEIR_CLASSES,
    ONCE_MORE,
    bars,
    fairness,
    highest_dice,
    keep_own,
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
PARTITIONS = (POW, CLA, *DIR)
MORE = tuple(  # of Tables 5 and 6
    replace(one, into=number, title=f"{one.name}, {number} sites")
    for number, partitions in ((20, PARTITIONS), (40, DIR[:2]), (60, DIR[:2]))
    for one in partitions
)
METHODS = (
    STANDALONE,
    "fedavg",
    "qfedavg",
    *(f"{method}{BY_LOCAL_ONLY}" for method in ("cffl", "cgsv", "fedave")),
    "fedsac",
)
ABLATIONS = (STANDALONE, "fedsac:importance=equal", "fedsac:aggregation=plain", "fedsac")
BETAS = (STANDALONE, "fedsac:beta=2", "fedsac", "fedsac:beta=10", "fedsac:beta=20")
NOT_THEIR_DATA = (
    "The paper classifies images (CIFAR-10, SVHN, Fashion MNIST) among 10 clients with small networks of its own, by "
    f"accuracy; here it is Dice of segmentations by a U-Net. {NOT_THEIR_CLASSES}"
)
BY_CONTRIBUTIONS = (
    "As in the paper, every method distributes by local-only Dice (contributions=standalone), not by its own "
    "reputations, so these columns are not those methods as published. Methods with one model have nothing to "
    "distribute."
)


def _scatter(study: Study, artefact: Artefact) -> Made:
    """The highest Dice over fairness, a point for each method and partition, means over seeds."""
    parts = []
    for need in partitioned_needs(artefact):
        local_only, final = local_only_and_final(study.results(need))
        values = {
            "fairness": pd.Series(pearson(local_only.to_numpy(float), final.to_numpy(float)), final.index),
            "highest Dice [%]": 100 * final.max(axis=1),
        }
        means = pd.DataFrame(values).groupby(level="method").mean()
        parts.append(means.assign(partition=require_partition(need).name).reset_index())
    points = pd.concat(parts, ignore_index=True)
    return scatter(
        artefact,
        points,
        ("fairness", "100 x Pearson with local-only Dice"),
        ("highest Dice [%]", "Highest Dice of any site [%]"),
    )


def _nested(study: Study, artefact: Artefact) -> Made:
    """Theorem 1 in the runs: in how many pairs of sites the higher reputation has more neurons and the lower loss."""
    (need,) = partitioned_needs(artefact)
    results = study.results(need)
    goods = {
        "more neurons": last_round_values(results, "neuron_share"),
        "lower loss": -last_round_values(results, "train_loss"),
    }
    goods["higher Dice"] = site_dice(results)
    frame = pairs_in_order(["fedsac"], last_round_values(results, "reputation"), goods)
    caption = (
        f"{artefact.what}: pairs of sites with different reputations, all seeds; training loss of the last round, test "
        "Dice"
    )
    return Made([Table(artefact.name, caption, frame, decimals=1)])


PAPER = Paper(
    "FedSAC: Dynamic Submodel Allocation for Collaborative Fairness in Federated Learning",
    "Wang et al., KDD 2024",
    "CIFAR-10, SVHN and Fashion MNIST split among 10 clients, a tenth of the training images set aside for the server; "
    "accuracy on one test set",
    (
        Artefact(
            "table1",
            "Fairness: correlation of final and local-only Dice",
            fairness,
            needs(keep_own(METHODS), PARTITIONS),
            (published("fedsac-table1"),),
            f"{NOT_THEIR_DATA} {BY_CONTRIBUTIONS} {ONCE_MORE}",
        ),
        Artefact(
            "table2",
            "The highest Dice of any site",
            highest_dice,
            needs(METHODS, PARTITIONS),
            (published("fedsac-table2"),),
            f"{NOT_THEIR_DATA} {BY_CONTRIBUTIONS}",
        ),
        Artefact(
            "table3",
            "Fairness without allocation by importance, and without aggregation by count",
            fairness,
            needs(ABLATIONS, PARTITIONS),
            (published("fedsac-table3"),),
            f"{NOT_THEIR_DATA} Without allocation, neurons of equal importance are withheld in a random order.",
        ),
        Artefact(
            "table4",
            "The highest Dice of any site, likewise",
            highest_dice,
            needs(ABLATIONS, PARTITIONS),
            (published("fedsac-table4"),),
            f"{NOT_THEIR_DATA} As table3.",
        ),
        Artefact(
            "table5",
            "Fairness among 20, 40 and 60 sites",
            fairness,
            needs(keep_own(METHODS), MORE),
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
            f"{NOT_THEIR_DATA} The lowest, in brackets in the paper, is in figure7.",
        ),
        Artefact(
            "figure3",
            "The highest Dice of any site over fairness, a point for each method and partition",
            _scatter,
            needs(keep_own(METHODS), PARTITIONS),
            remark=f"{NOT_THEIR_DATA} {BY_CONTRIBUTIONS} Of the runs of table1.",
        ),
        Artefact(
            "figure4-6",
            "Final Dice of every site, compared with local-only training",
            bars,
            needs(METHODS, PARTITIONS),
            remark="The paper's contributions are the bars of standalone.",
        ),
        Artefact(
            "figure5",
            "Validation Dice of every site over rounds",
            lines(validation="Validation Dice [%]"),
            needs((STANDALONE, "fedsac"), PARTITIONS),
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
            "Theorem 1: with a higher reputation the submodel is larger and the loss lower",
            _nested,
            (Compared((STANDALONE, "fedsac"), POW),),
            remark="The theorem assumes L <= mu, so L = mu: one curvature in all directions, which no network has. "
            "tests/fedmerit_lab/papers/test_theorems.py checks it with and without this condition.",
        ),
    ),
    {
        "Figure 1, Figure 2": "diagrams",
        "Theorem 2": "checked in numbers by tests/fedmerit_lab/papers/test_theorems.py",
    },
)
