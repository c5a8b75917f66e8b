"""Tables and figures of CYCle (Tastan et al., 2025) with the patients of the given sites, repartitioned."""

from dataclasses import replace

from fedmerit_evaluation.results.views import STANDALONE
from fedmerit_lab.papers.artefact import Artefact, Paper, published
from fedmerit_lab.papers.collaboration import (
    dice_by_share,
    dice_of_two_wrong,
    gain_and_spread,
    gain_by_parameters,
    gains,
    gains_by_site,
    reputation_heat_maps,
    reputations_by_share,
)
from fedmerit_lab.papers.partitioned_sites import bars, needs
from fedmerit_lab.papers.required_trainings import Compared, WrongMasks
from fedmerit_lab.papers.study import Partition

UNI, DIR = Partition("Homogeneous", "uniform"), Partition("Dirichlet (0.5)", "dirichlet", alpha=0.5)


def imbalanced(kappa: float, holders: int) -> Partition:
    """The first ``holders`` sites have a share ``kappa`` each, the others the rest."""
    return Partition(f"Imbalanced ({kappa:g}, {holders})", "imbalanced", kappa=kappa, holders=holders)


PARTITIONS = (UNI, DIR, *(imbalanced(*one) for one in ((0.8, 1), (0.35, 2), (0.6, 1))))
OTHERS = tuple(imbalanced(*one) for one in ((0.4, 1), (0.12, 1), (0.41, 2), (0.23, 2), (0.14, 2)))  # of Table 5
AMONG = {  # of Table 2, and of Table 3
    numbers: tuple(
        replace(one, into=number, title=f"{one.name}, {number} sites")
        for one in (UNI, DIR, *(Partition(f"Dirichlet ({alpha:g})", "dirichlet", alpha=alpha) for alpha in (2.0, 5.0)))
        for number in numbers
    )
    for numbers in ((5, 10), (2,))
}
METHODS = (STANDALONE, "fedavg", "vpdl", "cycle", "cffl", "rffl", "cgsv")
ALL = needs(METHODS, PARTITIONS)
SHARES = (0.2, 0.5, 1.0)  # of images with wrong masks, instead of flipped labels
WRONG = tuple(f"{kind}:share={share}" for kind in ("shifted", "inverted") for share in SHARES)
FLIPPED = WrongMasks("cycle", UNI, WRONG)
TWO_WRONG = tuple(
    Partition(f"Two wrong ({share:g})", "uniform", into=5, noise=(("site-4", share), ("site-5", share)))
    for share in SHARES
)
WITH_ONE_MODEL = (STANDALONE, "fedavg", "vpdl", "cycle")
IN_PLOT = (STANDALONE, "vpdl", "cycle", "cffl", "rffl", "cgsv")
TAUS = tuple((opt, most) for opt in (0.1, 0.25, 0.4) for most in (0.6, 0.75, 0.9))
BY_TAU = (STANDALONE, *(f"cycle:score=gradients:tau_opt={opt:g}:tau_max={most:g}" for opt, most in TAUS))

SPREADS = "From the paper's Tables 6 and 9 follows that its CGS is by N, not N - 1: 0.89 of ours for five sites."
ROUNDS = "In the first, a middle and the last round with reputations; the paper has rounds 0, 25 and 75 after warm-up."
GAINS = "Mean Dice, mean collaboration gain and its spread"

PAPER = Paper(
    "CYCle: Choosing Your Collaborators Wisely to Enhance Collaborative Fairness in Decentralized Learning",
    "Tastan et al., 2025",
    "CIFAR-10, CIFAR-100 split among 5 or 10 participants, Fed-ISIC2019 among 6; 25 local epochs, then 75 rounds; "
    "accuracy on one validation set",
    (
        Artefact(
            "table1",
            GAINS,
            gains,
            ALL,
            (published("cycle-table1-resnet"), published("cycle-table1-cnn"), published("cycle-table4")),
            "The paper's upper half is of ResNet18, its lower of a small network; here all methods train one network. "
            f"Table 4 is the same for CIFAR-100. CYCle's homogeneous column differs from Tables 2 and 9. {SPREADS}",
        ),
        Artefact(
            "table2",
            f"{GAINS} among 5 and 10 sites",
            gains,
            needs((STANDALONE, "vpdl", "cycle"), AMONG[5, 10]),
            (published("cycle-table2"),),
            SPREADS,
            on_demand=True,
        ),
        Artefact(
            "table3",
            f"{GAINS} of two sites",
            gains,
            needs((STANDALONE, "vpdl", "cycle"), AMONG[2,]),
            (published("cycle-table3"),),
            SPREADS,
            on_demand=True,
        ),
        Artefact(
            "table5",
            f"{GAINS} of other imbalanced partitions",
            gains,
            needs(WITH_ONE_MODEL, OTHERS),
            (published("cycle-table5"),),
            SPREADS,
        ),
        Artefact(
            "table8",
            "Final Dice if two sites have wrong masks",
            dice_of_two_wrong,
            (Compared((STANDALONE, "cycle"), replace(UNI, into=5)), *needs(("cycle",), TWO_WRONG)),
            (published("cycle-table8"),),
            "Of five sites; masks of training images moved by half their extent, instead of flipped labels.",
        ),
        Artefact(
            "figure12",
            "Reputation of each site with each other if the last two have wrong masks",
            reputation_heat_maps,
            needs(("cycle",), TWO_WRONG),
        ),
        Artefact(
            "figure11", "Final Dice of every site of other imbalanced partitions", bars, needs(WITH_ONE_MODEL, OTHERS)
        ),
        Artefact(
            "figure13", "Gain and its spread on ten partitions", gain_and_spread, needs(IN_PLOT, (*PARTITIONS, *OTHERS))
        ),
        Artefact(
            "figure14",
            "Gain and its spread by tau_opt and tau_max",
            gain_by_parameters,
            needs(BY_TAU, (UNI,)),
            remark="The paper draws surfaces without numbers. Sites score by gradients, as there.",
        ),
        Artefact(
            "table9",
            "Gain of every site over local-only training",
            gains_by_site,
            ALL,
            (published("cycle-table9-resnet"), published("cycle-table9-cnn"), published("cycle-table6")),
            "The paper prints accuracies, in which its text counts the losers. Table 6 is the same for CIFAR-100.",
        ),
        Artefact("figure2", "Final Dice of every site", bars, needs(WITH_ONE_MODEL, PARTITIONS)),
        Artefact(
            "figure3",
            "Final Dice of every site, compared with CFFL, RFFL and CGSV",
            bars,
            needs((STANDALONE, "cffl", "rffl", "cgsv", "cycle"), PARTITIONS),
            remark="The paper's is of a small network, as the lower half of its Table 1.",
        ),
        Artefact(
            "figure4",
            "Reputation of each site with each other, two imbalanced partitions",
            reputation_heat_maps,
            needs(("cycle",), PARTITIONS[2:4]),
            remark=ROUNDS,
        ),
        Artefact(
            "figure8",
            "Reputation of each site with each other, the other partitions",
            reputation_heat_maps,
            needs(("cycle",), (UNI, DIR, PARTITIONS[4])),
            remark=ROUNDS,
        ),
        Artefact(
            "table7",
            "Final Dice if one site has wrong masks",
            dice_by_share,
            (Compared((STANDALONE,), UNI), FLIPPED),
            (published("cycle-table7"),),
            "Masks shifted by a quarter of their extent, or inverted, in a share of the last site's training images, "
            "instead of flipped labels. Validation and test masks are right.",
        ),
        Artefact(
            "figure5",
            "Reputation of each site with each other if the last one has wrong masks",
            reputations_by_share,
            (FLIPPED,),
        ),
    ),
    "The paper classifies images, by accuracy; here it is Dice of segmentations. Classes of its Dirichlet split are "
    "hospitals here.",
    {
        "Figure 1": "a diagram",
        "Figure 6, Figure 7": "estimates of means; tests/fedmerit_lab/papers/test_theorems.py checks the bounds",
        "Table 4, Table 6, Figure 10": "photographs of CIFAR-100; the same of other sites: table1, table9 and figure2",
        "Figure 9": "photographs of Fed-ISIC2019, classified and not segmented; the same of other sites: figure4",
    },
)
