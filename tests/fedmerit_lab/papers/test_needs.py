"""What artefacts need: names and numbers of trainings, and the run folders that they plan."""

from dataclasses import replace

import pytest
from run_factory import make_sites

from fedmerit.records.results import read_run
from fedmerit_lab.attacks.attacked_runs import HONEST
from fedmerit_lab.papers.production import PAPERS, list_needs
from fedmerit_lab.papers.required_trainings import Compared, FreeRiding, WithoutOne, WrongMasks
from fedmerit_lab.papers.study import Partition

TINY = {"architecture": "unet", "width": "2", "depth": "2"}


def test_needs_name_their_trainings():
    names = ["A", "B", "C"]
    assert WithoutOne("fedavg").cost == "N + 1"
    assert len(WithoutOne("fedavg").keys(names, 5)) == len(FreeRiding("fedce").keys(names, 5)) == 4
    assert len(WithoutOne("fedce", with_all=False).keys(names, 5)) == 3
    assert Compared(("fedavg", "fedce"), Partition("POW", "powerlaw", into=3)).cost == "2 on POW of 3"


def test_the_same_training_has_one_name_in_every_need():
    deal = Partition("POW", "powerlaw")
    few, many = (Compared(labels, deal).keys([], 5) for labels in (("fedavg",), ("fedce", "fedavg")))
    assert set(few) < set(many)
    for other in (None, Partition("UNI", "uniform"), Partition("POW", "powerlaw", into=3)):
        assert not set(few) & set(Compared(("fedavg",), other).keys([], 5))


def test_a_deal_into_as_many_sites_as_asked_for_is_one_that_names_their_number():
    """Whatever the heading of its column: the run folders are the same, too."""
    asked, named = Partition("POW", "powerlaw"), Partition("POW", "powerlaw", into=5, title="POW, 5 sites")
    keys = [Compared(("cgsv",), deal).keys([], 5) for deal in (asked, named)]
    assert keys == [["cgsv on POW-5"]] * 2
    assert Compared(("cgsv",), asked).keys([], 3) == ["cgsv on POW-3"]
    assert WrongMasks("cgsv", asked, ("inverted",)).keys([], 5) == ["cgsv on POW-5, honest", "cgsv on POW-5, inverted"]


@pytest.mark.parametrize("paper", PAPERS)
def test_sites_of_one_name_are_dealt_in_one_way(paper):
    """They lie in one folder, and trainings on them are counted once."""
    needs = list_needs(PAPERS[paper].artefacts)
    deals = {replace(need.partition, title="") for need in needs if getattr(need, "deal", None)}
    for into in (3, 5, 10):
        dealt = {replace(deal, into=deal.into or into) for deal in deals}
        assert len({deal.folder(into) for deal in deals}) == len(dealt)


def test_without_one_plans_every_site_left_out(study):
    study.settings = TINY
    planned = WithoutOne("fedce:combine=plus", with_all=False).prepare(study)
    assert [(one.coalition, one.seed) for one in planned] == [
        (frozenset(study.names) - {left_out}, seed) for left_out in reversed(study.names) for seed in (0, 1)
    ]
    assert {one.folder.parent.parent for one in planned} == {study.out / "coalitions" / "fedce_combine-plus"}
    assert read_run(planned[0].folder)["plan"]["parameters"]["combine"] == "plus"


def test_riding_plans_every_site_in_turn_beside_honest_runs(study):
    study.settings, study.seeds = TINY, [3]
    planned = FreeRiding("fedavg").prepare(study)
    assert [(one.kind, one.site) for one in planned] == [(HONEST, ""), *(("repeat", name) for name in study.names)]
    assert {one.seed for one in planned} == {3}


def test_the_last_of_the_dealt_sites_has_the_wrong_masks(study, tmp_path):
    study.settings, study.seeds = TINY, [0]
    dealt = make_sites(tmp_path / "UNI-2", ["site-1", "site-2"], size=16)
    study.open_partition = {Partition("UNI", "uniform", into=2): dealt}.__getitem__
    deal = Partition("UNI", "uniform", into=2)
    need = WrongMasks("fedavg", deal, ("inverted:share=0.5",))
    assert need.cost == "2 on UNI"
    assert need.keys([], 5) == ["fedavg on UNI-2, honest", "fedavg on UNI-2, inverted:share=0.5"]
    planned = need.prepare(study)
    assert [(one.kind, one.site) for one in planned] == [(HONEST, ""), ("inverted:share=0.5", "site-2")]
    assert read_run(planned[1].folder)["sites"] == ["site-1", "site-2"]
    assert planned[1].folder.is_relative_to(study.out / "riders" / "UNI-2")
