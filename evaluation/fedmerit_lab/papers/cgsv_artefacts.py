"""Tables and figures of CGSV (Xu et al., NeurIPS 2021) with the patients of the given sites, repartitioned."""

from dataclasses import asdict, replace

import numpy as np
import pandas as pd

from fedmerit.configuration.recipes import PRESETS, ROUNDS
from fedmerit.configuration.run import Training
from fedmerit.errors import BadInput
from fedmerit_evaluation.fairness.measures import pearson
from fedmerit_evaluation.figures import dots_and_bars
from fedmerit_evaluation.figures.tables import Table, file_name
from fedmerit_evaluation.results.dice import STANDALONE
from fedmerit_lab.papers import approximation
from fedmerit_lab.papers.artefact import Artefact, Drawn, Made, Paper, every, printed, published
from fedmerit_lab.papers.final_losses import final_losses
from fedmerit_lab.papers.partitioned_sites import (
    CLA,
    NOT_THEIR_CLASSES,
    ONCE_MORE,
    accuracies,
    agents,
    bars,
    correlations,
    fairness,
    keep_own,
    last_round_values,
    lines,
    local_only_and_final,
    needs,
    pairs_in_order,
    parameters_of,
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

NOT_THEIR_DATA = (
    "The paper classifies images and sentences, by test accuracy; here it is Dice of segmentations. Sizes follow its "
    f"power law. {NOT_THEIR_CLASSES} Defaults of the methods are FedMerit's readings."
)


def _accuracy(study: Study, artefact: Artefact) -> Made:
    return accuracies(study, artefact, agents(study))


def _of_five(study: Study, artefact: Artefact) -> Made:
    """Table 5 or 6."""
    if artefact.name == "table5":
        return accuracies(study, artefact, every)
    return fairness(study, artefact)


def _fairness(study: Study, artefact: Artefact) -> Made:
    return correlations(study, artefact, agents(study), local_only_and_final)


def _reputation(study: Study, artefact: Artefact) -> Made:
    return correlations(study, artefact, agents(study), reputation_and_final)


def _loss(study: Study, artefact: Artefact) -> Made:
    return correlations(study, artefact, agents(study), reputation_and_loss)


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


def _order(study: Study, artefact: Artefact) -> Made:
    """Theorem 2: in how many pairs of sites the higher reputation has the nearer model and the lower loss."""
    (need,) = partitioned_needs(artefact)
    results = study.results(need)
    goods = {
        "nearer model": -last_round_values(results, "model_distance"),
        "lower loss": -last_round_values(results, "train_loss"),
    }
    table = pairs_in_order(need.labels, last_round_values(results, "reputation"), goods)
    caption = (
        f"{artefact.what}: pairs of sites with different reputations, all seeds, and in how many of them the site "
        "with the higher one has the model nearer to the server's and the lower training loss in the last round"
    )
    return Made([Table(artefact.name, caption, table, decimals=1)])


def _altruism(study: Study, artefact: Artefact) -> Made:
    """By altruism: quotas, Dice and its correlation with local-only Dice."""
    (need,) = partitioned_needs(artefact)
    results = study.results(need)
    local_only, final = local_only_and_final(results)
    rows = []
    for label in (name for name in ALTRUISM if name in final.index.get_level_values("method")):
        dice, base = (table.xs(label, level="method").to_numpy(float) for table in (final, local_only))
        quota = pd.DataFrame(results.plain.rounds.of("quota").loc[label])
        rows.append(
            {
                "Altruism": parameters_of(label).get("beta", "1"),
                "Lowest quota": quota.min(axis=1).mean(),
                "Dice, mean [%]": 100 * dice.mean(),
                "Dice, lowest site [%]": 100 * dice.min(axis=1).mean(),
                "Dice, highest site [%]": 100 * dice.max(axis=1).mean(),
                "Pearson with local-only Dice": float(np.mean(pearson(base, dice))),
            }
        )
    if not rows:
        raise BadInput("no training of cgsv is finished; run the same command again")
    caption = f"{artefact.what}: means over seeds, quotas also over rounds; 100 x Pearson over sites"
    return Made([Table(artefact.name, caption, pd.DataFrame(rows), decimals=2)])


LOSSES = (
    "The test loss is soft Dice on the test images of all sites, without the cross-entropy of the training loss; the "
    "paper's is cross-entropy."
)


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
            drawn.append(Drawn(file, caption, dots_and_bars.site_marks(means, title), numbers))
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
            f"{NOT_THEIR_DATA} With --into 10 or 20 it is the paper's Table 1, with 5 its Table 5.",
        ),
        Artefact(
            "table2",
            "Fairness: correlation of final and local-only Dice",
            _fairness,
            ALL_KEEP_OWN,
            (published("cgsv-table2"), published("cgsv-table6")),
            f"{NOT_THEIR_DATA} With --into 10 or 20 it is the paper's Table 2, with 5 its Table 6. {ONCE_MORE}",
        ),
        Artefact(
            "table3",
            "Time overhead of the methods",
            _overhead,
            (Compared(METHODS, POW),),
            (published("cgsv-table3"),),
            "Overhead is the time of a round beyond local-only training, in the paper with its ratio to that in "
            "brackets. It includes the sites' evaluations for the server and the server's work, not the network. "
            "Concurrent trainings slow each other down: take --jobs 1 for reliable times. The paper's are of other "
            "machines and models.",
        ),
        Artefact(
            "table4",
            "Hyper-parameters of the training",
            _hyper_parameters,
            published=(published("cgsv-table4"),),
            remark="Those of --preset paper, which are the paper's for CIFAR-10, the nearest to slices, and the "
            "defaults, with another optimiser. The paper's iterations are rounds here.",
        ),
        Artefact(
            "table5",
            "Dice of every method on five sites, mean over sites and highest",
            _of_five,
            needs(METHODS, FIVE),
            (published("cgsv-table5"),),
            NOT_THEIR_DATA,
            on_demand=True,
        ),
        Artefact(
            "table6",
            "Fairness on five sites: correlation of final and local-only Dice",
            _of_five,
            needs(keep_own(METHODS), FIVE),
            (published("cgsv-table6"),),
            f"{NOT_THEIR_DATA} {ONCE_MORE}",
            on_demand=True,
        ),
        Artefact(
            "table7",
            "Fairness: correlation of final Dice and reputation",
            _reputation,
            ALL,
            (published("cgsv-table7"),),
            f"{NOT_THEIR_DATA} For methods without such a reputation, it is Eq. 4 of the cosines of updates to their "
            "weighted mean.",
        ),
        Artefact(
            "table8",
            "Fairness: correlation of the negative training loss of the last round and reputation",
            _loss,
            ALL,
            (published("cgsv-table8"),),
            f"{NOT_THEIR_DATA} Reputations as in table7.",
        ),
        Artefact(
            "figure1",
            "Approximations of Shapley values of random updates: error and time",
            _approximation,
            remark=f"Of random updates, as in the paper, for 4 to {LARGEST} sites.",
        ),
        Artefact(
            "theorem2",
            "Theorem 2: with a higher reputation the model is nearer and the loss lower",
            _order,
            (Compared(ALTRUISM, POW),),
            remark="The theorem assumes strong convexity, which no U-Net has, and a condition on earlier distances; "
            "here it is checked without its conditions, as in the paper's Appendix B.3.",
        ),
        Artefact(
            "figure2",
            "Distances and losses if three of five sites have 20, 40 and 60 % wrong masks",
            lines(model_distance="Distance to the server's model", train_loss="Training loss"),
            (Compared(("cgsv",), NOISY),),
            remark="A wrong mask is moved by half its extent; the paper corrupts labels of digits. The left half "
            "lacks the line of the initial model's distance.",
        ),
        Artefact(
            "figure3",
            "Validation Dice and training loss of every site over rounds, altruism 2",
            lines(validation="Validation Dice [%]", train_loss="Training loss"),
            needs(("cgsv:beta=2",), PARTITIONS),
            remark="Dice of the model received, on the site's validation images; the paper tests in every iteration.",
        ),
        Artefact(
            "figure4",
            "Reputations over rounds, three sites",
            lines(reputation="Reputation"),
            needs(("cgsv",), THREE),
            remark="The paper draws agents 1 and 3, prints no numbers.",
        ),
        Artefact(
            "figure5",
            "Distance of every site's download from the aggregate, three sites",
            lines(reward_distance="Distance to the aggregate"),
            needs(("cgsv",), THREE),
            remark="For all sites; the paper draws agents 1 and 3.",
        ),
        Artefact(
            "figure6",
            "Distance of every site's model from the server's, three sites",
            lines(
                output_distance="Distance to the server's output layer",
                model_distance="Distance to the server's model",
            ),
            needs(("cgsv",), THREE),
            remark="Distances of the last layer, as in the paper, which has few of a U-Net's parameters, and of the "
            "whole model without BatchNorm statistics, for all sites; the paper draws agents 1 and 3.",
        ),
        Artefact(
            "figure7",
            "Training loss over rounds by altruism",
            lines(train_loss="Training loss"),
            (Compared(ALTRUISM, CLA),),
            remark=NOT_THEIR_CLASSES,
        ),
        Artefact(
            "figure8",
            "Final test loss and Dice of every site by altruism",
            _with_losses,
            (Compared(ALTRUISM, CLA),),
            remark=f"{LOSSES} {NOT_THEIR_CLASSES}",
        ),
        Artefact(
            "altruism",
            "Effect of altruism on the other sites and on fairness",
            _altruism,
            (Compared(("standalone", *ALTRUISM), POW),),
            remark="Not in the paper: the sweep of its Figures 7 and 8 in numbers, on POW.",
        ),
        Artefact(
            "figure9-12",
            "Final Dice, test loss and training loss of every site, compared with q-FedAvg",
            _with_losses,
            needs(keep_own(("qfedavg", "cgsv")), PARTITIONS),
            remark=f"{LOSSES} {ONCE_MORE} {NOT_THEIR_CLASSES} Figures 9 and 10 are of 5 agents, 11 and 12 of 10 "
            "(--into).",
        ),
    ),
    {"Theorem 1, Lemma 1": "checked in numbers by tests/fedmerit_lab/papers/test_theorems.py"},
)
