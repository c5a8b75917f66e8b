"""Tables and figures of FedSAC (Wang et al., KDD 2024), for the patients of other sites dealt into new ones.

Training alone is compared everywhere: it is what contributions are, for FedSAC as for its fairness.
"""

import pandas as pd

from evaluation.fairness.measures import pearson
from evaluation.papers.artefact import Artefact, Made, Paper, every
from evaluation.papers.dealt_sites import (
    ONCE_MORE,
    accuracies,
    alone_and_final,
    apart,
    bars,
    correlations,
    deal_of,
    lines,
    needs,
    scatter,
)
from evaluation.papers.needs import Compared
from evaluation.papers.printed_tables import published
from evaluation.papers.study import Deal, Study

POW = Deal("POW", "powerlaw")
DEALS = (POW, *(Deal(f"DIR({alpha:g})", "dirichlet", alpha=alpha) for alpha in (1.0, 2.0, 3.0)))
METHODS = ("standalone", "fedavg", "qfedavg", "cffl", "cgsv", "fedave", "fedsac")
ABLATIONS = ("standalone", "fedsac:importance=equal", "fedsac:aggregation=plain", "fedsac")
BETAS = ("standalone", "fedsac:beta=2", "fedsac", "fedsac:beta=10", "fedsac:beta=20")
NOT_THEIR_DATA = (
    "The paper classifies images (CIFAR-10, SVHN, Fashion MNIST) among 10 clients with small networks of its own, by "
    "accuracy; here it is Dice of segmentations by a U-Net. CLA has no counterpart."
)
NOT_THEIR_METHODS = (
    "The paper has every method distribute by contributions of training alone; here each goes by its own reputations, "
    "FedSAC by what the runs of standalone reached."
)


def _fairness(study: Study, artefact: Artefact) -> Made:
    return correlations(study, artefact, every, alone_and_final)


def _accuracy(study: Study, artefact: Artefact) -> Made:
    return accuracies(study, artefact, every, mean=False)


def _scatter(study: Study, artefact: Artefact) -> Made:
    """Fairness over the highest Dice, a point for each method and deal, means over seeds."""
    parts = []
    for need in artefact.needs:
        assert isinstance(need, Compared)
        alone, final = alone_and_final(study.results(need))
        values = {
            "fairness": pd.Series(pearson(alone.to_numpy(float), final.to_numpy(float)), final.index),
            "highest Dice [%]": 100 * final.max(axis=1),
        }
        means = pd.DataFrame(values).groupby(level="method").mean()
        parts.append(means.assign(deal=deal_of(need).name).reset_index())
    points = pd.concat(parts, ignore_index=True)
    return scatter(
        artefact,
        points,
        ("highest Dice [%]", "Highest Dice of any site [%]"),
        ("fairness", "100 x Pearson with training alone"),
    )


def _validation(study: Study, artefact: Artefact) -> Made:
    return lines(study, artefact, {"validation": "Validation Dice [%]"})


PAPER = Paper(
    "FedSAC: Dynamic Submodel Allocation for Collaborative Fairness in Federated Learning",
    "Wang et al., KDD 2024",
    "CIFAR-10, SVHN and Fashion MNIST dealt among 10 clients, a tenth of the training images set aside for the server; "
    "accuracy on one test set",
    (
        Artefact(
            "table1",
            "Fairness: final Dice beside that of training alone",
            _fairness,
            needs(apart(METHODS), DEALS),
            (published("fedsac-table1"),),
            f"{NOT_THEIR_DATA} {NOT_THEIR_METHODS} {ONCE_MORE}",
        ),
        Artefact(
            "table2",
            "The highest Dice of any site",
            _accuracy,
            needs(METHODS, DEALS),
            (published("fedsac-table2"),),
            f"{NOT_THEIR_DATA} {NOT_THEIR_METHODS}",
        ),
        Artefact(
            "table3",
            "Fairness without allocation by importance, and without aggregation by count",
            _fairness,
            needs(ABLATIONS, DEALS),
            (published("fedsac-table3"),),
            f"{NOT_THEIR_DATA} Without allocation, neurons that all weigh the same are withheld in a random order.",
        ),
        Artefact(
            "table4",
            "The highest Dice of any site, likewise",
            _accuracy,
            needs(ABLATIONS, DEALS),
            (published("fedsac-table4"),),
            f"{NOT_THEIR_DATA} As table3.",
        ),
        Artefact(
            "table7",
            "The highest Dice of any site by beta",
            _accuracy,
            needs(BETAS, DEALS),
            (published("fedsac-table7"),),
            f"{NOT_THEIR_DATA} The lowest, which the paper puts in brackets, stands in figure7.",
        ),
        Artefact(
            "figure3",
            "Fairness over the highest Dice of any site, a point for each method and deal",
            _scatter,
            needs(apart(METHODS), DEALS),
            remark=f"{NOT_THEIR_DATA} {NOT_THEIR_METHODS} Of the runs of table1.",
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
            _validation,
            needs(("standalone", "fedsac"), DEALS),
            remark="Of the model received, on the site's validation images; the paper tests in every round.",
        ),
        Artefact(
            "figure7",
            "Final Dice of every site by beta",
            bars,
            needs(BETAS, (POW,)),
            remark="No figure of the paper's: its Table 7 prints the highest and the lowest.",
        ),
    ),
    {
        "Table 5, Table 6": "table1 and table2 with --into 20, 40 or 60; the paper's numbers do not stand beside them",
        "Figure 1, Figure 2": "diagrams",
        "Theorem 1, Theorem 2": "not checked in numbers",
        "CLA": "in every table: it needs images of digits or other classes; masks have none to vary at equal sizes",
    },
)
