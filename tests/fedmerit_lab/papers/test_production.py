"""Papers' tables and figures with other sites: the registry, the page, the command, from end to end."""

import html
import re
import shutil
from dataclasses import replace

import pandas as pd
import pytest
from one_in import one_in
from run_factory import SITES
from typer.testing import CliRunner

from fedmerit.errors import BadInput
from fedmerit.methods.registry import METHODS
from fedmerit_cli.main import app
from fedmerit_data.preparation import Preparation
from fedmerit_data.prepare import prepare
from fedmerit_evaluation.figures.tables import Table
from fedmerit_evaluation.studies.execution import Workers
from fedmerit_lab.papers.artefact import Artefact, Made
from fedmerit_lab.papers.production import PAPERS, chosen, find_paper, list_needs, produce, trainings_per_seed
from fedmerit_lab.papers.study import Compared, FreeRiding, Study

TINY = ("architecture=unet", "width=2", "depth=2", "residual_units=0", "augmentation=none")
ARTEFACTS = {f"{name}-{one.name}": one for name, paper in PAPERS.items() for one in paper.artefacts}


def fedmerit(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def settings(*values):
    return [argument for value in values for argument in ("--set", value)]


def plain(text):
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())


@pytest.mark.parametrize("artefact", ARTEFACTS.values(), ids=ARTEFACTS)
def test_every_artefact_is_complete(artefact):
    assert callable(artefact.make)
    assert artefact.what[0].isupper()
    assert artefact.remark == "" or artefact.remark.endswith(".")
    for need in artefact.needs:
        for label in need.labels:
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
    with pytest.raises(BadInput, match="'lenet': unknown; expected one of fedce, cgsv, fedave, fedsac, cycle"):
        find_paper("lenet")


def test_shared_trainings_are_counted_once():
    fedce, sites = PAPERS["fedce"], ["A", "B", "C", "D"]
    for name, number in (("table1", 8), ("table3", 13), ("figure6", 4), ("figure5", 5), ("table1,table2,figure3", 8)):
        assert trainings_per_seed(chosen(fedce, name), sites, 5) == number
    assert trainings_per_seed(chosen(fedce, "table1,figure6,figure4,figure7"), sites, 5) == 10 + 5
    assert trainings_per_seed(chosen(PAPERS["cgsv"], "table1,figure3,figure7"), sites, 5) == 36
    assert len(list_needs(chosen(fedce, "figure4,figure7"))) == 1


# Every artefact of comparisons, of synthetic runs


OF_COMPARISONS = [
    name
    for name, one in ARTEFACTS.items()
    if one.needs and all(isinstance(need, Compared) for need in one.needs) and not one.private
]


@pytest.mark.parametrize("name", one_in(12, OF_COMPARISONS))
def test_an_artefact_of_comparisons_is_made(name, make):
    artefact = ARTEFACTS[name]
    made = make(artefact)
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
        shown = list(dict.fromkeys(made.tables[0].frame["Method"]))
        assert shown == [label for label in artefact.needs[0].labels if label in shown]
        assert len(shown) >= len(artefact.needs[0].labels) - 1


def artefact_of(make, name="table0", needs=()):
    return Artefact(name, "A <table>", make, needs)


def small(study, artefact):
    frame = pd.DataFrame({"Method": ["a"], "Dice [%]": [81.2]})
    return Made([Table("table0", "Numbers & more", frame)], notes=["Look."])


def lacking(study, artefact):
    raise BadInput("no data")


def test_the_page_has_artefacts_and_failures(study):
    paper = replace(PAPERS["fedce"], artefacts=(), remark="As there.")
    made, failed = produce(paper, [artefact_of(small), artefact_of(lacking, "figure0")], study, Workers(1))
    assert failed == {}
    assert [one.missing for one in made] == ["", "no data"]
    page = (study.out / "page.html").read_text()
    for words in (
        "A &lt;table&gt;",
        "Numbers &amp; more",
        "81.2",
        "Look.",
        "no data",
        "Figure 1",
        "Alder",
        "As there.",
    ):
        assert words in page
    assert "patients' images" not in page
    assert "://" not in page  # it loads nothing
    assert (study.out / "tables" / "table0.csv").read_text() == "Method,Dice [%]\na,81.2\n"
    assert r"\caption{Numbers \& more}" in (study.out / "tables" / "table0.tex").read_text()


def test_methods_without_a_server_set_are_left_out_with_a_note(sites, tmp_path):
    study = Study(tmp_path / "out", sites, 1, [0])
    need = Compared(("cffl:reward=global", "fedci"))
    made, _ = produce(PAPERS["fedce"], [artefact_of(small, needs=(need,))], study, Workers(1))
    assert study.trainings[need] == []
    assert "cffl:reward=global, fedci" in made[0].left_out
    assert "--server-share" in made[0].left_out


def test_bad_options_are_refused_before_anything_is_made(sites, tmp_path):
    study = Study(tmp_path / "out", sites, 3, [0], settings={"warmup": "1"})
    artefact = artefact_of(small, needs=(Compared(("standalone", "fedavg")), FreeRiding(("fedce",))))
    with pytest.raises(BadInput, match="--set warmup: not a parameter of fedavg, fedce, standalone, nor of training"):
        produce(PAPERS["fedce"], [artefact], study, Workers(1))
    many = ("--into", 30, "--only", "figure3")
    result = fedmerit("lab", "paper", "cgsv", "--sites", sites, "--out", tmp_path / "out", *many)
    assert result.exit_code == 2
    assert "the sites need 30" in plain(result.output)
    assert not list(tmp_path.glob("out/**/*.json"))


def test_a_private_artefact_has_a_warning(study):
    produce(PAPERS["fedce"], chosen(PAPERS["fedce"], "figure2"), study, Workers(1))
    assert "must not leave the hospital" in (study.out / "page.html").read_text()
    assert set(pd.read_csv(study.out / "figures" / "figure2.csv")["site"]) == set(SITES)


@pytest.mark.slow
@pytest.mark.parametrize("paper", PAPERS)
def test_every_artefact_from_end_to_end(paper, tmp_path):
    sites = tmp_path / "sites"
    for folder in prepare(Preparation("synthetic-prostate", size=32, patients=8, server_share=0.2), sites):
        if folder.name == "site6":  # the noisy sites of CGSV need five with patients for the server
            shutil.rmtree(folder)
    options = ("--sites", sites, "--rounds", 3, "--seeds", "0", "--into", 3, "--out", tmp_path / "out")
    early = ("warmup=1",) if paper == "cycle" else ()  # sites learn from each other within these rounds
    result = fedmerit("lab", "paper", paper, *options, *settings(*TINY, *early))
    assert result.exit_code == 0, plain(result.output)
    page = html.unescape((tmp_path / "out" / "page.html").read_text()).replace("\N{NO-BREAK SPACE}", " ")
    for artefact in PAPERS[paper].artefacts:
        assert (f"{artefact.name}: {artefact.what}" in page) != artefact.on_demand
    assert "Missing:" not in page
