"""Tables and figures of FedSAC (Wang et al., KDD 2024) with the patients of the given sites, repartitioned.

Every comparison includes local-only training, whose Dice is the contribution of FedSAC and of its fairness measure.
"""

from dataclasses import replace

import pandas as pd

from fedmerit_evaluation.fairness.measures import pearson
from fedmerit_evaluation.results.views import STANDALONE
from fedmerit_lab.papers.artefact import Artefact, Made, read_paper
from fedmerit_lab.papers.partitioned_sites import (
    CLA,
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
    replace(partition, into=number, title=f"{partition.name}, {number} sites")
    for number, partitions in ((20, PARTITIONS), (40, DIR[:2]), (60, DIR[:2]))
    for partition in partitions
)
METHODS = (STANDALONE, "fedavg", "qfedavg", "cffl", "cgsv", "fedave", "fedsac")
ABLATIONS = (STANDALONE, "fedsac:importance=equal", "fedsac:aggregation=plain", "fedsac")
BETAS = (STANDALONE, "fedsac:beta=2", "fedsac", "fedsac:beta=10", "fedsac:beta=20")


def _scatter(study: Study, artefact: Artefact) -> Made:
    """Return the highest Dice over fairness, a point for each method and partition, means over seeds."""
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


PAPER = read_paper(
    "fedsac",
    {
        "table1": (fairness, needs(keep_own(METHODS), PARTITIONS)),
        "table2": (highest_dice, needs(METHODS, PARTITIONS)),
        "table3": (fairness, needs(ABLATIONS, PARTITIONS)),
        "table4": (highest_dice, needs(ABLATIONS, PARTITIONS)),
        "table5": (fairness, needs(keep_own(METHODS), MORE)),
        "table6": (highest_dice, needs(METHODS, MORE)),
        "table7": (highest_dice, needs(BETAS, (POW, *DIR))),
        "figure3": (_scatter, needs(keep_own(METHODS), PARTITIONS)),
        "figure4-6": (bars, needs(METHODS, PARTITIONS)),
        "figure5": (lines(validation="Validation Dice [%]"), needs((STANDALONE, "fedsac"), PARTITIONS)),
        "figure7": (bars, needs(BETAS, (POW,))),
    },
)
