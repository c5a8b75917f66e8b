"""A study of a paper: what its folder is for, which settings go where, which sites are dealt."""

from dataclasses import replace

import pytest
from paper_runs import Made_up
from run_factory import SITES, make_sites, prepare_anew

from fedmerit.errors import BadInput
from fedmerit.records.results import read_run
from fedmerit_data.partitioning.scheme import Scheme
from fedmerit_lab.papers.required_trainings import Compared
from fedmerit_lab.papers.study import Partition, Study


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


def test_a_folder_is_for_one_study(sites, tmp_path):
    Study(tmp_path / "out", sites, 3, [0]).claim()
    Study(tmp_path / "out", sites, 3, [0, 1], into=4).claim()
    with pytest.raises(BadInput, match=r"holds trainings with rounds 3\. Go on with the same"):
        Study(tmp_path / "out", sites, 4, [0]).claim()
    with pytest.raises(BadInput, match="settings"):
        Study(tmp_path / "out", sites, 3, [0], settings={"width": "4"}).claim()


def test_a_folder_is_for_the_same_images_wherever_they_lie(tmp_path):
    sites = make_sites(tmp_path / "sites", SITES, size=16)
    Study(tmp_path / "out", sites, 3, [0]).claim()
    Study(tmp_path / "out", sites.rename(tmp_path / "moved"), 3, [0]).claim()
    prepare_anew(tmp_path / "moved" / "Birch")
    with pytest.raises(BadInput, match=r"moved: Birch is not what .*out was started with"):
        Study(tmp_path / "out", tmp_path / "moved", 3, [0]).require_same()
    others = make_sites(tmp_path / "others", ["Elm", "Fir"], size=16)
    with pytest.raises(BadInput, match=r"others: Alder, Birch, .*, Elm, Fir are not what"):
        Study(tmp_path / "out", others, 3, [0]).require_same()


def test_the_servers_images_are_the_same_wherever_they_lie(sites, tmp_path):
    own = make_sites(tmp_path / "own", ["Server"], size=16)
    Study(tmp_path / "out", sites, 3, [0], server_sites=own).claim()
    moved = own.rename(tmp_path / "moved")
    Study(tmp_path / "out", sites, 3, [0], server_sites=moved).claim()
    with pytest.raises(BadInput, match=r"holds trainings with server sites .*moved\."):
        Study(tmp_path / "out", sites, 3, [0]).claim()
    prepare_anew(moved / "Server")
    with pytest.raises(BadInput, match=r"moved: Server is not what .*out was started with"):
        Study(tmp_path / "out", sites, 3, [0], server_sites=moved).claim()


def test_one_site_is_no_study(tmp_path):
    with pytest.raises(BadInput, match="holds Alder alone"):
        Study(tmp_path / "out", make_sites(tmp_path / "sites", ["Alder"], size=16), 1, [0])


def test_sites_are_dealt_once_as_the_deal_says(study, monkeypatch):
    asked = []

    def partition(sites, out, scheme, label_noise):
        asked.append((sites, out, scheme, label_noise))
        out.mkdir(parents=True)

    monkeypatch.setattr("fedmerit_lab.papers.study.partition", partition)
    assert study.open_partition(None) == study.sites
    held = Partition("Imbalanced (0.8, 1)", "imbalanced", into=3, kappa=0.8, holders=1)
    noisy = Partition("noisy", "uniform", noise=(("site-2", 0.4),))
    folders = [study.open_partition(deal) for deal in (held, noisy, held)]
    dealt = study.out / "sites"
    assert folders == [dealt / "Imbalanced_0.8_1-3", dealt / "noisy-5", dealt / "Imbalanced_0.8_1-3"]
    assert asked == [
        (study.sites, folders[0], Scheme("imbalanced", 3, kappa=0.8, holders=1), {}),
        (study.sites, folders[1], Scheme("uniform", 5), {"site-2": 0.4}),
    ]


def test_results_are_read_again_where_another_training_is_finished(study, made_up):
    need = Compared(("fedavg",))
    first, second = (Made_up("fedavg", seed, made_up("fedavg", seed, SITES)) for seed in (0, 1))
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


def test_some_methods_need_images_of_the_servers_own(sites, tmp_path):
    without, with_own = (Study(tmp_path / "out", sites, 1, [0], server_sites=own) for own in (None, sites))
    for label in ("fedci", "cffl:reward=global", "fedsac:beta=2"):
        assert (without.can_train(label), with_own.can_train(label)) == (False, True)
    assert without.can_train("cgsv:beta=2")
    assert without.options(sites) == {"sites": sites, "rounds": 1, "engine": "local"}
    assert with_own.options(sites)["server_sites"] == sites
