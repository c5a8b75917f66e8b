"""Papers' tables and figures for other sites: the registry, the printed numbers, artefacts of made-up and tiny runs."""

import json
import math
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from run_factory import SITES, add_rows, make_run, make_sites
from typer.testing import CliRunner

from cli.main import app
from evaluation.fairness.fairness import euclidean, pearson
from evaluation.formats import Table
from evaluation.freeriders.freeriders import Attack
from evaluation.papers import paper_numbers
from evaluation.papers.paper_artefacts import Artefact, Made, beside
from evaluation.papers.paper_dealt import alone_and_final, reputations, site_dice_of
from evaluation.papers.paper_fedce import ABLATION
from evaluation.papers.paper_numbers import Published
from evaluation.papers.paper_runs import Compared, Deal, Riding, Study, WithoutOne, WrongMasks
from evaluation.papers.papers import PAPERS, chosen, needs_of, paper_of, produce, trainings_per_seed
from fedmerit.errors import BadInput
from fedmerit.methods.registry import METHODS
from fedmerit.records.results import Row, read_results, read_run

TINY = ("--set", "width=2", "--set", "depth=2", "--set", "residual_units=0", "--set", "augment=false")
PUBLISHED = {name: value for name, value in vars(paper_numbers).items() if isinstance(value, Published)}
ARTEFACTS = {f"{name}-{one.name}": one for name, paper in PAPERS.items() for one in paper.artefacts}


def fedmerit(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def plain(text):
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())


# The printed numbers


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_printed_table_is_a_whole_table_of_numbers(name):
    published = PUBLISHED[name]
    lines = [line.split() for line in published.rows.strip().splitlines()]
    columns = [column for names in published.groups.values() for column in names.split()]
    assert {len(line) for line in lines} == {1 + len(columns)}
    table = published.table(name)
    assert table.headings[0] == published.first
    assert table.shape[0] == len(lines) == table.frame[published.first].nunique()
    assert all(table.is_number(place) for place in range(1, table.shape[1]))
    assert len(set(table.headings)) == table.shape[1]
    assert table.frame.iloc[:, 1:].notna().any().all()
    if published.first == "Method":
        assert {line[0].split(":")[0] for line in lines} <= set(METHODS)


@pytest.mark.parametrize("published", [paper_numbers.FEDCE_6_FUNDUS, paper_numbers.FEDCE_6_PROSTATE])
def test_means_and_deviations_of_the_paper_follow_from_its_clients(published):
    frame = published.table("table").frame
    clients = frame.filter(regex=r"^\d").to_numpy(float)
    group = next(iter(published.groups))
    assert np.abs(clients.mean(axis=1) - frame[f"Avg., {group}"]).max() < 0.011
    assert np.abs(clients.std(axis=1, ddof=1) - frame[f"Std., {group}"]).max() < 0.011


def test_what_the_remark_on_table_2_says_of_the_paper():
    frame = paper_numbers.FEDCE_6_PROSTATE.of("prostate MRI").frame.set_index("Method").filter(regex=r"^\d")
    alone, fedce = (frame.loc[name].to_numpy(float) for name in ("standalone", "fedce"))
    assert float(pearson(alone, fedce)) == pytest.approx(86.0, abs=0.05)
    assert float(euclidean(alone, fedce)) == pytest.approx(2.95, abs=0.005)


def test_drops_and_shares_of_the_papers_leave_one_out():
    for published, columns in (
        (paper_numbers.FEDCE_4, ["Drop, disc [points]", "Drop, cup [points]"]),
        (paper_numbers.FEDCE_5, ["Drop [points]"]),
    ):
        frame = published.of("").frame.set_index("Client")
        for drop in columns:
            without = frame[drop.replace("Drop", "Dice without it").replace("points", "%")]
            away = without["nobody out"] - without.drop("nobody out") - frame[drop].drop("nobody out")
            assert away.abs().max() < 0.0101
        images = frame["Training images"].drop("nobody out")
        said = frame["Sample contribution [%]"].drop("nobody out")
        assert (100 * images / images.sum() - said).abs().max() < 0.02


def test_a_cell_is_a_number_a_deviation_or_a_mean_with_the_highest():
    published = Published("Table 0", "x", {"one": "A B", "two": "A"}, "fedavg 1.5±0.2 -  91(92)\ncgsv -2e-1 3 4")
    table = published.table("t")
    assert table.headings == ["Method", "A, one", "B, one", "A, two", "A, two, highest"]
    expected = [[1.5, math.nan, 91, 92], [-0.2, 3, 4, math.nan]]
    assert table.frame.iloc[:, 1:].to_numpy(float) == pytest.approx(np.array(expected), nan_ok=True)
    assert table.spread.iloc[0, 1:].to_list() == pytest.approx([0.2, *[math.nan] * 3], nan_ok=True)
    assert published.table("t", ["two"]).headings == ["Method", "A, two", "A, two, highest"]
    with pytest.raises(ValueError, match="no number"):
        Published("Table 0", "x", {"one": "A"}, "fedavg nine").table("t")


def test_beside_joins_by_method_and_heading():
    ours = Table("t", "ours", pd.DataFrame({"Method": ["cgsv", "fedce"], "A": [1.0, 2.0], "C": [0.0, 0.0]}))
    published = Published("Table 0", "x", {"one": "A B"}, "fedavg 7 8\ncgsv 5±1 6")
    table = beside(ours, published)
    assert table.headings == ["Method", "A", "C", "A, one"]
    assert table.frame["A, one"].to_list() == pytest.approx([5, math.nan], nan_ok=True)
    assert [table.cell(0, place) for place in range(4)] == ["cgsv", "1.000", "0.000", "5.000 ± 1.000"]
    assert ours.headings == ["Method", "A", "C"]


# The registry


@pytest.mark.parametrize("artefact", ARTEFACTS.values(), ids=ARTEFACTS)
def test_every_artefact_can_be_asked_for(artefact):
    assert callable(artefact.make)
    assert artefact.what
    assert artefact.what[0].isupper()
    assert artefact.remark.endswith(".")
    for need in artefact.needs:
        for label in getattr(need, "labels", ()) or [need.label]:
            assert label.split(":")[0] in METHODS
    assert (artefact.cost == "0") == (not artefact.needs)


def test_names_are_unique_and_only_keeps_the_papers_order():
    for paper in PAPERS.values():
        names = [artefact.name for artefact in paper.artefacts]
        assert len(set(names)) == len(names)
        assert chosen(paper, ",".join(reversed(names))) == chosen(paper, None) == list(paper.artefacts)
    assert [one.name for one in chosen(PAPERS["fedce"], "figure3, table1")] == ["table1", "figure3"]


def test_shared_trainings_are_counted_once():
    fedce = PAPERS["fedce"]
    sites = ["A", "B", "C", "D"]
    count = {
        name: trainings_per_seed(chosen(fedce, name), sites) for name in ("table1", "table3", "figure6", "figure5")
    }
    assert count == {"table1": 8, "table3": 13, "figure6": 4, "figure5": 5}
    assert trainings_per_seed(chosen(fedce, "table1,table2,table6,figure3,figure8-9"), sites) == 8
    assert trainings_per_seed(chosen(fedce, "table1,figure6,figure4,figure7"), sites) == 10 + 5
    assert trainings_per_seed(chosen(PAPERS["cgsv"], "table1,figure3,figure7"), sites) == 24
    assert len(needs_of(chosen(fedce, "figure4,figure7"))) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("lenet",), "'lenet': unknown; there are fedce, cgsv, fedave, fedsac, cycle"),
        (("fedce", "--only", "table9", "--list"), "--only table9: unknown; there are table1, "),
        (("fedce", "--only", "figure1", "--list"), r"--only figure1: unknown \(Figure 1: .*not an experiment\)"),
        (("cgsv", "--only", "table5", "--list"), "table1 and table2 with --into 5"),
        (("fedce", "--out", "x"), "--sites: missing"),
        (("fedce", "--sites", "x"), "--out: missing"),
        (("fedce", "--sites", "x", "--out", "y", "--rounds", 0), "--rounds 0: expected 1 or more"),
        (("fedce", "--sites", "x", "--out", "y", "--into", 0), "--into 0: expected 1 or more"),
        (("fedce", "--sites", "x", "--out", "y", "--jobs", 0), "--jobs 0: expected 1 or more"),
        (("fedce", "--sites", "x", "--out", "y", "--seeds", "a"), "--seeds a: expected whole numbers"),
    ],
)
def test_bad_input_is_told(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = fedmerit("paper", *arguments)
    assert result.exit_code == 2, result.output
    assert re.search(words, plain(result.output))
    assert list(tmp_path.iterdir()) == []


def test_the_list_says_what_it_costs(tmp_path):
    result = fedmerit("paper", "fedce", "--list")
    assert result.exit_code == 0
    for artefact in PAPERS["fedce"].artefacts:
        assert artefact.name in result.output
        assert artefact.cost in result.output
    counted = fedmerit("paper", "fedce", "--list", "--sites", make_sites(tmp_path / "sites"), "--only", "table3")
    assert "for 4 sites: 13 trainings of a seed" in plain(counted.output)


# Artefacts of made-up runs


@dataclass(frozen=True)
class Made_up:
    """A finished training that nobody trained."""

    label: str
    seed: int
    folder: Path
    finished: bool = True


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    return make_sites(tmp_path_factory.mktemp("papers") / "sites", size=16)


def made_up_run(folder, label, seed, names=SITES):
    """Every row that a paper's artefact reads, beside those of `make_run`."""
    method, _, setting = label.partition(":")
    parameters = dict([setting.split("=")]) if setting else {}
    make_run(folder, method=method, seed=seed, sites=names, rounds=4, parameters=parameters)
    random = np.random.default_rng([seed, *label.encode()])
    head = (folder.name, method, seed)
    rows = []
    for place, site in enumerate(names):
        for number in range(4):
            rows.append(Row(*head, number, site, "cosine_to_mean", float(random.uniform(0.1, 1))))
            rows.append(Row(*head, number, site, "quota", 0.5 + 0.1 * place))
            rows.append(Row(*head, number, site, "server_seconds", 1.0 + 0.5 * (method == "eci")))
            rows += [Row(*head, number, site, f"{what}_distance", 0.1 * place) for what in ("model", "reward")]
        if method == "cycle":
            held = [(number, holder) for number in range(1, 4) for holder in names if holder != site]
            rows += [
                Row(*head, number, site, "peer_reputation", 0.2 * place + 0.01 * number, coalition=holder)
                for number, holder in held
            ]
        alike = METHODS[method].about.download == "global model"
        level = 0.7 if alike else 0.5 + 0.05 * place + random.uniform(0, 0.02)
        for tester in names:
            for case in range(2):
                rows.append(Row(*head, 3, site, "dice", level, "union", f"{tester}/{case:03d}", "prostate"))
    add_rows(folder, rows)


@pytest.fixture
def study(sites, tmp_path):
    """A study whose comparisons are made up."""
    study = Study(tmp_path / "out", sites, 4, [0, 1], into=5)
    study.has_server_set = True
    return study


def pretend(study, artefact):
    """Give every comparison that the artefact needs its runs."""
    for need in artefact.needs:
        if isinstance(need, Compared):
            names = SITES if need.deal is None else [f"site-{number}" for number in range(1, 6)]
            trainings = []
            for label in need.labels:
                for seed in study.seeds:
                    folder = study.out / f"{need.deal.name if need.deal else 'given'}" / f"{label}-{seed}"
                    if not folder.exists():
                        made_up_run(folder, label, seed, names)
                    trainings.append(Made_up(label, seed, folder))
            study.trainings[need] = trainings


OF_COMPARISONS = [
    name
    for name, one in ARTEFACTS.items()
    if one.needs and all(isinstance(need, Compared) for need in one.needs) and not one.private
]


@pytest.mark.parametrize("name", OF_COMPARISONS)
def test_an_artefact_of_comparisons_is_made(name, study):
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
    if artefact.name.startswith("table"):
        ours = made.tables[0]
        shown = list(dict.fromkeys(ours.frame["Method"]))
        assert shown == [label for label in artefact.needs[0].labels if label in shown]
        assert len(shown) >= len(artefact.needs[0].labels) - 1
        assert [table.name for table in made.tables[1:]] or artefact.published


def test_table_1_stands_beside_the_papers_means(study):
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


def test_correlations_over_dealt_sites_by_hand(study):
    artefact = ARTEFACTS["fedave-table2"]
    pretend(study, artefact)
    ours = artefact.make(study, artefact).tables[0]
    results = study.results(artefact.needs[0])
    rows = results[(results["split"] == "union") & (results["quantity"] == "dice")].astype({"method": str})
    dice = rows.groupby(["method", "seed", "site"])["value"].mean().unstack("site")
    by_hand = [100 * np.corrcoef(dice.loc["standalone", seed], dice.loc["fedave", seed])[0, 1] for seed in (0, 1)]
    cells = ours.frame.set_index("Method")
    assert cells.loc["fedave", "POW"] == pytest.approx(np.mean(by_hand))
    assert math.isnan(cells.loc["fedavg", "POW"])  # one model for all: no correlation
    assert cells.loc["fedave", "POW, MNIST"] == 97.59
    assert "standalone" not in cells.index


def test_gains_over_training_alone_by_hand(study):
    artefact = ARTEFACTS["cycle-table1"]
    pretend(study, artefact)
    ours, *theirs = artefact.make(study, artefact).tables
    dice = site_dice_of(study.results(artefact.needs[0]))
    gains = [100 * (dice.loc[("cycle", seed)] - dice.loc[("standalone", seed)]) for seed in (0, 1)]
    row = ours.frame.set_index("Method").loc["cycle"]
    assert row["MVA [%], UNI"] == pytest.approx(100 * dice.loc["cycle"].to_numpy().mean())
    assert row["MCG [points], UNI"] == pytest.approx(np.mean([gain.mean() for gain in gains]))
    assert row["CGS [points], UNI"] == pytest.approx(np.mean([gain.std(ddof=1) for gain in gains]))
    assert [table.name for table in theirs] == ["table1-published-1", "table1-published-2"]
    by_site = ARTEFACTS["cycle-table9"]
    pretend(study, by_site)
    uni = by_site.make(study, by_site).tables[0].frame.set_index("Method")
    both = sum(gains) / 2
    assert uni.loc["cycle"].drop("Worse off than alone").to_list() == pytest.approx(both.to_list())
    lost = [site for site in both.index if both[site] < 0]
    assert uni.loc["cycle", "Worse off than alone"] == (", ".join(lost) or "nobody")


def test_the_site_with_wrong_masks_stands_apart(study, tmp_path):
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


def test_the_papers_columns_are_those_of_as_many_agents(study):
    artefact = ARTEFACTS["cgsv-table1"]
    pretend(study, artefact)
    headings = artefact.make(study, artefact).tables[0].headings
    assert [name for name in headings if "agents" in name and "MNIST" in name and "10" not in name] == [
        "UNI, MNIST, 5 agents",
        "UNI, highest, MNIST, 5 agents",
        "POW, MNIST, 5 agents",
        "POW, highest, MNIST, 5 agents",
    ]
    study.into = 7
    tables = artefact.make(study, artefact).tables
    assert [table.name for table in tables] == ["table1"]  # nothing of the paper to stand beside
    assert not [name for name in tables[0].headings if "agents" in name]


def test_reputations_of_any_method_by_hand(study):
    artefact = ARTEFACTS["cgsv-table7"]
    pretend(study, artefact)
    results = study.results(artefact.needs[0])
    found = reputations(results)
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


def test_without_training_alone_there_is_no_fairness(study):
    need = Compared(("fedave",), Deal("POW", "powerlaw"))
    artefact = replace(ARTEFACTS["fedave-table2"], needs=(need,))
    pretend(study, artefact)
    with pytest.raises(BadInput, match="no training alone is finished"):
        alone_and_final(study.results(need))


def test_the_overhead_is_over_fedavg(study):
    artefact = ARTEFACTS["cgsv-table3"]
    pretend(study, artefact)
    frame = artefact.make(study, artefact).tables[0].frame.set_index("Method")
    assert frame.loc["fedavg", "Over fedavg [s]"] == 0
    assert frame.loc["fedavg", "Sites [s]"] == 22.5  # they take 2.5 to 6.5
    assert frame.loc["eci", "Server [s]"] == 1.5
    assert frame.loc["eci", "Over fedavg [s]"] == 0.5
    assert frame.loc["eci", "Ratio to fedavg"] == pytest.approx(0.5 / 23.5)


def test_altruism_in_numbers(study):
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


def test_figure_2_is_two(study):
    artefact = ARTEFACTS["cgsv-figure2"]
    pretend(study, artefact)
    drawn = artefact.make(study, artefact).drawn
    assert [one.name for one in drawn] == ["figure2-model-distance", "figure2-train-loss"]


def test_figure_5_compares_renormalised_weights(study, tmp_path):
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
    runs = [read_results(study.out / "given" / f"fedce-{seed}") for seed in study.seeds]
    weights = [run[(run["quantity"] == "weight") & (run["round"] == 3)].set_index("site")["value"] for run in runs]
    mean = (weights[0] + weights[1]) / 2
    row = frame[(frame["Without"] == "Alder") & (frame["Site"] == "Birch")].iloc[0]
    assert row["Share with all [%]"] == pytest.approx(100 * mean["Birch"] / mean.drop("Alder").sum())


def coalition(members, folder):
    made = Made_up("fedce", 0, folder)
    object.__setattr__(made, "coalition", members)
    return made


# The page, the files, and what cannot be made


def artefact_of(make, name="table0", needs=(), **changes):
    return Artefact(name, "A <table>", make, needs, **changes)


def small(study, artefact):
    return Made(
        [Table("table0", "Numbers & more", pd.DataFrame({"Method": ["a"], "Dice [%]": [81.2]}))], notes=["Look."]
    )


def lacking(study, artefact):
    raise BadInput("nothing is there")


def test_a_page_says_what_is_made_and_what_is_missing(study):
    paper = replace(PAPERS["fedce"], artefacts=())
    asked = [artefact_of(small), artefact_of(lacking, "figure0")]
    made, failed = produce(paper, asked, study)
    assert failed == {}
    assert [one.missing for one in made] == ["", "nothing is there"]
    page = (study.out / "page.html").read_text()
    for words in ("A &lt;table&gt;", "Numbers &amp; more", "81.2", "Look.", "nothing is there", "Figure 1", "Alder"):
        assert words in page
    assert "patients' images" not in page
    assert "://" not in page  # it fetches nothing
    assert (study.out / "tables" / "table0.csv").read_text() == "Method,Dice [%]\na,81.2\n"
    assert r"\caption{Numbers \& more}" in (study.out / "tables" / "table0.tex").read_text()


def test_methods_without_a_server_set_are_left_out_and_named(sites, tmp_path):
    study = Study(tmp_path / "out", sites, 1, [0])
    need = Compared(("cffl:reward=global", "fedci"))
    made, _ = produce(PAPERS["fedce"], [artefact_of(small, needs=(need,))], study)
    assert study.trainings[need] == []
    assert "cffl:reward=global, fedci" in made[0].left_out
    assert "--server-share" in made[0].left_out
    with pytest.raises(BadInput, match="none of its trainings is finished"):
        study.results(need)


def test_a_setting_goes_to_the_methods_that_know_it(sites, tmp_path):
    study = Study(tmp_path / "out", sites, 3, [0], settings={"warmup": "1", "R": "2", "depth": "3"})
    need = Compared(("standalone", "cycle", "cycle:R=1"))
    study.prepare(need)
    configs = {run.label: read_run(run.folder) for run in study.trainings[need]}
    assert {label: info["settings"] for label, info in configs.items()} == {
        "standalone": {"depth": "3"},
        "cycle": {"warmup": "1", "R": "2", "depth": "3"},
        "cycle:R=1": {"warmup": "1", "R": "1", "depth": "3"},
    }
    assert configs["cycle"]["plan"]["parameters"]["warmup"] == 1


def test_a_setting_that_no_method_knows_is_refused_before_anything_is_made(sites, tmp_path):
    study = Study(tmp_path / "out", sites, 3, [0], settings={"warmup": "1"})
    artefact = artefact_of(small, needs=(Compared(("standalone", "fedavg")), Riding("fedce")))
    with pytest.raises(BadInput, match="--set warmup: is no parameter of fedavg, fedce, standalone, nor of training"):
        produce(PAPERS["fedce"], [artefact], study)
    assert not study.out.exists()


def test_a_folder_is_for_one_study(sites, tmp_path):
    Study(tmp_path / "out", sites, 3, [0]).claim()
    Study(tmp_path / "out", sites, 3, [0, 1], into=4).claim()
    with pytest.raises(BadInput, match=r"holds trainings with rounds 3\. Go on with the same"):
        Study(tmp_path / "out", sites, 4, [0]).claim()
    with pytest.raises(BadInput, match="settings"):
        Study(tmp_path / "out", sites, 3, [0], settings={"width": "4"}).claim()


def test_one_site_is_no_study(tmp_path):
    with pytest.raises(BadInput, match="holds Alder alone"):
        Study(tmp_path / "out", make_sites(tmp_path / "sites", ["Alder"], size=16), 1, [0])


def test_figure_1_of_cgsv_is_computed_once(study, monkeypatch):
    artefact = ARTEFACTS["cgsv-figure1"]
    cells = [(4, 1024), (6, 1024), (6, 64)]
    monkeypatch.setattr("evaluation.papers.paper_cgsv.approximation.grid", lambda largest: cells)
    made, _ = produce(PAPERS["cgsv"], [artefact], study)
    assert not made[0].missing
    first = (study.out / "figures" / "figure1.csv").read_text()
    again, _ = produce(PAPERS["cgsv"], [artefact], study)
    assert not again[0].missing
    assert (study.out / "figures" / "figure1.csv").read_text() == first  # its times are those of the first


def test_a_private_artefact_warns(study):
    produce(PAPERS["fedce"], chosen(PAPERS["fedce"], "figure2"), study)
    assert "must not leave the hospital" in (study.out / "page.html").read_text()
    numbers = pd.read_csv(study.out / "figures" / "figure2.csv")
    assert set(numbers["site"]) == set(SITES)


# From end to end


def test_a_table_and_figures_from_end_to_end(tmp_path):
    sites = make_sites(tmp_path / "sites", SITES[:3], size=16)
    out = tmp_path / "out"
    arguments = ("paper", "fedce", "--only", "figure2,figure6", "--sites", sites, "--rounds", 2, "--seeds", "0")
    result = fedmerit(*arguments, "--out", out, "--jobs", 1, *TINY)
    assert result.exit_code == 0, result.output
    assert "page.html" in result.output
    table = pd.read_csv(out / "tables" / "figure6.csv")
    assert table["Method"].to_list() == list(ABLATION.labels)
    assert table[[*SITES[:3], "Avg."]].notna().all(axis=None)
    for name in ("figure2", "figure6"):
        assert (out / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert len(pd.read_csv(out / "figures" / f"{name}.csv"))
    runs = sorted((out / "runs" / "as-they-are").glob("*/run.json"))
    assert len(runs) == 4
    combines = {json.loads(file.read_text())["parameters"]["combine"] for file in runs}
    assert combines == {"cosine", "error", "times", "plus"}
    times = {file: file.stat().st_mtime_ns for file in out.rglob("results.csv")}
    assert fedmerit(*arguments, "--out", out, "--jobs", 1, *TINY).exit_code == 0
    assert {file: file.stat().st_mtime_ns for file in out.rglob("results.csv")} == times  # nothing is trained again


def test_too_few_patients_are_told_before_anything_is_trained(sites, tmp_path):
    result = fedmerit("paper", "cgsv", "--sites", sites, "--out", tmp_path / "out", "--into", 30, "--only", "figure3")
    assert result.exit_code == 2
    assert "the sites need 30" in plain(result.output)
    assert not list(tmp_path.glob("out/**/*.json"))  # neither runs nor paper.json, which would hold on to this


@pytest.mark.slow
@pytest.mark.parametrize("paper", PAPERS)
def test_every_artefact_from_end_to_end(paper, tmp_path):
    from data_prep.preparation import Preparation
    from data_prep.prepare import prepare

    sites = tmp_path / "sites"
    for folder in prepare(Preparation("synthetic-prostate", size=32, patients=8, server_share=0.2), sites):
        if folder.name == "site6":  # five are left: as many patients for the server as the noisy sites of CGSV need
            shutil.rmtree(folder)
    asked = ("--sites", sites, "--rounds", 3, "--seeds", "0", "--into", 3, "--out", tmp_path / "out")
    result = fedmerit("paper", paper, *asked, *TINY)
    assert result.exit_code == 0, plain(result.output)
    page = (tmp_path / "out" / "page.html").read_text()
    for artefact in PAPERS[paper].artefacts:
        assert f"{artefact.name}: {artefact.what}".replace("'", "&#39;") in page
    assert "Missing:" not in page


def test_needs_name_their_trainings():
    names = ["A", "B", "C"]
    assert WithoutOne("fedavg").cost == "N + 1"
    assert len(WithoutOne("fedavg").keys(names)) == len(Riding("fedce").keys(names)) == 4
    assert len(WithoutOne("fedce", with_all=False).keys(names)) == 3
    assert Compared(("fedavg", "fedce"), Deal("POW", "powerlaw", into=3)).cost == "2 on POW of 3"
    assert paper_of("cgsv") is PAPERS["cgsv"]
