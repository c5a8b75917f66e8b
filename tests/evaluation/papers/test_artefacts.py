"""Artefacts of papers, of made-up runs."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from one_in import one_in
from run_factory import SITES, add_rows, make_run

from evaluation.display.table import Table
from evaluation.fairness.measures import pearson
from evaluation.freeriders.attacked_runs import Attack
from evaluation.papers import cgsv_artefacts, descent_bounds, submodel_bounds
from evaluation.papers.artefact import APART, BY_ALONE, beside
from evaluation.papers.dealt_sites import alone_and_final, reputations, site_dice_of
from evaluation.papers.needs import Compared, WrongMasks
from evaluation.papers.printed_tables import Published
from evaluation.papers.production import PAPERS
from evaluation.papers.study import Deal, Study
from fedmerit.errors import BadInput
from fedmerit.methods.registry import METHODS
from fedmerit.records.results import Row, read_results

ARTEFACTS = {f"{name}-{one.name}": one for name, paper in PAPERS.items() for one in paper.artefacts}


def test_beside_joins_by_method_and_heading():
    ours = Table("t", "ours", pd.DataFrame({"Method": ["cgsv", "fedce"], "A": [1.0, 2.0], "C": [0.0, 0.0]}))
    published = Published(
        "Table 0",
        "x",
        pd.DataFrame([["fedavg", "7", "8"], ["cgsv", "5±1", "6"]], columns=["Method", "A | one", "B | one"]),
    )
    table = beside(ours, published)
    assert table.headings == ["Method", "A", "C", "A, one"]
    assert table.frame["A, one"].to_list() == pytest.approx([5, math.nan], nan_ok=True)
    assert [table.cell(0, place) for place in range(4)] == ["cgsv", "1.000", "0.000", "5.000 ± 1.000"]
    assert ours.headings == ["Method", "A", "C"]


@dataclass(frozen=True)
class Made_up:
    """A finished training that nobody trained."""

    label: str
    seed: int
    folder: Path
    finished: bool = True


def made_up_run(folder, label, seed, names=SITES):
    """Every row that a paper's artefact reads, beside those of `make_run`."""
    method, *settings = label.split(":")
    parameters = dict(setting.split("=") for setting in settings if not (APART + BY_ALONE).count(f":{setting}"))
    make_run(folder, method=method, seed=seed, sites=names, rounds=4, parameters=parameters)
    random = np.random.default_rng([seed, *label.encode()])
    head = (folder.name, method, seed)
    rows = []
    for place, site in enumerate(names):
        for number in range(4):
            rows.append(Row(*head, number, site, "cosine_to_mean", float(random.uniform(0.1, 1))))
            rows.append(Row(*head, number, site, "quota", 0.5 + 0.1 * place))
            rows.append(Row(*head, number, site, "server_seconds", 1.0 + 0.5 * (method == "eci")))
            rows += [
                Row(*head, number, site, f"{what}_distance", 0.1 * place) for what in ("model", "output", "reward")
            ]
            rows.append(Row(*head, number, site, "held", 0.2 * place))
        if method == "cycle":
            held = [(number, holder) for number in range(1, 4) for holder in names if holder != site]
            rows += [
                Row(*head, number, site, "peer_reputation", 0.2 * place + 0.01 * number, coalition=holder)
                for number, holder in held
            ]
        level = (
            0.7
            if METHODS[method].about.download == "global model" and not label.endswith(APART)
            else 0.5 + 0.05 * place + random.uniform(0, 0.02)
        )
        for tester in names:
            for case in range(2):
                rows.append(Row(*head, 3, site, "dice", level, "union", f"{tester}/{case:03d}", "prostate"))
    add_rows(folder, rows)


@pytest.fixture
def study(sites, tmp_path, monkeypatch):
    """A study whose comparisons are made up."""
    study = Study(tmp_path / "out", sites, 4, [0, 1], into=5)
    study.has_server_set = True
    study.sites_of = lambda deal: sites
    losses = pd.Series([0.5, 0.4, 0.3, 0.2, 0.1], [f"site-{number}" for number in range(1, 6)])
    monkeypatch.setattr(cgsv_artefacts, "final_losses", lambda run, sites: losses)
    return study


@pytest.fixture(scope="session")
def made_up(tmp_path_factory):
    """What gives the folder of a made-up run, the same for every way of dealing; each is made once."""
    out = tmp_path_factory.mktemp("made-up")

    def folder_of(label, seed, names):
        folder = out / str(len(names)) / f"{label}-{seed}"
        if not folder.exists():
            made_up_run(folder, label, seed, names)
        return folder

    return folder_of


@pytest.fixture
def pretend(made_up):
    """What gives every comparison that an artefact needs its runs."""

    def given(study, artefact):
        for need in (one for one in artefact.needs if isinstance(one, Compared)):
            names = SITES if need.deal is None else [f"site-{number}" for number in range(1, 6)]
            study.trainings[need] = [
                Made_up(label, seed, made_up(label, seed, names)) for label in need.labels for seed in study.seeds
            ]

    return given


OF_COMPARISONS = [
    name
    for name, one in ARTEFACTS.items()
    if one.needs and all(isinstance(need, Compared) for need in one.needs) and not one.private
]


@pytest.mark.parametrize("name", one_in(6, OF_COMPARISONS))
def test_an_artefact_of_comparisons_is_made(name, study, pretend):
    artefact = ARTEFACTS[name]
    pretend(study, artefact)
    made = artefact.make(study, artefact)
    assert made.tables or made.drawn
    for table in made.tables:
        assert table.name.startswith(artefact.name)
        assert table.caption
        assert table.frame.iloc[:, 1:].notna().any(axis=None)
    for drawn in made.drawn:
        assert drawn.name.startswith(artefact.name)
        assert len(drawn.numbers)
        assert drawn.figure.axes
    if artefact.name.startswith("table") and "Method" in made.tables[0].frame:
        ours = made.tables[0]
        shown = list(dict.fromkeys(ours.frame["Method"]))
        assert shown == [label for label in artefact.needs[0].labels if label in shown]
        assert len(shown) >= len(artefact.needs[0].labels) - 1
        assert [table.name for table in made.tables[1:]] or artefact.published


def test_table_1_stands_beside_the_papers_means(study, pretend):
    artefact = ARTEFACTS["fedce-table1"]
    pretend(study, artefact)
    ours, *theirs = artefact.make(study, artefact).tables
    assert ours.headings == ["Method", *SITES, "Avg.", "Std."] + [
        f"{what}, {task}" for task in ("retinal fundus", "prostate MRI") for what in ("Avg.", "Std.")
    ]
    row = ours.frame.set_index("Method").loc["fedce:combine=plus"]
    assert row[["Avg., retinal fundus", "Avg., prostate MRI"]].to_list() == [82.92, 88.22]
    assert row["Avg."] == pytest.approx(row[list(SITES)].mean())
    assert [table.name for table in theirs] == ["table1-published-1", "table1-published-2"]


def test_correlations_over_dealt_sites_by_hand(study, pretend):
    artefact = ARTEFACTS["fedave-table2"]
    pretend(study, artefact)
    ours = artefact.make(study, artefact).tables[0]
    results = study.results(artefact.needs[0]).rows
    rows = results[(results["split"] == "union") & (results["quantity"] == "dice")].astype({"method": str})
    dice = rows.groupby(["method", "seed", "site"])["value"].mean().unstack("site")
    by_hand = [100 * np.corrcoef(dice.loc["standalone", seed], dice.loc["fedave", seed])[0, 1] for seed in (0, 1)]
    cells = ours.frame.set_index("Method")
    assert cells.loc["fedave", "POW"] == pytest.approx(np.mean(by_hand))
    assert math.isfinite(cells.loc["fedavg:last_round=own", "POW"])
    assert math.isfinite(cells.loc["fedavg:last_round=own", "POW, MNIST"])  # the paper's fedavg
    assert cells.loc["fedave", "POW, MNIST"] == 97.59
    assert "standalone" not in cells.index


def test_gains_over_training_alone_by_hand(study, pretend):
    artefact = ARTEFACTS["cycle-table1"]
    pretend(study, artefact)
    ours, *theirs = artefact.make(study, artefact).tables
    dice = site_dice_of(study.results(artefact.needs[0]))
    gains = [100 * (dice.loc[("cycle", seed)] - dice.loc[("standalone", seed)]) for seed in (0, 1)]
    row = ours.frame.set_index("Method").loc["cycle"]
    assert row["MVA [%], Homogeneous"] == pytest.approx(100 * dice.loc["cycle"].to_numpy().mean())
    assert row["MCG [points], Homogeneous"] == pytest.approx(np.mean([gain.mean() for gain in gains]))
    assert row["CGS [points], Homogeneous"] == pytest.approx(np.mean([gain.std(ddof=1) for gain in gains]))
    assert [table.name for table in theirs] == [f"table1-published-{number}" for number in (1, 2, 3)]
    by_site = ARTEFACTS["cycle-table9"]
    pretend(study, by_site)
    uni = by_site.make(study, by_site).tables[0].frame.set_index("Method")
    both = sum(gains) / 2
    assert uni.loc["cycle"].drop("Worse off than alone").to_list() == pytest.approx(both.to_list())
    lost = [site for site in both.index if both[site] < 0]
    assert uni.loc["cycle", "Worse off than alone"] == (", ".join(lost) or "nobody")


def test_the_site_with_wrong_masks_stands_apart(study, tmp_path, pretend):
    artefact = ARTEFACTS["cycle-table7"]
    pretend(study, artefact)
    (need,) = (need for need in artefact.needs if isinstance(need, WrongMasks))
    names = [f"site-{number}" for number in range(1, 6)]
    attacks = []
    for kind in ("honest", *need.kinds):
        folder = tmp_path / kind
        made_up_run(folder, "cycle", 0, names)
        attacks.append(Attack("cycle", kind, "" if kind == "honest" else "site-5", 0, folder))
    for attack in attacks:
        torch.save({"round": 99}, attack.folder / "checkpoint.pt")
    study.trainings[need] = attacks
    ours, theirs = artefact.make(study, artefact).tables
    frame = ours.frame.set_index("Masks")
    assert list(frame.index) == ["standalone", "honest", *(kind.replace(":share=", ", ") for kind in need.kinds)]
    row = frame.loc["honest"]
    assert row["Mean of the others"] == pytest.approx(row[names[:-1]].mean())
    assert row["Reputation of site-5"] == pytest.approx(0.8 + 0.03)
    assert row["Reputation of the others"] == pytest.approx(0.3 + 0.03)
    assert math.isnan(frame.loc["standalone", "Reputation of site-5"])
    assert theirs.frame.loc[4, "5"] == 10.75
    maps = ARTEFACTS["cycle-figure5"]
    (drawn,) = maps.make(study, maps).drawn
    assert len([panel for panel in drawn.figure.axes if panel.images]) == 3 * (1 + len(need.kinds))


def test_the_papers_columns_are_those_of_as_many_agents(study, pretend):
    artefact = ARTEFACTS["cgsv-table1"]
    pretend(study, artefact)
    headings = artefact.make(study, artefact).tables[0].headings
    assert [name for name in headings if "agents" in name and "MNIST" in name and "10" not in name] == [
        "UNI, MNIST, 5 agents",
        "UNI, highest, MNIST, 5 agents",
        "POW, MNIST, 5 agents",
        "POW, highest, MNIST, 5 agents",
        "CLA, MNIST, 5 agents",
        "CLA, highest, MNIST, 5 agents",
    ]
    study.into = 7
    tables = artefact.make(study, artefact).tables
    assert [table.name for table in tables] == ["table1"]  # nothing of the paper to stand beside
    assert not [name for name in tables[0].headings if "agents" in name]


def test_reputations_of_any_method_by_hand(study, pretend):
    artefact = ARTEFACTS["cgsv-table7"]
    pretend(study, artefact)
    results = study.results(artefact.needs[0])
    found = reputations(results)
    results = results.rows
    assert "standalone" not in found.index.get_level_values("method")
    psi = results[(results["method"] == "fedavg") & (results["seed"] == 1) & (results["quantity"] == "cosine_to_mean")]
    table = psi.pivot(index="round", columns="site", values="value")
    memory = np.zeros(5)
    for row in table.to_numpy():
        memory = 0.95 * memory + 0.05 * row
        memory /= memory.sum()
    assert found.loc["fedavg", 1].to_numpy(float) == pytest.approx(memory)
    own = results[(results["method"] == "cgsv") & (results["seed"] == 1) & (results["quantity"] == "reputation")]
    last = own[own["round"] == 3].set_index("site")["value"]
    assert found.loc["cgsv", 1].to_numpy(float) == pytest.approx(last[found.columns].to_numpy())


def test_without_training_alone_there_is_no_fairness(study, pretend):
    need = Compared(("fedave",), Deal("POW", "powerlaw"))
    artefact = replace(ARTEFACTS["fedave-table2"], needs=(need,))
    pretend(study, artefact)
    with pytest.raises(BadInput, match="no training alone is finished"):
        alone_and_final(study.results(need))


def test_the_overhead_is_over_training_alone(study, pretend):
    artefact = ARTEFACTS["cgsv-table3"]
    pretend(study, artefact)
    frame = artefact.make(study, artefact).tables[0].frame.set_index("Method")
    assert frame.loc["standalone", "Overhead [s]"] == frame.loc["fedavg", "Overhead [s]"] == 1  # of the server
    assert frame.loc["fedavg", "Sites [s]"] == 22.5  # they take 2.5 to 6.5
    assert frame.loc["eci", "Server [s]"] == 1.5
    assert frame.loc["eci", "Overhead [s]"] == 1.5
    assert frame.loc["eci", "Ratio to training"] == pytest.approx(1.5 / 22.5)


def test_the_order_of_theorem_2_by_hand(study, pretend):
    """Reputations and distances both rise with a site's place, so that a better one is never nearer."""
    artefact = ARTEFACTS["cgsv-theorem2"]
    pretend(study, artefact)
    frame = artefact.make(study, artefact).tables[0].frame.set_index("Method")
    rows = study.results(artefact.needs[0]).rows
    own = rows[(rows["method"] == "cgsv") & (rows["round"] == 3) & (rows["split"] == "")]
    pairs, lower = 0, 0
    for _, run in own.groupby("seed"):
        table = run.pivot(index="site", columns="quantity", values="value")
        for _, one in table.iterrows():
            for _, other in table.iterrows():
                if one["reputation"] > other["reputation"]:
                    pairs, lower = pairs + 1, lower + (one["train_loss"] <= other["train_loss"])
    assert frame.loc["cgsv", "Pairs"] == pairs > 0
    assert frame.loc["cgsv", "lower loss [%]"] == pytest.approx(100 * lower / pairs)


def test_artefacts_of_no_training_are_made(study, monkeypatch):
    descents, convergence = descent_bounds.table(repeats=1), submodel_bounds.convergence((2, 4))
    monkeypatch.setattr(descent_bounds, "table", lambda: descents)
    monkeypatch.setattr(submodel_bounds, "convergence", lambda: convergence)
    for name in ("fedce-theorem3.2", "fedce-theorem3.3", "fedsac-theorem2", "cgsv-table4"):
        ours = ARTEFACTS[name].make(study, ARTEFACTS[name]).tables[0]
        assert ours.name == ARTEFACTS[name].name
        assert len(ours.frame) >= 2
    for name, number in (("cycle-figure6", 1), ("cycle-figure7", 2)):
        drawings = ARTEFACTS[name].make(study, ARTEFACTS[name]).drawn
        assert len(drawings) == number
        for drawn in drawings:
            assert len(drawn.numbers) >= 10
            assert drawn.figure.axes


def test_methods_by_training_alone_stand_beside_the_papers(study, pretend):
    artefact = ARTEFACTS["fedsac-table6"]
    artefact = replace(artefact, needs=artefact.needs[:1])
    pretend(study, artefact)
    frame = artefact.make(study, artefact).tables[0].frame.set_index("Method")
    assert list(frame.columns) == ["POW, 20 sites", "POW, 20 sites, CIFAR-10", "POW, 20 sites, Fashion MNIST"]
    assert frame.loc["cgsv:contributions=standalone"].iloc[1:].to_list() == [46.29, 87.21]
    assert frame.loc["fedsac"].iloc[1:].to_list() == [48.60, 87.60]


def test_theorem_1_of_fedsac_is_asked_of_its_runs(study, monkeypatch, pretend):
    """Reputations and what is held both rise with a site's place; Dice does in the mean."""
    monkeypatch.setattr(submodel_bounds, "orders", lambda: pd.DataFrame({"L / mu": [1.0], "Pairs": [2]}))
    artefact = ARTEFACTS["fedsac-theorem1"]
    pretend(study, artefact)
    _, trained = artefact.make(study, artefact).tables
    (row,) = trained.frame.to_dict("records")
    assert (row["Method"], row["more neurons [%]"]) == ("fedsac", 100)
    assert 0 < row["Pairs"] <= 20
    assert row["all [%]"] <= min(row["lower loss [%]"], row["higher Dice [%]"])
    study.has_server_set = False
    made = artefact.make(study, artefact)
    assert len(made.tables) == 1
    assert "images set aside" in made.notes[0]


def test_final_losses_stand_beside_dice(study, pretend):
    artefact = ARTEFACTS["cgsv-figure8"]
    pretend(study, artefact)
    dice, test, train = artefact.make(study, artefact).drawn
    assert [one.name for one in (dice, test, train)] == ["figure8", "figure8-test-loss", "figure8-train-loss"]
    assert test.numbers["method"].to_list() == list(artefact.needs[0].labels)
    assert test.numbers["site-2"].to_list() == [0.4] * 4
    losses = study.results(artefact.needs[0]).rows
    last = losses[(losses["quantity"] == "train_loss") & (losses["round"] == 3) & (losses["site"] == "site-1")]
    means = last.astype({"method": str}).groupby("method")["value"].mean()
    assert train.numbers.set_index("method")["site-1"].to_list() == pytest.approx(
        means[train.numbers["method"]].to_list()
    )


def test_altruism_in_numbers(study, pretend):
    artefact = ARTEFACTS["cgsv-altruism"]
    pretend(study, artefact)
    frame = artefact.make(study, artefact).tables[0].frame
    assert frame["Altruism"].to_list() == ["1", "1.2", "1.5", "2"]
    assert frame["Lowest quota"].to_list() == pytest.approx([0.5] * 4)
    dice = site_dice_of(study.results(artefact.needs[0]))
    row = dice.loc["cgsv:beta=2"]
    assert frame["Dice, lowest site [%]"].iloc[3] == pytest.approx(100 * row.min(axis=1).mean())
    expected = [pearson(dice.loc["standalone", seed], row.loc[seed]) for seed in (0, 1)]
    assert frame["Pearson with training alone"].iloc[3] == pytest.approx(np.mean(expected))


def test_figure_2_is_two(study, pretend):
    artefact = ARTEFACTS["cgsv-figure2"]
    pretend(study, artefact)
    drawn = artefact.make(study, artefact).drawn
    assert [one.name for one in drawn] == ["figure2-model-distance", "figure2-train-loss"]


def test_figure_5_compares_renormalised_weights(study, tmp_path, pretend):
    artefact = ARTEFACTS["fedce-figure5"]
    pretend(study, artefact)
    fewer = []
    for left_out in SITES:
        rest = [site for site in SITES if site != left_out]
        folder = tmp_path / f"without-{left_out}"
        made_up_run(folder, "fedce", 0, rest)
        fewer.append(coalition(frozenset(rest), folder))
    study.trainings[artefact.needs[1]] = fewer
    made = artefact.make(study, artefact)
    frame = made.tables[0].frame
    assert frame.groupby("Without")[["Share with all [%]", "Share without it [%]"]].sum().to_numpy() == pytest.approx(
        np.full((4, 2), 100.0)
    )
    assert (frame["Without"] != frame["Site"]).all()
    runs = [read_results(one.folder) for one in study.trainings[artefact.needs[0]]]
    weights = [run[(run["quantity"] == "weight") & (run["round"] == 3)].set_index("site")["value"] for run in runs]
    mean = (weights[0] + weights[1]) / 2
    row = frame[(frame["Without"] == "Alder") & (frame["Site"] == "Birch")].iloc[0]
    assert row["Share with all [%]"] == pytest.approx(100 * mean["Birch"] / mean.drop("Alder").sum())


def coalition(members, folder):
    made = Made_up("fedce", 0, folder)
    object.__setattr__(made, "coalition", members)
    return made
