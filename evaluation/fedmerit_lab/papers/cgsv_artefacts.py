"""Tables and figures of CGSV (Xu et al., NeurIPS 2021) with the patients of the given sites, repartitioned."""

from dataclasses import asdict, replace

import pandas as pd

from fedmerit.schema.configuration.settings import PRESETS, ROUNDS, Training
from fedmerit_evaluation.figures.tables import Table, file_name
from fedmerit_evaluation.results.views import STANDALONE
from fedmerit_lab.papers import approximation
from fedmerit_lab.papers.artefact import Artefact, Drawn, Made, Paper, every, printed, published
from fedmerit_lab.papers.figures import site_marks
from fedmerit_lab.papers.final_losses import final_losses
from fedmerit_lab.papers.partitioned_sites import (
    CLA,
    CLASSES,
    ONCE_MORE,
    accuracies,
    agents,
    bars,
    correlate,
    fairness,
    keep_own,
    last_round_values,
    lines,
    local_only_and_final,
    needs,
    partitioned_needs,
    reputation_and_final,
    reputation_and_loss,
    require_partition,
)
from fedmerit_lab.papers.required_trainings import Compared
from fedmerit_lab.papers.study import Partition, Study

UNI, POW = Partition("UNI", "uniform"), Partition("POW", "powerlaw")
PARTITIONS = (UNI, POW, CLA)
THREE, FIVE = (tuple(replace(one, into=number) for one in PARTITIONS) for number in (3, 5))  # FIVE: of Tables 5 and 6
NOISY = Partition("noisy", "uniform", into=5, noise=(("site-1", 0.2), ("site-2", 0.4), ("site-3", 0.6)))
ALTRUISM = ("cgsv", "cgsv:beta=1.2", "cgsv:beta=1.5", "cgsv:beta=2")
METHODS = ("standalone", "fedavg", "qfedavg", "cffl", "eci", "dw", "rr", "eu", *ALTRUISM)
ALL = needs(METHODS, PARTITIONS)
ALL_KEEP_OWN = needs(keep_own(METHODS), PARTITIONS)
LARGEST = 14  # sites of Figure 1: some seconds


def _accuracy(study: Study, artefact: Artefact) -> Made:
    return accuracies(study, artefact, agents(study))


def _all_accuracies(study: Study, artefact: Artefact) -> Made:
    return accuracies(study, artefact, every)


def _approximation(study: Study, artefact: Artefact) -> Made:
    """Figure 1; it is computed once, since times would differ."""
    path = study.out / "figures" / f"{artefact.name}.csv"
    index = ["sites", "dimensions", "evaluation"]
    computed = pd.read_csv(path).set_index(index) if path.exists() else None
    table = approximation.compare(approximation.grid(LARGEST)) if computed is None else computed
    return Made(drawn=[Drawn(artefact.name, artefact.what, approximation.draw(table), table.reset_index())])


def _overhead(study: Study, artefact: Artefact) -> Made:
    """Table 3: the time that a round takes beyond local-only training; sites one after the other, then the server."""
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


def _with_losses(study: Study, artefact: Artefact) -> Made:
    """Final Dice of each site by method, its test loss and its training loss of the last round."""
    drawn = list(bars(study, artefact).drawn)
    for need in partitioned_needs(artefact):
        sites, found = study.open_partition(require_partition(need)), {}
        for run in study.done(need):
            found[run.label, run.seed] = final_losses(run.folder, sites)
        test = pd.DataFrame(found).T.rename_axis(["method", "seed"])
        for name, title, table in (
            ("test-loss", "Test loss", test),
            ("train-loss", "Training loss of the last round", last_round_values(study.results(need), "train_loss")),
        ):
            means = table.groupby(level="method").mean()
            means = means.loc[[label for label in need.labels if label in means.index]]
            file = f"{artefact.name}-{name}" + f"-{file_name(require_partition(need).name)}" * (len(artefact.needs) > 1)
            numbers = means.rename_axis("method").reset_index()
            caption = f"{artefact.what}, {require_partition(need).name}: {title.lower()}"
            drawn.append(Drawn(file, caption, site_marks(means, title), numbers))
    return Made(drawn=drawn)


def _hyper_parameters(study: Study, artefact: Artefact) -> Made:
    """Table 4; it takes no training."""
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


LOSSES = "The test loss is soft Dice on the test images of all sites; the paper's is cross-entropy."
OF_AGENTS = "For all sites; the paper draws agents 1 and 3."

PAPER = Paper(
    "Gradient Driven Rewards to Guarantee Fairness in Collaborative Machine Learning",
    "Xu et al., NeurIPS 2021",
    "MNIST, CIFAR-10, MR and SST split among 5, 10 or 20 agents; 60 to 200 iterations; accuracy on one test set",
    (
        Artefact(
            "table1",
            "Dice of every method on repartitioned sites, mean over sites and highest",
            _accuracy,
            ALL,
            (published("cgsv-table1"), published("cgsv-table5")),
            "With --into 10 or 20 it is the paper's Table 1, with 5 its Table 5.",
        ),
        Artefact(
            "table2",
            "Fairness: correlation of final and local-only Dice",
            correlate(local_only_and_final, agents),
            ALL_KEEP_OWN,
            (published("cgsv-table2"), published("cgsv-table6")),
            f"With --into 10 or 20 it is the paper's Table 2, with 5 its Table 6. {ONCE_MORE}",
        ),
        Artefact(
            "table3",
            "Time overhead of the methods",
            _overhead,
            (Compared(METHODS, POW),),
            (published("cgsv-table3"),),
            "Overhead is the time of a round beyond local-only training, in the paper with its ratio to that in "
            "brackets. It includes the sites' evaluations for the server and the server's work, not the network. "
            "Concurrent trainings slow each other down: take --jobs 1 for reliable times.",
        ),
        Artefact(
            "table4",
            "Hyper-parameters of the training",
            _hyper_parameters,
            published=(published("cgsv-table4"),),
            remark="Those of --preset paper, which are the paper's for CIFAR-10, and the defaults, with another "
            "optimiser. The paper's iterations are rounds here.",
        ),
        Artefact(
            "table5",
            "Dice of every method on five sites, mean over sites and highest",
            _all_accuracies,
            needs(METHODS, FIVE),
            (published("cgsv-table5"),),
            on_demand=True,
        ),
        Artefact(
            "table6",
            "Fairness on five sites: correlation of final and local-only Dice",
            fairness,
            needs(keep_own(METHODS), FIVE),
            (published("cgsv-table6"),),
            ONCE_MORE,
            on_demand=True,
        ),
        Artefact(
            "table7",
            "Fairness: correlation of final Dice and reputation",
            correlate(reputation_and_final, agents),
            ALL,
            (published("cgsv-table7"),),
            "Without such a reputation, it is Eq. 4 of the cosines of a site's updates to their weighted mean.",
        ),
        Artefact(
            "table8",
            "Fairness: correlation of the negative training loss of the last round and reputation",
            correlate(reputation_and_loss, agents),
            ALL,
            (published("cgsv-table8"),),
            "Reputations as in table7.",
        ),
        Artefact(
            "figure1",
            "Approximations of Shapley values of random updates: error and time",
            _approximation,
            remark=f"For 4 to {LARGEST} sites.",
        ),
        Artefact(
            "figure2",
            "Distances and losses if three of five sites have 20, 40 and 60 % wrong masks",
            lines(model_distance="Distance to the server's model", train_loss="Training loss"),
            (Compared(("cgsv",), NOISY),),
            remark="A wrong mask is moved by half its extent; the paper corrupts labels of digits.",
        ),
        Artefact(
            "figure3",
            "Validation Dice and training loss of every site over rounds, altruism 2",
            lines(validation="Validation Dice [%]", train_loss="Training loss"),
            needs(("cgsv:beta=2",), PARTITIONS),
            remark="Dice of the received model on the site's validation images; the paper tests in every iteration.",
        ),
        Artefact(
            "figure4",
            "Reputations over rounds, three sites",
            lines(reputation="Reputation"),
            needs(("cgsv",), THREE),
            remark=OF_AGENTS,
        ),
        Artefact(
            "figure5",
            "Distance of every site's download from the aggregate, three sites",
            lines(reward_distance="Distance to the aggregate"),
            needs(("cgsv",), THREE),
            remark=OF_AGENTS,
        ),
        Artefact(
            "figure6",
            "Distance of every site's model from the server's, three sites",
            lines(output_distance="Distance to the server's output layer", model_distance="Distance to its model"),
            needs(("cgsv",), THREE),
            remark=f"Of the last layer, as in the paper, and of the model without BatchNorm statistics. {OF_AGENTS}",
        ),
        Artefact(
            "figure7",
            "Training loss over rounds by altruism",
            lines(train_loss="Training loss"),
            (Compared(ALTRUISM, CLA),),
        ),
        Artefact(
            "figure8",
            "Final test loss and Dice of every site by altruism",
            _with_losses,
            (Compared(ALTRUISM, CLA),),
            remark=LOSSES,
        ),
        Artefact(
            "figure9-12",
            "Final Dice, test loss and training loss of every site, compared with q-FedAvg",
            _with_losses,
            needs(keep_own(("qfedavg", "cgsv")), PARTITIONS),
            remark=f"{LOSSES} {ONCE_MORE} Figures 9 and 10 are of 5 agents, 11 and 12 of 10 (--into).",
        ),
    ),
    "The paper classifies images and sentences, by test accuracy; here it is Dice of segmentations. Sizes follow its "
    f"power law. {CLASSES} Defaults of the methods are FedMerit's readings.",
    {
        "Theorem 1, Lemma 1": "checked in numbers by tests/fedmerit_lab/papers/test_theorems.py",
        "Theorem 2": "of strongly convex losses, which networks do not have",
    },
)
