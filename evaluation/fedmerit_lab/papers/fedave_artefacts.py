"""Tables and figures of FedAVE (Wang et al., 2024) with the patients of the given sites, repartitioned."""

from fedmerit_lab.papers.artefact import Artefact, Paper, published
from fedmerit_lab.papers.partitioned_sites import (
    CLA,
    CLASSES,
    ONCE_MORE,
    bars,
    fairness,
    highest_dice,
    keep_own,
    lines,
    needs,
)
from fedmerit_lab.papers.study import Partition

PARTITIONS = (
    Partition("POW", "powerlaw"),
    CLA,
    *(Partition(f"DIR({alpha:g})", "dirichlet", alpha=alpha) for alpha in (0.1, 0.2, 0.3)),
)
METHODS = ("standalone", "fedavg", "cffl", "cgsv", "fedave")
ABLATION = tuple(f"fedave:distributions={where}" for where in ("none", "quota", "reputation"))
ALL = needs(METHODS, PARTITIONS)

PAPER = Paper(
    "FedAVE: Adaptive Data Value Evaluation Framework for Collaborative Fairness in Federated Learning",
    "Wang et al., 2024",
    "MNIST, CIFAR-10 and EMNIST letters split among 10 clients, a tenth of the training images set aside for the "
    "server; three local epochs; accuracy on one test set",
    (
        Artefact(
            "table2",
            "Fairness: correlation of final and local-only Dice",
            fairness,
            needs(keep_own(METHODS), PARTITIONS),
            (published("fedave-table2"),),
            ONCE_MORE,
        ),
        Artefact("table3", "The highest Dice of any site", highest_dice, ALL, (published("fedave-table3"),)),
        Artefact(
            "table4",
            "Fairness without label distributions: in both modules, in one, in neither",
            fairness,
            needs(("standalone", *ABLATION, "fedave"), PARTITIONS),
            (published("fedave-table4"),),
            "The paper writes r\N{SUPERSCRIPT MINUS} if the reputation ignores them (distributions=quota), "
            "q\N{SUPERSCRIPT MINUS} if the quota does (distributions=reputation).",
        ),
        Artefact(
            "figure3",
            "Validation Dice of every site over rounds",
            lines(validation="Validation Dice [%]"),
            needs(("fedave",), PARTITIONS),
            remark="Of the received model on the site's validation images; the paper tests in every round.",
        ),
        Artefact(
            "figure4",
            "Final Dice of every site, compared with local-only training",
            bars,
            needs(("standalone", "fedave"), PARTITIONS),
            remark="The paper's is on CLA.",
        ),
    ),
    "The paper classifies images, by accuracy; here it is Dice of segmentations, and classes of patients in DIR are "
    f"their hospitals. {CLASSES}",
    {"Table 1": "notation", "Figure 1, Figure 2": "diagrams"},
)
