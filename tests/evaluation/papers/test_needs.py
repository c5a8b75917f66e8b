"""What artefacts need: names and numbers of trainings, and the run folders that they plan."""

from run_factory import make_sites

from evaluation.freeriders.attacked_runs import HONEST
from evaluation.papers.needs import Compared, Riding, WithoutOne, WrongMasks
from evaluation.papers.study import Deal
from fedmerit.records.results import read_run

TINY = {"architecture": "unet", "width": "2", "depth": "2"}


def test_needs_name_their_trainings():
    names = ["A", "B", "C"]
    assert WithoutOne("fedavg").cost == "N + 1"
    assert len(WithoutOne("fedavg").keys(names)) == len(Riding("fedce").keys(names)) == 4
    assert len(WithoutOne("fedce", with_all=False).keys(names)) == 3
    assert Compared(("fedavg", "fedce"), Deal("POW", "powerlaw", into=3)).cost == "2 on POW of 3"


def test_the_same_training_has_one_name_in_every_need():
    deal = Deal("POW", "powerlaw")
    few, many = (Compared(labels, deal).keys([]) for labels in (("fedavg",), ("fedce", "fedavg")))
    assert set(few) < set(many)
    assert not set(few) & {*Compared(("fedavg",)).keys([]), *Compared(("fedavg",), Deal("POW", "uniform")).keys([])}


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
    planned = Riding("fedavg").prepare(study)
    assert [(one.kind, one.site) for one in planned] == [(HONEST, ""), *(("repeat", name) for name in study.names)]
    assert {one.seed for one in planned} == {3}


def test_the_last_of_the_dealt_sites_has_the_wrong_masks(study, tmp_path):
    study.settings, study.seeds = TINY, [0]
    dealt = make_sites(tmp_path / "UNI-2", ["site-1", "site-2"], size=16)
    study.sites_of = {Deal("UNI", "uniform", into=2): dealt}.__getitem__
    deal = Deal("UNI", "uniform", into=2)
    need = WrongMasks("fedavg", deal, ("inverted:share=0.5",))
    assert need.cost == "2 on UNI"
    assert need.keys([]) == [f"fedavg on {deal}, honest", f"fedavg on {deal}, inverted:share=0.5"]
    planned = need.prepare(study)
    assert [(one.kind, one.site) for one in planned] == [(HONEST, ""), ("inverted:share=0.5", "site-2")]
    assert read_run(planned[1].folder)["sites"] == ["site-1", "site-2"]
    assert planned[1].folder.is_relative_to(study.out / "riders" / "UNI-2")
