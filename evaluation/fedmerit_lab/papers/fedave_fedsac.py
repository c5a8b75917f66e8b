"""Tables and figures of FedAVE (Wang et al., 2024) and FedSAC (Wang et al., KDD 2024) with repartitioned patients.

Every comparison of FedSAC includes local-only training, whose Dice is the contribution of FedSAC and of its fairness
measure.
"""

from collections.abc import Sequence
from dataclasses import replace

from fedmerit_evaluation.results.views import STANDALONE
from fedmerit_lab.papers.artefact import read_paper
from fedmerit_lab.papers.partitioned_sites import CLA, bars, fairness, highest_dice, keep_own, lines, needs
from fedmerit_lab.papers.study import Partition

POW = Partition("POW", "powerlaw")


def _dirichlet(*alphas: float) -> Sequence[Partition]:
    return tuple(Partition(f"DIR({alpha:g})", "dirichlet", alpha=alpha) for alpha in alphas)


FEDAVE_PARTITIONS = (POW, CLA, *_dirichlet(0.1, 0.2, 0.3))
FEDAVE_METHODS = (STANDALONE, "fedavg", "cffl", "cgsv", "fedave")
WITHOUT = tuple(f"fedave:distributions={where}" for where in ("none", "quota", "reputation"))

FEDAVE = read_paper(
    "fedave",
    {
        "table2": (fairness, needs(keep_own(FEDAVE_METHODS), FEDAVE_PARTITIONS)),
        "table3": (highest_dice, needs(FEDAVE_METHODS, FEDAVE_PARTITIONS)),
        "table4": (fairness, needs((STANDALONE, *WITHOUT, "fedave"), FEDAVE_PARTITIONS)),
        "figure3": (lines(validation="Validation Dice [%]"), needs(("fedave",), FEDAVE_PARTITIONS)),
        "figure4": (bars, needs((STANDALONE, "fedave"), FEDAVE_PARTITIONS)),
    },
)

DIR = _dirichlet(1.0, 2.0, 3.0)
PARTITIONS = (POW, CLA, *DIR)
MORE = tuple(  # of Tables 5 and 6
    replace(partition, into=number, title=f"{partition.name}, {number} sites")
    for number, partitions in ((20, PARTITIONS), (40, DIR[:2]), (60, DIR[:2]))
    for partition in partitions
)
METHODS = (STANDALONE, "fedavg", "qfedavg", "cffl", "cgsv", "fedave", "fedsac")
ABLATIONS = (STANDALONE, "fedsac:importance=equal", "fedsac:aggregation=plain", "fedsac")
BETAS = (STANDALONE, "fedsac:beta=2", "fedsac", "fedsac:beta=10", "fedsac:beta=20")


FEDSAC = read_paper(
    "fedsac",
    {
        "table1": (fairness, needs(keep_own(METHODS), PARTITIONS)),
        "table2": (highest_dice, needs(METHODS, PARTITIONS)),
        "table3": (fairness, needs(ABLATIONS, PARTITIONS)),
        "table4": (highest_dice, needs(ABLATIONS, PARTITIONS)),
        "table5": (fairness, needs(keep_own(METHODS), MORE)),
        "table6": (highest_dice, needs(METHODS, MORE)),
        "table7": (highest_dice, needs(BETAS, (POW, *DIR))),
        "figure4-6": (bars, needs(METHODS, PARTITIONS)),
        "figure5": (lines(validation="Validation Dice [%]"), needs((STANDALONE, "fedsac"), PARTITIONS)),
        "figure7": (bars, needs(BETAS, (POW,))),
    },
)
