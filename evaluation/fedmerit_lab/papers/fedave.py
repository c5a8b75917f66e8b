"""Tables and figures of FedAVE (Wang et al., 2024) with the patients of the given sites, repartitioned."""

from fedmerit_lab.papers.artefact import read_paper
from fedmerit_lab.papers.partitioned_sites import CLA, bars, fairness, highest_dice, keep_own, lines, needs
from fedmerit_lab.papers.study import Partition

PARTITIONS = (
    Partition("POW", "powerlaw"),
    CLA,
    *(Partition(f"DIR({alpha:g})", "dirichlet", alpha=alpha) for alpha in (0.1, 0.2, 0.3)),
)
METHODS = ("standalone", "fedavg", "cffl", "cgsv", "fedave")
ABLATION = tuple(f"fedave:distributions={where}" for where in ("none", "quota", "reputation"))
ALL = needs(METHODS, PARTITIONS)

PAPER = read_paper(
    "fedave",
    {
        "table2": (fairness, needs(keep_own(METHODS), PARTITIONS)),
        "table3": (highest_dice, ALL),
        "table4": (fairness, needs(("standalone", *ABLATION, "fedave"), PARTITIONS)),
        "figure3": (lines(validation="Validation Dice [%]"), needs(("fedave",), PARTITIONS)),
        "figure4": (bars, needs(("standalone", "fedave"), PARTITIONS)),
    },
)
