"""Papers' tables and figures for other sites: the registry, the page, the command, from end to end."""

import html
import json
import re
import shutil
from dataclasses import replace

import pandas as pd
import pytest
from one_in import one_in
from run_factory import SITES, make_sites
from typer.testing import CliRunner

from fedmerit.errors import BadInput
from fedmerit.methods.registry import METHODS
from fedmerit_cli.main import app
from fedmerit_evaluation.figures.tables import Table
from fedmerit_evaluation.studies.cluster import Workers
from fedmerit_lab.papers import descent_bounds, submodel_bounds
from fedmerit_lab.papers.artefact import Artefact, Made
from fedmerit_lab.papers.fedce_artefacts import ABLATION
from fedmerit_lab.papers.production import PAPERS, chosen, find_paper, list_needs, produce, trainings_per_seed
from fedmerit_lab.papers.required_trainings import Compared, FreeRiding
from fedmerit_lab.papers.study import Study

TINY = (
    "--set",
    "architecture=unet",
    "--set",
    "width=2",
    "--set",
    "depth=2",
    "--set",
    "residual_units=0",
    "--set",
    "augment=false",
)
ARTEFACTS = {f"{name}-{one.name}": one for name, paper in PAPERS.items() for one in paper.artefacts}


def fedmerit(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def plain(text):
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())


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
        assert chosen(paper, ",".join(reversed(names))) == list(paper.artefacts)
        assert chosen(paper, None) == [artefact for artefact in paper.artefacts if not artefact.on_demand]
    assert [one.name for one in chosen(PAPERS["fedce"], "figure3, table1")] == ["table1", "figure3"]
    assert find_paper("cgsv") is PAPERS["cgsv"]


def test_shared_trainings_are_counted_once():
    fedce = PAPERS["fedce"]
    sites = ["A", "B", "C", "D"]
    count = {
        name: trainings_per_seed(chosen(fedce, name), sites, 5) for name in ("table1", "table3", "figure6", "figure5")
    }
    assert count == {"table1": 8, "table3": 13, "figure6": 4, "figure5": 5}
    assert trainings_per_seed(chosen(fedce, "table1,table2,table6,figure3,figure8-9"), sites, 5) == 8
    assert trainings_per_seed(chosen(fedce, "table1,figure6,figure4,figure7"), sites, 5) == 10 + 5
    assert trainings_per_seed(chosen(PAPERS["cgsv"], "table1,figure3,figure7"), sites, 5) == 36
    assert len(list_needs(chosen(fedce, "figure4,figure7"))) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("lenet",), "'lenet': unknown; there are fedce, cgsv, fedave, fedsac, cycle"),
        (("fedce", "--only", "table9", "--list"), "--only table9: unknown; there are table1, "),
        (("fedce", "--only", "figure1", "--list"), r"--only figure1: unknown \(Figure 1: .*not an experiment\)"),
        (("cycle", "--only", "figure9", "--list"), r"--only figure9: unknown \(Figure 9: photographs"),
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
    result = fedmerit("lab", "paper", *arguments)
    assert result.exit_code == 2, result.output
    assert re.search(words, plain(result.output))
    assert list(tmp_path.iterdir()) == []


def test_the_list_says_what_it_costs(tmp_path):
    result = fedmerit("lab", "paper", "fedce", "--list")
    assert result.exit_code == 0
    for artefact in PAPERS["fedce"].artefacts:
        assert artefact.name in result.output
        assert artefact.cost in result.output
    on_demand = plain(fedmerit("lab", "paper", "fedsac", "--list").output)
    assert "table5 *" in on_demand
    assert "*: made where --only names it" in on_demand
    counted = fedmerit("lab", "paper", "fedce", "--list", "--sites", make_sites(tmp_path / "sites"), "--only", "table3")
    assert "for 4 sites: 13 trainings of a seed" in plain(counted.output)


# Every artefact, of made-up runs


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
    made, failed = produce(paper, asked, study, Workers(1))
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
    made, _ = produce(PAPERS["fedce"], [artefact_of(small, needs=(need,))], study, Workers(1))
    assert study.trainings[need] == []
    assert "cffl:reward=global, fedci" in made[0].left_out
    assert "--server-share" in made[0].left_out
    with pytest.raises(BadInput, match="none of its trainings is finished"):
        study.results(need)


def test_a_setting_that_no_method_knows_is_refused_before_anything_is_made(sites, tmp_path):
    study = Study(tmp_path / "out", sites, 3, [0], settings={"warmup": "1"})
    artefact = artefact_of(small, needs=(Compared(("standalone", "fedavg")), FreeRiding("fedce")))
    with pytest.raises(BadInput, match="--set warmup: is no parameter of fedavg, fedce, standalone, nor of training"):
        produce(PAPERS["fedce"], [artefact], study, Workers(1))
    assert not study.out.exists()


def test_a_private_artefact_warns(study):
    produce(PAPERS["fedce"], chosen(PAPERS["fedce"], "figure2"), study, Workers(1))
    assert "must not leave the hospital" in (study.out / "page.html").read_text()
    numbers = pd.read_csv(study.out / "figures" / "figure2.csv")
    assert set(numbers["site"]) == set(SITES)


# From end to end


@pytest.mark.slow
def test_a_table_and_figures_from_end_to_end(tmp_path):
    sites = make_sites(tmp_path / "sites", SITES[:3], size=16)
    out = tmp_path / "out"
    arguments = ("paper", "fedce", "--only", "figure2,figure6", "--sites", sites, "--rounds", 1, "--seeds", "0")
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
    result = fedmerit(
        "lab", "paper", "cgsv", "--sites", sites, "--out", tmp_path / "out", "--into", 30, "--only", "figure3"
    )
    assert result.exit_code == 2
    assert "the sites need 30" in plain(result.output)
    assert not list(tmp_path.glob("out/**/*.json"))  # neither runs nor paper.json, which would hold on to this


@pytest.mark.slow
@pytest.mark.parametrize("paper", PAPERS)
def test_every_artefact_from_end_to_end(paper, tmp_path):
    from fedmerit_data.preparation import Preparation
    from fedmerit_data.prepare import prepare

    sites = tmp_path / "sites"
    for folder in prepare(Preparation("synthetic-prostate", size=32, patients=8, server_share=0.2), sites):
        if folder.name == "site6":  # five are left: as many patients for the server as the noisy sites of CGSV need
            shutil.rmtree(folder)
    asked = ("--sites", sites, "--rounds", 3, "--seeds", "0", "--into", 3, "--out", tmp_path / "out")
    early = ("--set", "warmup=1") if paper == "cycle" else ()  # within these rounds sites learn from each other
    result = fedmerit("lab", "paper", paper, *asked, *TINY, *early)
    assert result.exit_code == 0, plain(result.output)
    page = html.unescape((tmp_path / "out" / "page.html").read_text()).replace("\N{NO-BREAK SPACE}", " ")
    for artefact in PAPERS[paper].artefacts:
        assert (f"{artefact.name}: {artefact.what}" in page) != artefact.on_demand
    assert "Missing:" not in page
