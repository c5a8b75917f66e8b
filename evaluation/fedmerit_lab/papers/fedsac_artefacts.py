"""Tables and figures of FedSAC (Wang et al., KDD 2024) with the patients of the given sites, repartitioned.

Every comparison includes local-only training, whose Dice is the contribution of FedSAC and of its fairness measure.
"""

from dataclasses import replace

import pandas as pd

from fedmerit_evaluation.fairness.measures import pearson
from fedmerit_evaluation.results.views import STANDALONE
from fedmerit_lab.papers.artefact import BY_LOCAL_ONLY, Artefact, Made, Paper, published
from fedmerit_lab.papers.partitioned_sites import (
    CLA,
    CLASSES,
    ONCE_MORE,
    bars,
    fairness,
    highest_dice,
    keep_own,
    lines,
    local_only_and_final,
    needs,
    partitioned_needs,
    require_partition,
    scatter,
)
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
            f"{BY_CONTRIBUTIONS} {ONCE_MORE}",
        ),
        Artefact(
            "table2",
            "The highest Dice of any site",
            highest_dice,
            needs(METHODS, PARTITIONS),
            (published("fedsac-table2"),),
            BY_CONTRIBUTIONS,
        ),
        Artefact(
            "table3",
            "Fairness without allocation by importance, and without aggregation by count",
            fairness,
            needs(ABLATIONS, PARTITIONS),
            (published("fedsac-table3"),),
            "Without allocation, neurons of equal importance are withheld in a random order.",
        ),
        Artefact(
            "table4",
            "The highest Dice of any site, likewise",
            highest_dice,
            needs(ABLATIONS, PARTITIONS),
            (published("fedsac-table4"),),
        ),
        Artefact(
            "table5",
            "Fairness among 20, 40 and 60 sites",
            fairness,
            needs(keep_own(METHODS), MORE),
            (published("fedsac-table5"),),
            f"{BY_CONTRIBUTIONS} {ONCE_MORE}",
            on_demand=True,
        ),
        Artefact(
            "table6",
            "The highest Dice of any site among 20, 40 and 60",
            highest_dice,
            needs(METHODS, MORE),
            (published("fedsac-table6"),),
            BY_CONTRIBUTIONS,
            on_demand=True,
        ),
        Artefact(
            "table7",
            "The highest Dice of any site by beta",
            highest_dice,
            needs(BETAS, (POW, *DIR)),
            (published("fedsac-table7"),),
            "The lowest, in brackets in the paper, is in figure7.",
        ),
        Artefact(
            "figure3",
            "The highest Dice of any site over fairness, a point for each method and partition",
            _scatter,
            needs(keep_own(METHODS), PARTITIONS),
            remark=BY_CONTRIBUTIONS,
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
            remark="Of the received model on the site's validation images; the paper tests in every round.",
        ),
        Artefact(
            "figure7",
            "Final Dice of every site by beta",
            bars,
            needs(BETAS, (POW,)),
            remark="Not in the paper, whose Table 7 has the highest and the lowest.",
        ),
    ),
    "The paper classifies images among 10 clients with small networks of its own, by accuracy; here it is Dice of "
    f"segmentations by a U-Net. {CLASSES}",
    {
        "Figure 1, Figure 2": "diagrams",
        "Theorem 1, Theorem 2": "checked in numbers by tests/fedmerit_lab/papers/test_theorems.py",
    },
)
