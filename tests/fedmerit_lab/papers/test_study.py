"""A study of a paper: its folder, settings, partitions, and the trainings that artefacts need."""

from dataclasses import replace

import pytest
from paper_runs import SyntheticTraining
from run_factory import SITES, make_sites
from tiny import TINY

from fedmerit.errors import BadInput
from fedmerit.schema.run_info import read_run
from fedmerit_lab.attacks.attacked_runs import HONEST
from fedmerit_lab.papers.production import PAPERS, list_needs
from fedmerit_lab.papers.study import Compared, FreeRiding, Partition, Study, WithoutOne, WrongMasks
from fedmerit_lab.partitioning.scheme import Scheme

POW = Partition("POW", "powerlaw")

# The folder


def test_a_setting_goes_to_the_methods_that_have_it(sites, tmp_path):
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


def test_a_folder_belongs_to_one_study(sites, tmp_path):
    Study(tmp_path / "out", sites, 3, [0]).claim()
    Study(tmp_path / "out", sites, 3, [0, 1], into=4).claim()
    with pytest.raises(BadInput, match=r"holds trainings with rounds 3"):
        Study(tmp_path / "out", sites, 4, [0]).claim()
    with pytest.raises(BadInput, match="settings"):
        Study(tmp_path / "out", sites, 3, [0], settings={"width": "4"}).claim()
    with pytest.raises(BadInput, match="holds only Alder"):
        Study(tmp_path / "out", make_sites(tmp_path / "one", ["Alder"], size=16), 1, [0])


def test_a_partition_is_made_once(study, monkeypatch):
    asked = []

    def partition(sites, out, scheme, label_noise):
        asked.append((sites, out, scheme, label_noise))
        out.mkdir(parents=True)

    monkeypatch.setattr("fedmerit_lab.papers.study.partition", partition)
    assert study.open_partition(None) == study.sites
    one = Partition("Imbalanced (0.8, 1)", "imbalanced", into=3, kappa=0.8, holders=1)
    noisy = Partition("noisy", "uniform", noise=(("site-2", 0.4),))
    folders = [study.open_partition(new) for new in (one, noisy, one)]
    root = study.out / "sites"
    assert folders == [root / "Imbalanced_0.8_1-3", root / "noisy-5", root / "Imbalanced_0.8_1-3"]
    assert asked == [
        (study.sites, folders[0], Scheme("imbalanced", 3, kappa=0.8, holders=1), {}),
        (study.sites, folders[1], Scheme("uniform", 5), {"site-2": 0.4}),
    ]


def test_results_are_read_again_after_another_training(study, paper_run):
    need = Compared(("fedavg",))
    first, second = (SyntheticTraining("fedavg", seed, paper_run("fedavg", seed, SITES)) for seed in (0, 1))
    waiting = replace(second, finished=False)
    study.trainings[need] = [waiting]
    with pytest.raises(BadInput, match=r"none of its trainings is finished \(1 a seed\)"):
        study.results(need)
    study.trainings[need] = [first, waiting]
    assert study.left(need) == [waiting]
    results = study.results(need)
    assert set(results.rows["seed"]) == {0}
    assert study.results(need) is results
    study.trainings[need] = [first, second]
    assert set(study.results(need).rows["seed"]) == {0, 1}


def test_some_methods_need_images_of_the_server(sites, tmp_path):
    without, with_own = (Study(tmp_path / "out", sites, 1, [0], server_sites=own) for own in (None, sites))
    for label in ("fedci", "cffl:reward=global", "fedsac:beta=2"):
        assert (without.can_train(label), with_own.can_train(label)) == (False, True)
    assert without.can_train("cgsv:beta=2")
    assert without.options(sites) == {"sites": sites, "rounds": 1, "engine": "local"}
    assert with_own.options(sites)["server_sites"] == sites


def test_the_same_training_has_one_name_in_every_need():
    few, many = (Compared(labels, POW).keys([], 5) for labels in (("fedavg",), ("fedce", "fedavg")))
    assert set(few) < set(many)
    for other in (None, Partition("UNI", "uniform"), replace(POW, into=3)):
        assert not set(few) & set(Compared(("fedavg",), other).keys([], 5))
    same = replace(POW, into=5, title="POW, 5 sites")  # the heading of its column does not matter
    assert [Compared(("cgsv",), one).keys([], 5) for one in (POW, same)] == [["cgsv on POW-5"]] * 2
    assert WrongMasks(("cgsv",), POW, ("inverted",)).keys([], 5) == ["cgsv on POW-5, honest", "cgsv on POW-5, inverted"]


def test_needs_count_their_trainings():
    names = ["A", "B", "C"]
    assert WithoutOne(("fedavg",)).cost == "N + 1"
    assert len(WithoutOne(("fedavg",)).keys(names, 5)) == len(FreeRiding(("fedce",)).keys(names, 5)) == 4
    assert len(WithoutOne(("fedce",), with_all=False).keys(names, 5)) == 3
    assert Compared(("fedavg", "fedce"), replace(POW, into=3)).cost == "2 on POW of 3"


@pytest.mark.parametrize("paper", PAPERS)
def test_partitions_of_one_folder_are_the_same(paper):
    needs = list_needs(PAPERS[paper].artefacts)
    every = {replace(need.partition, title="") for need in needs if getattr(need, "partition", None)}
    assert every or paper == "fedce"
    for into in (3, 5, 10):
        different = {replace(one, into=one.into or into) for one in every}
        assert len({one.folder(into) for one in every}) == len(different)


def test_every_site_is_left_out_in_turn(study):
    study.settings = TINY
    planned = WithoutOne(("fedce:combine=plus",), with_all=False).prepare(study)
    assert [(one.coalition, one.seed) for one in planned] == [
        (frozenset(study.names) - {left_out}, seed) for left_out in reversed(study.names) for seed in (0, 1)
    ]
    assert {one.folder.parent.parent for one in planned} == {study.out / "coalitions" / "fedce_combine-plus"}
    assert read_run(planned[0].folder)["plan"]["parameters"]["combine"] == "plus"


def test_every_site_is_the_free_rider_in_turn_and_the_last_has_wrong_masks(study, tmp_path):
    study.settings, study.seeds = TINY, [3]
    planned = FreeRiding(("fedavg",)).prepare(study)
    assert [(one.kind, one.site) for one in planned] == [(HONEST, ""), *(("repeat", name) for name in study.names)]
    assert {one.seed for one in planned} == {3}
    two = Partition("UNI", "uniform", into=2)
    sites = make_sites(tmp_path / "UNI-2", ["site-1", "site-2"], size=16)
    study.open_partition = {two: sites}.__getitem__
    need = WrongMasks(("fedavg",), two, ("inverted:share=0.5",))
    assert need.cost == "2 on UNI"
    planned = need.prepare(study)
    assert [(one.kind, one.site) for one in planned] == [(HONEST, ""), ("inverted:share=0.5", "site-2")]
    assert read_run(planned[1].folder)["sites"] == ["site-1", "site-2"]
    assert planned[1].folder.is_relative_to(study.out / "attacks" / "UNI-2")
