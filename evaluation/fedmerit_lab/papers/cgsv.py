"""Tables and figures of CGSV (Xu et al., NeurIPS 2021) with the patients of the given sites, repartitioned."""

from dataclasses import asdict, replace

import pandas as pd

from fedmerit.schema.configuration.settings import PRESETS, ROUNDS, Training
from fedmerit_evaluation.figures.tables import Table
from fedmerit_evaluation.results.views import STANDALONE
from fedmerit_lab.papers.artefact import Artefact, Made, printed, read_paper
from fedmerit_lab.papers.partitioned_sites import (
    CLA,
    accuracies,
    agents,
    bars,
    correlate,
    fairness,
    keep_own,
    lines,
    local_only_and_final,
    needs,
    partitioned_needs,
    reputation_and_final,
    reputation_and_loss,
)
from fedmerit_lab.papers.study import Compared, Partition, Study

UNI, POW = Partition("UNI", "uniform"), Partition("POW", "powerlaw")
PARTITIONS = (UNI, POW, CLA)
THREE, FIVE = (tuple(replace(one, into=number) for one in PARTITIONS) for number in (3, 5))  # FIVE: of Tables 5 and 6
NOISY = Partition("noisy", "uniform", into=5, noise=(("site-1", 0.2), ("site-2", 0.4), ("site-3", 0.6)))
ALTRUISM = ("cgsv", "cgsv:beta=1.2", "cgsv:beta=1.5", "cgsv:beta=2")
METHODS = ("standalone", "fedavg", "qfedavg", "cffl", "eci", "dw", "rr", "eu", *ALTRUISM)
ALL = needs(METHODS, PARTITIONS)
ALL_KEEP_OWN = needs(keep_own(METHODS), PARTITIONS)


def _overhead(study: Study, artefact: Artefact) -> Made:
    """Make Table 3: the time that a round takes beyond local-only training; sites in turn, then the server."""
    (need,) = partitioned_needs(artefact)
    rounds = study.results(need).plain.rounds
    sites = rounds.of("seconds").sum(axis=1).groupby(level="method").median()
    server = rounds.of("server_seconds").max(axis=1).groupby(level="method").median()
    labels = [label for label in need.labels if label in sites.index]
    sites, server = sites[labels], server.reindex(labels)
    both = sites + server
    training = sites.get(STANDALONE, float("nan"))
    columns = {"Sites [s]": sites, "Server [s]": server, "Overhead [s]": both - training}
    frame = pd.DataFrame(columns | {"Ratio to training": (both - training) / training})
    frame = frame.rename_axis("Method").reset_index()
    caption = (
        "Wall-clock time of a round, median over rounds and seeds: sum over sites, server, and overhead of both over "
        "local-only training"
    )
    table = Table(artefact.name, caption, frame, decimals=3)
    return Made([table, *printed(artefact.name, artefact.published)])


def _hyper_parameters(study: Study, artefact: Artefact) -> Made:
    """Return Table 4; it takes no training."""
    paper = PRESETS["cgsv"]
    presets = {"--preset paper": (paper.training, paper.rounds), "the default": (asdict(Training()), ROUNDS)}
    rows = [
        {
            "Training": name,
            "B": float(training["batch_size"]),
            "Step size x 1000": 1000 * float(training["lr"]),
            "Decay [%]": 100 * training["decay"] if training["schedule"] == "step" else float("nan"),
            "T": float(rounds),
            "Optimiser": str(training["optimizer"]),
            "Schedule": str(training["schedule"]),
        }
        for name, (training, rounds) in presets.items()
    ]
    table = Table(artefact.name, artefact.what, pd.DataFrame(rows), decimals=2)
    return Made([table, *printed(artefact.name, artefact.published)])


PAPER = read_paper(
    "cgsv",
    {
        "table1": (accuracies(agents), ALL),
        "table2": (correlate(local_only_and_final, agents), ALL_KEEP_OWN),
        "table3": (_overhead, (Compared(METHODS, POW),)),
        "table4": (_hyper_parameters, ()),
        "table5": (accuracies(), needs(METHODS, FIVE)),
        "table6": (fairness, needs(keep_own(METHODS), FIVE)),
        "table7": (correlate(reputation_and_final, agents), ALL),
        "table8": (correlate(reputation_and_loss, agents), ALL),
        "figure2": (
            lines(model_distance="Distance to the server's model", train_loss="Training loss"),
            (Compared(("cgsv",), NOISY),),
        ),
        "figure3": (
            lines(validation="Validation Dice [%]", train_loss="Training loss"),
            needs(("cgsv:beta=2",), PARTITIONS),
        ),
        "figure4": (lines(reputation="Reputation"), needs(("cgsv",), THREE)),
        "figure5": (lines(reward_distance="Distance to the aggregate"), needs(("cgsv",), THREE)),
        "figure6": (
            lines(output_distance="Distance to the server's output layer", model_distance="Distance to its model"),
            needs(("cgsv",), THREE),
        ),
        "figure7": (lines(train_loss="Training loss"), (Compared(ALTRUISM, CLA),)),
        "figure8": (bars, (Compared(ALTRUISM, CLA),)),
        "figure9-12": (bars, needs(keep_own(("qfedavg", "cgsv")), PARTITIONS)),
    },
)
