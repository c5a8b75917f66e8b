"""Folds for cross-validation: patients tested once, images stored once, and what `check` finds of spoiled ones."""

import shutil
from collections import Counter

import numpy as np
import pytest
from layouts import box, prepare, save_nifti, snapshot, volume
from site_folders import edit

from fedmerit.errors import BadInput
from fedmerit.schema.scores import SPLITS
from fedmerit.schema.site_folder import SiteFolder, open_sites
from fedmerit_data.check import check
from fedmerit_data.preparation import Preparation
from fedmerit_lab.partitioning.partition import partition
from fedmerit_lab.partitioning.scheme import Scheme

SMALL = {"size": 24, "field_of_view": 24}


@pytest.fixture(scope="module")
def folded(tmp_path_factory):
    """Sites HK and UCL of three folds, patients of seven sizes, trained only on slices with the organ."""
    root = tmp_path_factory.mktemp("folds")
    for seed, site in enumerate(("HK", "UCL")):
        for case in range(7):
            mask = box()
            mask[8 : 8 + case // 2, 9:17, 1:3] = 0
            save_nifti(root / "raw" / site / f"Case{case:02d}.nii.gz", volume([seed, case]))
            save_nifti(root / "raw" / site / f"Case{case:02d}_segmentation.nii.gz", mask)
    prepare("prostate-multisite", root / "sites", source=root / "raw", folds=3, slices="organ", **SMALL)
    return root / "sites"


def test_every_patient_is_tested_once_of_images_that_are_stored_once(folded):
    assert check(folded) == []
    for site in open_sites(folded):
        assert len(list((site.path / "cases").iterdir())) == 14
        tested = Counter(case.patient for fold in range(3) for case in site.in_fold(fold).cases("testing"))
        assert len(tested) == 7
        assert set(tested.values()) == {1}
        for fold in range(3):
            of_fold = site.in_fold(fold)
            patients = {split: {case.patient for case in of_fold.cases(split)} for split in SPLITS}
            assert sum(map(len, patients.values())) == 7 == len(set().union(*patients.values()))
            assert patients["validation"] == {case.patient for case in site.in_fold((fold + 1) % 3).cases("testing")}
            assert of_fold.digest == site.digest
            assert of_fold.in_fold(None) is of_fold is of_fold.in_fold(fold)
            assert all(case.slices == (1, 2) for case in of_fold.cases("training"))
            assert all(case.slices is None for split in SPLITS[1:] for case in of_fold.cases(split))
        assert site.splits == site.in_fold(0).splits
        assert site.info["counts"]["training"]["cases"] == len(site.cases("training"))


@pytest.mark.parametrize("fold", [-1, 3])
def test_a_fold_that_is_not_there(folded, two_hospitals, fold):
    with pytest.raises(BadInput, match=f"site HK: has no fold {fold}; its folds are 0 to 2"):
        open_sites(folded, fold=fold)
    with pytest.raises(BadInput, match=r"site HK: has no fold 1; its folds are none: `fedmerit prepare --folds 5`"):
        open_sites(two_hospitals, fold=1)


def swap(lists):
    lists["testing"][0], lists["training"][0] = lists["training"][0], lists["testing"][0]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (swap, "split training is not that of fold 0; prepare the site again"),
        (lambda lists: lists["training"][0].update(patient=lists["testing"][0]["patient"]), "is in the folds 0, 2"),
        (lambda lists: [entry.update(fold=2) for entry in lists["validation"]], "no patient in fold 1; prepare with"),
        (lambda lists: lists["testing"][0].pop("fold"), "is in fold None, expected 0 to 2, as site.json has 3 folds"),
        (lambda lists: lists["testing"][0].update(fold=3), "is in fold 3, expected 0 to 2"),
    ],
)
def test_spoiled_folds_are_found(folded, tmp_path, spoil, message):
    shutil.copytree(folded, tmp_path / "sites")
    edit(tmp_path / "sites" / "HK" / "datalist.json", spoil)
    assert any(message in str(finding) for finding in check(tmp_path / "sites"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"folds": 2}, "folds=2: expected a whole number from 3 to 20"),
        ({"folds": 5, "ratios": (0.6, 0.2, 0.2)}, "leave ratios or folds out"),
        ({"folds": 5, "server_share": 0.1}, "server share 0.1: with folds every patient is tested"),
    ],
)
def test_what_does_not_go_with_folds(options, message):
    with pytest.raises(BadInput, match=message):
        Preparation("synthetic-prostate", **options)


def test_too_few_patients_for_the_folds(folded, tmp_path):
    with pytest.raises(BadInput, match=r"site HK: 7 patient\(s\), but 8 folds need one each"):
        prepare("prostate-multisite", tmp_path / "sites", source=folded.parent / "raw", folds=8, **SMALL)


def test_the_same_seed_repeats_and_another_moves_the_folds(folded, tmp_path):
    again = {"source": folded.parent / "raw", "folds": 3, "slices": "organ", **SMALL}
    prepare("prostate-multisite", tmp_path / "same", **again)
    assert snapshot(tmp_path / "same") == snapshot(folded)
    prepare("prostate-multisite", tmp_path / "other", seed=1, **again)
    lists = [(root / "HK" / "datalist.json").read_bytes() for root in (folded, tmp_path / "other")]
    assert lists[0] != lists[1]


def test_a_partition_has_the_split_of_fold_0(folded, tmp_path):
    partition(folded, tmp_path / "new", Scheme("uniform", 2))
    tested = {case.patient for site in open_sites(folded, fold=0) for case in site.cases("testing")}
    made = [SiteFolder(path) for path in sorted((tmp_path / "new").iterdir())]
    assert {case.patient for site in made for case in site.cases("testing")} == tested
    assert check(tmp_path / "new") == []
    assert [site.folds for site in made] == [0, 0]
    assert np.load(made[0].cases("training")[0].image_file).any()
